"""Metrics over all rows and all actions; each is a ``torchmetrics.Metric`` with one value a replicate.

(torchmetrics squeezes the value of a single replicate to a scalar; ``evaluate`` keeps ``[R]``.)

Every ``update`` takes logits ``[R, N, K, m-1]`` and the outcome of every action ``[R, N, K]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_calibration_error,
    multiclass_calibration_error,
)

from cst_lightning.distributions import log_probs, mode, nll, probs
from cst_lightning.errors import InputError
from cst_lightning.feedback import PotentialOutcomes
from cst_lightning.registry import with_offered


class _Mean(Metric):
    """A mean over rows and actions of a value an entry."""

    full_state_update = False
    higher_is_better = False
    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, value: Tensor) -> None:
        """Entries ``[R, N, ...]``, whose mean over all axes but the first is the metric."""
        if value.ndim < 2:
            raise InputError(
                f"{type(self).__name__} adds a value of shape {tuple(value.shape)}: allowed is one for each row, "
                "[R, N] or [R, N, K]; take no mean over rows, compute does"
            )
        value = value.double().flatten(1)
        self.total = self.total + value.sum(1)
        self.count = self.count + value.shape[1]

    def compute(self) -> Tensor:
        """``[R]``."""
        return self.total / self.count


class NLL(_Mean):
    """Mean of ``-log f(r | x, a)`` in nats (the tables' log loss)."""

    def update(self, logits: Tensor, outcomes: Tensor) -> None:
        """Add rows."""
        self._add(nll(logits, outcomes))


class HammingLoss(_Mean):
    """Share of (row, action) pairs whose likeliest outcome is not the true one."""

    def update(self, logits: Tensor, outcomes: Tensor) -> None:
        """Add rows."""
        self._add(mode(logits) != outcomes)


class BrierScore(_Mean):
    """Squared distance of the predicted distribution to the outcome, halved: for ``m = 2``, ``(p(1) - r)^2``."""

    def update(self, logits: Tensor, outcomes: Tensor) -> None:
        """Add rows."""
        truth = torch.nn.functional.one_hot(outcomes, logits.shape[-1] + 1)
        self._add((probs(logits) - truth).square().sum(-1) / 2)


class ExcessNLL(_Mean):
    """NLL expected under the true distribution, less its entropy: how far above the floor, without sampling noise."""

    def update(self, logits: Tensor, probabilities: Tensor) -> None:
        """Add rows; ``probabilities`` is the true distribution ``[R, N, K, m]``."""
        p = probabilities.double()
        self._add(-(p * log_probs(logits.double())).sum(-1) - torch.special.entr(p).sum(-1))


class Reward(_Mean):
    """Outcome of the action with the highest predicted expected outcome (the paper's downstream task)."""

    higher_is_better = True

    def update(self, logits: Tensor, outcomes: Tensor) -> None:
        """Add rows."""
        self._add(outcomes.gather(-1, _best_action(logits)))


class Regret(_Mean):
    """Expected outcome of the truly best action, less that of the action chosen as in ``Reward``."""

    def update(self, logits: Tensor, probabilities: Tensor) -> None:
        """Add rows; ``probabilities`` is the true distribution ``[R, N, K, m]``."""
        value = _expected(probabilities)
        self._add(value.amax(-1, keepdim=True) - value.gather(-1, _best_action(logits)))


class _Pooled(Metric):
    """A metric of all entries at once, kept until ``compute``."""

    full_state_update = False
    logits: list[Tensor]
    outcomes: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("logits", [], dist_reduce_fx="cat")
        self.add_state("outcomes", [], dist_reduce_fx="cat")

    def update(self, logits: Tensor, outcomes: Tensor) -> None:
        """Add rows."""
        # rows first, since a distributed reduction joins along the first axis
        self.logits.append(logits.transpose(0, 1))
        self.outcomes.append(outcomes.transpose(0, 1))

    def compute(self) -> Tensor:
        """``[R]``."""
        logits, outcomes = torch.cat(list(self.logits)), torch.cat(list(self.outcomes))
        replicates = zip(logits.unbind(1), outcomes.unbind(1), strict=True)
        return torch.stack([self._one(one.flatten(0, -2), truth.flatten()) for one, truth in replicates])

    def _one(self, logits: Tensor, outcome: Tensor) -> Tensor:
        raise NotImplementedError


class MicroAUC(_Pooled):
    """Area under the ROC curve, all entries (and, for ``m > 2``, all outcomes one against the rest) pooled.

    NaN where the entries hold a single outcome. For ``m = 2`` entries are ranked by their logits, which stay
    apart where probabilities saturate.
    """

    higher_is_better = True

    def _one(self, logits: Tensor, outcome: Tensor) -> Tensor:
        if logits.shape[-1] == 1:
            score, positive = logits[:, 0], outcome
        else:
            score = probs(logits).flatten()
            positive = torch.nn.functional.one_hot(outcome, logits.shape[-1] + 1).flatten()
        if positive.min() == positive.max():
            return torch.full((), torch.nan, device=logits.device)
        # torchmetrics squashes scores outside 0..1 and would make ties of them; their ranks it takes as they are
        rank = torch.unique(score, return_inverse=True)[1].double()
        return binary_auroc(rank / rank.max().clamp(min=1), positive).float()


class CalibrationError(_Pooled):
    """Expected calibration error over 15 bins: of ``p(1)`` for ``m = 2``, of the likeliest outcome otherwise."""

    higher_is_better = False
    n_bins: ClassVar[int] = 15

    def _one(self, logits: Tensor, outcome: Tensor) -> Tensor:
        p = probs(logits)
        if p.shape[-1] == 2:
            return binary_calibration_error(p[:, 1].contiguous(), outcome, n_bins=self.n_bins)
        return multiclass_calibration_error(p, outcome, num_classes=p.shape[-1], n_bins=self.n_bins)


def reliability(logits: Tensor, outcomes: Tensor, n_bins: int = 15) -> list[dict[str, list[float]]]:
    """What a reliability curve is drawn of: for each replicate, ``n_bins`` equal bins of the predicted probability.

    For ``m = 2`` of ``p(1)`` against outcome 1; otherwise of the likeliest outcome's probability against its
    being right. Entries of all rows and actions are pooled.

    Args:
        logits: ``[R, N, K, m-1]``. outcomes: ``[R, N, K]``.

    Returns:
        For each replicate ``count``, ``predicted`` (mean probability) and ``observed`` (share that came true), lists
        of ``n_bins``; the last two are 0 in an empty bin.
    """
    out = []
    outcomes = outcomes.repeat_interleave(len(logits) // len(outcomes), 0)
    for one, truth in zip(probs(logits).double().flatten(1, 2), outcomes.flatten(1), strict=True):
        p, hit = (one[:, 1], truth == 1) if one.shape[-1] == 2 else (one.amax(-1), one.argmax(-1) == truth)
        place = (p * n_bins).long().clamp(max=n_bins - 1)
        count, predicted, observed = (
            torch.zeros(n_bins, dtype=torch.float64, device=p.device).index_add_(0, place, value.double())
            for value in (torch.ones_like(p), p, hit)
        )
        least = count.clamp(min=1)
        values = {"count": count, "predicted": predicted / least, "observed": observed / least}
        out.append({name: value.tolist() for name, value in values.items()})
    return out


#: name in records and tables: class; the classes that take ``probabilities`` need the true distribution
METRICS: dict[str, type[Metric]] = {
    "nll": NLL,
    "hamming": HammingLoss,
    "auc": MicroAUC,
    "brier": BrierScore,
    "ece": CalibrationError,
    "reward": Reward,
    "regret": Regret,
    "excess_nll": ExcessNLL,
}
_NEEDS_TRUTH = ("regret", "excess_nll")
#: names of those above; another one is a user's own
STANDARD = frozenset(METRICS)


def known_metrics() -> dict[str, type[Metric]]:
    """``METRICS``, and those of the entry points ``cst_lightning.metrics``."""
    return with_offered("metric", METRICS, Metric, "cst_lightning.metrics")


def evaluate(logits: Tensor, potential: PotentialOutcomes, names: Sequence[str] = ()) -> dict[str, Tensor]:
    """All metrics that can be had (or those of ``names``), float64 ``[R]`` each.

    Args:
        logits: ``[R, N, K, m-1]`` with ``R`` a multiple of the replicates of ``potential`` (its variants).
    """
    potential = potential.to(logits.device)
    n_variants = len(logits) // len(potential.outcomes)
    outcomes = potential.outcomes.repeat_interleave(n_variants, 0)
    values, known = {}, known_metrics()
    for name in names or known:
        metric = known[name]().to(logits.device)
        if name not in _NEEDS_TRUTH:
            metric.update(logits, outcomes)
        elif potential.probabilities is not None:
            metric.update(logits, potential.probabilities.repeat_interleave(n_variants, 0))
        else:
            continue
        values[name] = metric.compute().double().reshape(-1)  # torchmetrics squeezes a single value
    return values


def _expected(probabilities: Tensor) -> Tensor:
    return (probabilities * torch.arange(probabilities.shape[-1], device=probabilities.device)).sum(-1)


def _best_action(logits: Tensor) -> Tensor:
    # for m = 2 the logit orders like p(1), and saturated predictions stay apart
    score = logits[..., 0] if logits.shape[-1] == 1 else _expected(probs(logits))
    return score.argmax(-1, keepdim=True)
