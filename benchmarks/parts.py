"""A sweep whose jobs are cut by seeds (``--seeds-per-job``), so that a large cluster fills up.

The parts' records stand in ``parts/`` of the sweep's folder until every cell of their job is recorded; the same cut
goes on from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.cutting import NoPartsError, Part, cut, join
from benchmarks.executors.common import Event
from benchmarks.files import PARTS
from benchmarks.grid import Cell, Job, digest
from benchmarks.job import cells_to_run
from benchmarks.plan import seeds_said
from benchmarks.records import failed_record
from benchmarks.store import Record, Store


class Parts:
    """The parts of a sweep's jobs, and what becomes of their records.

    Args:
        jobs: those with a cell to run. store: where the cells' records belong. device: that jobs train on.
        on_existing: what to do with records that are there; ``force`` runs every part again.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, seeds_per_job: int, on_existing: str, device: str) -> None:
        self.store, self._whole, self._device = Store(store.folder / PARTS), store, device
        self.set_aside: list[Path] = []  # where parts are now that were recorded, and do not join
        self._of = {id(job): cut(job, seeds_per_job) for job in jobs}
        self._wanted = {id(job): {cell.method: cell for cell in cells_to_run(job, store, on_existing)} for job in jobs}
        if on_existing == "force":
            _clear(jobs, self.store)
        for job in jobs:
            for method, cell in self._wanted[id(job)].items():
                self._set_aside_misfits(job, method, cell)
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
        try:
            joined = join(cell, records)
        except NoPartsError:
            return []
        self._whole.write(cell, joined)
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
            elif all(record is not None for _, record in found):
                first, reasons = "its parts' records do not join: they were set aside, and will be run again", []
                self._set_aside([part for part, _ in found])
            else:
                continue
            self._whole.write(cell, failed_record(cell, first, self._device, reasons))
            events.append(Event(replace(whole, methods=(method,)), "failed", first))
        clear_joined([whole], self._whole)
        return events

    def _set_aside_misfits(self, whole: Job, method: str, cell: Cell) -> None:
        """Move away what is recorded of a cell and would not join, so that it is run again."""
        found = [(part, self.store.read(part)) for part in self._cells(whole, method)]
        there = [(part, record) for part, record in found if record is not None and record["status"] == "finished"]
        alone = [part for part, record in there if not _joins(part, [record])]
        self._set_aside(alone)
        left = [(part, record) for part, record in there if part not in alone]
        seeds = tuple(chain.from_iterable(part.seeds for part, _ in left))
        if left and not _joins(replace(cell, seeds=seeds), [record for _, record in left]):
            self._set_aside([part for part, _ in left])  # which of them is from elsewhere, none says

    def _set_aside(self, parts: Sequence[Cell]) -> None:
        self.set_aside += [moved for part in parts if (moved := self.store.move_away(self.store.path(part)))]

    def _cells(self, whole: Job, method: str) -> list[Cell]:
        return [cell for part in self._of[id(whole)] for cell in part.cells if cell.method == method]


def _joins(cell: Cell, records: Sequence[Record]) -> bool:
    try:
        join(cell, records)
    except NoPartsError:
        return False
    return True


def clear_joined(wholes: Sequence[Job], store: Store) -> None:
    """Remove the parts in ``store`` of those jobs all of whose cells have finished."""
    records = {id(whole): [store.read(cell) for cell in whole.cells] for whole in wholes}
    done = [whole for whole in wholes if all(one and one["status"] == "finished" for one in records[id(whole)])]
    _clear(done, Store(store.folder / PARTS))


def _clear(wholes: Sequence[Job], parts: Store) -> None:
    """Remove the records of all parts of these jobs, also those of another cut."""
    seeds = {digest(_without_seeds(cell.identity)): set(whole.seeds) for whole in wholes for cell in whole.cells}
    for path, record in parts.found().values() if seeds else ():
        if set(record["identity"]["seeds"]) <= seeds.get(digest(_without_seeds(record["identity"])), set()):
            path.unlink(missing_ok=True)


def _without_seeds(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name != "seeds"}
