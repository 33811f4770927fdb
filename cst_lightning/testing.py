"""Checks of a part of one's own: what the project promises of a backbone, a data module, a metric, a selection rule.

Each check makes small random logs, raises ``AssertionError`` with one line that says what does not hold, and passes on
what the part itself raises. None needs pytest; a test calls one and is done.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric
from typing_extensions import override

from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape
from cst_lightning.fitting import LogDataModule, fit, quiet_trainer, whole
from cst_lightning.protocols import Protocol, get_protocol
from cst_lightning.selection import Rule
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule

_TOLERANCE = 2e-5  # products of another batch may sum in another order


def tiny_protocol(protocol: Protocol | str = "written", **changes: Any) -> Protocol:
    """The protocol with small networks and few epochs."""
    widths = dict.fromkeys(("hidden", "hidden_udm", "hidden_cst"), 6)
    epochs = dict.fromkeys(("max_epochs", "max_epochs_hsic", "max_epochs_udm"), 3)
    small = {**widths, **epochs, "max_epochs_cst": [3], "batch_size": 16}
    return get_protocol(protocol).replace(**{**small, **changes})


class RandomLogs(LogDataModule):
    """Logs of outcomes that context and action tell a little of, the same for the same seed.

    Args:
        seeds: replicates. holdout: whether a fifth of the rows are held out.
        n, d, k, m: rows, features, actions, outcomes.
    """

    def __init__(
        self, seeds: Sequence[int] = (0, 1), holdout: bool = True, n: int = 60, d: int = 4, k: int = 3, m: int = 2
    ) -> None:
        self.seeds = list(seeds)
        x, action, outcomes, truth = (torch.stack(t) for t in zip(*(_draw(s, n, d, k, m) for s in seeds), strict=True))
        self.test = PotentialOutcomes(x, outcomes, m, truth)
        policy = torch.full((len(self.seeds), n, k), 1 / k)
        self.log = Feedback(x, action, outcomes.gather(-1, action[..., None])[..., 0], k, m, policy)
        n_train = n - n // 5 if holdout else n
        super().__init__(self.log.row_range(0, n_train), self.log.row_range(n_train, n) if holdout else None)
        self.shape: Shape = self.log.shape

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return whole(self.test)

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        return whole(self.test.x)


def _draw(seed: int, n: int, d: int, k: int, m: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    truth = torch.softmax(2 * torch.einsum("nd,dkm->nkm", x, torch.randn(d, k, m, generator=g)), -1)
    outcomes = torch.multinomial(truth.flatten(0, 1), 1, generator=g).view(n, k)
    return x, torch.arange(n) % k, outcomes, truth


# --- a backbone ---------------------------------------------------------------------------------------


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
    """
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
    _demand(stack.failed_epoch.eq(0).all(), f"{make.name}: the loss of a replicate turned NaN or infinite")
    loss = stack.training_loss
    _demand(loss.isfinite().all(), f"{make.name}: training_loss is {loss.tolist()}, and must be finite")
    logits, p = stack.logits(data.test.x), stack(data.test.x)
    size = (len(stack.seeds) * stack.n_variants, *data.test.outcomes.shape[1:])
    allowed = (*size, make.n_outcomes - 1)
    _demand(
        tuple(logits.shape) == allowed, f"{make.name}: logits have shape {tuple(logits.shape)}, allowed is {allowed}"
    )
    _demand(logits.isfinite().all(), f"{make.name}: a logit is not finite")
    _demand(torch.allclose(p.sum(-1), torch.ones(size), atol=1e-5), f"{make.name}: probabilities do not sum to 1")


def _check_every_parameter_learns(make: _Maker) -> None:
    data = make.data([0, 1])
    module, start = make.module(data), make.module(data)
    fit(module, data, max_epochs=1)
    before = dict(start.named_parameters())
    for name, value in module.named_parameters():
        moved = (value != before[name]).flatten(1).any(1).all() if len(value) else True
        _demand(moved, f"{make.name}: parameter {name} did not change in an epoch: the loss gives it no gradient")


