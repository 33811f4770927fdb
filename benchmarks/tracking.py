"""Weights & Biases: one run a cell and one of the sweep's summary. The only importer of wandb.

Every run is told whole by each sweep that tells of it, and has an identity of its own: told again it is replaced,
never doubled. While the server cannot be reached runs go to another process, which logs them offline.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

import pandas as pd

from benchmarks.files import OutputError, write_text
from benchmarks.grid import Cell, Job
from benchmarks.statistics import summarise
from benchmarks.store import Store
from benchmarks.texts import last_line, redact
from benchmarks.wandb_log import messages
from benchmarks.wandb_runs import ENDED, how_to_sync, lock_of, locked, unended, unsynced
from benchmarks.wandb_settings import INIT_S, Tracking, init_timeout
from benchmarks.watching import Point, logged, logged_afterwards, step_of
from cst_lightning.texts import counted

if TYPE_CHECKING:
    import wandb

_ADDRESS = "address.txt"  # in a run's folder: entity/project/id, or project/id of the key's own entity
_ARTIFACT = "artifact.txt"  # in the summary's folder: the digest of what it logged as an artifact
CLOSE_S = 20  # that the end of a sweep waits for W&B's server, at least, where it is well
_PAUSE_S, _PAUSES_S = 2, 300  # between questions whether a server is well again: at first, and at most
_ASKS = 3  # times, a second apart: a server may take a moment to say what it got


class _ElsewhereError(Exception):
    """Another sweep logs this run just now."""


class _UnreachableError(Exception):
    """The server cannot be reached, or the run not be begun: it is for the process that logs offline."""


class _Server:
    """Whether runs can be started online. Where one could not, the server is asked at growing pauses, in a thread."""

    def __init__(self) -> None:
        self.well, self._pause = True, float(_PAUSE_S)

    def failed(self) -> None:
        self.well = False
        Thread(target=self._ask, daemon=True).start()

    def started(self) -> None:
        self._pause = float(_PAUSE_S)

    def _ask(self) -> None:
        while not self.well:
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, _PAUSES_S)
            self.well = answers()


@dataclass
class Session:
    """The runs that are open, and what went wrong.

    ``rest`` leads to the process that logs offline what cannot be logged online; None where this one logs offline.
    """

    settings: Tracking
    token: str
    jobs: Sequence[Job]
    rest: Any = None
    mode: str = ""
    server: _Server = field(default_factory=_Server)
    cells: dict[Job, list[Cell]] = field(default_factory=dict)
    open: dict[str, wandb.Run] = field(default_factory=dict)  # by the cell's key
    told: dict[str, int] = field(default_factory=dict)  # step of an open run's last point, by the cell's key
    ending: list[tuple[float, Thread]] = field(default_factory=list)  # and since when
    problems: list[str] = field(default_factory=list)
    kept: dict[str, list[Any]] = field(default_factory=dict)  # what online runs were told, until the server has it
    handed: set[str] = field(default_factory=set)  # keys of cells that the other process logs
    has_summary: bool = False  # the server, or another sweep sends it
    rest_has_summary: bool = False
    passed_over: set[str] = field(default_factory=set)  # keys of cells that another sweep logs, or no run took
    finished: list[Path] = field(default_factory=list)  # runs whose logs were not yet seen whole
    locks: dict[Path, IO[str] | None] = field(default_factory=dict)  # by file; held until this process ends
    refused: list[str] | None = None  # variables that W&B does not take as they are; None before the first run

    def take(self, job: Job, kind: str, text: str, point: Point | None) -> None:
        """A message of the sweep's. What W&B raises is remembered: a sweep must not fail by it."""
        for cell in self.cells.setdefault(job, job.cells):  # which keep their identity: to make it takes a millisecond
            message = (replace(job, methods=(cell.method,)), kind, text, point)
            if cell.key in self.handed:
                self.rest.put(message)
                continue
            if cell.key in self.passed_over or not self._concerns(cell, kind, text, point):
                continue
            if self.rest is not None and self.mode != "offline":
                self.kept.setdefault(cell.key, []).append(message)
            try:
                self._take(cell, kind, text, point)
            except _ElsewhereError:
                self.passed_over.add(cell.key)
                self.kept.pop(cell.key, None)
            except _UnreachableError:
                self._hand_over(cell.key)
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

        Where it is well it gets ``share`` seconds, and ``CLOSE_S`` at least; ``share`` where it is slow to answer, and
        none where it cannot be reached; None where the sweep was killed, and what is not told is left to the next one.
        """
        for key in list(self.open):
            self._end(key, exit_code=1)
        online = self.mode == "online"
        slow = online and self._is_slow()
        if complete and self.server.well and not slow:
            try:
                self._summary()
            except _ElsewhereError:
                self.has_summary = True
            except _UnreachableError:
                pass
            except Exception as error:
                self._failed(error)
        if share is not None:
            self._wait(share if slow else max(CLOSE_S, share) if self.server.well else 0.0)
        if self.rest is not None:
            left = online and share is not None
            for key in list(self.kept) if left else ():
                # W&B writes a short run's log when it ends, and these have not ended: all of it is logged again
                self._hand_over(key)
            self.rest_has_summary = complete and left and not self.has_summary
            self.rest.put((self.rest_has_summary, share))
        if self.mode == "offline":
            self._end_logs()

    def _end_logs(self) -> None:
        """Have W&B write offline logs to their end: ``Run.finish`` returns before, and no exit hook runs here."""
        import wandb

        try:
            wandb.teardown()
        except Exception as error:  # W&B's own process has died
            self._failed(error)
        self.mark_whole()
        for run in self.finished:
            self.problems.append(f"{run} is not whole (is the disk full?)")

    def _wait(self, seconds: float) -> None:
        """For the runs that are ending."""
        deadline = time.monotonic() + seconds
        for _, thread in self.ending:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _hand_over(self, key: str) -> None:
        """Have the other process log a cell offline, from its first message on."""
        self.handed.add(key)
        for message in self.kept.pop(key, ()):  # a thread may just have heard that the server has them
            self.rest.put(message)

    def _is_slow(self) -> bool:
        """Whether the server has not taken the end of a run for as long as the sweep's own end would wait for it."""
        return any(thread.is_alive() and time.monotonic() - since > CLOSE_S for since, thread in self.ending)

    def said(self) -> list[str]:
        """What a person must know at the end; what was handed over, the other process says."""
        said, handed = list[str](), bool(self.handed or self.rest_has_summary)
        folder, waiting = self.settings.folder, unsynced(self.settings.folder)
        are = "is" if len(waiting) == 1 else "are"
        where = f"{counted(len(waiting), 'run')} {are} in {folder / 'wandb'}. {how_to_sync(folder)}"
        if self.mode == "offline" and waiting:
            why = " (no key was found)" if self.settings.mode is None and not self.problems else ""
            said.append(f"W&B: logged offline{why}; {where}")
        elif self.mode == "online" and waiting and not handed:
            said.append(f"W&B: not all is uploaded; {where}")
        if self.mode == "online" and (waiting or handed):
            self.problems = self.problems or ["its server did not take everything in time"]
        if self.refused:
            said.append(f"W&B: {', '.join(self.refused)} left out: no value that it takes")
        if self.problems:
            again = ". The same command, given again, logs what is missing" if self.mode == "offline" else ""
            said.insert(0, f"W&B failed, and the sweep is whole; first trouble: {redact(self.problems[0])}{again}")
        return said

    def _failed(self, error: Exception) -> None:
        self.problems.append(f"{' '.join(str(error).split())} ({type(error).__name__})")

    def _take(self, cell: Cell, kind: str, text: str, point: Point | None) -> None:
        if point is not None:
            self.told[cell.key] = step_of(cell, point)
            self._run(cell).log(logged(cell.method, point), step=self.told[cell.key])
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
        last, run = self.told.pop(cell.key, 0), self._run(cell)
        for step, row in logged_afterwards(cell, record):
            if step > last:  # all, or what a stack that a GPU's memory did not hold to its end left to its halves
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
        offline = self.mode == "offline"
        if offline and exit_code == 0:  # before it ends, which may last longer than it is waited for
            self.finished.append(folder)
        try:
            run.finish(exit_code)
            if offline:
                self.mark_whole()
                return
            if exit_code == 0:
                (folder / ENDED).touch()
            if arrived(folder):
                self.kept.pop(key, None)
                self.has_summary = self.has_summary or (key == "summary" and exit_code == 0)
        except Exception as error:
            self._failed(error)

    def mark_whole(self) -> None:
        """Mark the offline runs whose logs W&B has written to their end, which may be after ``Run.finish`` returned."""
        for run in [run for run in self.finished if is_whole(run)]:
            with suppress(OSError, ValueError):  # no room for a mark; another thread has made it
                (run / ENDED).touch()
                self.finished.remove(run)

    def _run(self, cell: Cell) -> wandb.Run:
        if cell.key not in self.open:
            config = cell.identity | {"protocol": cell.protocol.to_dict(), "identity": cell.identity}
            try:
                self._start(cell.label, cell.key, cell.protocol.name, config)
            except (_ElsewhereError, _UnreachableError):
                raise
            except Exception as error:  # a full disk, say: its next point would only fail like this one
                if self.rest is not None and self.mode == "online":  # the other process tries, from its first point on
                    self._failed(error)
                    raise _UnreachableError from error
                self.passed_over.add(cell.key)
                raise
        return self.open[cell.key]

    def _start(self, name: str, key: str, job_type: str, config: dict[str, Any]) -> None:
        """Open a run."""
        import wandb

        settings = self.settings
        self.mode = self.mode or settings.mode or self._found_mode()
        # online nothing is left out: without the address of a server of one's own, W&B would send to its own
        if self.mode == "offline" and self.refused is None:
            self.refused = drop_refused()
        if not self.server.well:
            raise _UnreachableError
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
            init_timeout=init_timeout(),
            save_code=False,
        )
        before = set((settings.folder / "wandb").glob(f"run-*-{run_id}"))
        try:
            run = wandb.init(  # and no ``resume``: what the server has of a run is replaced, since it is told whole
                project=settings.project or os.environ.get("WANDB_PROJECT") or "cst-lightning",
                entity=settings.entity,
                tags=list(settings.tags) or None,
                dir=str(settings.folder),
                id=run_id,
                name=name,
                group=f"{settings.folder.name}-{self.token}",
                job_type=job_type,
                config=config,
                mode="online" if self.mode == "online" else "offline",
                reinit="create_new",
                settings=quiet,
            )
        except Exception as error:
            if self.mode != "online":
                raise
            for left in set((settings.folder / "wandb").glob(f"run-*-{run_id}")) - before:
                shutil.rmtree(left, ignore_errors=True)
            self._failed(error)
            self.server.failed()
            raise _UnreachableError from error
        self.server.started()
        self.open[key] = run
        try:
            write_text(Path(run.dir).parent / _ADDRESS, run.path)
        except OutputError:
            self._end(key, exit_code=1)
            raise

    def _found_mode(self) -> str:
        try:
            return found_mode()
        except Exception as error:  # of many kinds
            self._failed(error)
            return "offline"

    def _summary(self) -> None:
        """One run of the whole sweep: tables, figures, the report, and the records as an artifact."""
        cells = {"cells": [cell.key for job in self.jobs for cell in job.cells]}
        self._start("summary", "summary", self.jobs[0].protocol.name, cells)
        try:
            self._fill_summary(self.open["summary"])
        except Exception:
            self._end("summary", exit_code=1)
            raise
        self._end("summary")

    def _fill_summary(self, run: wandb.Run) -> None:
        import wandb

        from benchmarks.entries import make_entries, shown_metrics
        from benchmarks.report import write_report
        from benchmarks.tables import to_csv

        folder = self.settings.folder
        report = write_report(Store(folder))
        for metric in shown_metrics(report.found):
            text = io.StringIO(to_csv(make_entries(report.found, metric)))
            table = pd.read_csv(text, float_precision="round_trip").rename(columns={"mean": "ours"})
            table["difference"] = table["ours"] - table["paper_mean"]
            run.log({f"tables/{metric}": wandb.Table(dataframe=table)})
        for name in (section.figure for section in report.sections if section.figure):
            figure = wandb.Html((folder / "figures" / name).read_text(encoding="utf-8"), inject=False)
            run.log({f"figures/{name.removesuffix('.svg')}": figure})
        run.log({"report": wandb.Html((folder / "report.html").read_text(encoding="utf-8"), inject=False)})
        artifact = wandb.Artifact(f"records-{self.token}", type="records")
        artifact.add_dir(str(folder / "cells"), name="cells")
        artifact.add_file(str(folder / "records.parquet"))
        write_text(Path(run.dir).parent / _ARTIFACT, artifact.digest)
        run.log_artifact(artifact)


