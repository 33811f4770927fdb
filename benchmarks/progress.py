"""What a sweep is doing: bars on a terminal, a few plain lines elsewhere, and a file for another terminal."""

from __future__ import annotations

import heapq
import json
import os
import platform
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks.executors.common import Event
from benchmarks.files import write_text
from benchmarks.grid import Job
from benchmarks.plan import COMPILE_S
from benchmarks.texts import last_line, said
from benchmarks.watching import COMPILING
from cst_lightning.texts import counted, printable

_PLANNED = 0.02  # share of a sweep that says too little of the rest: until then the plan does
_TELL_S = 2.0
_LINE_S = 60.0  # after which, where there are no bars, a line says how things stand


class Display:
    """Shows what each running job does and how much of the sweep is done.

    Args:
        jobs: the jobs to run. weights: about how many seconds each takes, by the plan.
        recorded: the same of the jobs of which nothing is left to run.
        folder: where ``progress.json`` is kept, which ``status`` reads. device: that jobs train on.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        weights: Sequence[float],
        console: Console,
        folder: Path,
        device: str,
        recorded: Sequence[float] = (),
    ) -> None:
        self._path, self._told, self._device = folder / "progress.json", 0.0, device
        self._running: dict[int, dict[str, Any]] = {}
        self._since: dict[int, float] = {}  # when a job was started
        self._most_running = 0  # at once
        self._heard: dict[int, float] = {}  # when a job last said how far it is
        self._setup: dict[int, float] = {}  # what compiling took a job
        self._taken = 0.0  # by the jobs that have ended, without compiling
        self.stopped = False  # by Ctrl-C
        self._weights = {id(job): weight for job, weight in zip(jobs, weights, strict=True)}
        self._shares = dict.fromkeys(self._weights, 0.0)
        self._done, self.failed, self._n, self._recorded = 0, 0, len(jobs), list(recorded)
        self._console, self._start = console, time.monotonic()
        self._said = self._start  # when the last line was printed
        bars = console.is_terminal and not console.is_dumb_terminal  # such a terminal shows none
        self._live = bars and "NO_COLOR" not in os.environ
        self._bars: dict[int, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            transient=True,
        )
        self._whole = self._progress.add_task("sweep", total=1.0, note="")

    def __enter__(self) -> Self:
        self._tell()
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(ended=True)
        if self._live:
            self._progress.stop()

    def show(self, event: Event) -> None:
        """Take in what happened."""
        key = id(event.job)
        if event.kind == "started":
            self._bars[key] = self._progress.add_task(event.job.label, total=1.0, note="")
            self._running[key] = {"job": event.job.label, "doing": "", "share": 0.0, "mib": 0.0}
            self._since[key] = self._heard[key] = time.monotonic()
            self._most_running = max(self._most_running, len(self._running))
        elif event.kind == "progress":
            self._shares[key], self._setup[key], self._heard[key] = event.share, event.setup, time.monotonic()
            self._running[key] |= {"doing": event.text, "share": event.share, "mib": event.mib}
            note = printable(f"{event.text}, {event.mib:.0f} MiB" if event.mib else event.text)
            self._progress.update(self._bars[key], completed=event.share, note=note)
        elif event.kind == "retried":
            self._shares[key], self._setup[key] = 0.0, 0.0
            self._progress.remove_task(self._bars.pop(key))
            del self._running[key]
            self._say(f"{event.job.label} is tried again: {last_line(event.text)}")
        elif event.kind in ("finished", "failed"):
            self._shares[key] = 1.0
            self._taken += max(0.0, time.monotonic() - self._since[key] - self._setup.get(key, 0.0))
            self._done += event.kind == "finished"
            self.failed += event.kind == "failed"
            self._progress.remove_task(self._bars.pop(key))
            del self._running[key]
            elapsed = said(time.monotonic() - self._start)
            count = f"{self._done + self.failed}/{self._n}"
            self._say(_joined(f"{count} {event.job.label} {event.kind} after {elapsed}", self._left()))
        ended = f"{self._done + self.failed} of {counted(self._n, 'job')} ended, {len(self._running)} running"
        self._progress.update(self._whole, completed=self._share(), note=_joined(ended, self._left()))
        if not self._live and time.monotonic() - self._said > _LINE_S:
            self._say(_joined(f"{100 * self._share():.0f} %", ended, self._left()))
        if time.monotonic() - self._told > _TELL_S:
            self._tell()

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _tell(self, ended: bool = False) -> None:
        """Write down how things stand; a disk that is full must not stop the sweep by it."""
        self._told = time.monotonic()
        before, ran = sum(self._recorded), sum(self._weights.values())
        state = {
            "pid": os.getpid(),
            "host": platform.node(),
            "device": self._device,
            "updated": time.time(),
            "ended": ended,
            "stopped": self.stopped,
            "jobs": self._n + len(self._recorded),
            "finished": self._done + len(self._recorded),
            "failed": self.failed,
            "share": (before + self._share() * ran) / ((before + ran) or 1.0),
            "left": self._left(),
            "running": list(self._running.values()),
        }
        with suppress(OSError):
            write_text(self._path, json.dumps(state))

    def _share(self) -> float:
        total = sum(self._weights.values()) or 1.0
        return sum(self._shares[key] * weight for key, weight in self._weights.items()) / total

    @property
    def seconds_left(self) -> float | None:
        """Of the whole sweep, as things go, and at its beginning as planned; None before the first job is started."""
        if not self._since:
            return None
        now, share = time.monotonic(), self._share()
        # until each was last heard of: what it has done since, its share does not tell either; and without what
        # compiling took once, which the rest will not take
        took = {key: max(0.0, self._heard[key] - self._since[key] - self._setup.get(key, 0.0)) for key in self._running}
        taken = self._taken + sum(took.values())
        rate = 1.0 if share < _PLANNED else taken / (share * sum(self._weights.values()))
        ends = []
        for key, state in self._running.items():
            weight, done = self._weights[key], self._shares[key]
            speed = (took[key] + rate * weight) / (done + 1)  # the further it is, the more its own counts
            end, silent = speed * (1 - done), now - self._heard[key]
            if state["doing"] == COMPILING:
                ends.append(end + max(COMPILE_S - silent, 0.0))
            else:
                ends.append(max(end - silent, 0.1 * end))  # a fit of one step says nothing for long
        ends += [0.0] * (self._most_running - len(ends))
        heapq.heapify(ends)
        for key, weight in self._weights.items():  # each of the others by the worker that is free first
            if key not in self._since or (self._shares[key] < 1 and key not in self._running):
                heapq.heapreplace(ends, ends[0] + rate * weight)
        return max(ends)

    def _left(self) -> str:
        left = self.seconds_left
        failed = f"{self.failed} failed" if self.failed else ""
        return _joined(failed, "" if left is None else f"about {said(left)} left")


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
