"""What a record of a cell looks like: what everything that reads one counts on, so that no other file passes for one.

Records of older versions have all of it too; what else stands in a record is not looked at.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Number = float | None  # None where it is not finite
_STRICT = ConfigDict(strict=True)


class _Identity(TypedDict):
    dataset: str
    backbone: str
    method: str
    seeds: list[int]


class _Protocol(TypedDict):
    name: str
    selection: str


class _Provenance(TypedDict):
    finished: str
    git_commit: str | None


class _Round(TypedDict):
    stopped_epoch: int
    objective_start: NotRequired[Number]
    objective_end: NotRequired[Number]
    objective_imputed: NotRequired[Number]
    changed: NotRequired[Number]
    # where potential outcomes are known
    label_error: NotRequired[list[Any]]
    bayes_error: NotRequired[list[Any]]
    teacher_error: NotRequired[Number]
    student_error: NotRequired[Number]


class _Bins(TypedDict):
    """Nothing of a replicate that failed."""

    count: NotRequired[list[Number]]
    predicted: NotRequired[list[Number]]
    observed: NotRequired[list[Number]]


class _Result(TypedDict):
    seed: int
    status: str
    epochs: int
    failed_in: str | None
    cvat_weight: Number
    backbone_weight: Number
    metrics: dict[str, Number]
    floor: dict[str, Number]
    constant: dict[str, Number]
    by_weight: dict[str, dict[str, Number]]
    reliability: _Bins
    rounds: list[_Round]


class _Curve(TypedDict):
    epoch: list[int]
    training_loss: list[list[Number]]
    validation_nll: list[list[Number]] | None


class _Data(TypedDict):
    effective_sample_size: NotRequired[list[Number] | None]  # where the policy that logged is known


class _Record(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    identity: _Identity
    protocol: _Protocol
    overrides: dict[str, Any]
    provenance: _Provenance


class _Finished(_Record):
    status: Literal["finished"]
    selection: str | None
    oracle: bool
    metrics: list[str]
    results: list[_Result]
    curves: list[_Curve]
    data: _Data


class _Failed(_Record):
    status: Literal["failed"]
    error: str


_RECORD: TypeAdapter[_Finished | _Failed] = TypeAdapter(_Finished | _Failed)


def is_record(content: Any) -> bool:
    """Whether the content of a file is a record of a cell, finished or failed."""
    try:
        _RECORD.validate_python(content, strict=True)
    except ValidationError:
        return False
    return True
