"""The command line: ``python -m benchmarks.sweep`` runs a grid of cells and writes records and tables."""

from __future__ import annotations

import json
import os
import sys
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from jsonargparse import ActionParser, ArgumentError, ArgumentParser, Namespace
from rich.console import Console

from benchmarks.executors.local import run_local
from benchmarks.grid import METHODS, PRESETS, Cell, Job, make_jobs
from benchmarks.job import Settings, cells_to_run
from benchmarks.plan import estimate_seconds, plan_table, said
from benchmarks.progress import Display
from benchmarks.store import Record, Store, write_parquet, write_text
from benchmarks.tables import TITLES, make_entries, notes, to_csv, to_latex, to_markdown, to_terminal
from cst_lightning.errors import InputError
from cst_lightning.minibatches import batch_bounds
from cst_lightning.protocols import PROTOCOLS, Protocol
from cst_lightning.selection import RULES

_FILE_WIDTH = 240  # columns of a table that goes to a file
#: protocol fields with an option of their own, which therefore stand in no --override
_OWN_OPTIONS = ("name", "cvat_weights", "selection")


def make_parser() -> ArgumentParser:
    """The options; see ``--help``."""
    parser = ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__, exit_on_error=False)
    presets = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
    parser.add_argument("--config", action="config", help="read options from a YAML file, such as --print_config wrote")
    parser.add_argument("--preset", type=str, default="paper", help=f"what to run: {presets}")
    protocols = f"{', '.join(PROTOCOLS)}; by default the preset's"
    parser.add_argument("--protocol", type=str | None, default=None, help=protocols)
    parser.add_argument("--datasets", type=str, nargs="+", default=None, help="such as D1 D1@o=2 scene")
    parser.add_argument("--backbones", type=str, nargs="+", default=None, help="names, or class paths")
    parser.add_argument("--methods", type=str, nargs="+", default=None, help=", ".join(METHODS))
    parser.add_argument("--seeds", type=int | str, nargs="+", default=None, help="such as 0..4, or 0 1 7")
    parser.add_argument("--cvat-weights", type=float, nargs="+", default=None, help="CVAT weights tried")
    parser.add_argument("--selection", type=str | None, default=None, help=f"chooses the weights: {', '.join(RULES)}")
    parser.add_argument(
        "--workers", type=int | None, default=None, help="jobs at a time; by default one a core, or one on a GPU"
    )
    parser.add_argument("--device", type=Literal["auto", "cpu", "cuda"], default="auto", help="where to train")
    parser.add_argument("--data-dir", type=str | None, default=None, help="folder with the files of Scene and Yeast")
    parser.add_argument("--out", type=str | None, default=None, help="by default results/runs/PRESET-PROTOCOL")
    parser.add_argument("--plan", action="store_true", help="show what would run, and run nothing")
    parser.add_argument("--json", action="store_true", help="with --plan: as a JSON array, one object a cell")
    parser.add_argument(
        "--on-existing",
        type=Literal["skip", "retry-failed", "force"],
        default="retry-failed",
        help="cells that have a record: leave all, run the failed ones again, or run all again",
    )
    overrides = ArgumentParser(description="protocol fields to replace")
    for name, hint in get_type_hints(Protocol).items():
        if name in _OWN_OPTIONS:
            continue
        if get_origin(hint) is tuple:
            overrides.add_argument(f"--{name}", type=get_args(hint)[0], default=SUPPRESS, nargs="+")
        else:
            overrides.add_argument(f"--{name}", type=hint, default=SUPPRESS)
    parser.add_argument("--override", action=ActionParser(parser=overrides), help="protocol fields to replace")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 if a cell failed, 2 for bad input, 130 for Ctrl-C."""
    console = Console(stderr=True)
    try:
        return run(make_parser().parse_args(arguments), console)
    except (ArgumentError, UnicodeDecodeError) as error:
        print(f"error: {' '.join(str(error).split())}; see --help", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped before any work.")
        return 130
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(options: Namespace, console: Console) -> int:
    """A sweep from parsed options."""
    jobs = make_jobs(
        options.preset,
        protocol=options.protocol,
        overrides=_overrides(options),
        datasets=options.datasets,
        backbone_names=options.backbones,
        methods=options.methods,
        seeds=options.seeds,
    )
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
    store.check_writable()
    todo = [job for job in jobs if cells_to_run(job, store, options.on_existing)]
    _check_data(todo, options)
    write_text(out / "sweep.json", json.dumps(_resolved(jobs, options), indent=1))
    cells = sum(len(job.cells) for job in jobs)
    left = sum(len(cells_to_run(job, store, options.on_existing)) for job in todo)
    console.print(f"{len(jobs)} jobs, {cells} cells, {cells - left} already recorded; writing {out}", soft_wrap=True)
    ended = _train(todo, store, options, workers, console)
    return _finish(jobs, store, console, ended)


def _train(
    todo: Sequence[Job], store: Store, options: Namespace, workers: int, console: Console
) -> Literal["done", "failed", "interrupted"]:
    """Run the jobs under a live display; how it ended."""
    settings = Settings(options.data_dir, options.device, options.on_existing)
    weights = [estimate_seconds(job) for job in todo]
    with Display(todo, weights, console) as display:
        try:
            run_local(todo, store, settings, workers, display.show)
        except KeyboardInterrupt:
            return "interrupted"
    return "failed" if display.failed else "done"


def _finish(jobs: Sequence[Job], store: Store, console: Console, ended: str) -> int:
    cells = [(cell, store.read(cell)) for job in jobs for cell in job.cells]
    status = Counter(record["status"] if record else "missing" for _, record in cells)
    write_tables(cells, store)
    printed = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for metric in TITLES:
        printed.print(to_terminal(make_entries(cells, metric)))
    for text in notes(make_entries(cells, "nll")):
        printed.print(text)
    for cell, record in cells:
        if record is not None and record["status"] == "failed":
            last = record["error"].strip().splitlines()[-1]
            console.print(
                f"failed: {cell.label}: {last} (traceback in {store.path(cell)})", markup=False, soft_wrap=True
            )
    counted = ", ".join(f"{number} {name}" for name, number in sorted(status.items()))
    console.print(
        f"{counted}. Tables: {store.folder / 'tables.md'}; records: {store.folder / 'records.parquet'}", soft_wrap=True
    )
    if ended == "interrupted":
        console.print("Stopped. The same command goes on from here.")
        return 130
    return 0 if ended == "done" and set(status) == {"finished"} else 1


def write_tables(cells: Sequence[tuple[Cell, Record | None]], store: Store) -> None:
    """``records.parquet`` of all records of the folder, and ``tables.md``, ``.csv``, ``.tex`` of this sweep's cells."""
    folder = store.folder
    write_parquet(folder / "records.parquet", store.read_all())
    entries = [make_entries(cells, metric) for metric in TITLES]
    write_text(folder / "tables.md", "\n".join(map(to_markdown, entries)))
    write_text(folder / "tables.csv", to_csv([entry for of_metric in entries for entry in of_metric]))
    write_text(folder / "tables.tex", "\n".join(map(to_latex, entries)))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _overrides(options: Namespace) -> dict[str, Any]:
    override = options.override if "override" in options else None
    if override is not None and not isinstance(override, Namespace):
        raise InputError(f"override={override!r}: allowed are protocol fields, such as override.hidden")
    given = dict(vars(override)) if override is not None else {}
    own = {"cvat_weights": options.cvat_weights, "selection": options.selection}
    return given | {name: value for name, value in own.items() if value is not None}


def _resolved(jobs: Sequence[Job], options: Namespace) -> dict[str, Any]:
    """The whole configuration, nothing left to a default that may change."""
    return {
        "preset": options.preset,
        "protocol": jobs[0].protocol.to_dict(),
        "jobs": [
            {
                "dataset": str(job.dataset),
                "backbone": job.backbone,
                "methods": list(job.methods),
                "seeds": list(job.seeds),
            }
            for job in jobs
        ],
        "cells": [cell.key for job in jobs for cell in job.cells],
    }


def _check_data(jobs: Sequence[Job], options: Namespace) -> None:
    """Read every data set once for one seed, so that a missing file or a batch too large shows before any work."""
    for job in {str(job.dataset): job for job in jobs}.values():
        data = job.dataset.make(job.seeds[:1], job.protocol, options.data_dir)
        data.setup()
        batch_bounds(data.train.n_rows, job.protocol.batch_size)


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
    needed = said(max(sum(seconds) / workers, *seconds))
    print(f"{len(rows)} cells in {len(jobs)} jobs, {left} to run: about {needed} on {workers} workers")


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
