"""Weights & Biases: one run a cell and one of the sweep's summary, from a process of its own.

The sweep hands messages over and goes on: what W&B does, or fails to do, cannot stop it, and at the end
it waits a bounded time. A cell's run has an identity of its own, so a resumed sweep goes on in the same runs.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from benchmarks.executors.common import Event
from benchmarks.executors.local import no_interrupt
from benchmarks.grid import METHODS, Cell, Job
from benchmarks.statistics import summarise
from benchmarks.store import Store, write_text
from benchmarks.texts import redact
from benchmarks.watching import Point
from cst_lightning.errors import InputError

if TYPE_CHECKING:
    import wandb

_INIT_S = 20  # that W&B may take to answer before a run is given up
_CLOSE_S = 20  # that the end of a sweep waits for W&B's server, at least
_CLOSE_SHARE = 0.05  # and as a share of the sweep's own time
_WRITE_S = 300  # that it waits for files of this machine
_LOOK_S = 2  # how often it is looked whether the sweep lives
MODES = ("online", "offline", "disabled")


@dataclass(frozen=True)
class Tracking:
    """Where to log: see the options of the sweep. ``mode`` None is online where a key is found, else offline."""

    mode: str | None
    project: str
    entity: str | None
    tags: tuple[str, ...]
    folder: Path


class Tracker:
    """The sweep's side: it hands over what happens, never waits and never raises; ``close`` waits a bounded time."""

    def __init__(self, jobs: Sequence[Job], settings: Tracking) -> None:
        context = multiprocessing.get_context("spawn")
        self._settings, self._start = settings, time.monotonic()
        self._inbox, self._outbox, self._online = context.Queue(), context.Queue(), context.Value("b", False)
        arguments = (self._inbox, self._outbox, self._online, list(jobs), settings)
        self._process = context.Process(target=_track, args=arguments, daemon=True)
        with no_interrupt():
            self._process.start()

    def tell(self, event: Event) -> None:
        """Hand over what concerns W&B."""
        if event.kind in ("point", "recorded", "failed"):
            self._inbox.put((event.job, event.kind, event.text, event.point))

    def close(self, *, complete: bool) -> list[str]:
        """End the logging and say what a person must know; ``complete`` sends the summary of the sweep too."""
        self._inbox.put("complete" if complete else "stop")
        elapsed = time.monotonic() - self._start
        limit = max(_CLOSE_S, _CLOSE_SHARE * elapsed) if self._online.value else _WRITE_S
        said: list[str] = []
        with suppress(queue.Empty, KeyboardInterrupt):
            while not said and elapsed + limit > time.monotonic() - self._start and self._process.is_alive():
                with suppress(queue.Empty):
                    said = self._outbox.get(timeout=_LOOK_S)
            said = said or self._outbox.get(timeout=0.1)
        if not said:
            said = [
                f"W&B's part {f'did not end within {limit:.0f} s' if self._process.is_alive() else 'ended early'} "
                "and was left; nothing of the results is lost. "
                f"{_how_to_sync(self._settings.folder)}"
            ]
        self._process.join(timeout=2)
        self.leave()
        return [text for text in said if text]

    def leave(self) -> None:
        """Wait for nothing more."""
        self._inbox.cancel_join_thread()
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def sync(folder: Path) -> int:
    """Upload what was logged offline (or not to its end); the exit status of ``wandb sync``."""
    runs = unsynced(folder)
    if not runs:
        raise InputError(f"{folder} holds no W&B run that is not uploaded yet (wandb/*run-*)")
    if _found_mode() == "offline":
        raise InputError("sync needs a W&B key: run `wandb login`, or set WANDB_API_KEY")
    command = [sys.executable, "-m", "wandb", "sync", "--include-online", *map(str, runs)]
    return subprocess.run(command, check=False).returncode


def unsynced(folder: Path) -> list[Path]:
    """Folders of W&B runs that are on this machine alone."""
    runs = (folder / "wandb").glob("*run-*-*")
    return sorted(run for run in runs if run.is_dir() and any(run.glob("*.wandb")) and not any(run.glob("*.synced")))


def _how_to_sync(folder: Path) -> str:
    return f"Upload later with: python -m benchmarks.sweep sync {folder}"


# --- W&B's side: a process of its own -----------------------------------------------------------------


