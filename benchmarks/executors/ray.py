"""Jobs on a Ray cluster: a task each, which hands what it records and says back to the sweep while it runs.

Only the driver, the process of the sweep, writes the output folder, so the nodes need share no file system. Ray is
imported by whoever calls, and by nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.executors.common import KEEP_MEMORY, ONE_THREAD, Event, end, timed_out
from benchmarks.executors.local import no_interrupt
from benchmarks.executors.ray_worker import TAKEN, make_task, plain
from benchmarks.grid import Job
from benchmarks.job import Settings
from benchmarks.store import Store
from benchmarks.texts import last_line, redact
from benchmarks.watching import Message
from cst_lightning.errors import InputError

_DEATHS = 3  # of nodes that a job may meet before it is taken for their cause
_OBJECTS_BYTES = 256 << 20  # of a local Ray's shared memory; a record is at most a few MiB
_START_S = 600.0  # that a worker has to start and to import, however short a job's time is: Ray gives it as much


@dataclass(frozen=True)
class Cluster:
    """Where Ray is (None: it is started here), and what of it each job is given: see the options of the sweep."""

    address: str | None
    cpus: float
    gpus: float

    @property
    def threads(self) -> int:
        """Of a job."""
        return max(1, int(self.cpus))


@dataclass
class _Task:
    job: Job
    stream: Any = None  # ray.ObjectRefGenerator, once it is submitted
    taken: bool = False  # by a worker
    begun: bool = False  # there, and what it imports is imported
    started: bool = False  # as the sweep was told
    outcome: str | None = None  # "" when finished, else the error
    deaths: int = 0  # of nodes under it
    died: bool = False  # the last of them just now
    failures: tuple[str, ...] = ()  # why earlier attempts ended, deaths of nodes among them
    deadline: float = math.inf


def connect(cluster: Cluster) -> None:
    """Join the cluster, or start a Ray of this machine's own that ends with the sweep.

    Raises:
        InputError: Ray is not installed, is not there, or has no room for a job.
    """
    ray = _ray()
    if cluster.address is not None and cluster.address.startswith("ray://"):
        raise InputError(
            f"ray_address={cluster.address}: Ray's client cannot stream what jobs record; run the sweep on a node of "
            "the cluster (`ray job submit -- python -m benchmarks.sweep ...`) with --ray-address auto"
        )
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if cluster.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # workers that no job's environment fits, and whose start Ray itself would wait for without a limit
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
        options |= {"include_dashboard": False, "object_store_memory": _OBJECTS_BYTES}
    elif cluster.address != "auto":
        _check_answers(cluster.address)
    try:
        with no_interrupt():
            ray.init(address=cluster.address or "local", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"ray_address={cluster.address}: {' '.join(str(error).split())[:300]}") from None
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cluster.cpus and node.get("GPU", 0) >= cluster.gpus for node in nodes):
        most = max(node.get("CPU", 0) for node in nodes), max(node.get("GPU", 0) for node in nodes)
        said = f"cpus_per_job={cluster.cpus:g}, gpus_per_job={cluster.gpus:g}: no node has as much; the most are " + (
            f"{most[0]:g} CPUs and {most[1]:g} GPUs"
        )
        if cluster.address is None:
            ray.shutdown()
            raise InputError(said)
        logging.getLogger(__name__).warning("%s. Jobs wait for a node that has.", said)


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"ray_address={address}: nothing answers there ({error}); allowed are auto and the HOST:PORT of a "
            "cluster that this machine is a node of"
        ) from None


def run_ray(
    jobs: Sequence[Job],
    store: Store,
    settings: Settings,
    cluster: Cluster,
    workers: int | None,
    tell: Callable[[Event], None],
) -> None:
    """Run ``jobs`` on the cluster that ``connect`` joined, at most ``workers`` at a time (None: as it has room).

    A job whose node died runs again elsewhere; one that fails or whose worker dies is recorded, and the rest go on.
    Of a time limit, a job that waits for room uses up nothing. On an exception here (Ctrl-C above all) the tasks are
    ended before it goes on.
    """
    ray = _ray()
    # a task without a share of a GPU sees those of its node all the same
    settings = replace(settings, device="cuda" if cluster.gpus else "cpu")
    task = ray.remote(
        num_cpus=cluster.cpus,
        num_gpus=cluster.gpus,
        num_returns="streaming",
        max_calls=1 if cluster.gpus else 0,  # a worker that is kept would keep its share of a GPU's memory
        max_retries=0,  # a task run again by Ray would be taken for the rest of the first: it is submitted anew instead
        runtime_env={"env_vars": {**dict.fromkeys(ONE_THREAD, str(cluster.threads)), **KEEP_MEMORY}},
    )(make_task())
    waiting, running = deque(map(_Task, jobs)), list[_Task]()
    idle_since = math.inf  # on the monotonic clock: no job runs since, although there is room for one

    def submit(one: _Task) -> None:
        known = {cell.key: {"status": record["status"]} for cell in one.job.cells if (record := store.read(cell))}
        keys = [cell.key for cell in one.job.cells]
        one.stream = task.remote(plain(one.job), keys, known, vars(settings), cluster.threads, one.failures)
        running.append(one)

    try:
        # what Ray has to say of nodes and workers is no part of the sweep's output
        with redirect_stdout(sys.stderr):
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    submit(waiting.popleft())
                for one in _ready(running):
                    if not _advance(one, store, settings, tell):
                        running.remove(one)
                        waiting.extend(_again(one, store, settings, tell))
                for one in running:
                    tell(Event(one.job, "alive"))
                idle_since = _end_overdue(running, cluster, settings, idle_since)
    finally:
        try:
            for one in running:
                with suppress(Exception):
                    ray.cancel(one.stream, force=True)
        finally:
            ray.shutdown()


def _ready(running: Sequence[_Task]) -> list[_Task]:
    """Those that have something to say, waited for a second at most."""
    ray, streams = _ray(), [one.stream for one in running]
    ray.wait(streams, num_returns=1, timeout=1.0)
    ready = {id(stream) for stream in ray.wait(streams, num_returns=len(streams), timeout=0)[0]}
    return [one for one in running if id(one.stream) in ready]


def _advance(one: _Task, store: Store, settings: Settings, tell: Callable[[Event], None]) -> bool:
    """Take in the next thing that a job says; False where there is none."""
    ray = _ray()
    try:
        said = ray.get(next(one.stream))
    except StopIteration:
        return False
    except ray.exceptions.RayError as error:
        # a record that lay on a node is lost with it
        if isinstance(error, ray.exceptions.NodeDiedError | ray.exceptions.ObjectLostError):
            one.deaths, one.died = one.deaths + 1, True
            one.failures = (*one.failures, f"a node died under it: {redact(last_line(str(error)))}")
        elif one.outcome is None:  # else it was done already
            one.outcome = _why(ray, error)
        return False
    if said == TAKEN:
        one.taken, one.deadline = True, time.monotonic() + _start_limit(settings)
        return True
    if not one.begun:
        one.begun, one.deadline = True, time.monotonic() + (settings.timeout or math.inf)
    _start(one, tell)
    if isinstance(said, Message):
        tell(Event(one.job, **vars(said)))
    elif isinstance(said, str):
        one.outcome = said
    else:
        method, record = said
        store.write(next(cell for cell in one.job.cells if cell.method == method), record)
    return True


def _why(ray: Any, error: Exception) -> str:
    """What ended a job from without, the gist in its last line."""
    text = str(error).strip()
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return f"{text}\nthe worker was ended because its node ran out of memory"
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return "the worker process died without an exception"
    return text or type(error).__name__


def _end_overdue(running: Sequence[_Task], cluster: Cluster, settings: Settings, idle_since: float) -> float:
    """End jobs that are over their time; since when no job runs although there is room for one (infinity: one runs).

    A worker that hangs before it takes a job holds up no other one while some worker lives: Ray gives it the next.
    """
    if settings.timeout is None:
        return math.inf
    now, limit = time.monotonic(), _start_limit(settings)
    is_idle = running and not any(one.taken for one in running) and _has_room(cluster)
    idle_since = min(idle_since, now) if is_idle else math.inf
    for one in running:
        if one.outcome is None and now > min(one.deadline, idle_since + limit):
            one.outcome = timed_out(settings) if one.begun else _not_begun(one, limit)
            _ray().cancel(one.stream, force=True)
    return idle_since if now <= idle_since + limit else math.inf


def _has_room(cluster: Cluster) -> bool:
    """Whether every node that could run a job has room for one, as far as can be known."""
    if cluster.address is None:  # nobody else uses it, and a worker that hangs in its start holds its room
        return True
    ray, need = _ray(), {"CPU": cluster.cpus, "GPU": cluster.gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in nodes if all(node.get(name, 0) >= number for name, number in need.items())]
    total, free = ray.cluster_resources(), ray.available_resources()
    # which node others use is not said: the smallest must have room for all of that and the job
    used = {name: total.get(name, 0) - free.get(name, 0) for name in need}
    return bool(nodes) and all(used[name] + need[name] <= min(node.get(name, 0) for node in nodes) for name in need)


def _start_limit(settings: Settings) -> float:
    """Seconds that a worker may take to take a job where there is room, and then until its imports are done."""
    return math.inf if settings.timeout is None else max(settings.timeout, _START_S)


def _not_begun(one: _Task, limit: float) -> str:
    if one.taken:
        return f"timeout: its worker was not done with its imports after {limit:g} s, so it was killed"
    return f"timeout: no worker took it in {limit:g} s, although there was room for it"


def _start(one: _Task, tell: Callable[[Event], None]) -> None:
    if not one.started:
        one.started = True
        tell(Event(one.job, "started"))


def _again(one: _Task, store: Store, settings: Settings, tell: Callable[[Event], None]) -> list[_Task]:
    """End a job; what is to run in its place, if anything is."""
    if one.outcome is None and one.died and one.deaths < _DEATHS:
        one.died = one.taken = one.begun = False
        one.deadline = math.inf
        with suppress(Exception):  # it may run on, where only a record was lost
            _ray().cancel(one.stream, force=True)
        return [one]
    _start(one, tell)  # it may have died before its first word
    error = one.outcome
    if error is None:
        error = f"{one.deaths} nodes died under it" if one.deaths else "the task ended without saying how"
    event = end(one.job, error, one.failures, len(one.failures) - one.deaths, store, settings)
    tell(event)
    again = _Task(one.job, deaths=one.deaths, failures=(*one.failures, event.text))
    return [again] if event.kind == "retried" else []


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--executor ray needs the package ray: pip install 'cst-lightning[ray]'") from None
    return ray
