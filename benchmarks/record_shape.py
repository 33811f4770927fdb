"""What a record of a cell looks like: what everything that reads one counts on, so that no other file passes for one.

Records of older versions have all of it too; what else stands in a record is not looked at.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

#: the farthest from zero that a number may lie: of squares and sums of farther ones nothing finite can be told
LARGEST = 1e150

Value = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]  # which neither infinity nor NaN is
Number = Value | None  # None where it is not finite
Finite = Annotated[float, AfterValidator(lambda value: _asked(value, math.isfinite(value)))]
Count = Annotated[int, Field(ge=0, lt=2**63)]  # as ``records.parquet`` holds it
Epoch = Annotated[int, Field(ge=1, lt=2**63)]
Occurrences = Annotated[float, Field(ge=0, le=2**53)]
Text = Annotated[str, AfterValidator(lambda text: text.encode().decode())]  # JSON can hold a half of a character
Weight = Annotated[str, AfterValidator(lambda text: _asked(text, math.isfinite(float(text))))]
_STRICT = ConfigDict(strict=True)
_OF_TRUTH = {"label_error", "bayes_error", "teacher_error", "student_error"}


def _asked(value: Any, holds: bool) -> Any:
    """``value``, of which something is asked that does or does not hold."""
    if not holds:
        raise ValueError
    return value


class _Identity(TypedDict):
    dataset: Text
    backbone: Text
    method: Text
    seeds: Annotated[list[Count], Field(min_length=1), AfterValidator(lambda seeds: _asked(seeds, _differ(seeds)))]


class _Protocol(TypedDict):
    name: Text
    selection: Text
    cvat_eps: Finite
    price_term: Text


class _Provenance(TypedDict):
    finished: Text
    git_commit: Text | None
    python: NotRequired[Text]
    versions: NotRequired[dict[Text, Text]]
    device: NotRequired[Text]
    machine: NotRequired[Text]
    # of a cell that failed unknown
    seconds: NotRequired[Value]
    cpu_seconds: NotRequired[Value]
    peak_mib: NotRequired[Value]
    failures_before: NotRequired[list[Text]]


class _Round(TypedDict):
    stopped_epoch: Count
    objective_start: Number
    objective_end: Number
    objective_imputed: Number
    changed: Number
    inconsistency: NotRequired[Number]
    # of each action and class; with the two after them there or not, as potential outcomes are known or not
    label_error: NotRequired[list[list[Number]]]
    bayes_error: NotRequired[list[list[Number]]]
    teacher_error: NotRequired[Number]
    student_error: NotRequired[Number]


class _Bins(TypedDict, total=False):
    """All of it, or nothing: of a replicate that failed."""

    count: list[Occurrences]
    predicted: list[Value]
    observed: list[Value]


class _Tried(TypedDict):
    nll: Number
    hamming: Number


class _Result(TypedDict):
    seed: Count
    status: Text
    epochs: Count
    failed_in: Text | None
    cvat_weight: Finite | None
    backbone_weight: Finite | None
    metrics: dict[Text, Number]
    floor: dict[Text, Number]
    constant: dict[Text, Number]
    by_weight: dict[Weight, _Tried]
    reliability: _Bins
    rounds: list[Annotated[_Round, AfterValidator(lambda done: _asked(done, _is_whole_round(done)))]]


class _Curve(TypedDict):
    epoch: list[Epoch]
    training_loss: list[list[Number]]  # by seed, with a value an epoch
    validation_nll: list[list[Number]] | None


class _Data(TypedDict):
    effective_sample_size: NotRequired[list[Value] | None]  # where the policy that logged is known


class _Record(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]
    identity: _Identity
    protocol: _Protocol
    overrides: dict[Text, Any]
    provenance: _Provenance


class _Finished(_Record):
    status: Literal["finished"]
    selection: Text | None
    oracle: bool
    metrics: list[Text]
    results: list[_Result]
    curves: list[_Curve]
    data: _Data


class _Failed(_Record):
    status: Literal["failed"]
    error: Text
    metrics: NotRequired[list[Text]]
    oracle: NotRequired[bool]


_RECORD: TypeAdapter[_Finished | _Failed] = TypeAdapter(
    Annotated[_Finished, AfterValidator(lambda record: _asked(record, _agrees(record)))] | _Failed
)


def is_record(content: Any) -> bool:
    """Whether the content of a file is a record of a cell, finished or failed."""
    try:
        _RECORD.validate_python(content, strict=True)
    except ValidationError:
        return False
    return True


def _agrees(record: _Finished) -> bool:
    """Whether the parts of a record agree on what it is of: its seeds, metrics, bins, rounds and epochs."""
    results, n_seeds = record["results"], len(record["identity"]["seeds"])
    return (
        [result["seed"] for result in results] == record["identity"]["seeds"]
        and _differ(record["metrics"])
        and all(not result["metrics"] or set(result["metrics"]) == set(record["metrics"]) for result in results)
        and _have_one_size([bins for result in results if (bins := result["reliability"])], set(_Bins.__annotations__))
        and len({len(result["rounds"]) for result in results}) == 1
        and len({_size(done["bayes_error"]) for r in results for done in r["rounds"] if "bayes_error" in done}) <= 1
        and all(_is_whole_curve(curve, n_seeds) for curve in record["curves"])
    )


def _differ(values: list[Any]) -> bool:
    return len(set(values)) == len(values)


def _have_one_size(bins: list[_Bins], names: set[str]) -> bool:
    lengths = {len(values) for one in bins for values in one.values() if isinstance(values, list)}
    return all(set(one) == names for one in bins) and len(lengths) <= 1


def _is_whole_round(done: _Round) -> bool:
    known = done.keys() & _OF_TRUTH
    if not known:
        return True
    sizes = {_size(done["label_error"]), _size(done["bayes_error"])} if known == _OF_TRUTH else {None}
    return len(sizes) == 1 and None not in sizes


def _size(errors: list[list[Number]]) -> tuple[int, int] | None:
    """Of a table with a value at least; None for anything else."""
    widths = {len(row) for row in errors}
    return (len(errors), *widths) if len(widths) == 1 and 0 not in widths else None  # type: ignore[return-value]


def _is_whole_curve(curve: _Curve, n_seeds: int) -> bool:
    every = [curve["training_loss"], *([curve["validation_nll"]] if curve["validation_nll"] is not None else [])]
    return all(len(series) == n_seeds and {len(seed) for seed in series} == {len(curve["epoch"])} for series in every)