def _track(inbox: Any, outbox: Any, online: Any, jobs: list[Job], settings: Tracking) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's
    if hasattr(os, "nice"):
        os.nice(10)
    session = _Session(settings, _token(settings.folder))
    parent = multiprocessing.parent_process()
    while True:
        try:
            message = inbox.get(timeout=_LOOK_S)
        except queue.Empty:
            if parent is not None and parent.is_alive():
                continue
            message = "stop"  # the sweep was killed
        if isinstance(message, str):
            break
        session.attempt(session.take, *message)
        online.value = session.mode == "online"
    session.attempt(session.finish, jobs, message == "complete")
    outbox.put(session.said() or [""])


def _token(folder: Path) -> str:
    """Names this sweep's runs among all of a project's: made once a folder."""
    path = folder / "wandb" / "sweep-id"
    if not path.exists() or not re.fullmatch("[0-9a-f]{8}", path.read_text(encoding="utf-8", errors="replace")):
        write_text(path, secrets.token_hex(4))  # it names folders: no other content is taken
    return path.read_text(encoding="utf-8")


@dataclass
class _Session:
    """The runs that are open, and what went wrong."""

    settings: Tracking
    token: str
    mode: str = ""
    open: dict[str, wandb.Run] = field(default_factory=dict)  # by the cell's key
    ending: list[Thread] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gave_up: bool = False

    def attempt(self, do: Any, *arguments: Any) -> None:
        """Do it; what goes wrong is remembered. After a failed start nothing further is tried online."""
        try:
            do(*arguments)
        except Exception as error:  # whatever W&B raises: a sweep must not fail by it
            text = " ".join(str(error).split()) or type(error).__name__
            self.problems.append(text)
            if self.mode == "online" and not self.gave_up:
                self.gave_up, self.mode = True, "offline"
                self.attempt(do, *arguments)

    def take(self, job: Job, kind: str, text: str, point: Point | None) -> None:
        """A message of the sweep's."""
        cells = {cell.method: cell for cell in job.cells}
        if point is not None:
            for method in cells:
                values = _logged(method, point)
                if values:
                    self._run(cells[method]).log(values, step=_step(cells[method], point))
        elif kind == "recorded":
            self._record(cells[text])
        else:
            for cell in cells.values():
                self._end(cell.key, exit_code=1)

    def finish(self, jobs: Sequence[Job], complete: bool) -> None:
        """End what is open, and send the sweep's summary."""
        for key in list(self.open):
            self._end(key, exit_code=1)
        if complete:
            self._summary(jobs)
        for thread in self.ending:
            thread.join()

    def said(self) -> list[str]:
        """What a person must know at the end."""
        said = []
        folder = self.settings.folder
        if self.problems:
            said.append(
                f"W&B failed {len(self.problems)} times, first: {redact(self.problems[0])}; the sweep is whole."
            )
        if self.mode == "offline":
            why = " (no key was found)" if self.settings.mode is None and not self.gave_up else ""
            said.append(f"W&B: logged offline{why} to {folder / 'wandb'}. {_how_to_sync(folder)}")
        return said

    def _record(self, cell: Cell) -> None:
        """The cell is done: its summary, which is the record's to the last digit."""
        record = Store(self.settings.folder).read(cell)
        if record is None:
            return
        run = self._run(cell)
        for metric in record["metrics"]:
            values = [result["metrics"].get(metric) for result in record["results"]]
            summary = summarise(values, len(cell.seeds))
            if summary is not None:
                run.summary[f"{metric}/mean"] = summary.mean
                run.summary[f"{metric}/standard_error"] = summary.standard_error
                run.summary[f"{metric}/n"] = summary.n
            for result, value in zip(record["results"], values, strict=True):
                run.summary[f"{metric}/seed {result['seed']}"] = value
        run.summary["oracle"], run.summary["selection"] = record["oracle"], record["selection"]
        self._end(cell.key)

    def _end(self, key: str, exit_code: int = 0) -> None:
        """End a run without waiting: with a server that does not answer, it can take for ever."""
        if key in self.open:
            thread = Thread(target=self._finish_run, args=(self.open.pop(key), exit_code), daemon=True)
            thread.start()
            self.ending.append(thread)

    def _finish_run(self, run: wandb.Run, exit_code: int) -> None:
        folder, online = Path(run.dir).parent, self.mode == "online"
        try:
            run.finish(exit_code)
        except Exception as error:
            self.problems.append(" ".join(str(error).split()) or type(error).__name__)
            return
        if online:  # all of it is uploaded; wandb sync marks runs in the same way
            (folder / f"run-{run.id}.wandb.synced").touch()

    def _run(self, cell: Cell) -> wandb.Run:
        if cell.key not in self.open:
            config = cell.identity | {"protocol": cell.protocol.to_dict(), "identity": cell.identity}
            self.open[cell.key] = self._start(cell.label, cell.key, cell.protocol.name, config)
        return self.open[cell.key]

    def _start(self, name: str, key: str, job_type: str, config: dict[str, Any]) -> wandb.Run:
        import wandb

        settings = self.settings
        self.mode = self.mode or settings.mode or _found_mode()
        run_id = f"{self.token}-{key}"
        # an offline run that was cut off is run again whole: its remains would be uploaded as a second one
        for left in (settings.folder / "wandb").glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(left, ignore_errors=True)
        quiet = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, init_timeout=_INIT_S, save_code=False
        )
        return wandb.init(
            project=settings.project,
            entity=settings.entity,
            tags=list(settings.tags) or None,
            dir=str(settings.folder),
            id=run_id,
            name=name,
            group=f"{settings.folder.name}-{self.token}",
            job_type=job_type,
            config=config,
            mode="online" if self.mode == "online" else "offline",
            resume="allow",
            reinit="create_new",
            settings=quiet,
        )

    def _summary(self, jobs: Sequence[Job]) -> None:
        """One run of the whole sweep: tables, figures, the report, and the records as an artifact."""
        import wandb

        from benchmarks.report import write_report
        from benchmarks.tables import TITLES, make_entries

        folder = self.settings.folder
        found = write_report(Store(folder)).found
        cells = {"cells": [cell.key for job in jobs for cell in job.cells]}
        run = self.open["summary"] = self._start("summary", "summary", jobs[0].protocol.name, cells)
        header = ("dataset", "backbone", "method", "n", "ours", "standard_error", "paper", "difference", "floor")
        try:
            for metric in TITLES:
                columns: list[str | int] = list(header)
                rows = []
                for entry in make_entries(found, metric):
                    place, ours, paper = entry.place, entry.ours, entry.paper[0] if entry.paper else None
                    if ours is not None:
                        difference = None if paper is None else ours.mean - paper
                        floor = entry.floor.mean if entry.floor else None
                        names = [place.dataset, place.backbone, place.method]
                        rows.append([*names, ours.n, ours.mean, ours.standard_error, paper, difference, floor])
                run.log({f"tables/{metric}": wandb.Table(columns=columns, data=rows)})
            for path in sorted((folder / "figures").glob("*.svg")):
                run.log({f"figures/{path.stem}": wandb.Html(path.read_text(encoding="utf-8"), inject=False)})
            run.log({"report": wandb.Html((folder / "report.html").read_text(encoding="utf-8"), inject=False)})
            artifact = wandb.Artifact(f"records-{self.token}", type="records")
            artifact.add_dir(str(folder / "cells"), name="cells")
            artifact.add_file(str(folder / "records.parquet"))
            run.log_artifact(artifact)
        finally:
            self._end("summary")