def _check_repeats(one: StackedModule, other: StackedModule, make: _Maker) -> None:
    x = make.data(one.seeds).test.x
    own, again = one.replicate_state(), other.replicate_state()
    same = torch.equal(one.logits(x), other.logits(x)) and all(torch.equal(own[name], again[name]) for name in own)
    _demand(
        same, f"{make.name}: two trainings of the same seeds differ: draw random numbers from self.random or a seed"
    )


def _check_parts(stack: StackedModule, make: _Maker) -> None:
    permuted = make.trained(stack.seeds[::-1])
    width = stack.n_variants
    for place, seed in enumerate(stack.seeds):
        alone, back = make.trained([seed]), len(stack.seeds) - 1 - place
        x = make.data([seed]).test.x
        for variant in range(width):
            own = state_of(stack, place * width + variant)
            equal = close(own, state_of(alone, variant)) and close(own, state_of(permuted, back * width + variant))
            _demand(equal, f"{make.name}: seed {seed} trains otherwise alone or in another order than in a stack")
        own_logits = stack.logits(x.expand(len(stack.seeds), -1, -1)).view(len(stack.seeds), width, *x.shape[1:2], -1)
        same = torch.allclose(own_logits[place], alone.logits(x).flatten(2), atol=_TOLERANCE, rtol=_TOLERANCE)
        _demand(same, f"{make.name}: seed {seed} predicts otherwise alone than in a stack")


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
    same = torch.allclose(logits[0], logits[1], atol=_TOLERANCE, rtol=_TOLERANCE)
    _demand(same, f"{make.name}: outcomes of rows of weight 0 change what is learned: use feedback.counted")


def _check_failure_stays_alone(healthy: StackedModule, make: _Maker) -> None:
    data = make.data(healthy.seeds)
    hurt, width = make.module(data), healthy.n_variants
    with torch.no_grad():
        for parameter in hurt.network.parameters():
            parameter[width : 2 * width] = torch.nan
    fit(hurt, data)
    of_seed = hurt.failed_epoch.view(-1, width).gt(0).all(1).tolist()
    _demand(
        of_seed == [False, True, False], f"{make.name}: NaN weights of the second seed alone gave failures {of_seed}"
    )
    for replicate in [*range(width), *range(2 * width, 3 * width)]:
        own, other = state_of(healthy, replicate), state_of(hurt, replicate)
        same = all(torch.equal(value, other[name]) for name, value in own.items())
        _demand(same, f"{make.name}: a replicate that turned NaN changed another")


