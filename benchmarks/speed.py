"""What a training step costs: ``python -m benchmarks.speed`` measures it beside a plain loop, in one run.

A case is one training (``what``) of one problem (``shape``), width and number of replicates ``R``. Each runs in a
process of its own, on one thread, in turn with the plain loop (``plain_loop.py``) and with a large matrix
product; times are those of the fastest epoch, whole: Lightning, callbacks and snapshots included.
"""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits
from typing_extensions import override

from benchmarks.executors.local import worker_context
from benchmarks.figures import plot_speed
from benchmarks.job import quiet
from benchmarks.plain_loop import PlainNetwork, train_epoch
from benchmarks.plan import said
from cst_lightning import compiled, kernels
from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.backbones.hsic import HSIC
from cst_lightning.feedback import Feedback, Shape
from cst_lightning.fitting import fit
from cst_lightning.losses import observed_entries
from cst_lightning.protocols import RELEASED, WRITTEN, Protocol
from cst_lightning.self_training import SelfTraining
from cst_lightning.stacked import StackedModule
from cst_lightning.streams import Bits

What = Literal["dm", "hsic", "pl", "cvat"]

#: rows, features, actions
SHAPES = {"D1": (1000, 50, 5), "scene": (1203, 294, 6), "yeast": (1208, 103, 14)}
#: forward passes' worth of arithmetic of a step: a pass back to the weights counts two, one to the input one
PASSES = {"dm": 3, "hsic": 3, "pl": 3, "cvat": 12}


@dataclass(frozen=True)
class Case:
    """One training to measure."""

    what: What
    shape: str
    sizes: tuple[int, int, int]  # rows, features, actions
    hidden: int
    n_replicates: int
    batch_size: int = 64
    with_loop: bool = True
    seconds: float = 0.25  # of each of three turns
    hsic_kernel: Literal["linear", "rbf"] = "linear"
    barebones: bool = True  # the Trainer, as a sweep has it
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True)
class Measured:
    """What a case costs; times are of one core."""

    what: str
    shape: str
    hidden: int
    R: int  # the name that the field's tables use
    engine: str
    cpu_ms_per_replicate_step: float
    wall_ms_per_replicate_step: float
    replicate_steps_per_s: float
    loop_cpu_ms: float | None  # a step of the plain loop
    loop_wall_ms: float | None
    ratio_to_loop: float | None
    gflops: float
    matmul_gflops: float
    share_of_matmul_rate: float
    # where the step's time goes: the products that it needs, run alone; random bits; outside the compiled code and
    # these bits, Lightning and the suite's own Python. What is left is Adam and the passes between the products
    share_of_products: float | None  # of wide layers, whose products are the library's
    share_of_random_bits: float | None
    share_of_bookkeeping: float | None
    peak_mib: float


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
        return [*found, _FULL_TRAINER, _large_batch(5)]
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
    return found + [_large_batch(n, kernel) for kernel in ("linear", "rbf") for n in (5, 25)]


def _large_batch(n_replicates: int, kernel: Literal["linear", "rbf"] = "linear") -> Case:
    name = "B=2048" if kernel == "linear" else "B=2048, RBF"
    return Case("hsic", name, (4096, 50, 5), 128, n_replicates, 2048, with_loop=False, hsic_kernel=kernel)


