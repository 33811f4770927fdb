"""The command line: ``python -m benchmarks.sweep`` runs a grid of cells and writes records and tables."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse import ArgumentError, Namespace
from rich.console import Console

from benchmarks.executors.local import Event, run_local
from benchmarks.grid import Cell, Job
from benchmarks.job import Settings, cells_to_run, resolve_device
from benchmarks.options import explain, jobs_of, make_parser, save_options
from benchmarks.plan import START_S, counted, estimate_seconds, plan_table, said
from benchmarks.progress import Display, show_status
from benchmarks.report import write_tables
from benchmarks.store import Store
from benchmarks.tables import TITLES, Place, make_entries, notes, to_terminal
from benchmarks.tracking import MODES, Tracker, Tracking, sync
from cst_lightning.errors import InputError
from cst_lightning.minibatches import batch_bounds

_FILE_WIDTH = 240  # columns of a table that goes to a file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 if a cell failed, 2 for bad input, 130 for Ctrl-C."""
    console = Console(stderr=True)
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if arguments[:1] == ["sync"]:
            return sync(_folder(arguments))
        if arguments[:1] == ["status"]:
            print(show_status(_folder(arguments)))
            return 0
        return run(make_parser().parse_args(arguments), console)
    except (ArgumentError, UnicodeDecodeError) as error:
        print(f"error: {explain(error)}; see --help", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped before any work.")
        return 130
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _folder(arguments: Sequence[str]) -> Path:
    if len(arguments) != 2:
        raise InputError(f"{arguments[0]} wants one folder that a sweep wrote: {arguments[0]} DIR")
    return Path(arguments[1])


def run(options: Namespace, console: Console) -> int:
    """A sweep from parsed options."""
    jobs = jobs_of(options)
    on_gpu = options.device != "cpu" and torch.cuda.is_available()
    workers = options.workers if options.workers is not None else 1 if on_gpu else _cores()
    if workers < 1:
        raise InputError(f"workers={workers}: allowed is from 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device=cuda: torch finds no CUDA device here; allowed are auto and cpu")
    if options.json and not options.plan:
        raise InputError("--json goes with --plan")
    out = Path(options.out or Path("results", "runs", f"{options.preset}-{jobs[0].protocol.name}"))
    store = Store(out)
    if options.plan:
        _plan(jobs, store, options, workers)
        return 0
    for name, method in _left_out(jobs, options.methods or ()):
        console.print(f"left out: {name} x {method}: CVAT needs a gradient, which {name} has not", markup=False)
    store.check_writable()
    todo = [job for job in jobs if cells_to_run(job, store, options.on_existing)]
    _check_data(todo, options)
    save_options(options, out)
    cells = sum(len(job.cells) for job in jobs)
    asked = f"{counted(len(jobs), 'job')}, {counted(cells, 'cell')}"
    left = sum(len(cells_to_run(job, store, options.on_existing)) for job in todo)
    where = f"{workers} at a time on {resolve_device(options.device)}"
    console.print(f"{asked}, {cells - left} already recorded; {where}; writing {out}", soft_wrap=True)
    tracker = _tracker(todo, store, options)
    try:
        ended = _train(todo, store, options, workers, console, tracker)
        status = _finish(jobs, store, console, ended)  # first: nobody waits for W&B to see the results
        if tracker is not None:
            console.print("Ending W&B's part (Ctrl-C leaves it) ...")
            for text in tracker.close(complete=ended != "interrupted"):
                console.print(text, markup=False, soft_wrap=True)
    finally:
        if tracker is not None:
            tracker.leave()
    return status


def _left_out(jobs: Sequence[Job], methods: Sequence[str]) -> list[tuple[str, str]]:
    """Backbones and methods that were asked for and cannot go together."""
    pairs = [(job.backbone, method) for job in jobs for method in methods if method not in job.methods]
    return list(dict.fromkeys(pairs))


def _train(
    todo: Sequence[Job],
    store: Store,
    options: Namespace,
    workers: int,
    console: Console,
    tracker: Tracker | None,
) -> Literal["done", "failed", "interrupted"]:
    """Run the jobs under a live display; how it ended."""
    settings = Settings(options.data_dir, options.device, options.on_existing)
    weights = [estimate_seconds(job) for job in todo]
    ended: Literal["done", "failed", "interrupted"] = "interrupted"
    with Display(todo, weights, console, store.folder) as display:

        def tell(event: Event) -> None:
            display.show(event)
            if tracker is not None:
                tracker.tell(event)

        try:
            run_local(todo, store, settings, workers, tell)
            ended = "failed" if display.failed else "done"
        except KeyboardInterrupt:
            display.stopped = True
    return ended


def _tracker(todo: Sequence[Job], store: Store, options: Namespace) -> Tracker | None:
    mode = options.wandb or (os.environ.get("WANDB_MODE") if os.environ.get("WANDB_MODE") in MODES else None)
    if mode == "disabled" or not todo:
        return None
    tags = tuple(options.wandb_tags or ())
    return Tracker(todo, Tracking(mode, options.wandb_project, options.wandb_entity, tags, store.folder.resolve()))


def _finish(jobs: Sequence[Job], store: Store, console: Console, ended: str) -> int:
    cells = [(cell, store.read(cell)) for job in jobs for cell in job.cells]
    status = Counter(record["status"] if record else "missing" for _, record in cells)
    write_tables(store)
    found = [(Place.of_cell(cell), record) for cell, record in cells]
    printed = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for metric in TITLES:
        printed.print(to_terminal(make_entries(found, metric)))
    for text in notes(make_entries(found, "nll")):
        printed.print(text)
    for cell, record in cells:
        if record is not None and record["status"] == "failed":
            last = record["error"].strip().splitlines()[-1]
            console.print(
                f"failed: {cell.label}: {last} (traceback in {store.path(cell)})", markup=False, soft_wrap=True
            )
    counted = ", ".join(f"{number} {name}" for name, number in sorted(status.items()))
    console.print(
        f"{counted}. Tables: {store.folder / 'tables.md'}; records: {store.folder / 'records.parquet'}. "
        f"Figures and a page: python -m benchmarks.report {store.folder}",
        soft_wrap=True,
    )
    if ended == "interrupted":
        console.print("Stopped. The same command goes on from here.")
        return 130
    return 0 if ended == "done" and set(status) == {"finished"} else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_data(jobs: Sequence[Job], options: Namespace) -> None:
    """Read every data set once for one seed, so that a missing file or a batch too large shows before any work."""
    for job in {str(job.dataset): job for job in jobs}.values():
        data = job.dataset.make(job.seeds[:1], job.protocol, options.data_dir)
        data.setup()
        try:
            batch_bounds(data.train.n_rows, job.protocol.batch_size)
        except InputError as error:
            raise InputError(f"{job.dataset}: {error}; set another with --override.batch_size") from None


def _plan(jobs: Sequence[Job], store: Store, options: Namespace, workers: int) -> None:
    rows = []
    seconds = [0.0]
    for job in jobs:
        missing = cells_to_run(job, store, options.on_existing)
        seconds += [estimate_seconds(job)] if missing else []
        for cell in job.cells:
            record = store.read(cell)
            status = "to run" if cell in missing else record["status"] if record else "to run"
            rows.append({**_plain(cell), "status": status})
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    Console().print(plan_table(rows))
    left = sum(row["status"] == "to run" for row in rows)
    needed = said(START_S * (left > 0) + max(sum(seconds) / workers, *seconds))
    print(
        f"{counted(len(rows), 'cell')} in {counted(len(jobs), 'job')}, {left} to run: "
        f"about {needed} on {counted(workers, 'worker')}"
    )


def _plain(cell: Cell) -> dict[str, Any]:
    return {
        "dataset": str(cell.dataset),
        "backbone": cell.backbone,
        "method": cell.method,
        "protocol": cell.protocol.name,
        "seeds": list(cell.seeds),
    }


if __name__ == "__main__":
    sys.exit(main())
