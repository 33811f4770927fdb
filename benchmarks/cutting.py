"""A job cut by seeds: each part is a job of its own, and the parts' records are joined into one a cell.

Replicates train independently, so a part's numbers are those of an uncut job, to rounding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from typing_extensions import override

from benchmarks.grid import Cell, Job
from benchmarks.plan import seeds_said
from benchmarks.record_shape import is_record
from benchmarks.store import Record, sealed


@dataclass(frozen=True)
class Part(Job):
    """Some seeds of ``whole``."""

    whole: Job

    @property
    @override
    def label(self) -> str:
        return f"{self.whole.label}, seeds {seeds_said(self.seeds)}"


def cut(job: Job, seeds_per_job: int) -> list[Part]:
    """``job`` in parts of so many seeds, the last of what is left."""
    starts = range(0, len(job.seeds), seeds_per_job)
    pieces = [job.seeds[start : start + seeds_per_job] for start in starts]
    return [Part(job.dataset, job.backbone, job.methods, seeds, job.protocol, job) for seeds in pieces]


class NoPartsError(Exception):
    """Records of parts that do not join to one of their cell."""


def join(cell: Cell, records: Sequence[Record]) -> Record:
    """The record of ``cell`` from those of its parts, in the order of its seeds.

    Raises:
        NoPartsError: they are of no job that was cut here: from elsewhere, or of another version.
    """
    try:
        joined = _join(cell, records)
        json.dumps(joined, indent=1)
        sound = is_record(sealed(joined))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):  # whatever they hold
        sound = False
    if not sound:
        raise NoPartsError
    return joined


def _join(cell: Cell, records: Sequence[Record]) -> Record:
    first = records[0]
    overlaps = [record["overlap"] for record in records]
    data = {name: [record["data"][name] for record in records] for name in first["data"]}
    return first | {
        "identity": cell.identity,
        "results": _chained([record["results"] for record in records]),
        "overlap": {name: _chained([overlap[name] for overlap in overlaps]) for name in overlaps[0] or ()} or None,
        "curves": [_join_curves(stage) for stage in zip(*(record["curves"] for record in records), strict=True)],
        # of a value for each seed, all; a size is the same for all
        "data": {name: _chained(values) if isinstance(values[0], list) else values[0] for name, values in data.items()},
        "provenance": _join_provenance(records),
    }


def _chained(lists: Sequence[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _join_curves(curves: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One curve; None where a part had ended, all its replicates having stopped.

    Parts keep every first, second, fourth, ... epoch, so the longest part's epochs are among each other's.
    """
    epochs: list[int] = max((curve["epoch"] for curve in curves), key=lambda kept: kept[-1] if kept else 0)

    def series(name: str) -> list[list[float | None]] | None:
        if all(curve[name] is None for curve in curves):
            return None
        out = []
        for curve in curves:
            for seed in curve[name] or [[]] * len(curve["training_loss"]):
                at = dict(zip(curve["epoch"], seed, strict=False))
                out.append([at.get(epoch) for epoch in epochs])
        return out

    return {"epoch": epochs, "training_loss": series("training_loss"), "validation_nll": series("validation_nll")}


def _join_provenance(records: Sequence[Record]) -> dict[str, Any]:
    """That of the part which finished last, with time and failures of all; each part's own stands in ``parts``."""
    made = [record["provenance"] for record in records]
    last: dict[str, Any] = max(made, key=lambda one: one["finished"])
    return last | {
        "seconds": sum(one["seconds"] for one in made),
        "cpu_seconds": sum(one["cpu_seconds"] for one in made),
        "compiling_seconds": sum(one.get("compiling_seconds", 0.0) for one in made),
        "peak_mib": max(one["peak_mib"] for one in made),
        "failures_before": list(dict.fromkeys(chain.from_iterable(one.get("failures_before", []) for one in made))),
        "parts": [{"seeds": record["identity"]["seeds"], **record["provenance"]} for record in records],
    }
