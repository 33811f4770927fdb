"""Running one job: train a backbone and its students on one data set, and record each cell when it is done."""

from __future__ import annotations

import logging
import math
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.grid import METHODS, Cell, Job, backbones
from benchmarks.store import Record, Store
from cst_lightning.backbones.constant import Constant
from cst_lightning.fitting import fit
from cst_lightning.metrics import evaluate, reliability
from cst_lightning.propensity import inverse_propensity_weights
from cst_lightning.selection import best, get_rule, scores
from cst_lightning.self_training import Round, SelfTraining, self_train
from cst_lightning.stacked import StackedModule
from cst_lightning.version import VERSION
from datamodules.base import BanditDataModule

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


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


@dataclass(frozen=True)
class Message:
    """What a job says while it runs."""

    kind: Literal["progress", "point", "recorded"]
    text: str = ""  # the part at hand, or the method that was recorded
    share: float = 0.0  # of the whole job that is done
    mib: float = 0.0  # the most memory that the job held so far
    point: Point | None = None


Report = Callable[[Message], None]


@dataclass(frozen=True)
class Settings:
    """Where the data lie, on what device to train, and which records to write: see the options of the sweep.

    None of them changes a number, but for the device's rounding.
    """

    data_dir: str | None = None
    device: str = "auto"
    on_existing: str = "retry-failed"


def run_job(job: Job, store: Store, settings: Settings, report: Report) -> None:
    """Train ``job`` and record those of its cells that are to be run, each as soon as it is done.

    All its methods are trained, so that a record does not depend on which others were there already.
    """
    quiet()
    clock = _Clock(job, resolve_device(settings.device))
    progress, curves = _Progress(job, report), list[_Curve]()

    def write(cell: Cell, made: _Made) -> None:
        store.write(cell, _record(cell, made, data, constant, clock))
        report(Message("recorded", cell.method))

    report(Message("progress", "data"))
    data = job.dataset.make(job.seeds, job.protocol, settings.data_dir)
    data.setup()
    constant = _constant(job, data)

    def fitter(module: StackedModule, data: pl.LightningDataModule, max_epochs: int | None = None) -> None:
        progress.begin(module)
        accelerator = "gpu" if clock.device == "cuda" else "cpu"
        # a part with callbacks of its own may need what is logged; nothing else here looks at it
        plain = type(module).configure_callbacks is StackedModule.configure_callbacks
        curves.append(_Curve(report, training))
        callbacks = [progress, curves[-1]]
        arguments: dict[str, Any] = {"accelerator": accelerator, "callbacks": callbacks, "barebones": plain}
        fit(module, data, max_epochs=max_epochs, **arguments)

    cells = {cell.method: cell for cell in job.cells}
    wanted = {cell.method for cell in cells_to_run(job, store, settings.on_existing)}
    training = [method for method in ("backbone",) if method in wanted]
    backbone_class = backbones().get(job.backbone)
    stack = backbone_class(data.shape, job.seeds, job.protocol, backbone_class.default_grid(job.protocol))
    fitter(stack, data)
    chosen = _choose(stack, data)
    backbone = stack.select(chosen.variants) if stack.n_variants > 1 else stack
    if "backbone" in wanted:
        made = _Made(stack, chosen, [{} for _ in job.seeds], backbone, [], curves)
        write(cells["backbone"], made)
    for soft in (False, True):
        group = [method for method in cells if method != "backbone" and METHODS[method].soft == soft]
        training = [method for method in group if method in wanted]
        for method, made in _train_students(group, job, backbone, data, fitter, curves):
            if method in wanted:
                write(cells[method], made)


@dataclass(frozen=True)
class _Choice:
    """The variant of each seed, and the score of every candidate."""

    variants: list[int]
    first: int  # of the candidates
    scores: Tensor | None  # [S, candidates]; None where there was nothing to choose


