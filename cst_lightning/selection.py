"""Rules that choose a variant (a CVAT or HSIC weight) for each seed; each says what it looks at.

A rule scores every replicate, ``[R]``, lower is better. Rules on observed data get ``Feedback``;
oracle rules get ``PotentialOutcomes``, and what they choose is marked wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cst_lightning.errors import InputError, unknown_name
from cst_lightning.feedback import MISSING, Feedback, PotentialOutcomes
from cst_lightning.losses import factual_nll
from cst_lightning.metrics import evaluate
from cst_lightning.propensity import estimate_propensities, inverse_propensity_weights
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule


@dataclass(frozen=True)
class Rule:
    """A rule. ``score(logits, rows, train, protocol)`` gives ``[R]`` for logits ``[R, N, K, m-1]``.

    ``rows`` are held-out observed rows (``Feedback``), or for an oracle validation rows with the outcome
    of every action (``PotentialOutcomes``), which nobody has in practice; each repeated for every variant.
    """

    name: str
    oracle: bool
    score: Callable[[Tensor, Any, Feedback, Protocol], Tensor]
    protocol_fields: tuple[str, ...] = ()  # that it reads


def _observed_nll(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    return factual_nll(logits, rows.action, rows.outcome)


def _ipw_nll(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    n_variants = len(logits) // len(train.x)
    propensity = rows.propensity
    if propensity is None:
        estimate = estimate_propensities(train, protocol.propensity_model, at=rows.x[::n_variants])
        propensity = estimate.repeat_interleave(n_variants, 0)
    weight, _ = inverse_propensity_weights(rows, propensity, protocol.propensity_floor)
    observed = (rows.outcome != MISSING).to(weight.dtype)
    mean = (weight * observed).sum(1, keepdim=True) / observed.sum(1, keepdim=True).clamp(min=1)
    return factual_nll(logits, rows.action, rows.outcome, weight / mean)


def _oracle(metric: str) -> Callable[[Tensor, PotentialOutcomes, Feedback, Protocol], Tensor]:
    return lambda logits, rows, train, protocol: evaluate(logits, rows, [metric])[metric]


RULES = {
    rule.name: rule
    for rule in (
        Rule("oracle_hamming", oracle=True, score=_oracle("hamming")),
        Rule("oracle_nll", oracle=True, score=_oracle("nll")),
        Rule("observed_nll", oracle=False, score=_observed_nll),
        Rule("ipw_nll", oracle=False, score=_ipw_nll, protocol_fields=("propensity_floor", "propensity_model")),
    )
}


def get_rule(name: str) -> Rule:
    """The rule called ``name``; an unknown name is an error with the nearest ones."""
    if name not in RULES:
        raise unknown_name("selection rule", name, RULES)
    return RULES[name]


@torch.no_grad()
def scores(
    rule: Rule,
    module: StackedModule,
    train: Feedback,
    held_out: Feedback | None,
    oracle: PotentialOutcomes | None,
) -> Tensor:
    """Score of every variant of every seed, float64 ``[S, W]``; a failed replicate scores infinity.

    Raises:
        InputError: the rule looks at rows that there are none of.
    """
    rows: Feedback | PotentialOutcomes | None = oracle if rule.oracle else held_out
    if rows is None:
        what = "fully labelled validation rows" if rule.oracle else "held-out observed rows (protocol field holdout)"
        raise InputError(f"selection={rule.name} needs {what}, and there are none")
    n_seeds, n_variants = len(module.seeds), module.n_variants
    logits = module.logits(rows.x).cpu()
    rows = rows.to("cpu").expand(n_seeds).repeat(n_variants)
    score = rule.score(logits, rows, train.to("cpu").expand(n_seeds), module.protocol).double()
    score = score.nan_to_num(nan=torch.inf).masked_fill(module.failed_epoch.cpu() > 0, torch.inf)
    return score.view(n_seeds, n_variants)


def best(score: Tensor) -> list[int]:
    """The variant of lowest score for each seed; ties go to the first (the smallest weight of the grid)."""
    return [int(row.argmin()) for row in score]
