"""What a job says while it trains, and the callbacks that say it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytorch_lightning as pl
from numba.core.event import Event, TimingListener
from torch import Tensor
from typing_extensions import override

from benchmarks.grid import Cell, Job
from benchmarks.plan import begin_seconds, trainings
from benchmarks.statistics import summarise
from benchmarks.store import Record, finite_or_none
from cst_lightning.catalogue import get_method
from cst_lightning.stacked import StackedModule
from cst_lightning.stopping import ReplicateStopping

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


COMPILING = "compiling"  # what a job says that it does, until it says something else


@dataclass(frozen=True)
class Point:
    """An epoch of a training: losses of every seed and variant, lists ``[S][W]``, for live curves."""

    stage: str  # backbone, round 1, ...
    methods: list[str]  # that the training belongs to
    epoch: int
    seeds: list[int]
    grid: list[float]  # of the variants
    training_loss: list[list[float]]
    validation_nll: list[list[float]] | None


def logged(method: str, point: Point) -> dict[str, Any]:
    """What a point of a training adds to the run of ``method``: by seed, mean and standard error over the seeds.

    With CVAT every weight has a mean of its own: which one is chosen is known at the end.
    """
    if method not in point.methods:
        return {}
    cvat, series = (
        get_method(method).cvat,
        {"training_loss": point.training_loss, "validation_nll": point.validation_nll},
    )
    out: dict[str, Any] = {"epoch": point.epoch, "stage": point.stage}
    for name, values in series.items():
        for variant, weight in enumerate(point.grid) if values is not None else ():
            if method != "backbone" and (weight > 0) != cvat:
                continue
            of_seeds = [seed[variant] for seed in values or []]
            several = cvat or (method == "backbone" and len(point.grid) > 1)
            prefix = f"{name}/weight {weight}" if several else name
            out |= _series(prefix, point.seeds, of_seeds)
    return out


def logged_afterwards(cell: Cell, record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    """The curves of a finished cell by step, where none were live: of the weight that was chosen for each seed.

    The parts of a job that was cut by seeds train at times of their own.
    """
    for number, curve in enumerate(record["curves"]):
        stage = "backbone" if cell.method == "backbone" else f"round {number + 1}"
        for place, epoch in enumerate(curve["epoch"]):
            row: dict[str, Any] = {"epoch": epoch, "stage": stage}
            for name in ("training_loss", "validation_nll"):
                row |= _series(name, cell.seeds, [seed[place] for seed in curve[name] or ()])
            yield _step(cell, stage, epoch), row


def _series(prefix: str, seeds: Sequence[int], values: Sequence[float | None]) -> dict[str, float]:
    """Of a loss with a value a seed (None where it had stopped); nothing where there is none."""
    known = {seed: value for seed, value in zip(seeds, values, strict=True) if value is not None} if values else {}
    summary = summarise(list(known.values()), len(known))
    out = {f"{prefix}/seed {seed}": value for seed, value in known.items()}
    if summary is not None:
        out |= {f"{prefix}/mean": summary.mean, f"{prefix}/standard_error": summary.standard_error}
    return out


def step_of(cell: Cell, point: Point) -> int:
    """Epochs from the start of the cell's first own training."""
    return _step(cell, point.stage, point.epoch)


def _step(cell: Cell, stage: str, epoch: int) -> int:
    if stage == "backbone":
        return epoch
    number = int(stage.removeprefix("round "))
    return sum(cell.protocol.cst_epochs(i) for i in range(number - 1)) + epoch


@dataclass(frozen=True)
class Message:
    """What a job says while it runs."""

    kind: Literal["progress", "point", "recorded"]
    text: str = ""  # the part at hand, or the method that was recorded
    share: float = 0.0  # of the whole job that is done
    mib: float = 0.0  # the most memory that the job held so far
    setup: float = 0.0  # seconds that compiling took, which is done once on a machine
    point: Point | None = None


Report = Callable[[Message], None]


