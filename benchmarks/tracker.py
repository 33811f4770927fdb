"""W&B's part of a sweep, in processes of its own: the sweep hands messages over and goes on.

What W&B does, or fails to do, cannot stop the sweep, and at the end it waits a bounded time. Beside the process that
logs online a second one stands by for what cannot be: W&B lets no process use an id again whose run it failed to start.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import re
import secrets
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from benchmarks.executors.common import Event
from benchmarks.executors.local import no_interrupt, worker_context
from benchmarks.files import write_text
from benchmarks.grid import Job
from benchmarks.tracking import CLOSE_S, Session
from benchmarks.wandb_runs import SWEEP_ID, how_to_sync
from benchmarks.wandb_settings import Tracking, init_timeout, settle_environment

_CLOSE_SHARE = 0.05  # of the sweep's own time: what its end waits for W&B's server
_WRITE_S = 120  # that it waits for what is done on this machine: the report, and files
_LOOK_S = 2  # how often it is looked whether the sweep lives
_ORPHAN_S = 30  # that W&B's part lives at most when the sweep was killed


class Tracker:
    """The sweep's side: it hands over what happens, never waits and never raises; ``close`` waits a bounded time."""

    def __init__(self, jobs: Sequence[Job], settings: Tracking) -> None:
        self._settings, self._begun, self._share = settings, time.monotonic(), 0.0
        modes = ["offline"] if settings.mode == "offline" else [settings.mode, "offline"]
        self._inboxes, self._processes = list[Any](), list[Any]()
        try:
            with worker_context() as context, no_interrupt():
                self._inboxes += [context.Queue() for _ in modes]
                self._outbox = context.Queue()
                for place, mode in enumerate(modes):
                    of_mode = replace(settings, mode=mode)
                    arguments = (place, self._inboxes, self._outbox, list(jobs), of_mode, dict(os.environ))
                    process = context.Process(target=_track, args=arguments, daemon=True)  # type: ignore[attr-defined]
                    process.start()
                    self._processes.append(process)
        except BaseException:  # Ctrl-C too: what was started looks for these queues
            self.leave()
            raise

    def tell(self, event: Event) -> None:
        """Hand over what concerns W&B."""
        if event.kind in ("point", "recorded", "failed"):
            self._inboxes[0].put((event.job, event.kind, event.text, event.point))

    def end(self, *, complete: bool) -> None:
        """Say that nothing more comes, so that W&B's part ends; ``complete`` sends the summary of the sweep too."""
        self._share = _CLOSE_SHARE * (time.monotonic() - self._begun)
        self._inboxes[0].put((complete, self._share))

    def close(self) -> list[str]:
        """Wait for the end, and say what a person must know."""
        limit = _WRITE_S if len(self._processes) == 1 else 2 * _WRITE_S + max(CLOSE_S, self._share) + init_timeout()
        until, said = time.monotonic() + limit, dict[int, list[str]]()
        with suppress(KeyboardInterrupt):
            while self._awaited(said) and time.monotonic() < until:
                # one that has ended may have said so before: what it said is heard first
                if not self._hear(said, _LOOK_S) and not self._alive(said):
                    break
        texts = [text for place in sorted(said) for text in said[place] if text]
        if self._awaited(said):
            how = "did not end in time" if self._alive(said) else "ended early"
            folder = self._settings.folder
            texts.append(f"W&B's part {how} and was left; nothing of the results is lost. {how_to_sync(folder)}")
        for process in self._processes:
            process.join(timeout=1)
        self.leave()
        return list(dict.fromkeys(texts))

    def _awaited(self, said: dict[int, list[str]]) -> list[int]:
        return [place for place in range(len(self._processes)) if place not in said]

    def _alive(self, said: dict[int, list[str]]) -> bool:
        """Whether one of those that are awaited is there to answer."""
        return any(self._processes[place].is_alive() for place in self._awaited(said))

    def _hear(self, said: dict[int, list[str]], seconds: float) -> bool:
        with suppress(queue.Empty):
            place, texts = self._outbox.get(timeout=seconds)
            said[place] = texts
            return True
        return False

    def leave(self) -> None:
        """Wait for nothing more."""
        for inbox in self._inboxes:
            inbox.cancel_join_thread()
        for process in self._processes:
            process.kill()
            process.join()


# --- W&B's side: a process of its own -----------------------------------------------------------------


def _track(
    place: int, inboxes: list[Any], outbox: Any, jobs: list[Job], settings: Tracking, environment: dict[str, str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's
    os.environ.clear()
    os.environ.update(environment)  # of the sweep, not of the server that forked this process
    settle_environment()
    if hasattr(os, "nice"):
        os.nice(10)
    os.environ.setdefault("GOMAXPROCS", "1")  # W&B's own process, of Go, takes a quarter more time on several cores
    _keep_output(settings.folder / "wandb" / "output.log")
    Thread(target=_end_after_parent, daemon=True).start()
    inbox, rest = inboxes[place], inboxes[1] if place == 0 and len(inboxes) > 1 else None
    with ExitStack() as stack:
        try:
            tempfile.tempdir = None  # the sweep's place for temporary files, where W&B leaves some: they go with ours
            temporary = stack.enter_context(TemporaryDirectory(prefix="cst-wandb-", ignore_cleanup_errors=True))
            tempfile.tempdir = os.environ["TMPDIR"] = temporary
            session = Session(settings, _token(settings.folder), jobs, rest)
        except OSError as error:
            if rest is not None:
                rest.put((False, None))
            why = f"{settings.folder / 'wandb'}: {error.strerror or error}"
            outbox.put((place, [f"W&B could not log, and the sweep is whole: {why}"]))
            return
        parent = multiprocessing.parent_process()
        while True:
            try:
                message = inbox.get(timeout=_LOOK_S)
            except queue.Empty:
                session.mark_whole()
                if parent is not None and parent.is_alive():
                    continue
                message = (False, None)  # the sweep was killed
            if len(message) == 2:
                break
            session.take(*message)
        session.finish(*message)
        outbox.put((place, session.said()))


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