@dataclass(frozen=True)
class _Made:
    """What a record is written from."""

    module: StackedModule
    choice: _Choice
    by_weight: list[dict[str, dict[str, float | None]]]
    backbone: StackedModule
    rounds: list[Round]
    curves: Sequence[_Curve]  # of the backbone, or of each round

    def replicate(self, number: int) -> int:
        """Place in the stack of the variant chosen for seed ``number``."""
        return number * self.module.n_variants + self.choice.variants[number]


def _train_students(
    methods: Sequence[str],
    job: Job,
    backbone: StackedModule,
    data: BanditDataModule,
    fitter: Callable[..., None],
    curves: list[_Curve],
) -> Iterator[tuple[str, _Made]]:
    """Train methods of one kind of labels, PL as weight 0 of CVAT's grid, in one stack."""
    if not methods:
        return
    protocol = job.protocol.replace(labels="soft") if METHODS[methods[0]].soft else job.protocol
    n_plain = sum(not METHODS[method].cvat for method in methods)
    weights = [0.0] * n_plain + list(protocol.cvat_weights) * (n_plain < len(methods))
    rounds, n_before = list[Round](), len(curves)
    student = self_train(
        backbone,
        data,
        cvat_weights=weights,
        audit=data.train_outcomes,
        fitter=fitter,
        on_round=lambda _, done: rounds.append(done),
        protocol=protocol,
    )
    for method in methods:
        first, last = (n_plain, len(weights)) if METHODS[method].cvat else (0, n_plain)
        choice = _choose(student, data, first, last)
        by_weight = _by_weight(student, data, choice) if last - first > 1 else []
        yield method, _Made(student, choice, by_weight, backbone, rounds, curves[n_before:])


def _choose(module: StackedModule, data: BanditDataModule, first: int = 0, last: int | None = None) -> _Choice:
    last = module.n_variants if last is None else last
    if last - first == 1:
        return _Choice([first] * len(module.seeds), first, None)
    rule = get_rule(module.protocol.selection)
    score = scores(rule, module, data.train, data.validation, data.oracle_validation)[:, first:last]
    return _Choice([first + variant for variant in best(score)], first, score)


def _by_weight(
    module: StackedModule, data: BanditDataModule, choice: _Choice
) -> list[dict[str, dict[str, float | None]]]:
    """Test NLL and Hamming loss of every candidate of each seed, to show what the choice was worth."""
    values = evaluate(module.logits(data.test.x), data.test, ["nll", "hamming"])
    out: list[dict[str, dict[str, float | None]]] = []
    for number, grid in enumerate(module.grid):
        rows = range(number * module.n_variants + choice.first, (number + 1) * module.n_variants)
        named = zip(grid[choice.first :], rows, strict=True)
        sound = [(w, row) for w, row in named if not module.failed_epoch[row]]
        out.append({str(w): {m: _number(values[m][row]) for m in ("nll", "hamming")} for w, row in sound})
    return out


