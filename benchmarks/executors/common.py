"""What executors share: what they tell of a job, and how a job ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.files import OutputError
from benchmarks.grid import Job
from benchmarks.job import Settings
from benchmarks.records import failed_record
from benchmarks.store import Store
from benchmarks.texts import redact
from benchmarks.watching import Point

INPUT, OUTPUT = "InputError: ", "OutputError: "  # how the error of a job begins that is tried again in vain
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
# glibc gives large freed blocks back to the system at once; a training step takes and frees the same ones over and over
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
}


@dataclass(frozen=True)
class Event:
    """What happened to a job: it started, is alive, said something (``Message``), finished or failed (the error).

    ``setup`` is what it took for compiling, in seconds. ``retried``: it failed and is put back, to be started again.
    """

    job: Job
    kind: Literal["started", "alive", "progress", "point", "recorded", "finished", "failed", "retried"]
    text: str = ""
    share: float = 0.0
    mib: float = 0.0
    setup: float = 0.0
    point: Point | None = None


def end(job: Job, error: str, failures: Sequence[str], tries: int, store: Store, settings: Settings) -> Event:
    """What comes of a job that ended with ``error`` ("" is well) after earlier ``failures``; a last one is recorded.

    Args:
        tries: how many of ``failures`` count against ``settings.retries``.

    Raises:
        OutputError: the store cannot be written, so that nothing further is worth its time.
    """
    if error == "":
        return Event(job, "finished")
    error = redact(error)
    if error.startswith(OUTPUT):
        raise OutputError(error.removeprefix(OUTPUT))
    if tries < settings.retries and not error.startswith(INPUT):
        return Event(job, "retried", error)
    for cell in job.cells:
        record = store.read(cell)
        if record is None or record["status"] == "failed":
            store.write(cell, failed_record(cell, error, settings.device, failures))
    return Event(job, "failed", error)


def timed_out(settings: Settings) -> str:
    """The error of a job that was over its time."""
    return f"timeout: not done after {settings.timeout:g} s, so its worker was killed"