class Compiling(TimingListener):
    """Hears of numba's ``numba:compile``: what it takes, and when it begins."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.begins: Callable[[], None] = lambda: None
        self.cpu_seconds, self._cpu_start = 0.0, 0.0  # of the processor: on a shared one less than by the clock

    def on_start(self, event: Event) -> None:
        """A function is compiled, or loaded from its cache, perhaps within another one."""
        if not self._depth:
            self._cpu_start = time.process_time()
            self.begins()
        super().on_start(event)  # type: ignore[no-untyped-call]

    def on_end(self, event: Event) -> None:
        """It is done."""
        super().on_end(event)  # type: ignore[no-untyped-call]
        if not self._depth:
            self.cpu_seconds += time.process_time() - self._cpu_start

    @property
    def seconds(self) -> float:
        """By the clock, so far."""
        return float(self.duration) if self.done else 0.0


class ProgressReport(pl.Callback):
    """Tells how much of the job is done: its beginning and its trainings, by the time that is planned for each."""

    def __init__(self, job: Job, report: Report, compiling: Compiling) -> None:
        self._before, self._trainings = begin_seconds(job), trainings(job)
        self._report, self._number, self._label, self._told, self._said = report, -1, "", 0.0, 0.0
        self._compiling = compiling
        compiling.begins = lambda: self._tell(COMPILING)

    def begin(self, module: StackedModule) -> None:
        """The next training starts."""
        self._number += 1
        self._label = module.name if self._number == 0 else f"round {module.stage}"
        self._said = max(self._said, self.share(0, 1, 1))

    def _tell(self, doing: str) -> None:
        self._report(Message("progress", doing, self._said, peak_mib(), self._compiling.seconds))

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now, epoch, most = time.monotonic(), trainer.current_epoch + 1, trainer.max_epochs or 1
        if now - self._told < 0.5:
            return
        self._told = now
        stopping = [callback for callback in trainer.callbacks if isinstance(callback, ReplicateStopping)]  # type: ignore[attr-defined]
        left = min([most - epoch, *(callback.least_epochs_left for callback in stopping)])
        self._said = max(self._said, self.share(epoch, most, left))  # an improvement makes it longer
        self._tell(f"{self._label}, epoch {epoch}")

    def share(self, epoch: int, most: int, left: float) -> float:
        """Of the job, when ``epoch`` of at most ``most`` of the training at hand is done and it takes ``left`` more."""
        parts = [self._before, *(training.seconds for training in self._trainings)]
        expected = max(min(most, self._trainings[self._number].epochs), epoch + left)
        return (sum(parts[: self._number + 1]) + epoch / expected * parts[self._number + 1]) / sum(parts)


class Curve(pl.Callback):
    """The course of one training: each replicate's training loss and, where rows are held out, their NLL.

    It keeps every epoch at first and then every second, fourth, ... so that at most ``_POINTS`` stay.
    """

    _POINTS = 60

    def __init__(self, report: Report, methods: Sequence[str]) -> None:
        self._epochs, self._every = dict[int, tuple[Tensor, Tensor | None]](), 1
        self._report, self._methods = report, list(methods)

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch = trainer.current_epoch + 1
        if epoch % self._every or not isinstance(pl_module, StackedModule) or not pl_module.has_gradient:
            return
        loss, held_out = pl_module.training_loss.cpu(), pl_module.validation_nll
        self._epochs[epoch] = loss, held_out
        size = (len(pl_module.seeds), pl_module.n_variants)
        point = Point(
            stage="backbone" if pl_module.stage == 0 else f"round {pl_module.stage}",
            methods=self._methods,
            epoch=epoch,
            seeds=pl_module.seeds,
            grid=pl_module.grid[0],
            training_loss=loss.view(size).tolist(),
            validation_nll=None if held_out is None else held_out.view(size).tolist(),
        )
        self._report(Message("point", point=point))
        if len(self._epochs) > self._POINTS:
            self._every *= 2
            self._epochs = {epoch: seen for epoch, seen in self._epochs.items() if epoch % self._every == 0}

    def of(self, replicates: Sequence[int]) -> dict[str, Any]:
        """As a record has it: ``epoch``, and by seed ``training_loss`` and ``validation_nll`` (or None)."""
        losses, held_out = zip(*self._epochs.values(), strict=True) if self._epochs else ((), ())

        def series(values: Sequence[Tensor]) -> list[list[float | None]]:
            return [[finite_or_none(value[replicate]) for value in values] for replicate in replicates]

        watched = any(value is not None for value in held_out)
        return {
            "epoch": list(self._epochs),
            "training_loss": series(losses),
            "validation_nll": series([value.cpu() for value in held_out if value is not None]) if watched else None,
        }


def peak_mib() -> float:
    """The most memory that this process held so far, in MiB; 0 where the system does not say."""
    if resource is None:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