def _check_select(stack: StackedModule, make: _Maker) -> None:
    x, width = make.data(stack.seeds).test.x, stack.n_variants
    chosen = [place % width for place in range(len(stack.seeds))]
    expected = stack.logits(x)[[place * width + variant for place, variant in enumerate(chosen)]]
    same = torch.allclose(stack.select(chosen).logits(x), expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    _demand(same, f"{make.name}: select gives a module that predicts otherwise")


def _check_students(teacher: StackedModule, make: _Maker) -> None:
    data = make.data(teacher.seeds)
    weights = (0.0, 1.0) if teacher.has_gradient else (0.0,)
    students = self_train(teacher, data, cvat_weights=weights, rounds=1)
    logits = students.logits(data.test.x)
    _demand(logits.isfinite().all(), f"{make.name}: a student that learned from it has a logit that is not finite")
    for variant, weight in enumerate(weights):
        alone = self_train(teacher, data, cvat_weights=[weight], rounds=1).logits(data.test.x)
        same = torch.allclose(alone, logits[variant :: len(weights)], atol=_TOLERANCE, rtol=_TOLERANCE)
        _demand(same, f"{make.name}: the student of CVAT weight {weight:g} depends on the weights beside it")


def _check_trainer(make: _Maker) -> None:
    data = make.data([0, 1])
    module = make.module(data)
    with tempfile.TemporaryDirectory() as folder, quiet_trainer(module.max_epochs, default_root_dir=folder) as trainer:
        if not module.has_gradient:
            warnings.filterwarnings("ignore", message=".*configure_optimizers.* returned .None.*")
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
        _demand("nll" in module.test_metrics, f"{make.name}: test_step leaves no nll in test_metrics")
        (predicted,) = trainer.predict(module, datamodule=data) or [None]
        expected: Tensor = module(data.test.x)
        _demand(
            isinstance(predicted, Tensor) and torch.equal(predicted, expected),
            f"{make.name}: predict_step differs from forward",
        )
        if module.has_gradient:
            path = Path(folder, "module.ckpt")
            trainer.save_checkpoint(path)
            again = make.backbone.load_from_checkpoint(path, weights_only=True)
            same = torch.equal(again(data.test.x), expected)
            _demand(same, f"{make.name}: a checkpoint predicts otherwise than the module that was saved")


# --- a data module ------------------------------------------------------------------------------------


def check_data_module(make: Callable[..., Any]) -> None:
    """Check what makes a data module, its class or a function, called as ``make(seeds=[...])``.

    It has ``seeds``, ``shape``, ``train``, ``validation`` and ``test``; the same seed draws the same data in whatever
    list of seeds, and another seed other data; it draws once; the potential outcomes of the training rows, where it
    knows them, agree with the log; a Trainer fits and tests a direct method on it.

    Raises:
        AssertionError: one of these does not hold.
    """
    data = make(seeds=[1, 0])
    name = type(data).__name__
    _demand(isinstance(data, pl.LightningDataModule), f"{name} is no LightningDataModule")
    _demand(list(data.seeds) == [1, 0], f"{name}: seeds are {data.seeds}, asked for were [1, 0]")
    records = _records(data, name)
    _demand(records.keys() >= {"train", "test"}, f"{name}: train or test is missing")
    _demand(records["train"] is data.train, f"{name} draws its data anew when it is asked again")
    for record, value in _tensors(records).items():
        parts = [(seed, _tensors(_records(make(seeds=[seed]), name))[record]) for seed in data.seeds]
        for place, (seed, part) in enumerate(parts):
            same = len(part) == 1 and torch.equal(part[0], value[place])
            _demand(same, f"{name}: {record} of seed {seed} is another alone than beside seed {data.seeds[1 - place]}")
    x, outcome = data.train.x, data.train.outcome
    differ = not (torch.equal(x[0], x[1]) and torch.equal(outcome[0], outcome[1]))
    _demand(differ, f"{name}: seeds 0 and 1 draw the same training rows, so they are no replicates")
    _check_shapes(data, records, name)
    module = DirectMethod(data.shape, data.seeds, tiny_protocol(batch_size=min(16, data.train.n_rows)))
    with quiet_trainer(1) as trainer:
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
    _demand(module.test_metrics["nll"].isfinite().all(), f"{name}: the NLL of a direct method on it is not finite")


def _records(data: Any, name: str) -> dict[str, Feedback | PotentialOutcomes]:
    """What the data module hands out, by attribute; what there is none of is left out."""
    kinds: dict[str, type[Feedback | PotentialOutcomes]] = dict.fromkeys(("train", "validation"), Feedback)
    kinds |= dict.fromkeys(("test", "train_outcomes", "oracle_validation"), PotentialOutcomes)
    found = {}
    for attribute, kind in kinds.items():
        value = getattr(data, attribute, None)
        if value is not None:
            _demand(
                isinstance(value, kind), f"{name}: {attribute} is a {type(value).__name__}, allowed is {kind.__name__}"
            )
            found[attribute] = value
    return found


def _tensors(records: dict[str, Feedback | PotentialOutcomes]) -> dict[str, Tensor]:
    return {
        f"{attribute}.{field.name}": value
        for attribute, record in records.items()
        for field in dataclasses.fields(record)
        if isinstance(value := getattr(record, field.name), Tensor)
    }


def _check_shapes(data: Any, records: dict[str, Feedback | PotentialOutcomes], name: str) -> None:
    for attribute, record in records.items():
        own = Shape(record.x.shape[-1], record.n_actions, record.n_outcomes)
        _demand(own == data.shape, f"{name}: {attribute} has {own}, shape says {data.shape}")
    truth = records.get("train_outcomes")
    if isinstance(truth, PotentialOutcomes):
        log = data.train
        seen = truth.outcomes.gather(-1, log.action[..., None])[..., 0]
        agree = torch.equal(truth.x, log.x) and (log.outcome.lt(0) | seen.eq(log.outcome)).all()
        _demand(agree, f"{name}: train_outcomes are not those of the training rows")


# --- a metric and a rule ------------------------------------------------------------------------------


def check_metric(metric: type[Metric], of: Literal["outcomes", "probabilities"] = "outcomes") -> None:
    """Check a metric's class: one finite value a replicate, which neither batches nor other replicates change.

    Args:
        of: what its ``update`` takes besides logits: the outcomes ``[R, N, K]``, or the true distribution.

    Raises:
        AssertionError: one of these does not hold.
    """
    name = metric.__name__
    _demand(metric.higher_is_better is not None, f"{name}: set higher_is_better to True or False")
    for m in (2, 3):
        data = RandomLogs([0, 1, 2], n=90, m=m)
        logits, truth = _some_logits(data), getattr(data.test, of)
        value = _value(metric, logits, truth, [90])
        _demand(
            value.shape == (3,), f"{name}: compute gives {tuple(value.shape)}, allowed is one value a replicate, (3,)"
        )
        _demand(value.isfinite().all(), f"{name} is {value.tolist()} for {m} outcomes, and must be finite")
        saturated = _value(metric, 200 * logits, truth, [90])
        _demand(saturated.isfinite().all(), f"{name} is {saturated.tolist()} for large logits, and must be finite")
        by_batches = _value(metric, logits, truth, [50, 1, 39])
        _demand(torch.allclose(value, by_batches), f"{name}: rows in several updates give another value than in one")
        alone = torch.cat([_value(metric, logits[r : r + 1], truth[r : r + 1], [90]) for r in range(3)])
        _demand(torch.allclose(value, alone), f"{name}: a replicate alone has another value than beside others")


def _value(metric: type[Metric], logits: Tensor, truth: Tensor, sizes: Sequence[int]) -> Tensor:
    one = metric()
    start = 0
    for size in sizes:
        one.update(logits[:, start : start + size], truth[:, start : start + size])
        start += size
    value: Tensor = one.compute().double()
    return value.reshape(-1) if value.ndim == 0 else value  # torchmetrics squeezes a single value


def check_rule(rule: Rule) -> None:
    """Check a selection rule: a score for each replicate that others do not change, lower for better probabilities.

    Raises:
        AssertionError: one of these does not hold.
    """
    data = RandomLogs([0, 1], n=600)
    rows: Any = data.test if rule.oracle else data.log
    protocol, truth = get_protocol("matched"), data.test.probabilities
    assert truth is not None
    right = truth[..., 1:].log() - truth[..., :1].log()
    logits = torch.stack([right, -right], 1).flatten(0, 1)  # two variants a seed
    score = rule.score(logits, rows.repeat(2), data.log, protocol)
    name = f"rule {rule.name}"
    _demand(score.shape == (4,), f"{name}: score gives {tuple(score.shape)}, allowed is one value a replicate, (4,)")
    _demand(score.isfinite().all(), f"{name} scores {score.tolist()}: allowed are finite values")
    for variant in range(2):
        alone = rule.score(logits[variant::2], rows, data.log, protocol)
        same = torch.allclose(alone, score[variant::2], rtol=1e-4)
        _demand(same, f"{name}: a variant scores otherwise alone than beside others, or in a second call")
    better = score[0::2] < score[1::2]
    _demand(better.all(), f"{name}: the true probabilities do not score lower than the opposite ones")


def _some_logits(data: RandomLogs) -> Tensor:
    size = (*data.test.outcomes.shape, data.test.n_outcomes - 1)
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


# --- comparing replicates -----------------------------------------------------------------------------


def state_of(module: StackedModule, replicate: int) -> dict[str, Tensor]:
    """Every trained tensor of a replicate."""
    return {name: value[replicate] for name, value in module.replicate_state().items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = _TOLERANCE) -> bool:
    """Whether two replicates hold the same, but for rounding."""
    return all(torch.allclose(one[name], other[name], atol=tolerance, rtol=tolerance) for name in one)


def _demand(holds: Tensor | bool, message: str) -> None:
    """An ``assert`` that ``python -O`` keeps."""
    if not holds:
        raise AssertionError(message)
