"""A sweep: what is asked for is checked, run, tracked, and shown as tables."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import Namespace
from rich.console import Console

from benchmarks.cutting import cut
from benchmarks.entries import Place, make_entries, shown_metrics
from benchmarks.executors import ray
from benchmarks.executors.common import Event
from benchmarks.executors.local import run_local
from benchmarks.files import PARTS, is_address, refuse_links
from benchmarks.grid import Cell, Job, backbones
from benchmarks.job import Settings, cells_to_run, resolve_device
from benchmarks.options import check_trust, jobs_of, make_parser, overrides_of, save_options
from benchmarks.parts import Parts, clear_joined
from benchmarks.plan import START_S, estimate_seconds, plan_table
from benchmarks.progress import Display
from benchmarks.remote import Remote
from benchmarks.report import write_tables
from benchmarks.store import Store
from benchmarks.tables import notes, to_terminal
from benchmarks.texts import last_line, said, shell_word
from benchmarks.tracker import Tracker
from benchmarks.wandb_runs import ask, lacks_summary, untold
from benchmarks.wandb_settings import MODES, Tracking, check_names
from cst_lightning import interrupting
from cst_lightning.catalogue import get_method
from cst_lightning.errors import InputError
from cst_lightning.minibatches import batch_bounds
from cst_lightning.self_training import SelfTraining
from cst_lightning.texts import counted, printable
from datamodules.base import BanditDataModule
from datamodules.catalogue import DataSpec

_FILE_WIDTH = 240  # columns of a table that goes to a file
_STOPPED = "Stopped. The same command goes on from here."


def sweep(arguments: Sequence[str]) -> int:
    """Run the cells that the arguments ask for; the exit status is 0, 1 if a cell failed, 130 for Ctrl-C."""
    options = make_parser().parse_args(arguments)
    check_trust(options, arguments)
    return run(options, Console(stderr=True, highlight=False))


def run(options: Namespace, console: Console) -> int:
    """A sweep from parsed options."""
    jobs = jobs_of(options)
    cluster = _cluster(options)
    workers = _workers(options, cluster)
    _check_options(options)
    store, remote = _output(jobs, options)
    for text in [*_left_out(jobs, options.methods or ()), *_unread(jobs, options)]:
        console.print(text, markup=False, soft_wrap=True)
    if options.plan:
        _plan(jobs, store, options, workers)
        return 0
    _look_after(store, console)
    todo = [job for job in jobs if cells_to_run(job, store, options.on_existing)]
    _check_data(todo, options)
    if cluster is not None and todo:
        ray.connect(cluster)
    save_options(options, store.folder)
    done = [job for job in jobs if job not in todo]
    clear_joined(done, store)  # a sweep before may have been killed at that
    if remote is not None:
        remote.begin()
    cells = sum(len(job.cells) for job in jobs)
    asked = f"{counted(len(jobs), 'job')}, {counted(cells, 'cell')}"
    left = sum(len(cells_to_run(job, store, options.on_existing)) for job in todo)
    where = f"{workers} at a time on {resolve_device(options.device)}"
    execute: Callable[..., None] = partial(run_local, workers=workers or 1)
    if cluster is not None:
        where = "on Ray" if workers is None else f"{workers} at a time on Ray"
        execute = partial(ray.run_ray, cluster=cluster, workers=workers)
    console.print(
        f"{asked}, {cells - left} already recorded; {where}; writing {printable(str(store.folder))}"
        + (f" and {printable(remote.address)}" if remote is not None else ""),
        markup=False,
        soft_wrap=True,
    )
    tracker, trouble = _tracker(jobs, todo, store, options)
    try:
        ended = _train(done, todo, store, options, execute, console, tracker, remote)
        if remote is not None:
            remote.refresh()
        if tracker is not None:
            tracker.end(complete=ended != "interrupted")
        status = _finish(jobs, store, console, ended, remote)  # first: nobody waits for W&B to see the results
        _end_tracking(tracker, trouble, console)
    except KeyboardInterrupt:  # the second one, which does not wait for tables
        console.print(_STOPPED)
        status = interrupting.INTERRUPTED
    finally:
        if tracker is not None:
            tracker.leave()
    return status


def _end_tracking(tracker: Tracker | None, trouble: str, console: Console) -> None:
    texts = [trouble] if trouble else []
    if tracker is not None:
        console.print("Ending W&B's part (Ctrl-C leaves it) ...")
        texts += tracker.close()
    for text in texts:
        console.print(printable(text), markup=False, soft_wrap=True)


def _output(jobs: Sequence[Job], options: Namespace) -> tuple[Store, Remote | None]:
    """Where the records go, with those that an address holds."""
    if not is_address(options.out or ""):
        folder = Path(options.out or f"results/runs/{options.preset}-{jobs[0].protocol.name}")
        return Store(refuse_links(folder)), None
    remote = Remote(options.out)
    remote.pull()
    for path, fault in remote.faults:
        print(f"left out, since it is no record: {printable(path)} ({fault})", file=sys.stderr)
    return Store(remote.folder), remote


def _check_options(options: Namespace) -> None:
    if options.seeds_per_job is not None and options.seeds_per_job < 1:
        raise InputError(f"seeds_per_job={options.seeds_per_job}: allowed is from 1")
    if options.timeout is not None and not 0 < options.timeout < math.inf:
        raise InputError(f"timeout={options.timeout:g}: allowed are seconds above 0")
    if options.retries < 0:
        raise InputError(f"retries={options.retries}: allowed is from 0")
    if options.json and not options.plan:
        raise InputError("--json goes with --plan")
    _wandb_mode(options)
    check_names(options.wandb_project, options.wandb_entity, options.wandb_tags or ())


def _unread(jobs: Sequence[Job], options: Namespace) -> list[str]:
    """What a protocol field that was typed does nothing for, a line each."""
    texts = []
    for name in overrides_of(options):
        read = {job.backbone: set[str]() for job in jobs}
        for cell in (cell for job in jobs for cell in job.cells):
            read[cell.backbone] |= set(cell.identity["protocol"])
        others = [backbone for backbone, fields in read.items() if name not in fields]
        near = sorted({field for backbone in others for field in read[backbone] if field.startswith(f"{name}_")})
        what = f"{name} does nothing for {', '.join(others)}" + (f", but {' and '.join(near)} would" if near else "")
        if others:
            texts.append(what)
    return texts


def _wandb_mode(options: Namespace) -> str | None:
    mode = options.wandb or os.environ.get("WANDB_MODE") or None
    mode = {"dryrun": "offline", "run": "online"}.get(str(mode), mode)  # W&B's older names, which Lightning still sets
    if mode not in (None, *MODES):
        raise InputError(f"WANDB_MODE={printable(str(mode))}: allowed are {', '.join(MODES)}")
    return mode


def _left_out(jobs: Sequence[Job], methods: Sequence[str]) -> list[str]:
    """Backbones and methods that were asked for and cannot go together, a line each."""
    pairs = [(job.backbone, method) for job in jobs for method in methods if method not in job.methods]
    lines = [f"left out: {name} x {method}: CVAT needs a gradient, which {name} has not" for name, method in pairs]
    return list(dict.fromkeys(lines))


def _train(
    done: Sequence[Job],
    todo: Sequence[Job],
    store: Store,
    options: Namespace,
    execute: Callable[..., None],
    console: Console,
    tracker: Tracker | None,
    remote: Remote | None,
) -> Literal["done", "failed", "interrupted"]:
    """Run the jobs to do, or their parts, under a live display; how it ended."""
    data_dir = None if options.data_dir is None else str(Path(options.data_dir).resolve())  # workers stand elsewhere
    on_ray = "cuda" if options.gpus_per_job else "cpu"
    device = on_ray if options.executor == "ray" else resolve_device(options.device)  # which failures are of, too
    settings = Settings(data_dir, device, options.on_existing, options.timeout, options.retries)
    parts = None
    if options.seeds_per_job is not None:
        parts = Parts(todo, store, options.seeds_per_job, options.on_existing, device)
        for path in parts.set_aside:
            _tell_set_aside(path, "it does not join the other parts of its cell", console)
    jobs, records = (todo, store) if parts is None else (parts.todo, parts.store)
    weights, recorded = ([estimate_seconds(job) for job in some] for some in (jobs, done))
    ended: Literal["done", "failed", "interrupted"] = "interrupted"
    with Display(jobs, weights, console, store.folder, device, recorded) as display:

        def track(events: Sequence[Event]) -> None:
            for event in events:
                if tracker is not None:
                    tracker.tell(event)

        def tell(event: Event) -> None:
            display.show(event)
            track([event] if parts is None else parts.take(event))
            if remote is not None and event.kind in ("recorded", "finished", "failed"):
                remote.push_beside()

        try:
            track([] if parts is None else parts.begin())
            execute(jobs, records, settings, tell=tell)
            ended = "failed" if display.failed else "done"
        except KeyboardInterrupt:
            display.stopped = True
    return ended


def _look_after(store: Store, console: Console) -> None:
    """Fail where the folder cannot be written, and set aside what is no record, of cells and of parts."""
    store.check_writable()
    for one in (store, Store(store.folder / PARTS)):
        for path, fault in one.set_aside_faults():
            _tell_set_aside(path, fault, console)


def _tell_set_aside(path: Path, fault: str, console: Console) -> None:
    console.print(f"set aside: {printable(str(path))} ({fault})", markup=False, soft_wrap=True)


def _tracker(jobs: Sequence[Job], todo: Sequence[Job], store: Store, options: Namespace) -> tuple[Tracker | None, str]:
    """W&B's part, if there is one, and why it could not be started."""
    mode = _wandb_mode(options)
    pending = {id(job): cells_to_run(job, store, options.on_existing) for job in todo}
    recorded = [(job, cell) for job in jobs for cell in job.cells if cell not in pending.get(id(job), ())]
    late = [] if mode == "disabled" else untold(store.folder, recorded)
    if mode == "disabled" or not (todo or late or lacks_summary(store.folder)):
        return None, ""
    with suppress(OSError):  # what is wrong there is told by W&B's part
        ask(store.folder, [cell for cells in pending.values() for cell in cells])
    tags = tuple(options.wandb_tags or ())
    settings = Tracking(mode, options.wandb_project, options.wandb_entity, tags, store.folder.resolve())
    try:
        tracker = Tracker(jobs, settings)
    except OSError as error:  # no shared memory or no process left
        why = error.strerror or error
        return None, f"W&B could not be started, and the sweep is whole: {why}. The same command tells W&B later"
    for event in late:
        tracker.tell(event)
    return tracker, ""


