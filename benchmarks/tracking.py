"""Weights & Biases: one run a cell and one of the sweep's summary, from a process of its own.

The sweep hands messages over and goes on: what W&B does, or fails to do, cannot stop it, and at the end
it waits a bounded time. A cell's run has an identity of its own, so a resumed sweep goes on in the same runs.
Where a run cannot be started online, it and all later ones are logged offline at the end, by a second such process.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import queue
import re
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import pandas as pd

from benchmarks.executors.common import Event
from benchmarks.executors.local import no_interrupt, worker_context
from benchmarks.grid import Cell, Job
from benchmarks.statistics import summarise
from benchmarks.store import Store, write_text
from benchmarks.texts import last_line, redact
from benchmarks.wandb_runs import ENDED, SWEEP_ID, how_to_sync, lock_of, locked, unended, unsynced
from benchmarks.watching import Point, logged, logged_afterwards, step_of

if TYPE_CHECKING:
    import wandb

_ADDRESS = "address.txt"  # in a run's folder: entity/project/id, or project/id of the key's own entity
_INIT_S = 20  # that W&B may take to answer before a run is given up; WANDB_INIT_TIMEOUT replaces it
_CLOSE_S = 20  # that the end of a sweep waits for W&B's server, at least, where it is well
_CLOSE_SHARE = 0.05  # and as a share of the sweep's own time
_WRITE_S = 120  # that it waits for what is done on this machine: the report, and files
_LOOK_S = 2  # how often it is looked whether the sweep lives
_ORPHAN_S = 30  # that W&B's part lives at most when the sweep was killed
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
        self._settings, self._start = settings, time.monotonic()
        # a service that this process has is not the new one's
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        with worker_context() as context, no_interrupt():
            self._inbox, self._outbox, self._online = context.Queue(), context.Queue(), context.Value("b", False)
            arguments = (self._inbox, self._outbox, self._online, list(jobs), settings, environment)
            # no daemon: where W&B's server fails it starts another one, for what is logged offline
            self._process = context.Process(target=_track, args=arguments)  # type: ignore[attr-defined]
            self._process.start()

    def tell(self, event: Event) -> None:
        """Hand over what concerns W&B."""
        if event.kind in ("point", "recorded", "failed"):
            self._inbox.put((event.job, event.kind, event.text, event.point))

    def close(self, *, complete: bool) -> list[str]:
        """End the logging and say what a person must know; ``complete`` sends the summary of the sweep too."""
        begun = time.monotonic()
        share = _CLOSE_SHARE * (begun - self._start)
        self._inbox.put((complete, share))
        limit = _WRITE_S + (max(_CLOSE_S, share) + _init_timeout() + _WRITE_S if self._online.value else 0)
        said: list[str] = []
        with suppress(queue.Empty, KeyboardInterrupt):
            while not said and time.monotonic() - begun < limit and self._process.is_alive():
                with suppress(queue.Empty):
                    said = self._outbox.get(timeout=_LOOK_S)
            said = said or self._outbox.get(timeout=0.1)
        if not said:
            said = [
                f"W&B's part {'did not end in time' if self._process.is_alive() else 'ended early'} and was left; "
                f"nothing of the results is lost. {how_to_sync(self._settings.folder)}"
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


# --- W&B's side: a process of its own -----------------------------------------------------------------


def _track(
    inbox: Any, outbox: Any, online: Any, jobs: list[Job], settings: Tracking, environment: dict[str, str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's
    os.environ.clear()
    os.environ.update(environment)  # of the sweep, not of the server that forked this process
    os.environ["WANDB_INIT_TIMEOUT"] = str(_init_timeout())  # W&B itself refuses to start with one that is no number
    if hasattr(os, "nice"):
        os.nice(10)
    _keep_output(settings.folder / "wandb" / "output.log")
    Thread(target=_end_after_parent, daemon=True).start()
    try:
        session = _Session(settings, _token(settings.folder), jobs)
    except OSError as error:
        outbox.put(
            [f"W&B could not log, and the sweep is whole: {settings.folder / 'wandb'}: {error.strerror or error}"]
        )
        return
    parent = multiprocessing.parent_process()
    while True:
        try:
            message = inbox.get(timeout=_LOOK_S)
        except queue.Empty:
            if parent is not None and parent.is_alive():
                continue
            message = (False, None)  # the sweep was killed
        if len(message) == 2:
            break
        session.take(*message)
        online.value = online.value or session.mode == "online"
    session.finish(*message)
    outbox.put(session.said() or [""])


def _end_after_parent() -> None:
    """End this process when its parent has died, also where it waits for the rest of a message that was cut off."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        time.sleep(_ORPHAN_S)  # for the ends of the runs
        os._exit(1)


