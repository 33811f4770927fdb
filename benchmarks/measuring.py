"""What a training step costs, of one case at a time: see ``speed.py``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytorch_lightning as pl
import torch
from threadpoolctl import threadpool_limits
from typing_extensions import override

from benchmarks.job import quiet
from benchmarks.plain_loop import PlainNetwork, train_epoch
from benchmarks.watching import peak_mib
from cst_lightning import kernels
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
    # where the step's time goes: the products that ``gflops`` counts and Adam, each run alone, for wide layers, whose
    # products are the library's; random bits; Lightning and the suite's own Python. The rest are passes over memory
    share_of_products: float | None
    share_of_adam: float | None
    share_of_random_bits: float | None
    share_of_bookkeeping: float | None
    peak_mib: float


def measure(case: Case) -> Measured:
    """Measure ``case`` in this process, which it leaves with one thread."""
    quiet()
    torch.set_num_threads(1)
    module, log = _module(case)
    loop, matmul = _loop(case, log), _matmul(case.device)
    matmul(0.2)
    ours, plain, rates = _Epochs(), list[tuple[float, float]](), list[float]()
    accelerator = "gpu" if case.device == "cuda" else "cpu"
    with ours.inside():
        fit(module, log, max_epochs=2, accelerator=accelerator)  # compiles, or loads what was compiled
        is_compiled = module.engine == "compiled"
        alone = _parts(case) if is_compiled and case.hidden >= kernels.BLAS_FROM else {}
        of_parts: dict[str, list[float]] = {name: [] for name in alone}
        ours.clear()
        for _ in range(3):
            callbacks = [_until(case.seconds), ours]
            trainer = {"accelerator": accelerator, "callbacks": callbacks, "barebones": case.barebones}
            fit(module, log, max_epochs=1_000_000, **trainer)
            plain += loop(case.seconds) if case.with_loop else []
            for name, run_alone in alone.items():
                with threadpool_limits(1, user_api="blas"):
                    of_parts[name] += [seconds / case.n_replicates for seconds, _ in _times(0.1, run_alone)]
            rates += matmul(0.2)
    n_steps = -(-case.sizes[0] // case.batch_size)
    # the least of each: what others on the machine take away is no cost of ours, the loop's or the product's
    cpu, wall = (min(times) / n_steps / case.n_replicates for times in (ours.cpu, ours.wall))
    rate = max(rates)
    flops = 2 * case.batch_size * _weights(case) * PASSES[case.what]
    seconds = wall if case.device == "cuda" else cpu
    loop_cpu, loop_wall = (min(times) / n_steps for times in zip(*plain, strict=True)) if plain else (None, None)
    step = min(ours.cpu)
    share = {name: min(seconds) / cpu for name, seconds in of_parts.items()}
    cuda = case.device == "cuda"
    return Measured(
        what=case.what,
        shape=case.shape,
        hidden=case.hidden,
        R=case.n_replicates,
        engine=module.engine,
        cpu_ms_per_replicate_step=1e3 * cpu,
        wall_ms_per_replicate_step=1e3 * wall,
        replicate_steps_per_s=1 / wall,
        loop_cpu_ms=1e3 * loop_cpu if loop_cpu else None,
        loop_wall_ms=1e3 * loop_wall if loop_wall else None,
        ratio_to_loop=loop_cpu / seconds if loop_cpu else None,
        gflops=flops / seconds / 1e9,
        matmul_gflops=rate / 1e9,
        share_of_matmul_rate=flops / seconds / rate,
        share_of_products=share.get("products"),
        share_of_adam=share.get("adam"),
        share_of_random_bits=min(ours.bits) / step if is_compiled else None,
        share_of_bookkeeping=1 - (min(ours.kernels) + min(ours.bits)) / step if is_compiled else None,
        peak_mib=torch.cuda.max_memory_allocated() / 2**20 if cuda else peak_mib(),
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
        hsic_kernel="linear",
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


def _parts(case: Case) -> dict[str, Callable[[], None]]:
    """Parts of a step of every replicate, as compiled code has them: the products that ``PASSES`` counts, and Adam."""
    _, d, k = case.sizes
    inner = 3 if protocol_of(case).architecture == "released" else 1
    widths = [(case.hidden, d), *[(case.hidden, case.hidden)] * inner, (k, case.hidden)]
    source = np.random.default_rng(0)
    # each replicate has weights of its own, so that they come from as far away as in training
    weights, means, squares = (
        [[source.random(s, np.float32) for s in widths] for _ in range(case.n_replicates)] for _ in range(3)
    )
    gradients = [source.random(s, np.float32) for s in widths]
    inputs = [source.random((n, case.batch_size), np.float32) for _, n in widths]
    outputs = [np.empty((n, case.batch_size), np.float32) for n, _ in widths]
    one = np.ones(1, np.float32)
    adam = kernels.Adam(1e-3 * one, one, *map(np.float32, (0.1, 0.999, 0.001, 1e-8)))

    def products() -> None:
        for layers in weights:
            for _ in range(PASSES[case.what]):
                for weight, x, out in zip(layers, inputs, outputs, strict=True):
                    np.dot(weight, x, out)

    def update() -> None:
        for kind in zip(weights, means, squares, strict=True):
            for weight, gradient, mean, square in zip(kind[0], gradients, kind[1], kind[2], strict=True):
                gradient.fill(0.5)  # it is used up
                kernels._update(adam, 0, weight.ravel(), gradient.ravel(), mean.ravel(), square.ravel())

    update()  # compiles
    return {"products": products, "adam": update}


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
            patch.object(kernels, "train", timed("kernels", kernels.train)),
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
