"""What a training step costs: ``python -m benchmarks.speed`` measures it beside a plain loop, in one run.

A case is one training (``what``) of one problem (``shape``), width and number of replicates ``R``. Each runs in a
process of its own, on one thread, in turn with the plain loop (``plain_loop.py``) and with a large matrix
product; times are those of the fastest epoch, whole: Lightning, callbacks and snapshots included.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table

from benchmarks.executors.local import no_interrupt, worker_context
from benchmarks.files import write_text
from benchmarks.machine import machine
from benchmarks.measuring import SHAPES, Case, Measured, What, measure
from benchmarks.speed_figure import plot_speed
from benchmarks.texts import said
from cst_lightning import interrupting
from cst_lightning.disk import check_writable
from cst_lightning.errors import InputError

_FULL_TRAINER = Case("cvat", "D1, full Trainer", SHAPES["D1"], 8, 25, with_loop=False, barebones=False)


def cases(quick: bool, device: Literal["cpu", "cuda"]) -> list[Case]:
    """The cases of a quick or a full run; on a GPU, stacks of up to 625 of the shape of D1."""
    whats: tuple[What, ...] = ("dm", "hsic", "pl", "cvat")
    if device == "cuda":
        grid = [("D1", hidden, n) for hidden in (8, 128) for n in ((25,) if quick else (5, 25, 125, 625))]
        return [Case(what, s, SHAPES[s], hidden, n, device=device) for what in whats for s, hidden, n in grid]
    if quick:
        grid = [("D1", hidden, n) for hidden in (8, 128) for n in (1, 25)]
        found = [Case(what, s, SHAPES[s], hidden, n) for what in whats for s, hidden, n in grid]
        growth = [Case("hsic", f"N={n}", (n, 50, 5), 128, 5, with_loop=False) for n in (1_000, 10_000)]
        return [*found, _FULL_TRAINER, *growth, _large_batch(5)]
    grid = [(shape, hidden, n) for shape in SHAPES for hidden in (8, 128) for n in (1, 5, 25, 125)]
    found = [Case(what, s, SHAPES[s], hidden, n) for what in whats for s, hidden, n in grid]
    return [*found, _FULL_TRAINER, *_growth()]


def _growth() -> list[Case]:
    """One size varied at a time, from D1."""
    found = []
    rows, d, k = SHAPES["D1"]
    for hidden in (8, 128):
        changed = [(f"N={n}", (n, d, k)) for n in (1_000, 10_000, 100_000)]
        changed += [(f"d={n}", (rows, n, k)) for n in (10, 50, 250, 1_000)]
        changed += [(f"K={n}", (rows, d, n)) for n in (2, 5, 20, 100)]
        found += [Case("cvat", name, sizes, hidden, 5, with_loop=False) for name, sizes in changed]
    found += [Case("cvat", f"h={h}", SHAPES["D1"], h, 5, with_loop=False) for h in (8, 32, 128, 512)]
    found += [Case("hsic", f"N={n}", (n, d, k), 128, 5, with_loop=False) for n in (1_000, 10_000, 100_000)]
    return [*found, _large_batch(5), _large_batch(25)]


def _large_batch(n_replicates: int) -> Case:
    return Case("hsic", "B=2048", (4096, 50, 5), 128, n_replicates, 2048, with_loop=False)


def run(wanted: Sequence[Case]) -> Iterator[Measured]:
    """Measure each case in a process of its own."""
    with worker_context() as context:
        for case in wanted:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, case), daemon=True)  # type: ignore[attr-defined]
            with no_interrupt():
                process.start()
            theirs.close()
            try:
                yield ours.recv()
            except EOFError as error:
                raise RuntimeError(f"measuring {case} died") from error
            finally:  # it has sent what it measured, or Ctrl-C waits for no more of it
                process.kill()
                process.join()


def _work(connection: Connection, case: Case) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it ends this process
    connection.send(measure(case))


def table_of(measured: Sequence[Measured]) -> list[list[str]]:
    """Rows of text, the header first."""
    header = ["what", "shape", "hidden", "R", "engine", "CPU ms", "wall ms", "steps/s", "loop CPU", "loop wall"]
    header += ["loop / ours", "GFLOP/s", "of matmul", "products", "Adam", "bits", "books", "MiB"]

    def known(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [header]
    for m in measured:
        times = [f"{m.cpu_ms_per_replicate_step:.4f}", f"{m.wall_ms_per_replicate_step:.4f}"]
        loop = [known(m.loop_cpu_ms, ".3f"), known(m.loop_wall_ms, ".3f"), known(m.ratio_to_loop, ".1f")]
        shares = [m.share_of_products, m.share_of_adam, m.share_of_random_bits, m.share_of_bookkeeping]
        texts = [known(share, ".0%") for share in (m.share_of_matmul_rate, *shares)]
        numbers = [*times, f"{m.replicate_steps_per_s:,.0f}", *loop, f"{m.gflops:.1f}", *texts, f"{m.peak_mib:.0f}"]
        rows.append([m.what, m.shape, str(m.hidden), str(m.R), m.engine, *numbers])
    return rows


def _write_rows(path: Path, measured: Sequence[Measured]) -> None:
    write_text(path, json.dumps([asdict(one) for one in measured], indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(prog="python -m benchmarks.speed", description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="D1 at R = 1 and 25 alone; under two minutes")
    parser.add_argument("--device", type=Literal["cpu", "cuda"], default="cpu", help="where ours trains; default cpu")
    parser.add_argument(
        "--json", type=Path | None, default=None, help="write every figure as rows to this file, after each case"
    )
    parser.add_argument("--out", type=Path | None, default=None, help="write speed.json, speed.md and speed.png there")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no CUDA device")
    try:
        for option, folder in (("--json", options.json and options.json.parent), ("--out", options.out)):
            if folder is not None:
                check_writable(folder, option)
    except InputError as error:
        parser.error(str(error))
    console, start = Console(), time.monotonic()
    measured = []
    for one in run(cases(options.quick, options.device)):
        measured.append(one)
        ratio = "" if one.ratio_to_loop is None else f", {one.ratio_to_loop:.1f} times less than the loop"
        cost = one.wall_ms_per_replicate_step if options.device == "cuda" else one.cpu_ms_per_replicate_step
        console.print(f"{one.what} {one.shape} hidden {one.hidden} R {one.R}: {cost:.4f} ms{ratio}", highlight=False)
        if options.json:
            _write_rows(options.json, measured)
    rows = table_of(measured)
    table = Table(box=None, title=machine(options.device), title_justify="left", pad_edge=False)
    for name in rows[0]:
        table.add_column(name, no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    needed = sum(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    Console(width=max(console.width, needed)).print(table)  # a cell that is cut off says nothing
    console.print(f"measured in {said(time.monotonic() - start)}", highlight=False)
    if options.out:
        _write_rows(options.out / "speed.json", measured)
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        text = (
            f"# Speed\n\nOn {machine(options.device)}, in {said(time.monotonic() - start)}. Times are of a "
            "replicate-step, in ms. Shares of it: the `products` that GFLOP/s counts and `Adam`, each run alone; "
            "random `bits`; `books`, what is outside the compiled code; the rest are passes over memory.\n\n"
            + "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
            + "\n"
        )
        write_text(options.out / "speed.md", text)
        plot_speed(measured, options.out / "speed.png")
    return 0


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