def _finish(jobs: Sequence[Job], store: Store, console: Console, ended: str, remote: Remote | None) -> int:
    cells = [(cell, store.read(cell)) for job in jobs for cell in job.cells]
    status = Counter(record["status"] if record else "missing" for _, record in cells)
    write_tables(store)
    found = [(Place.of_cell(cell), record) for cell, record in cells]
    printed = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for metric in shown_metrics(found):
        printed.print(to_terminal(make_entries(found, metric)))
    for text in notes(make_entries(found, "nll")):
        printed.print(text, markup=False)
    for cell, record in cells:
        if record is not None and record["status"] == "failed":
            kept = printable(str(store.path(cell, failed=True)))
            console.print(
                f"failed: {cell.label}: {last_line(record['error'])} (traceback in {kept})",
                markup=False,
                soft_wrap=True,
            )
    counted = ", ".join(f"{number} {name}" for name, number in sorted(status.items()))
    folder = printable(str(store.folder))
    said = f"{counted}. Tables: {folder}/tables.md; records: {folder}/records.parquet."
    if store.read_all():  # without one there is nothing to report
        said += f" Figures and a page: python -m benchmarks.report {shell_word(store.folder)}"
    console.print(said, markup=False, soft_wrap=True)
    copied = remote is None or _copy(remote, console)
    if ended == "interrupted":
        console.print(_STOPPED)
        return interrupting.INTERRUPTED
    return 0 if ended == "done" and copied and set(status) == {"finished"} else 1