def _record(cell: Cell, made: _Made, data: BanditDataModule, constant: dict[str, Tensor], clock: _Clock) -> Record:
    module = made.module.select(made.choice.variants)
    logits = module.logits(data.test.x).cpu()
    finite = logits.isfinite().flatten(1).all(1)
    logits = logits.where(finite[:, None, None, None], 0.0)
    values = evaluate(logits, data.test)
    bins = reliability(logits, data.test.outcomes)
    floor = data.test.floor()
    results = []
    for number, seed in enumerate(cell.seeds):
        failed = _failed_in(made, number) or (None if finite[number] else "predictions of the test rows")
        # a failed replicate keeps its place, without numbers
        numbers = {} if failed else {name: _number(value[number]) for name, value in values.items()}
        results.append(
            {
                "seed": seed,
                "status": "non_finite" if failed else "finished",
                "epochs": int(module.stopped_epoch[number]),
                "failed_in": failed,
                "cvat_weight": module.grid[number][0] if isinstance(module, SelfTraining) else None,
                "backbone_weight": made.backbone.grid[number][0] if _has_grid(made.backbone) else None,
                "metrics": numbers,
                "floor": {name: _number(value[number]) for name, value in floor.items()},
                "constant": {name: _number(value[number]) for name, value in constant.items()},
                "reliability": {} if failed else bins[number],
                "scores": _scores(made, number),
                "by_weight": made.by_weight[number] if made.by_weight else {},
                "rounds": [_round_of(done, made.replicate(number)) for done in made.rounds],
            }
        )
    rule = get_rule(cell.protocol.selection) if _chose(made) else None
    overlap = getattr(made.backbone, "overlap", None) or getattr(made.module, "overlap", None)
    return {
        "identity": cell.identity,
        "status": "finished",
        "protocol": cell.protocol.to_dict(),
        "overrides": cell.protocol.changes,
        "selection": rule.name if rule else None,
        "oracle": bool(rule and rule.oracle),
        "metrics": list(values),
        "results": results,
        "overlap": asdict(overlap) if overlap else None,
        "curves": [curve.of([made.replicate(number) for number in range(len(cell.seeds))]) for curve in made.curves],
        "data": {
            "n_train": data.train.n_rows,
            "n_held_out": data.validation.n_rows if data.validation is not None else 0,
            "n_test": data.test.x.shape[1],
            "n_missing_outcomes": data.train.n_missing.tolist(),
            "effective_sample_size": _effective_sample_size(data),
        },
        "provenance": clock.provenance(),
    }


def _constant(job: Job, data: BanditDataModule) -> dict[str, Tensor]:
    """NLL and Hamming loss of the observed shares of each action's outcomes, the least that a method must beat."""
    constant = Constant(data.shape, job.seeds, job.protocol)
    fit(constant, data.train)
    return evaluate(constant.logits(data.test.x), data.test, ["nll", "hamming"])


def _effective_sample_size(data: BanditDataModule) -> list[float] | None:
    """Of the weights ``1 / pi(a | x)`` with the policy that logged the training rows, as a share of them, ``[S]``."""
    truth = data.train_outcomes
    if truth is None or truth.propensity is None:
        return None
    return inverse_propensity_weights(data.train, truth.propensity, 0.0)[1].effective_sample_size


def failed_record(cell: Cell, error: str, device: str) -> Record:
    """The record of a cell whose job failed, with the traceback or the way its worker ended."""
    return {
        "identity": cell.identity,
        "status": "failed",
        "protocol": cell.protocol.to_dict(),
        "overrides": cell.protocol.changes,
        "error": error,
        "provenance": _provenance(device),
    }


def resolve_device(device: str) -> str:
    """``cpu`` or ``cuda`` for ``auto``, ``cpu`` or ``cuda``."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _chose(made: _Made) -> bool:
    # the backbone's own choice (of an HSIC weight) is part of what its students rest on
    return made.choice.scores is not None or len(type(made.backbone).default_grid(made.backbone.protocol)) > 1


def _has_grid(backbone: StackedModule) -> bool:
    return type(backbone).default_grid(backbone.protocol) != (0.0,)


def _scores(made: _Made, number: int) -> dict[str, float | None]:
    if made.choice.scores is None:
        return {}
    grid = made.module.grid[number][made.choice.first :]
    return {str(w): _number(v) for w, v in zip(grid, made.choice.scores[number], strict=True)}


def _failed_in(made: _Made, number: int) -> str | None:
    """The training in which the replicate's loss turned non-finite, if one did: ``backbone, epoch 3``."""
    stages = [("backbone", int(made.backbone.failed_epoch[number]))]
    stages += [(f"round {i}", done.failed_epoch[made.replicate(number)]) for i, done in enumerate(made.rounds, 1)]
    return next((f"{stage}, epoch {epoch}" for stage, epoch in stages if epoch), None)


