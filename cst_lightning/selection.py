"""Rules that choose a variant (a CVAT or HSIC weight) for each seed; each says what it looks at.

A rule scores every replicate, ``[R]``, lower is better. Rules on observed data get ``Feedback``;
oracle rules get ``PotentialOutcomes``, and what they choose is marked wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cst_lightning.errors import InputError, unknown_name
from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.losses import factual_nll
from cst_lightning.metrics import NLL, HammingLoss
from cst_lightning.propensity import estimate_propensities, inverse_propensity_weights
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule


@dataclass(frozen=True)
class ObservedRule:
    """A rule that looks at held-out observed outcomes only."""

    name: str
    score: Callable[[Tensor, Feedback, Feedback, Protocol], Tensor]  # logits, held-out rows, training rows
    oracle: bool = False


@dataclass(frozen=True)
class OracleRule:
    """A rule that looks at the outcome of every action on validation rows, which nobody has in practice."""

    name: str
    score: Callable[[Tensor, PotentialOutcomes], Tensor]
    oracle: bool = True


def _observed_nll(logits: Tensor, held_out: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    return factual_nll(logits, held_out.action, held_out.outcome)


def _inverse_propensity_nll(logits: Tensor, held_out: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    propensity = held_out.propensity
    if propensity is None:
        propensity = estimate_propensities(train, protocol.propensity_model, at=held_out.x)
    weight, _ = inverse_propensity_weights(held_out, propensity, max(protocol.propensity_floor, 0.01))
    weight = weight / weight.mean(1, keepdim=True)
    return factual_nll(logits, held_out.action, held_out.outcome, weight)


def _oracle_nll(logits: Tensor, potential: PotentialOutcomes) -> Tensor:
    metric = NLL()
    metric.update(logits, potential.outcomes)
    return metric.compute().reshape(-1)


def _oracle_hamming(logits: Tensor, potential: PotentialOutcomes) -> Tensor:
    metric = HammingLoss()
    metric.update(logits, potential.outcomes)
    return metric.compute().reshape(-1)


RULES: dict[str, ObservedRule | OracleRule] = {
    rule.name: rule
    for rule in (
        OracleRule("oracle_hamming", _oracle_hamming),
        OracleRule("oracle_nll", _oracle_nll),
        ObservedRule("observed_nll", _observed_nll),
        ObservedRule("ipw_nll", _inverse_propensity_nll),
    )
}


def get_rule(name: str) -> ObservedRule | OracleRule:
    """The rule called ``name``; an unknown name is an error with the nearest ones."""
    if name not in RULES:
        raise unknown_name("selection rule", name, RULES)
    return RULES[name]


@torch.no_grad()
def scores(
    rule: ObservedRule | OracleRule,
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
    rows = rows.to("cpu").expand(len(module.seeds))
    logits = module.logits(rows.x).cpu()
    values = []
    for variant in range(module.n_variants):
        own = logits[variant :: module.n_variants]
        if isinstance(rule, OracleRule):
            assert isinstance(rows, PotentialOutcomes)
            values.append(rule.score(own, rows))
        else:
            assert isinstance(rows, Feedback)
            values.append(rule.score(own, rows, train.to("cpu"), module.protocol))
    failed = module.failed_epoch.cpu().view(-1, module.n_variants) > 0
    return torch.stack(values, 1).double().nan_to_num(nan=torch.inf).masked_fill(failed, torch.inf)


def best(score: Tensor) -> list[int]:
    """The variant of lowest score for each seed; ties go to the first (the smallest weight of the grid)."""
    return [int(row.argmin()) for row in score]