def _copy(remote: Remote, console: Console) -> bool:
    """Send the tables, and records that did not get there before; whether all is there, and in the tables."""
    remote.finish()
    if remote.unread:
        console.print(
            f"{printable(remote.address)} was not read at the end ({remote.unread}): the tables may lack what other "
            "machines recorded meanwhile. The same command makes them again.",
            markup=False,
            soft_wrap=True,
        )
    if remote.trouble:
        console.print(
            f"{printable(remote.address)} lacks a part ({remote.trouble}); all of it is in {remote.folder}. "
            "The same command sends the rest.",
            markup=False,
            soft_wrap=True,
        )
    return not (remote.trouble or remote.unread)


def _cluster(options: Namespace) -> ray.Cluster | None:
    """What to run on, if it is Ray."""
    given = {"ray_address": options.ray_address, "cpus_per_job": options.cpus_per_job}
    given["gpus_per_job"] = options.gpus_per_job
    if options.executor == "local":
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name}={value}: goes with --executor ray")
        return None
    cpus = 1.0 if options.cpus_per_job is None else options.cpus_per_job
    gpus = options.gpus_per_job or 0.0
    if not (math.isfinite(cpus) and math.isfinite(gpus) and cpus > 0 and gpus >= 0):
        raise InputError(f"cpus_per_job={cpus:g}, gpus_per_job={gpus:g}: allowed are CPUs above 0 and GPUs from 0")
    if gpus > 1 and gpus != int(gpus):
        raise InputError(f"gpus_per_job={gpus:g}: allowed is a whole number, or one up to 1")
    if (options.device == "cuda") != (gpus > 0) and options.device != "auto":
        raise InputError(
            f"device={options.device}, gpus_per_job={gpus:g}: with --executor ray a GPU is asked for by --gpus-per-job"
        )
    return ray.Cluster(options.ray_address, cpus, gpus)


