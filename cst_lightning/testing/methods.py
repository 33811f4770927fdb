"""What the project promises of a method: of the class of its students."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.fitting import fit, quiet_trainer, whole
from cst_lightning.protocols import Protocol
from cst_lightning.self_training import SelfTraining, self_train
from cst_lightning.stacked import StackedModule
from cst_lightning.testing.logs import TOLERANCE, RandomLogs, check_kind, close, demand, state_of, tiny_protocol

_WEIGHTS = (0.0, 1.0)


def check_method(method: type[SelfTraining], protocol: Protocol | str = "matched", n_outcomes: int = 2) -> None:
    """Check a student's class: it learns from DM as a teacher, with and without CVAT, for two rounds.

    In this order: predictions are finite; the same seeds give the same numbers, bit for bit; a stack equals its parts,
    so that neither another seed nor another CVAT weight changes a student; a checkpoint predicts the same, without its
    teacher.

    Args:
        protocol: a name: with small networks and three epochs; a ``Protocol``: as it stands.
        n_outcomes: ``m`` of the logs.

    Raises:
        AssertionError: one of these does not hold.
        InputError: it is no such class.
    """
    check_kind(method, SelfTraining, "check_method")
    small = tiny_protocol(protocol) if isinstance(protocol, str) else protocol
    small = small.replace(labels="soft") if method.soft else small
    name, seeds = method.__name__, [5, 2]
    stack, x = _students(method, small, n_outcomes, seeds, _WEIGHTS)
    demand(stack.logits(x).isfinite().all(), f"{name}: a logit is not finite")
    again, _ = _students(method, small, n_outcomes, seeds, _WEIGHTS)
    same = torch.equal(stack.logits(x), again.logits(x))
    demand(same, f"{name}: two trainings of the same seeds differ: draw random numbers from self.random or a seed")
    for place, seed in enumerate(seeds):
        for variant, weight in enumerate(_WEIGHTS):
            alone, _ = _students(method, small, n_outcomes, [seed], [weight])
            own = state_of(stack, place * len(_WEIGHTS) + variant)
            demand(
                close(own, state_of(alone, 0)),
                f"{name}: the student of seed {seed} and CVAT weight {weight:g} trains otherwise alone than in a stack",
            )
    with tempfile.TemporaryDirectory() as folder, quiet_trainer(1, default_root_dir=folder) as trainer:
        trainer.predict(stack, whole(x))
        path = Path(folder, "student.ckpt")
        trainer.save_checkpoint(path)
        loaded = method.load_from_checkpoint(path, weights_only=True)
    same = torch.allclose(loaded.logits(x), stack.logits(x), atol=TOLERANCE, rtol=TOLERANCE)
    demand(same, f"{name}: a checkpoint predicts otherwise than the student that was saved")


def _students(
    method: type[SelfTraining], protocol: Protocol, n_outcomes: int, seeds: Sequence[int], weights: Sequence[float]
) -> tuple[StackedModule, torch.Tensor]:
    """Trained students, one for each seed and weight, and the contexts of the test rows ``[S, n, d]``."""
    data = RandomLogs(seeds, protocol.holdout > 0, m=n_outcomes)
    teacher = DirectMethod(data.shape, seeds, protocol)
    fit(teacher, data)
    return self_train(teacher, data, cvat_weights=weights, rounds=2, protocol=protocol, student=method), data.test.x