def measure(case: Case) -> Measured:
    """Measure ``case`` in this process, which it leaves with one thread."""
    quiet()
    torch.set_num_threads(1)
    module, log = _module(case)
    loop, matmul = _loop(case, log), _matmul(case.device)
    matmul(0.2)
    products = _products(case)
    ours, plain, alone, rates = _Epochs(), list[tuple[float, float]](), list[float](), list[float]()
    accelerator = "gpu" if case.device == "cuda" else "cpu"
    with ours.inside():
        fit(module, log, max_epochs=2, accelerator=accelerator)  # compiles, or loads what was compiled
        ours.clear()
        for _ in range(3):
            callbacks = [_until(case.seconds), ours]
            trainer = {"accelerator": accelerator, "callbacks": callbacks, "barebones": case.barebones}
            fit(module, log, max_epochs=1_000_000, **trainer)
            plain += loop(case.seconds) if case.with_loop else []
            alone += products(0.1) if products is not None else []
            rates += matmul(0.2)
    n_steps = -(-case.sizes[0] // case.batch_size)
    # the least of each: what others on the machine take away is no cost of ours, the loop's or the product's
    cpu, wall = (min(times) / n_steps / case.n_replicates for times in (ours.cpu, ours.wall))
    rate = max(rates)
    flops = 2 * case.batch_size * _weights(case) * PASSES[case.what]
    seconds = wall if case.device == "cuda" else cpu
    loop_cpu, loop_wall = (min(times) / n_steps for times in zip(*plain, strict=True)) if plain else (None, None)
    engine = getattr(module, "engine", "")
    step = min(ours.cpu)
    compiled_alone = engine == "compiled"
    return Measured(
        what=case.what,
        shape=case.shape,
        hidden=case.hidden,
        R=case.n_replicates,
        engine=engine,
        cpu_ms_per_replicate_step=1e3 * cpu,
        wall_ms_per_replicate_step=1e3 * wall,
        replicate_steps_per_s=1 / wall,
        loop_cpu_ms=1e3 * loop_cpu if loop_cpu else None,
        loop_wall_ms=1e3 * loop_wall if loop_wall else None,
        ratio_to_loop=loop_cpu / seconds if loop_cpu else None,
        gflops=flops / seconds / 1e9,
        matmul_gflops=rate / 1e9,
        share_of_matmul_rate=flops / seconds / rate,
        share_of_products=min(alone) / cpu if alone and compiled_alone else None,
        share_of_random_bits=min(ours.bits) / step if compiled_alone else None,
        share_of_bookkeeping=1 - (min(ours.kernels) + min(ours.bits)) / step if compiled_alone else None,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    )


def protocol_of(case: Case) -> Protocol:
    """Five layers at width 8, as the released code has CST; else three, as the paper's text. Labels once a round."""
    base = RELEASED if case.hidden == 8 else WRITTEN
    return base.replace(
        name="speed",
        hidden=case.hidden,
        hidden_cst=case.hidden,
        stopping="fixed",
        reduction="mean",
        teacher_dropout=False,
        drop_median=False,
        hsic_kernel=case.hsic_kernel,
        hsic_bandwidth=None,
        batch_size=case.batch_size,
    )


def _module(case: Case) -> tuple[StackedModule, Feedback]:
    rows, d, k = case.sizes
    # PL and the backbones have one replicate a seed, CVAT one a weight of five seeds at most
    n_seeds = min(5, case.n_replicates) if case.what == "cvat" else case.n_replicates
    source = torch.Generator().manual_seed(0)
    log = Feedback(
        torch.randn(n_seeds, rows, d, generator=source),
        torch.arange(rows).remainder(k).expand(n_seeds, -1),
        torch.randint(2, (n_seeds, rows), generator=source),
        k,
    )
    shape, seeds, protocol = Shape(d, k), range(n_seeds), protocol_of(case)
    if case.what == "dm":
        return DirectMethod(shape, seeds, protocol), log
    if case.what == "hsic":
        return HSIC(shape, seeds, protocol, [0.01]), log
    weights = [0.0] if case.what == "pl" else [0.1 * (i + 1) for i in range(case.n_replicates // n_seeds)]
    student = SelfTraining(shape, seeds, protocol, weights, stage=1)
    student.teach(DirectMethod(shape, seeds, protocol))
    return student, log


def _loop(case: Case, log: Feedback) -> Callable[[float], list[tuple[float, float]]]:
    """The plain loop on the first replicate's log; called with seconds, it gives CPU and wall seconds of its epochs."""
    protocol = protocol_of(case)
    model = PlainNetwork(log.shape, case.hidden, protocol.architecture, protocol.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=protocol.learning_rate)
    x, action = log.x[0], log.action[0]
    target, weight = (tensor[0] for tensor in observed_entries(log.row_range(0, log.n_rows)))
    target = target[..., 0].contiguous()
    weight = torch.ones_like(weight) if case.what in ("pl", "cvat") else weight
    weights = {"cvat_weight": 1.0} if case.what == "cvat" else {"hsic_weight": 0.01} if case.what == "hsic" else {}

    def run(seconds: float) -> list[tuple[float, float]]:
        return _times(seconds, lambda: train_epoch(model, optimizer, x, target, weight, action, protocol, **weights))

    return run


def _matmul(device: str) -> Callable[[float], list[float]]:
    """Called with seconds, it returns the rates (operations a second) of large products."""
    n = 4096 if device == "cuda" else 512
    a, b = torch.randn(2, n, n, device=device)

    def product() -> None:
        torch.mm(a, b)
        if device == "cuda":
            torch.cuda.synchronize()

    return lambda seconds: [2 * n**3 / (wall if device == "cuda" else cpu) for cpu, wall in _times(seconds, product)]


def _products(case: Case) -> Callable[[float], list[float]] | None:
    """The products of a replicate-step alone, by the library that compiled code calls; it returns their CPU seconds.

    None for narrow layers, whose products are loops of the compiled code.
    """
    if case.device == "cuda" or case.hidden < kernels.BLAS_FROM:
        return None
    _, d, k = case.sizes
    inner = 3 if protocol_of(case).architecture == "released" else 1
    widths = [(case.hidden, d), *[(case.hidden, case.hidden)] * inner, (k, case.hidden)]
    source = np.random.default_rng(0)
    # each replicate has weights of its own, so that they come from as far away as in training
    weights = [[source.random(s, np.float32) for s in widths] for _ in range(case.n_replicates)]
    inputs = [source.random((n, case.batch_size), np.float32) for _, n in widths]
    outputs = [np.empty((n, case.batch_size), np.float32) for n, _ in widths]

    def step() -> None:
        for layers in weights:
            for _ in range(PASSES[case.what]):
                for weight, x, out in zip(layers, inputs, outputs, strict=True):
                    np.dot(weight, x, out)

    def run(seconds: float) -> list[float]:
        with threadpool_limits(1, user_api="blas"):
            return [cpu / case.n_replicates for cpu, _ in _times(seconds, step)]

    return run


def _times(seconds: float, step: Callable[[], Any]) -> list[tuple[float, float]]:
    """CPU and wall seconds of each ``step`` until ``seconds`` are over."""
    times, end = list[tuple[float, float]](), time.monotonic() + seconds
    while not times or time.monotonic() < end:
        cpu, wall = time.process_time(), time.monotonic()
        step()
        times.append((time.process_time() - cpu, time.monotonic() - wall))
    return times


class _Epochs(pl.Callback):
    """CPU and wall seconds of each epoch, start to start, and those in the compiled code and the random bits."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.cpu, self.wall = list[float](), list[float]()
        self.kernels, self.bits = list[float](), list[float]()
        self._inside = {"kernels": 0.0, "bits": 0.0}
        self._last = self._last_wall = 0.0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Count the time in the compiled code and the drawing of random bits while this context lasts."""

        def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                start = time.process_time()
                try:
                    return work(*args, **kwargs)
                finally:
                    self._inside[name] += time.process_time() - start

            return run

        with (
            patch.object(compiled, "train", timed("kernels", compiled.train)),
            patch.object(Bits, "take", timed("bits", Bits.take)),
        ):
            yield

    @override
    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize()
        now, wall = time.process_time(), time.monotonic()
        if trainer.current_epoch > 1:  # a Trainer's first epoch sets things up
            self.cpu.append(now - self._last)
            self.wall.append(wall - self._last_wall)
            self.kernels.append(self._inside["kernels"])
            self.bits.append(self._inside["bits"])
        self._last, self._last_wall, self._inside = now, wall, {"kernels": 0.0, "bits": 0.0}


def _until(seconds: float) -> pl.Callback:
    end = time.monotonic() + seconds

    class Until(pl.Callback):
        @override
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.should_stop = time.monotonic() > end and trainer.current_epoch > 2

    return Until()


def _weights(case: Case) -> int:
    _, d, k = case.sizes
    inner = 3 if protocol_of(case).architecture == "released" else 1
    return d * case.hidden + inner * case.hidden**2 + case.hidden * k


def run(wanted: Sequence[Case]) -> Iterator[Measured]:
    """Measure each case in a process of its own."""
    with worker_context() as context:
        for case in wanted:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, case))  # type: ignore[attr-defined]
            process.start()
            theirs.close()
            try:
                yield ours.recv()
            except EOFError as error:
                raise RuntimeError(f"measuring {case} died") from error
            finally:
                process.join()


def _work(connection: Connection, case: Case) -> None:
    connection.send(measure(case))


def table_of(measured: Sequence[Measured]) -> list[list[str]]:
    """Rows of text, the header first."""
    header = ["what", "shape", "hidden", "R", "engine", "CPU ms", "wall ms", "steps/s", "loop CPU", "loop wall"]
    header += ["loop / ours", "GFLOP/s", "of matmul", "products", "bits", "books", "MiB"]

    def known(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    rows = [header]
    for m in measured:
        times = [f"{m.cpu_ms_per_replicate_step:.4f}", f"{m.wall_ms_per_replicate_step:.4f}"]
        loop = [known(m.loop_cpu_ms, ".3f"), known(m.loop_wall_ms, ".3f"), known(m.ratio_to_loop, ".1f")]
        shares = [m.share_of_matmul_rate, m.share_of_products, m.share_of_random_bits, m.share_of_bookkeeping]
        texts = [known(share, ".0%") for share in shares]
        numbers = [*times, f"{m.replicate_steps_per_s:,.0f}", *loop, f"{m.gflops:.1f}", *texts, f"{m.peak_mib:.0f}"]
        rows.append([m.what, m.shape, str(m.hidden), str(m.R), m.engine, *numbers])
    return rows


def machine(device: str) -> str:
    """The machine, in words."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}; torch {torch.__version__}, Python {platform.python_version()}"
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, one thread; torch {torch.__version__}, Python {platform.python_version()}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="D1 at R = 1 and 25 alone; under two minutes")
    parser.add_argument("--device", type=Literal["cpu", "cuda"], default="cpu", help="where ours trains; default cpu")
    parser.add_argument("--json", type=Path | None, default=None, help="write every figure as rows to this file")
    parser.add_argument("--out", type=Path | None, default=None, help="write speed.json, speed.md and speed.png there")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no CUDA device")
    console, start = Console(), time.monotonic()
    measured = []
    for one in run(cases(options.quick, options.device)):
        measured.append(one)
        ratio = "" if one.ratio_to_loop is None else f", {one.ratio_to_loop:.1f} times less than the loop"
        console.print(
            f"{one.what} {one.shape} hidden {one.hidden} R {one.R}: {one.cpu_ms_per_replicate_step:.4f} ms{ratio}",
            highlight=False,
        )
    rows = table_of(measured)
    table = Table(box=None, title=machine(options.device), title_justify="left", pad_edge=False)
    for name in rows[0]:
        table.add_column(name, no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    Console(width=max(console.width, 150)).print(table)
    console.print(f"measured in {said(time.monotonic() - start)}", highlight=False)
    for path in filter(None, [options.json, options.out and options.out / "speed.json"]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(one) for one in measured], indent=1) + "\n")
    if options.out:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        text = (
            f"# Speed\n\nOn {machine(options.device)}, in {said(time.monotonic() - start)}. Times are of a "
            "replicate-step, in ms. Shares of it: `products` that it needs, run alone; random `bits`; `books`, what is "
            "outside the compiled code; the rest is Adam and the passes between products.\n\n"
            + "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
            + "\n"
        )
        (options.out / "speed.md").write_text(text)
        plot_speed(measured, options.out / "speed.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
