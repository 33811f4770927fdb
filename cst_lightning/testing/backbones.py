"""What the project promises of a backbone."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cst_lightning.fitting import LogDataModule, fit, quiet_trainer
from cst_lightning.protocols import Protocol
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule
from cst_lightning.testing.logs import TOLERANCE, RandomLogs, check_kind, close, demand, state_of, tiny_protocol


def check_backbone(backbone: type[StackedModule], protocol: Protocol | str = "matched", n_outcomes: int = 2) -> None:
    """Check a backbone's class: it trains, repeats itself, and its replicates have nothing to do with each other.

    In this order: predictions are finite probabilities after ``fit``; every parameter learns; the same seeds give the
    same numbers, bit for bit; a stack equals its parts in any order; rows of weight 0 have no say; a replicate that
    turns NaN harms nobody; ``select`` picks variants; students learn from it, and that of a CVAT weight does not depend
    on the weights beside it; ``fit``, ``test`` and ``predict`` of a Trainer run; a checkpoint predicts the same. What
    asks for a gradient is left out where ``has_gradient`` is False.

    Args:
        protocol: a name: with small networks and three epochs; a ``Protocol``: as it stands.
        n_outcomes: ``m`` of the logs.

    Raises:
        AssertionError: one of these does not hold.
        InputError: it is no such class.
    """
    check_kind(backbone, StackedModule, "check_backbone")
    small = tiny_protocol(protocol) if isinstance(protocol, str) else protocol
    make = _Maker(backbone, small, n_outcomes)
    stack = make.trained([5, 2, 9])
    _check_predictions(stack, make)
    if backbone.has_gradient:
        _check_every_parameter_learns(make)
    _check_repeats(stack, make.trained([5, 2, 9]), make)
    _check_parts(stack, make)
    if not _own_loss_without_weights(backbone):
        _check_weight_zero(make)
    if backbone.has_gradient:
        _check_failure_stays_alone(stack, make)
    _check_select(stack, make)
    _check_students(stack.select([0] * 3), make)
    _check_trainer(make)


@dataclasses.dataclass
class _Maker:
    """Makes the modules that a check of a backbone looks at."""

    backbone: type[StackedModule]
    protocol: Protocol
    n_outcomes: int

    @property
    def name(self) -> str:
        return self.backbone.__name__

    def data(self, seeds: Sequence[int]) -> RandomLogs:
        return RandomLogs(seeds, self.protocol.holdout > 0, m=self.n_outcomes)

    def module(self, data: RandomLogs) -> StackedModule:
        return self.backbone(data.shape, data.seeds, self.protocol, self.backbone.default_grid(self.protocol))

    def trained(self, seeds: Sequence[int]) -> StackedModule:
        data = self.data(seeds)
        module = self.module(data)
        fit(module, data)
        return module


def _check_predictions(stack: StackedModule, make: _Maker) -> None:
    data = make.data(stack.seeds)
    demand(stack.failed_epoch.eq(0).all(), f"{make.name}: the loss of a replicate turned NaN or infinite")
    loss = stack.training_loss
    demand(loss.isfinite().all(), f"{make.name}: training_loss is {loss.tolist()}, and must be finite")
    logits, p = stack.logits(data.test.x), stack(data.test.x)
    size = (len(stack.seeds) * stack.n_variants, *data.test.outcomes.shape[1:])
    allowed = (*size, make.n_outcomes - 1)
    demand(
        tuple(logits.shape) == allowed, f"{make.name}: logits have shape {tuple(logits.shape)}, allowed is {allowed}"
    )
    demand(logits.isfinite().all(), f"{make.name}: a logit is not finite")
    demand(torch.allclose(p.sum(-1), torch.ones(size), atol=1e-5), f"{make.name}: probabilities do not sum to 1")


def _check_every_parameter_learns(make: _Maker) -> None:
    data = make.data([0, 1])
    module, start = make.module(data), make.module(data)
    fit(module, data, max_epochs=1)
    before = dict(start.named_parameters())
    for name, value in module.named_parameters():
        moved = (value != before[name]).flatten(1).any(1).all() if len(value) else True
        demand(moved, f"{make.name}: parameter {name} did not change in an epoch: the loss gives it no gradient")


def _check_repeats(one: StackedModule, other: StackedModule, make: _Maker) -> None:
    x = make.data(one.seeds).test.x
    own, again = one.replicate_state(), other.replicate_state()
    same = torch.equal(one.logits(x), other.logits(x)) and all(torch.equal(own[name], again[name]) for name in own)
    demand(same, f"{make.name}: two trainings of the same seeds differ: draw random numbers from self.random or a seed")


def _check_parts(stack: StackedModule, make: _Maker) -> None:
    permuted = make.trained(stack.seeds[::-1])
    width = stack.n_variants
    for place, seed in enumerate(stack.seeds):
        alone, back = make.trained([seed]), len(stack.seeds) - 1 - place
        x = make.data([seed]).test.x
        for variant in range(width):
            own = state_of(stack, place * width + variant)
            equal = close(own, state_of(alone, variant)) and close(own, state_of(permuted, back * width + variant))
            demand(equal, f"{make.name}: seed {seed} trains otherwise alone or in another order than in a stack")
        own_logits = stack.logits(x.expand(len(stack.seeds), -1, -1)).view(len(stack.seeds), width, *x.shape[1:2], -1)
        same = torch.allclose(own_logits[place], alone.logits(x).flatten(2), atol=TOLERANCE, rtol=TOLERANCE)
        demand(same, f"{make.name}: seed {seed} predicts otherwise alone than in a stack")


def _own_loss_without_weights(backbone: type[StackedModule]) -> bool:
    return backbone.batch_loss is not StackedModule.batch_loss and not backbone.takes_weights


def _check_weight_zero(make: _Maker) -> None:
    data = make.data([3])
    log = data.train
    weight = torch.arange(log.n_rows).ge(log.n_rows // 4).float()[None]
    logits = []
    for flip in (0, 1):
        # another outcome where the weight is 0
        outcome = torch.where(weight == 0, (log.outcome + flip) % log.n_outcomes, log.outcome)
        changed = dataclasses.replace(log, outcome=outcome, weight=weight)
        module = make.module(data)
        fit(module, LogDataModule(changed, data.validation))
        logits.append(module.logits(data.test.x))
    same = torch.allclose(logits[0], logits[1], atol=TOLERANCE, rtol=TOLERANCE)
    demand(same, f"{make.name}: outcomes of rows of weight 0 change what is learned: use feedback.counted")


def _check_failure_stays_alone(healthy: StackedModule, make: _Maker) -> None:
    data = make.data(healthy.seeds)
    hurt, width = make.module(data), healthy.n_variants
    with torch.no_grad():
        for parameter in hurt.network.parameters():
            parameter[width : 2 * width] = torch.nan
    fit(hurt, data)
    of_seed = hurt.failed_epoch.view(-1, width).gt(0).all(1).tolist()
    shared = f"{make.name}: NaN weights of the second of three seeds made others fail too: a loss ties replicates "
    shared += "together; give one value a replicate, [R], each from its own entries (no mean over the first axis)"
    demand(not (of_seed[0] or of_seed[2]), shared)
    demand(of_seed[1], f"{make.name}: NaN weights of a seed are not seen in its loss: it must turn NaN with them")
    for replicate in [*range(width), *range(2 * width, 3 * width)]:
        own, other = state_of(healthy, replicate), state_of(hurt, replicate)
        same = all(torch.equal(value, other[name]) for name, value in own.items())
        demand(same, f"{make.name}: a replicate that turned NaN changed another")


def _check_select(stack: StackedModule, make: _Maker) -> None:
    x, width = make.data(stack.seeds).test.x, stack.n_variants
    chosen = [place % width for place in range(len(stack.seeds))]
    expected = stack.logits(x)[[place * width + variant for place, variant in enumerate(chosen)]]
    same = torch.allclose(stack.select(chosen).logits(x), expected, atol=TOLERANCE, rtol=TOLERANCE)
    demand(same, f"{make.name}: select gives a module that predicts otherwise")


def _check_students(teacher: StackedModule, make: _Maker) -> None:
    data = make.data(teacher.seeds)
    weights = (0.0, 1.0) if teacher.has_gradient else (0.0,)
    students = self_train(teacher, data, cvat_weights=weights, rounds=1)
    logits = students.logits(data.test.x)
    demand(logits.isfinite().all(), f"{make.name}: a student that learned from it has a logit that is not finite")
    for variant, weight in enumerate(weights):
        alone = self_train(teacher, data, cvat_weights=[weight], rounds=1).logits(data.test.x)
        same = torch.allclose(alone, logits[variant :: len(weights)], atol=TOLERANCE, rtol=TOLERANCE)
        demand(same, f"{make.name}: the student of CVAT weight {weight:g} depends on the weights beside it")


def _check_trainer(make: _Maker) -> None:
    data = make.data([0, 1])
    module = make.module(data)
    with tempfile.TemporaryDirectory() as folder, quiet_trainer(module.max_epochs, default_root_dir=folder) as trainer:
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
        demand("nll" in module.test_metrics, f"{make.name}: test_step leaves no nll in test_metrics")
        (predicted,) = trainer.predict(module, datamodule=data) or [None]
        expected: Tensor = module(data.test.x)
        demand(
            isinstance(predicted, Tensor) and torch.equal(predicted, expected),
            f"{make.name}: predict_step differs from forward",
        )
        if module.has_gradient:
            path = Path(folder, "module.ckpt")
            trainer.save_checkpoint(path)
            again = make.backbone.load_from_checkpoint(path, weights_only=True)
            same = torch.equal(again(data.test.x), expected)
            demand(same, f"{make.name}: a checkpoint predicts otherwise than the module that was saved")
