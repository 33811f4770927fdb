"""What the project promises of a metric and of a selection rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from cst_lightning.errors import InputError
from cst_lightning.protocols import get_protocol
from cst_lightning.selection import Rule
from cst_lightning.testing.logs import RandomLogs, check_kind, demand


def check_metric(metric: type[Metric], of: Literal["outcomes", "probabilities"] = "outcomes") -> None:
    """Check a metric's class: one finite value a replicate, which neither batches nor other replicates change.

    Args:
        of: what its ``update`` takes besides logits: the outcomes ``[R, N, K]``, or the true distribution.

    Raises:
        AssertionError: one of these does not hold.
        InputError: it is no such class.
    """
    check_kind(metric, Metric, "check_metric")
    name = metric.__name__
    demand(metric.higher_is_better is not None, f"{name}: set higher_is_better to True or False")
    for m in (2, 3):
        data = RandomLogs([0, 1, 2], n=90, m=m)
        logits, truth = _some_logits(data), getattr(data.test, of)
        value = _value(metric, logits, truth, [90])
        demand(
            value.shape == (3,), f"{name}: compute gives {tuple(value.shape)}, allowed is one value a replicate, (3,)"
        )
        demand(value.isfinite().all(), f"{name} is {value.tolist()} for {m} outcomes, and must be finite")
        saturated = _value(metric, 200 * logits, truth, [90])
        demand(saturated.isfinite().all(), f"{name} is {saturated.tolist()} for large logits, and must be finite")
        by_batches = _value(metric, logits, truth, [50, 1, 39])
        demand(torch.allclose(value, by_batches), f"{name}: rows in several updates give another value than in one")
        alone = torch.cat([_value(metric, logits[r : r + 1], truth[r : r + 1], [90]) for r in range(3)])
        demand(torch.allclose(value, alone), f"{name}: a replicate alone has another value than beside others")


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
        InputError: it is no rule.
    """
    if not isinstance(rule, Rule):
        raise InputError(f"check_rule({rule!r}): allowed is a Rule")
    data = RandomLogs([0, 1], n=600)
    rows: Any = data.test if rule.oracle else data.log
    protocol, truth = get_protocol("matched"), data.test.probabilities
    assert truth is not None
    right = truth[..., 1:].log() - truth[..., :1].log()
    logits = torch.stack([right, -right], 1).flatten(0, 1)  # two variants a seed
    score = rule.score(logits, rows.repeat(2), data.log, protocol)
    name = f"rule {rule.name}"
    demand(score.shape == (4,), f"{name}: score gives {tuple(score.shape)}, allowed is one value a replicate, (4,)")
    demand(score.isfinite().all(), f"{name} scores {score.tolist()}: allowed are finite values")
    for variant in range(2):
        alone = rule.score(logits[variant::2], rows, data.log, protocol)
        same = torch.allclose(alone, score[variant::2], rtol=1e-4)
        demand(same, f"{name}: a variant scores otherwise alone than beside others, or in a second call")
    better = score[0::2] < score[1::2]
    demand(better.all(), f"{name}: the true probabilities do not score lower than the opposite ones")


def _some_logits(data: RandomLogs) -> Tensor:
    size = (*data.test.outcomes.shape, data.test.n_outcomes - 1)
    return torch.randn(size, generator=torch.Generator().manual_seed(1))