def _found_mode() -> str:
    """Online where W&B finds a key."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    return "online" if wandb.api.api_key else "offline"


def _logged(method: str, point: Point) -> dict[str, Any]:
    """What a point of a training adds to the run of ``method``: by seed, mean and standard error over the seeds.

    With CVAT every weight has a mean of its own: which one is chosen is known at the end.
    """
    if method not in point.methods:
        return {}
    cvat, series = METHODS[method].cvat, {"training_loss": point.training_loss, "validation_nll": point.validation_nll}
    out: dict[str, Any] = {"epoch": point.epoch, "stage": point.stage}
    for name, values in series.items():
        for variant, weight in enumerate(point.grid) if values is not None else ():
            if method != "backbone" and (weight > 0) != cvat:
                continue
            of_seeds = [seed[variant] for seed in values or []]
            summary = summarise(of_seeds, len(of_seeds))
            several = cvat or (method == "backbone" and len(point.grid) > 1)
            prefix = f"{name}/weight {weight}" if several else name
            if summary is not None:
                out[f"{prefix}/mean"], out[f"{prefix}/standard_error"] = summary.mean, summary.standard_error
            out |= {f"{prefix}/seed {seed}": value for seed, value in zip(point.seeds, of_seeds, strict=True)}
    return out


def _step(cell: Cell, point: Point) -> int:
    """Epochs from the start of the cell's first own training."""
    if point.stage == "backbone":
        return point.epoch
    number = int(point.stage.removeprefix("round "))
    return sum(cell.protocol.cst_epochs(i) for i in range(number - 1)) + point.epoch
