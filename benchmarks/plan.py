"""What a sweep would do, and about how long it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from rich.table import Table
from rich.text import Text

from benchmarks.grid import Job, backbones, student_groups
from cst_lightning.backbones.held_out_dm import EarlyDM
from cst_lightning.catalogue import get_method
from cst_lightning.stacked import StackedModule

# Measured on one core with AVX2 (results/speed): what an epoch costs besides its minibatches; of a minibatch, what each
# forward pass of a replicate costs besides arithmetic, compiled; what autograd costs more, for the step and for each
# replicate in it; and the rate of arithmetic. An estimate to plan by, not a promise.
_EPOCH_S, _PASS_S, _AUTOGRAD_STEP_S, _AUTOGRAD_S, _FLOPS = 5e-3, 3.5e-6, 3e-3, 1e-4, 5e10
# CPU time of a job besides its training (its process, compiled code, metrics, record), of a sweep's start, and of
# compiling what trains, which the first jobs on a machine do
_JOB_S, START_S, COMPILE_S = 1.0, 5.0, 40.0
_TYPICAL_EPOCHS = {"early": 60, "converged": 400}  # of a replicate, where its stopping decides; at a rate of 1e-3
_CVAT_PASSES = 12  # forward passes' worth of arithmetic of a step with CVAT; 3 without
# of a fit of a scikit-learn learner with its search: of boosted trees by row and feature, of others as a whole
_BOOSTING_S, _FIT_S = 3e-5, {"constant": 0.03, "s_logistic": 0.3, "t_logistic": 0.6}
_DATA_S = {"scene": 15.0, "yeast": 30.0}


@dataclass(frozen=True)
class Training:
    """One training of a job as it is planned."""

    epochs: float
    seconds: float  # of one core, for all its epochs


def estimate_seconds(job: Job) -> float:
    """About how many seconds of one core ``job`` takes, from the arithmetic of its steps."""
    return begin_seconds(job) + sum(training.seconds for training in trainings(job))


def begin_seconds(job: Job) -> float:
    """Of these, what passes before its first training."""
    return _JOB_S + _DATA_S.get(job.dataset.name, 1.0)


def trainings(job: Job) -> list[Training]:
    """The backbone's, then each group of students', round by round."""
    protocol = job.protocol
    backbone = backbones().get(job.backbone)
    n_rows, n_features, n_actions = _sizes(job)
    steps = max(1, round(n_rows * (1 - protocol.holdout) / protocol.batch_size))
    n_seeds = len(job.seeds)
    students = list(product(student_groups(job.methods), range(protocol.rounds)))
    if not backbone.has_gradient:
        fit_s = n_seeds * _FIT_S.get(job.backbone, _BOOSTING_S * n_rows * n_features)
        return [Training(1, fit_s), *(Training(1, len(group) * fit_s) for group, _ in students)]

    def arithmetic(hidden: int, passes: int) -> float:
        inner = 3 if protocol.architecture == "released" else 1
        weights = n_features * hidden + inner * hidden * hidden + hidden * n_actions
        return 2 * protocol.batch_size * weights * passes / _FLOPS

    def step(hidden: int, n_replicates: int, passes: int) -> float:
        return n_replicates * (_PASS_S * passes + arithmetic(hidden, passes))

    def training(epochs: float, step_s: float) -> Training:
        return Training(epochs, epochs * (_EPOCH_S + steps * step_s))

    n_grid = len(backbone.default_grid(protocol))
    compiled = backbone.batch_loss is StackedModule.batch_loss
    autograd = 0.0 if compiled else _AUTOGRAD_STEP_S + _AUTOGRAD_S * n_seeds * n_grid
    width, teacher = protocol.hidden_cst, backbone.hidden_units(protocol)
    found = [training(typical_epochs(job), step(teacher, n_seeds * n_grid, 3) + autograd)]
    for group, number in students:
        kinds = [get_method(method).cvat for method in group]
        step_s = n_seeds * arithmetic(teacher, 1) if protocol.teacher_dropout and number == 0 else 0.0
        if True in kinds:
            step_s += step(width, n_seeds * len(protocol.cvat_weights), _CVAT_PASSES)
        if False in kinds:
            step_s += step(width, n_seeds, 3)
        found.append(training(typical_epochs(job, number), step_s))
    return found


def typical_epochs(job: Job, number: int | None = None) -> float:
    """Epochs that the backbone of ``job``, or the students of round ``number`` from 0, take where stopping decides."""
    protocol, backbone = job.protocol, backbones().get(job.backbone)
    if number is None:
        stopping = "early" if issubclass(backbone, EarlyDM) else protocol.stopping
        most, rate = backbone.epochs(protocol), backbone.rate(protocol)
    else:
        stopping, most, rate = protocol.stopping, protocol.cst_epochs(number), protocol.learning_rate_cst
    slower = math.sqrt(1e-3 / rate) if stopping == "converged" else 1.0
    return min(most, slower * _TYPICAL_EPOCHS.get(stopping, most))


def _sizes(job: Job) -> tuple[int, int, int]:
    """Rows, features and actions, without drawing the data."""
    known = {"scene": (1203, 294, 6), "yeast": (1208, 103, 14), "multilabel": (200, 12, 4), "moons": (50, 2, 2)}
    options = dict(job.dataset.options)
    n_rows, n_features, n_actions = known.get(job.dataset.name, (1000, 50, 5))
    return (
        options.get("n_train", n_rows),
        options.get("n_features", n_features),
        options.get("n_prices", n_actions),
    )


def plan_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The cells as a table."""
    table = Table(title="cells", title_justify="left")
    for column in ("dataset", "backbone", "method", "protocol", "seeds", "status"):
        table.add_column(column)
    for row in rows:
        names = (
            row["dataset"],
            row["backbone"],
            row["method"],
            row["protocol"],
            seeds_said(row["seeds"]),
            row["status"],
        )
        table.add_row(*map(Text, names))
    return table


def seeds_said(seeds: Sequence[int]) -> str:
    """As the option ``--seeds`` takes them: ``0..4 7``."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][1] + 1:
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return " ".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)
