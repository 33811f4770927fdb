"""Jobs on this machine: a fresh process each, one thread each, so many at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

import torch

from benchmarks.grid import Job
from benchmarks.job import Settings, run_job
from benchmarks.records import failed_record
from benchmarks.store import Store
from benchmarks.watching import Message, Point
from cst_lightning.errors import InputError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
# glibc gives large freed blocks back to the system at once; a training step takes and frees the same ones over and over
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
}


@dataclass(frozen=True)
class Event:
    """What happened to a job: it started, is alive, said something (``Message``), finished or failed (the error)."""

    job: Job
    kind: Literal["started", "alive", "progress", "point", "recorded", "finished", "failed"]
    text: str = ""
    share: float = 0.0
    mib: float = 0.0
    point: Point | None = None


@dataclass
class _Running:
    job: Job
    process: BaseProcess
    connection: Connection
    outcome: str | None = None  # "" when finished, else the error


def run_local(
    jobs: Sequence[Job], store: Store, settings: Settings, workers: int, tell: Callable[[Event], None]
) -> None:
    """Run ``jobs``, at most ``workers`` at a time; a job that fails or dies is recorded and the rest go on.

    On an exception here (Ctrl-C above all) the workers are ended before it goes on.
    """
    waiting, running = list(jobs), list[_Running]()
    with worker_context() as context:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_start(context, waiting.pop(0), store, settings))
                    tell(Event(running[-1].job, "started"))
                wait([*(one.connection for one in running), *(one.process.sentinel for one in running)], timeout=1.0)
                for one in list(running):
                    for event in _drain(one):
                        tell(event)
                    tell(Event(one.job, "alive"))
                    if not one.process.is_alive():
                        for event in _drain(one):
                            tell(event)
                        running.remove(one)
                        tell(_ended(one, store, settings))
        finally:
            for one in running:
                one.process.kill()
                one.process.join()


def _start(context: multiprocessing.context.BaseContext, job: Job, store: Store, settings: Settings) -> _Running:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, store, settings), daemon=True)  # type: ignore[attr-defined]
    with no_interrupt():
        process.start()
    theirs.close()
    return _Running(job, process, ours)


def _drain(one: _Running) -> Iterator[Event]:
    try:
        while one.connection.poll():
            said = one.connection.recv()
            if isinstance(said, Message):
                yield Event(one.job, said.kind, said.text, said.share, said.mib, said.point)
            else:
                one.outcome = said
    except (EOFError, OSError):
        return


def _ended(one: _Running, store: Store, settings: Settings) -> Event:
    one.process.join()
    one.connection.close()
    error = one.outcome
    if error == "":
        return Event(one.job, "finished")
    if error is None:
        code = one.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        error = f"the worker process died ({how}) without an exception"
    for cell in one.job.cells:
        record = store.read(cell)
        if record is None or record["status"] == "failed":
            store.write(cell, failed_record(cell, error, settings.device))
    return Event(one.job, "failed", error)


def _work(connection: Connection, job: Job, store: Store, settings: Settings) -> None:
    """A worker's life. It ends with its driver: the driver's end of the pipe closes when that dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it ends its workers
    torch.set_num_threads(1)

    def watch() -> None:
        try:
            connection.recv()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        run_job(job, store, settings, connection.send)
        connection.send("")
    except InputError as error:
        connection.send(f"InputError: {error}")
    except Exception:
        connection.send(traceback.format_exc())


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back: a worker interrupted while it starts would print a traceback of its own."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def worker_context() -> Iterator[multiprocessing.context.BaseContext]:
    """How workers start: from a server that has the imports, with one thread each and memory that they keep."""
    # a fork of a process that imported numerical libraries is safe on Linux alone
    method = "forkserver" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    values = {**_ONE_THREAD, **_KEEP_MEMORY}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        if method == "forkserver":
            context.set_forkserver_preload(["__main__", "benchmarks.job"])
        yield context
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
