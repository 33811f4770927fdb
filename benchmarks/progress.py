"""The live display of a sweep: bars on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.executors.local import Event
from benchmarks.grid import Job
from benchmarks.plan import said


class Display:
    """Shows what each running job does and how much of the sweep is done.

    Args:
        jobs: the jobs to run. weights: about how long each takes, in any unit.
    """

    def __init__(self, jobs: Sequence[Job], weights: Sequence[float], console: Console) -> None:
        self._weights = {id(job): weight for job, weight in zip(jobs, weights, strict=True)}
        self._shares = dict.fromkeys(self._weights, 0.0)
        self._done, self.failed, self._n = 0, 0, len(jobs)
        self._console, self._start = console, time.monotonic()
        self._live = console.is_terminal and "NO_COLOR" not in os.environ
        self._bars: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._whole = self._progress.add_task("sweep", total=1.0, note="")

    def __enter__(self) -> Self:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._progress.stop()

    def show(self, event: Event) -> None:
        """Take in what happened."""
        key = id(event.job)
        if event.kind == "started":
            self._bars[key] = self._progress.add_task(event.job.label, total=1.0, note="")
        elif event.kind == "progress":
            self._shares[key] = event.share
            self._progress.update(self._bars[key], completed=event.share, note=event.text)
        elif event.kind in ("finished", "failed"):
            self._shares[key] = 1.0
            self._done += event.kind == "finished"
            self.failed += event.kind == "failed"
            self._progress.remove_task(self._bars.pop(key))
            elapsed = said(time.monotonic() - self._start)
            count = f"{self._done + self.failed}/{self._n}"
            self._console.print(
                f"{count} {event.job.label} {event.kind} after {elapsed}, {self._left()}", markup=False, soft_wrap=True
            )
        self._progress.update(self._whole, completed=self._share(), note=self._left())

    def _share(self) -> float:
        total = sum(self._weights.values()) or 1.0
        return sum(self._shares[key] * weight for key, weight in self._weights.items()) / total

    def _left(self) -> str:
        share = self._share()
        if share < 0.02:
            return ""
        left = (time.monotonic() - self._start) * (1 - share) / share
        return f"{self.failed} failed, about {said(left)} left" if self.failed else f"about {said(left)} left"