def is_whole(run: Path) -> bool:
    """Whether W&B has written a run's log to its end."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    try:
        logs = [list(messages(log)) for log in run.glob("*.wandb")]
    except (OSError, ValueError):
        return False
    return any(Record.FromString(message).HasField("exit") for log in logs for message in reversed(log))


def answers() -> bool:
    """Whether the server knows whose key this is."""
    import wandb
    from pydantic import ValidationError

    try:
        return wandb.Api(timeout=INIT_S).viewer is not None
    except ValidationError:  # it answered, with what this version of W&B did not expect
        return True
    except Exception:  # of many kinds, and none is news here
        return False


def arrived(run: Path, asks: int = 0) -> bool:
    """Ask the server whether it has a run whole, and mark it as ``wandb sync`` does.

    That ``Run.finish`` or ``wandb sync`` returns is no proof: they do so too where the server refused a part.
    """
    for again in range(asks or _ASKS):
        if again:
            time.sleep(1)
        if _is_there(run):
            for log in run.glob("*.wandb"):
                log.with_name(log.name + ".synced").touch()
            return True
    return False


def _is_there(run: Path) -> bool:
    """The end of a run is the last that is sent of its curves and summary; files and artifacts go other ways."""
    import wandb

    media = {str(path.relative_to(run / "files")): path for path in run.glob("files/media/**/*") if path.is_file()}
    try:
        found = wandb.Api(timeout=INIT_S).run((run / _ADDRESS).read_text(encoding="utf-8"))
        if not (run / ENDED).exists():
            # of a log that was cut off W&B sends what there is, and says that the run failed
            return found.state in ("finished", "failed") and is_whole(run)
        if found.state != "finished" or not found.summary_metrics:
            return False
        sizes = {file.name: file.size for file in found.files()} if media else {}
        if any(sizes.get(name) != path.stat().st_size for name, path in media.items()):
            return False
        if not (run / _ARTIFACT).exists():
            return True
        digest = (run / _ARTIFACT).read_text(encoding="utf-8")
        return any(one.digest == digest and one.state == "COMMITTED" for one in found.logged_artifacts())
    except Exception:  # no address; not on the server; no answer: of many kinds
        return False


def drop_refused() -> list[str]:
    """Take out of this process's environment what W&B refuses, since it would start no run with it; the names."""
    import wandb

    refused = []
    for name in sorted(name for name in os.environ if name.startswith("WANDB_")):
        try:
            wandb.Settings().update_from_env_vars({name: os.environ[name]})
        except Exception:  # pydantic's, and of its own kinds
            refused.append(name)
            del os.environ[name]
    return refused


def found_mode() -> str:
    """Online where W&B finds a key."""
    import wandb

    wandb.setup(settings=wandb.Settings(silent=True))
    return "online" if wandb.api.api_key else "offline"