def _keep_output(path: Path) -> None:
    """What W&B prints goes to a file: on the terminal it would stand among the sweep's own lines."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)


def _token(folder: Path) -> str:
    """Names this sweep's runs among all of a project's: made once a folder."""
    path = folder / SWEEP_ID
    if path.exists() and not re.fullmatch("[0-9a-f]{8}", path.read_text(encoding="utf-8", errors="replace")):
        path.unlink()  # it names folders: no other content is taken
    if not path.exists():
        token = secrets.token_hex(4)
        made = path.with_name(f"{path.name}.{token}")
        write_text(made, token)
        try:  # of sweeps that start at once one names all: a link is there whole or not at all
            os.link(made, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
                file.write(token)
        made.unlink()
    return path.read_text(encoding="utf-8")


class _ElsewhereError(Exception):
    """Another sweep logs this run just now."""


@dataclass
class _Session:
    """The runs that are open, and what went wrong."""

    settings: Tracking
    token: str
    jobs: Sequence[Job]
    mode: str = ""
    open: dict[str, wandb.Run] = field(default_factory=dict)  # by the cell's key
    ending: list[tuple[float, Thread]] = field(default_factory=list)  # and since when
    problems: list[str] = field(default_factory=list)
    given_up: bool = False  # a run could not be started: the others are logged offline, at the end
    kept: dict[str, list[Event]] = field(default_factory=dict)  # what online runs were told, until the server has it
    rest_said: list[str] = field(default_factory=list)
    has_summary: bool = False  # the server
    elsewhere: set[str] = field(default_factory=set)  # keys of cells that another sweep logs
    locks: dict[Path, IO[str] | None] = field(default_factory=dict)  # by file; held until this process ends

    def take(self, job: Job, kind: str, text: str, point: Point | None) -> None:
        """A message of the sweep's. What W&B raises is remembered: a sweep must not fail by it."""
        for cell in job.cells:
            if cell.key in self.elsewhere or not self._concerns(cell, kind, text, point):
                continue
            event = Event(replace(job, methods=(cell.method,)), kind, text, point=point)  # type: ignore[arg-type]
            if self.mode != "offline":
                self.kept.setdefault(cell.key, []).append(event)
            if self.given_up and cell.key not in self.open:
                continue
            try:
                self._take(cell, kind, text, point)
            except _ElsewhereError:
                self.elsewhere.add(cell.key)
                self.kept.pop(cell.key, None)
            except Exception as error:
                self._failed(error)

    def _concerns(self, cell: Cell, kind: str, text: str, point: Point | None) -> bool:
        """Whether a message of a job, of all its cells, says something of this one."""
        if kind == "point":
            return point is not None and cell.method in point.methods
        if kind == "failed":
            record = Store(self.settings.folder).read(cell)
            return cell.key in self.open or (record is not None and record["status"] == "failed")
        return text == cell.method

    def finish(self, complete: bool, share: float | None) -> None:
        """End what is open, send the sweep's summary, and wait for the server.

        It gets ``share`` seconds where it was in trouble or is slow to answer, and ``_CLOSE_S`` at least where it is
        well; None where the sweep was killed, and what is not told is left to the next one.
        """
        for key in list(self.open):
            self._end(key, exit_code=1)
        self.given_up |= self.mode == "online" and self._is_slow()
        if complete and not self.given_up:
            try:
                self._summary()
            except _ElsewhereError:
                pass
            except Exception as error:
                self._failed(error)
        if share is not None:
            self._wait(complete, share)

    def _wait(self, complete: bool, share: float) -> None:
        """Wait for the server, and log offline what it does not have by then."""
        rest = self._offline() if self.given_up else None  # it starts while the others wait
        deadline = time.monotonic() + (share if self.problems or self.given_up else max(_CLOSE_S, share))
        for _, thread in self.ending:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self.mode == "online" and self.kept:
            # W&B writes a short run's log when it ends, and these have not ended: all of it is logged again
            rest = rest or self._offline()
            for key in list(self.kept):
                for event in self.kept.pop(key, []):  # a thread may just have heard that the server has them
                    rest.tell(event)
        if rest is not None:
            self.rest_said = rest.close(complete=complete and not self.has_summary)

    def _offline(self) -> Tracker:
        return Tracker(self.jobs, replace(self.settings, mode="offline"))

    def _is_slow(self) -> bool:
        """Whether the server has not taken the end of a run for as long as the sweep's own end would wait for it."""
        return any(thread.is_alive() and time.monotonic() - since > _CLOSE_S for since, thread in self.ending)

    def said(self) -> list[str]:
        """What a person must know at the end."""
        said = list(self.rest_said)
        folder, waiting = self.settings.folder, unsynced(self.settings.folder)
        where = f"{len(waiting)} runs are in {folder / 'wandb'}. {how_to_sync(folder)}"
        if self.mode == "offline":
            why = " (no key was found)" if self.settings.mode is None else ""
            said.append(f"W&B: logged offline{why}; {where}")
        elif self.mode == "online" and not said and waiting:
            self.problems = self.problems or ["its server did not take everything in time"]
            said.append(f"W&B: not all is uploaded; {where}")
        if self.problems:
            said.insert(0, f"W&B failed, and the sweep is whole; first trouble: {redact(self.problems[0])}")
        return said

    def _failed(self, error: Exception) -> None:
        self.problems.append(" ".join(str(error).split()) or type(error).__name__)

    def _take(self, cell: Cell, kind: str, text: str, point: Point | None) -> None:
        if point is not None:
            self._run(cell).log(logged(cell.method, point), step=step_of(cell, point))
        elif kind == "failed":
            self._run(cell).summary["error"] = last_line(text)
            self._end(cell.key, exit_code=1)
        else:
            self._record(cell)

    def _record(self, cell: Cell) -> None:
        """The cell is done: its summary, which is the record's to the last digit."""
        record = Store(self.settings.folder).read(cell)
        if record is None:
            return
        had_points = cell.key in self.open
        run = self._run(cell)
        for step, row in () if had_points else logged_afterwards(cell, record):
            run.log(row, step=step)
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
            thread = Thread(target=self._finish_run, args=(key, self.open.pop(key), exit_code), daemon=True)
            thread.start()
            self.ending.append((time.monotonic(), thread))

    def _finish_run(self, key: str, run: wandb.Run, exit_code: int) -> None:
        folder = Path(run.dir).parent
        try:
            run.finish(exit_code)
            if exit_code == 0:
                (folder / ENDED).touch()
            if self.mode == "online" and mark_if_uploaded(folder):
                self.kept.pop(key, None)
                self.has_summary = self.has_summary or (key == "summary" and exit_code == 0)
        except Exception as error:
            self._failed(error)

    def _run(self, cell: Cell) -> wandb.Run:
        if cell.key not in self.open:
            config = cell.identity | {"protocol": cell.protocol.to_dict(), "identity": cell.identity}
            self.open[cell.key] = self._start(cell.label, cell.key, cell.protocol.name, config)
        return self.open[cell.key]

    def _start(self, name: str, key: str, job_type: str, config: dict[str, Any]) -> wandb.Run:
        import wandb

        settings = self.settings
        self.mode = self.mode or settings.mode or found_mode()
        run_id = f"{self.token}-{key}"
        lock = lock_of(settings.folder, run_id, self.mode)
        if lock not in self.locks:
            self.locks[lock] = locked(lock)
        if self.locks[lock] is None:
            raise _ElsewhereError
        # an offline run that was cut off is run again whole: its remains would be uploaded as a second one
        for left in (settings.folder / "wandb").glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(left, ignore_errors=True)
        unended(settings.folder, {key})
        quiet = wandb.Settings(
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,  # reading them is most of what a start costs; the records hold versions
            init_timeout=_init_timeout(),
            save_code=False,
        )
        before = set((settings.folder / "wandb").glob(f"run-*-{run_id}"))
        try:
            run = wandb.init(
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
        except Exception:
            if self.mode == "online":  # W&B keeps the id for the run that failed, so another process has to go on
                for left in set((settings.folder / "wandb").glob(f"run-*-{run_id}")) - before:
                    shutil.rmtree(left, ignore_errors=True)
                self.given_up = True
            raise
        write_text(Path(run.dir).parent / _ADDRESS, run.path)
        return run

    def _summary(self) -> None:
        """One run of the whole sweep: tables, figures, the report, and the records as an artifact."""
        cells = {"cells": [cell.key for job in self.jobs for cell in job.cells]}
        self.open["summary"] = self._start("summary", "summary", self.jobs[0].protocol.name, cells)
        try:
            self._fill_summary(self.open["summary"])
        except Exception:
            self._end("summary", exit_code=1)
            raise
        self._end("summary")

    def _fill_summary(self, run: wandb.Run) -> None:
        import wandb

        from benchmarks.entries import TITLES, make_entries
        from benchmarks.report import write_report
        from benchmarks.tables import to_csv

        folder = self.settings.folder
        found = write_report(Store(folder)).found
        for metric in TITLES:
            text = io.StringIO(to_csv(make_entries(found, metric)))
            table = pd.read_csv(text, float_precision="round_trip").rename(columns={"mean": "ours"})
            table["difference"] = table["ours"] - table["paper_mean"]
            run.log({f"tables/{metric}": wandb.Table(dataframe=table)})
        for path in sorted((folder / "figures").glob("*.svg")):
            run.log({f"figures/{path.stem}": wandb.Html(path.read_text(encoding="utf-8"), inject=False)})
        run.log({"report": wandb.Html((folder / "report.html").read_text(encoding="utf-8"), inject=False)})
        artifact = wandb.Artifact(f"records-{self.token}", type="records")
        artifact.add_dir(str(folder / "cells"), name="cells")
        artifact.add_file(str(folder / "records.parquet"))
        run.log_artifact(artifact)


def _init_timeout() -> float:
    """Seconds that the start of a run may take; the variable is W&B's own."""
    try:
        seconds = float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_S)
    except ValueError:
        return _INIT_S
    return seconds if 0 < seconds < math.inf else _INIT_S


def mark_if_uploaded(run: Path) -> bool:
    """Ask the server whether it has a run whole, and mark it as ``wandb sync`` does; sent again it is doubled.

    That ``Run.finish`` or ``wandb sync`` returns is no proof: they do so too where the server refused a part. The end
    of a run is the last that is sent of its curves and summary.
    """
    import wandb

    try:
        address = (run / _ADDRESS).read_text(encoding="utf-8")
        found = wandb.Api(timeout=_INIT_S).run(address)
        if (run / ENDED).exists():
            whole = found.state == "finished" and bool(found.summary_metrics)
        else:
            whole = found.state in ("finished", "failed")
    except (OSError, ValueError, wandb.Error):  # no address; not on the server; no answer
        return False
    if whole:
        for log in run.glob("*.wandb"):
            log.with_name(log.name + ".synced").touch()
    return whole


def found_mode() -> str:
    """Online where W&B finds a key."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    return "online" if wandb.api.api_key else "offline"
