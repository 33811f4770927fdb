"""What a record holds: the numbers of a cell, and where they come from."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.grid import Cell, Job
from benchmarks.store import Record, finite_or_none
from benchmarks.texts import redact
from benchmarks.watching import Compiling, Curve, peak_mib
from cst_lightning.metrics import evaluate, reliability
from cst_lightning.propensity import inverse_propensity_weights
from cst_lightning.rounds import Round
from cst_lightning.selection import get_rule
from cst_lightning.self_training import SelfTraining
from cst_lightning.stacked import StackedModule
from cst_lightning.version import VERSION
from datamodules.base import BanditDataModule


@dataclass(frozen=True)
class Choice:
    """The variant of each seed, and the score of every candidate."""

    variants: list[int]
    first: int  # of the candidates
    scores: Tensor | None  # [S, candidates]; None where there was nothing to choose


@dataclass(frozen=True)
class Made:
    """What a record is written from."""

    module: StackedModule
    choice: Choice
    by_weight: list[dict[str, dict[str, float | None]]]
    backbone: StackedModule
    rounds: list[Round]
    curves: Sequence[Curve]  # of the backbone, or of each round

    def replicate(self, number: int) -> int:
        """Place in the stack of the variant chosen for seed ``number``."""
        return number * self.module.n_variants + self.choice.variants[number]


def make_record(cell: Cell, made: Made, data: BanditDataModule, constant: dict[str, Tensor], clock: Clock) -> Record:
    """The record of a cell that was trained.

    Args:
        constant: metrics of the constant on the test rows, ``[S]`` each.
    """
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
        numbers = {} if failed else {name: finite_or_none(value[number]) for name, value in values.items()}
        results.append(
            {
                "seed": seed,
                "status": "non_finite" if failed else "finished",
                "epochs": int(module.stopped_epoch[number]),
                "failed_in": failed,
                "cvat_weight": module.grid[number][0] if isinstance(module, SelfTraining) else None,
                "backbone_weight": made.backbone.grid[number][0] if _has_grid(made.backbone) else None,
                "metrics": numbers,
                "floor": {name: finite_or_none(value[number]) for name, value in floor.items()},
                "constant": {name: finite_or_none(value[number]) for name, value in constant.items()},
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


def failed_record(cell: Cell, error: str, device: str, failures: Sequence[str] = ()) -> Record:
    """The record of a cell whose job failed, with the traceback or the way its worker ended; ``failures`` before."""
    return {
        "identity": cell.identity,
        "status": "failed",
        "protocol": cell.protocol.to_dict(),
        "overrides": cell.protocol.changes,
        "error": redact(error),
        "provenance": provenance(device) | {"failures_before": list(map(redact, failures))},
    }


def by_weight(
    module: StackedModule, data: BanditDataModule, choice: Choice
) -> list[dict[str, dict[str, float | None]]]:
    """Test NLL and Hamming loss of every candidate of each seed, to show what the choice was worth."""
    values = evaluate(module.logits(data.test.x), data.test, ["nll", "hamming"])
    out: list[dict[str, dict[str, float | None]]] = []
    for number, grid in enumerate(module.grid):
        rows = range(number * module.n_variants + choice.first, (number + 1) * module.n_variants)
        named = zip(grid[choice.first :], rows, strict=True)
        sound = [(w, row) for w, row in named if not module.failed_epoch[row]]
        out.append({str(w): {m: finite_or_none(values[m][row]) for m in ("nll", "hamming")} for w, row in sound})
    return out


def _effective_sample_size(data: BanditDataModule) -> list[float] | None:
    """Of the weights ``1 / pi(a | x)`` with the policy that logged the training rows, as a share of them, ``[S]``."""
    truth = data.train_outcomes
    if truth is None or truth.propensity is None:
        return None
    return inverse_propensity_weights(data.train, truth.propensity, 0.0)[1].effective_sample_size


def _chose(made: Made) -> bool:
    # the backbone's own choice (of an HSIC weight) is part of what its students rest on
    return made.choice.scores is not None or len(type(made.backbone).default_grid(made.backbone.protocol)) > 1


def _has_grid(backbone: StackedModule) -> bool:
    return type(backbone).default_grid(backbone.protocol) != (0.0,)


def _scores(made: Made, number: int) -> dict[str, float | None]:
    if made.choice.scores is None:
        return {}
    grid = made.module.grid[number][made.choice.first :]
    return {str(w): finite_or_none(v) for w, v in zip(grid, made.choice.scores[number], strict=True)}


def _failed_in(made: Made, number: int) -> str | None:
    """The training in which the replicate's loss turned non-finite, if one did: ``backbone, epoch 3``."""
    stages = [("backbone", int(made.backbone.failed_epoch[number]))]
    stages += [(f"round {i}", done.failed_epoch[made.replicate(number)]) for i, done in enumerate(made.rounds, 1)]
    return next((f"{stage}, epoch {epoch}" for stage, epoch in stages if epoch), None)


def _round_of(done: Round, replicate: int) -> dict[str, Any]:
    values = {name: value[replicate] for name, value in asdict(done).items() if value is not None}
    return {name: finite_or_none(value) if isinstance(value, float) else value for name, value in values.items()}


class Clock:
    """Times of a job, and where it ran."""

    def __init__(self, job: Job, device: str, failures: Sequence[str], compiling: Compiling) -> None:
        self.compiling = compiling
        self.device, self._failures = device, list(map(redact, failures))
        self._job, self._start, self._cpu_start = job, time.monotonic(), time.process_time()

    def provenance(self) -> dict[str, Any]:
        """What a record says about its making; nothing here changes a number."""
        return provenance(self.device) | {
            "seconds": time.monotonic() - self._start,
            "cpu_seconds": time.process_time() - self._cpu_start - self.compiling.cpu_seconds,
            "compiling_seconds": self.compiling.seconds,  # by the clock; once on a machine, and no cost of the method
            "peak_mib": peak_mib(),
            "methods_trained_together": list(self._job.methods),
            "failures_before": self._failures,
        }


def provenance(device: str) -> dict[str, Any]:
    """What made something: the code, its versions, the machine, and when it was done."""
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
