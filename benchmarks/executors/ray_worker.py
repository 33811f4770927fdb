"""What runs in a worker of Ray: a job, whose records and messages go to the driver as they come."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch

from benchmarks.executors.common import INPUT
from benchmarks.executors.local import descendants, end_all
from benchmarks.grid import Cell, Job
from benchmarks.job import Settings, run_job
from benchmarks.store import Record
from benchmarks.texts import redact
from benchmarks.watching import Message
from cst_lightning.errors import InputError
from cst_lightning.protocols import get_protocol
from datamodules.catalogue import DataSpec

TAKEN = "taken"  # a worker's first word


def make_task() -> Callable[..., Iterator[Any]]:
    """What Ray runs in a worker: it says a word before it imports anything, so that an import that hangs shows.

    Ray sends a function of a function by value, with the word. To find any other function, or to unpack an argument
    that is not plain, a worker would import this module first, and torch with it.
    """
    word = TAKEN

    def task(*plain: Any) -> Iterator[Any]:
        yield word
        from benchmarks.executors.ray_worker import work

        yield from work(*plain)

    return task


def plain(job: Job) -> tuple[Any, ...]:
    """A job in values whose types are Python's own."""
    return str(job.dataset), job.backbone, tuple(job.methods), tuple(job.seeds), job.protocol.to_dict()


def work(
    job: tuple[Any, ...],
    keys: Sequence[str],
    known: Mapping[str, Record],
    settings: Mapping[str, Any],
    threads: int,
    failures: Sequence[str],
) -> Iterator[Message | tuple[str, Record] | str]:
    """Messages and records of a job as they come, then "" or the error.

    Args:
        job: by ``plain``. keys: of its cells, as the driver has them. known: records of them that are there.
        settings: fields of ``Settings``. threads: of the training.
    """
    yield Message("progress", "starting")  # from here on its time counts
    said: SimpleQueue[Any] = SimpleQueue()
    # the driver ends this process when its time is over, and could not end what it started
    limit = threading.Timer(settings["timeout"] or 0, lambda: end_all(descendants(os.getpid())))
    limit.daemon = True
    if settings["timeout"] is not None:
        limit.start()

    def train() -> None:
        torch.set_num_threads(threads)
        try:
            run_job(_checked(job, keys), _Records(known, said.put), Settings(**settings), said.put, failures)
            said.put("")
        except InputError as error:
            said.put(redact(f"{INPUT}{error}"))
        except BaseException:  # Lightning answers SIGTERM with SystemExit
            said.put(redact(traceback.format_exc()))  # this node's secrets, which the driver does not know
        finally:
            said.put(None)

    threading.Thread(target=train, daemon=True).start()
    try:
        while (something := said.get()) is not None:  # Ray takes a plain generator only, no `yield from` an iterator
            yield something
    finally:
        limit.cancel()  # the process may get another job


def _checked(values: tuple[Any, ...], keys: Sequence[str]) -> Job:
    """The job of ``plain``, with the cells that the driver has."""
    dataset, backbone, methods, seeds, protocol = values
    job = Job(DataSpec.parse(dataset), backbone, methods, seeds, get_protocol(protocol))
    if list(keys) != [cell.key for cell in job.cells]:
        raise InputError("this node has another version of the code than the sweep: install the same on all")
    return job


class _Records:
    """What stands in for the store: which records there are, and a way to send a new one to the driver."""

    def __init__(self, known: Mapping[str, Record], send: Callable[[Any], None]) -> None:
        self._known, self._send = known, send

    def read(self, cell: Cell) -> Record | None:
        return self._known.get(cell.key)

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        self._send((cell.method, dict(record)))