def _workers(options: Namespace, cluster: ray.Cluster | None) -> int | None:
    """Jobs at a time; None for as many as Ray has room for."""
    if options.workers is not None and options.workers < 1:
        raise InputError(f"workers={options.workers}: allowed is from 1")
    if cluster is not None:
        return None if options.workers is None else int(options.workers)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: torch finds no CUDA device here; allowed are auto and cpu")
    if options.workers is not None:
        return int(options.workers)
    return 1 if options.device != "cpu" and torch.cuda.is_available() else _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_data(job: Job, options: Namespace) -> BanditDataModule:
    """The data of the job's first seed, not drawn yet."""
    try:
        return job.dataset.make(job.seeds[:1], job.protocol, options.data_dir)
    except InputError as error:
        raise InputError(f"data set {job.dataset}: {error}") from None


def _check_data(jobs: Sequence[Job], options: Namespace) -> None:
    """Read every data set once for one seed, so that what cannot be trained on shows before any work."""
    n_outcomes: dict[DataSpec, int] = {}
    for job in {str(job.dataset): job for job in jobs}.values():
        data = _make_data(job, options)
        data.setup()
        try:
            batch_bounds(data.train.n_rows, job.protocol.batch_size)
        except InputError as error:
            raise InputError(f"{job.dataset}: {error}; set another with --override.batch_size") from None
        n_outcomes[job.dataset] = data.shape.n_outcomes
    for job in jobs:
        own = backbones().get(job.backbone).student_class or SelfTraining
        students = [get_method(method).student or own for method in job.methods if method != "backbone"]
        reads_it = any(issubclass(student, SelfTraining) for student in students)
        if reads_it and job.protocol.drop_median and n_outcomes[job.dataset] != 2:
            raise InputError(
                f"{job.dataset}: drop_median=True is for two outcomes, and there are {n_outcomes[job.dataset]}: "
                "add --override.drop_median false"
            )


def _plan(jobs: Sequence[Job], store: Store, options: Namespace, workers: int | None) -> None:
    rows = []
    seconds = [0.0]
    for job in jobs:
        _make_data(job, options)
        missing = cells_to_run(job, store, options.on_existing)
        pieces = [job] if options.seeds_per_job is None else cut(job, options.seeds_per_job)
        seconds += [estimate_seconds(piece) for piece in pieces] if missing else []
        for cell in job.cells:
            record = store.read(cell)
            status = "to run" if cell in missing else record["status"] if record else "to run"
            rows.append({**_plain(cell), "status": status})
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    Console().print(plan_table(rows))
    left = sum(row["status"] == "to run" for row in rows)
    needed = said(START_S * (left > 0) + max(sum(seconds) / (workers or 1), *seconds))
    on = "of one core's time" if workers is None else f"on {counted(workers, 'worker')}"
    print(f"{counted(len(rows), 'cell')} in {counted(len(jobs), 'job')}, {left} to run: about {needed} {on}")


def _plain(cell: Cell) -> dict[str, Any]:
    return {
        "dataset": str(cell.dataset),
        "backbone": cell.backbone,
        "method": cell.method,
        "protocol": cell.protocol.name,
        "seeds": list(cell.seeds),
    }
