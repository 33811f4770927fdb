"""Jobs cut by seeds: each part is a job of its own, and the parts' records are joined into one a cell.

Replicates train independently, so a part's numbers are those of an uncut job, to rounding. The parts' records stand
in ``parts/`` of the sweep's folder until every cell of their job is recorded; the same cut goes on from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from typing_extensions import override

from benchmarks.executors.common import Event
from benchmarks.grid import Cell, Job
from benchmarks.job import cells_to_run
from benchmarks.plan import seeds_said
from benchmarks.records import failed_record
from benchmarks.store import Record, Store


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


class Parts:
    """The parts of a sweep's jobs, and what becomes of their records.

    Args:
        jobs: those with a cell to run. store: where the cells' records belong. device: of the sweep's options.
        on_existing: what to do with records that are there; ``force`` runs every part again.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, seeds_per_job: int, on_existing: str, device: str) -> None:
        self.store, self._whole, self._device = Store(store.folder / "parts"), store, device
        self._of = {id(job): cut(job, seeds_per_job) for job in jobs}
        self._wanted = {id(job): {cell.method: cell for cell in cells_to_run(job, store, on_existing)} for job in jobs}
        if on_existing == "force":
            for job in jobs:
                self._clear(job)
        todo = {key: [p for p in parts if cells_to_run(p, self.store, on_existing)] for key, parts in self._of.items()}
        self._running = {key: len(parts) for key, parts in todo.items()}
        self._jobs = jobs
        self.todo = list(chain.from_iterable(todo.values()))

    def begin(self) -> list[Event]:
        """Join what a sweep before this one recorded in all its parts and did not come to join."""
        return [event for job in self._jobs if not self._running[id(job)] for event in self._end(job)]

    def take(self, event: Event) -> list[Event]:
        """What an event of a part means for its whole job: a cell of it is recorded, or it failed."""
        assert isinstance(event.job, Part)
        whole = event.job.whole
        if event.kind == "recorded":
            return self._join(whole, event.text)
        if event.kind not in ("finished", "failed"):
            return []
        self._running[id(whole)] -= 1
        return [] if self._running[id(whole)] else self._end(whole)

    def _join(self, whole: Job, method: str) -> list[Event]:
        """Write the record of a cell if all its parts have finished."""
        cell = self._wanted[id(whole)].get(method)
        cells = self._cells(whole, method)
        if cell is None or not all(self.store.path(part).exists() for part in cells):
            return []
        records = [record for part in cells if (record := self.store.read(part)) is not None]
        if len(records) < len(cells) or any(record["status"] != "finished" for record in records):
            return []
        self._whole.write(cell, join(cell, records))
        del self._wanted[id(whole)][method]
        return [Event(whole, "recorded", method)]

    def _end(self, whole: Job) -> list[Event]:
        """All parts of ``whole`` have ended: its cells are joined or have failed."""
        events = [event for method in list(self._wanted[id(whole)]) for event in self._join(whole, method)]
        for method, cell in self._wanted[id(whole)].items():
            found = [(part, self.store.read(part)) for part in self._cells(whole, method)]
            failed = [(part, record) for part, record in found if record is not None and record["status"] == "failed"]
            if failed:
                seeds, error = seeds_said(failed[0][0].seeds), failed[0][1]["error"]
                first = f"{len(failed)} of {len(found)} parts failed; that of seeds {seeds}:\n{error}"
                reasons = failed[0][1]["provenance"].get("failures_before", [])
                self._whole.write(cell, failed_record(cell, first, self._device, reasons))
                events.append(Event(whole, "failed", first))
        records = [self._whole.read(cell) for cell in whole.cells]
        if all(record is not None and record["status"] == "finished" for record in records):
            self._clear(whole)
        return events

    def _cells(self, whole: Job, method: str) -> list[Cell]:
        return [cell for part in self._of[id(whole)] for cell in part.cells if cell.method == method]

    def _clear(self, whole: Job) -> None:
        for method in whole.methods:
            for cell in self._cells(whole, method):
                self.store.path(cell).unlink(missing_ok=True)


def join(cell: Cell, records: Sequence[Record]) -> Record:
    """The record of ``cell`` from those of its parts, in the order of its seeds."""
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
    """That of the part which finished last, with the time of all; each part's own stands in ``parts``."""
    made = [record["provenance"] for record in records]
    last: dict[str, Any] = max(made, key=lambda one: one["finished"])
    return last | {
        "seconds": sum(one["seconds"] for one in made),
        "cpu_seconds": sum(one["cpu_seconds"] for one in made),
        "peak_mib": max(one["peak_mib"] for one in made),
        "parts": [{"seeds": record["identity"]["seeds"], **record["provenance"]} for record in records],
    }
