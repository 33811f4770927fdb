"""Jobs on this machine: a fresh process each, one thread each, so many at a time."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

import torch

from benchmarks.executors.common import INPUT, KEEP_MEMORY, ONE_THREAD, OUTPUT, Event, end, timed_out
from benchmarks.files import OutputError
from benchmarks.grid import Job
from benchmarks.job import Settings, run_job
from benchmarks.store import Store
from benchmarks.watching import Message
from cst_lightning.errors import InputError

#: of workers: a server that forks is safe on Linux alone, since numerical libraries are imported in it
start_method = "forkserver" if sys.platform == "linux" else "spawn"
_Waiting = tuple[Job, tuple[str, ...]]  # a job and why its earlier attempts failed


@dataclass
class _Running:
    job: Job
    process: BaseProcess
    connection: Connection
    failures: tuple[str, ...]  # of its earlier attempts
    deadline: float  # on the monotonic clock
    outcome: str | None = None  # "" when finished, else the error


def run_local(
    jobs: Sequence[Job], store: Store, settings: Settings, workers: int, tell: Callable[[Event], None]
) -> None:
    """Run ``jobs``, at most ``workers`` at a time; a job that fails or dies is recorded and the rest go on.

    On an exception here (Ctrl-C above all) the workers are ended before it goes on.

    Raises:
        OutputError: the store cannot be written, so that nothing further is worth its time.
    """
    waiting, running = deque[_Waiting]((job, ()) for job in jobs), list[_Running]()
    with worker_context() as context:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    with no_interrupt():  # what is started is known here, and so ended by Ctrl-C
                        running.append(_start(context, *waiting.popleft(), store, settings))
                    tell(Event(running[-1].job, "started"))
                wait([*(one.connection for one in running), *(one.process.sentinel for one in running)], timeout=1.0)
                for one in list(running):
                    _look_after(one, settings, tell)
                    if not one.process.is_alive():
                        running.remove(one)
                        event = _ended(one, store, settings)
                        if event.kind == "retried":
                            waiting.append((one.job, (*one.failures, event.text)))
                        tell(event)
        finally:
            for one in running:
                _kill(one.process)


def _start(
    context: multiprocessing.context.BaseContext, job: Job, failures: tuple[str, ...], store: Store, settings: Settings
) -> _Running:
    ours, theirs = context.Pipe()
    arguments = (theirs, job, store, settings, failures)
    process = context.Process(target=_work, args=arguments, daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return _Running(job, process, ours, failures, time.monotonic() + (settings.timeout or math.inf))


def _look_after(one: _Running, settings: Settings, tell: Callable[[Event], None]) -> None:
    """Hand on what a worker says, and end one that is over its time."""
    alive = one.process.is_alive()
    for event in _drain(one):
        tell(event)
    tell(Event(one.job, "alive"))
    if alive and time.monotonic() > one.deadline:
        _kill(one.process)
        if one.outcome is None:
            one.outcome = timed_out(settings)
    if not one.process.is_alive():
        for event in _drain(one):
            tell(event)


def _kill(process: BaseProcess) -> None:
    """End a worker, and what it started: it leads a process group of its own, which a child of it may have left."""
    left = descendants(process.pid)
    if process.pid is not None and hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
    end_all(left)


def end_all(pids: Sequence[int]) -> None:
    """End processes at once; those that have ended are passed over."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int | None) -> list[int]:
    """The processes that a process started, and those that they did; none where the system does not say."""
    found, asked = list[int](), [pid]
    for one in asked:
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in file.read_text().split()]
                found += children
                asked += children
    return found


def _drain(one: _Running) -> Iterator[Event]:
    try:
        while one.connection.poll():
            said = one.connection.recv()
            if isinstance(said, Message):
                yield Event(one.job, **vars(said))
            else:
                one.outcome = said
    except (EOFError, OSError):
        return


def _ended(one: _Running, store: Store, settings: Settings) -> Event:
    one.process.join()
    one.connection.close()
    error = one.outcome
    if error is None:
        _kill(one.process)  # it is gone, and its children may not be
        code = one.process.exitcode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        error = f"the worker process died ({how}) without an exception"
    return end(one.job, error, one.failures, len(one.failures), store, settings)


def _work(connection: Connection, job: Job, store: Store, settings: Settings, failures: tuple[str, ...]) -> None:
    """A worker's life. It ends with its driver, and its children with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it ends its workers
    torch.set_num_threads(1)
    if hasattr(os, "setsid"):
        os.setsid()
    threading.Thread(target=_end_with_driver, daemon=True).start()
    try:
        run_job(job, store, settings, connection.send, failures)
        connection.send("")
    except InputError as error:
        connection.send(f"{INPUT}{error}")
    except OutputError as error:
        connection.send(f"{OUTPUT}{error}")
    except SystemExit as error:  # Lightning's answer to SIGTERM
        connection.send(f"the worker process was ended ({type(error).__name__})")
    except Exception:
        connection.send(traceback.format_exc())


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    assert driver is not None
    driver.join()
    end_all(descendants(os.getpid()))  # also those that left the group
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back: a worker interrupted while it starts would print a traceback of its own.

    The mask is for the processes that are started, which inherit it; here another thread may take the signal.
    """
    handler = signal.getsignal(signal.SIGINT)
    if (
        not hasattr(signal, "pthread_sigmask")
        or not callable(handler)
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    held = list[tuple[int, FrameType | None]]()
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


@contextmanager
def worker_context() -> Iterator[multiprocessing.context.BaseContext]:
    """How workers start: from a server that has the imports, with one thread each and memory that they keep."""
    context = multiprocessing.get_context(start_method)
    values = {**ONE_THREAD, **KEEP_MEMORY}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    if start_method == "forkserver":
        resource_tracker.ensure_running()  # else it is started with the server, which then is open to Ctrl-C
    try:
        if start_method == "forkserver":
            context.set_forkserver_preload(["__main__", "benchmarks.executors.preloaded"])
        yield context
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