def _round_of(done: Round, replicate: int) -> dict[str, Any]:
    values = {name: value[replicate] for name, value in asdict(done).items() if value is not None}
    return {name: _number(value) if isinstance(value, float) else value for name, value in values.items()}


def _number(value: Tensor | float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


class _Progress(pl.Callback):
    """Tells how much of the job is done: its trainings, weighted by the epochs that each may take."""

    def __init__(self, job: Job, report: Report) -> None:
        protocol = job.protocol
        backbone = backbones().get(job.backbone)
        self._parts = [float(backbone.epochs(protocol))]
        students = [METHODS[method] for method in job.methods if method != "backbone"]
        for soft in sorted({method.soft for method in students}):
            passes = sum(3 * len(protocol.cvat_weights) if m.cvat else 1 for m in students if m.soft == soft)
            self._parts += [float(protocol.cst_epochs(number) * passes) for number in range(protocol.rounds)]
        self._report, self._number, self._label, self._told = report, -1, "", 0.0

    def begin(self, module: StackedModule) -> None:
        """The next training starts."""
        self._number += 1
        self._label = module.name if self._number == 0 else f"round {module.stage}"

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        now = time.monotonic()
        if now - self._told < 0.5:
            return
        self._told = now
        share = (trainer.current_epoch + 1) / (trainer.max_epochs or 1)
        done = sum(self._parts[: self._number]) + share * self._parts[self._number]
        text = f"{self._label}, epoch {trainer.current_epoch + 1}"
        self._report(Message("progress", text, done / sum(self._parts), _peak_mib()))


class _Curve(pl.Callback):
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
            return [[_number(value[replicate]) for value in values] for replicate in replicates]

        watched = any(value is not None for value in held_out)
        return {
            "epoch": list(self._epochs),
            "training_loss": series(losses),
            "validation_nll": series([value.cpu() for value in held_out if value is not None]) if watched else None,
        }


class _Clock:
    """Times of a job, and where it ran."""

    def __init__(self, job: Job, device: str) -> None:
        self.device = device
        self._job, self._start, self._cpu_start = job, time.monotonic(), time.process_time()

    def provenance(self) -> dict[str, Any]:
        """What a record says about its making; nothing here changes a number."""
        return _provenance(self.device) | {
            "seconds": time.monotonic() - self._start,
            "cpu_seconds": time.process_time() - self._cpu_start,
            "peak_mib": _peak_mib(),
            "methods_trained_together": list(self._job.methods),
        }


def _peak_mib() -> float:
    """The most memory that this process held so far, in MiB; 0 where the system does not say."""
    if resource is None:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _provenance(device: str) -> dict[str, Any]:
    packages = ("torch", "pytorch-lightning", "torchmetrics", "numpy", "numba", "scipy", "scikit-learn")
    return {
        "git_commit": _git_commit(),
        "python": platform.python_version(),
        "versions": {"cst-lightning": VERSION} | {name: version(name) for name in packages},
        "device": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else device,
        "machine": f"{platform.system()} {platform.machine()}",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def _git_commit() -> str | None:
    """Commit of the working tree, with ``+`` where it has changes; None outside a checkout."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def quiet() -> None:
    """Lightning's notices about a Trainer of one step an epoch are no news to the reader of a sweep."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    for message in (".*does not have many workers.*", ".*LeafSpec.*deprecated.*", ".*Total length of `list`.*"):
        warnings.filterwarnings("ignore", message=message)


def cells_to_run(job: Job, store: Store, on_existing: str) -> Sequence[Cell]:
    """Cells of ``job`` that have to be run: see ``--on-existing``."""
    if on_existing == "force":
        return job.cells
    wanted = []
    for cell in job.cells:
        record = store.read(cell)
        if record is None or (record["status"] == "failed" and on_existing == "retry-failed"):
            wanted.append(cell)
    return wanted
