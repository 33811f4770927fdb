"""Rules that choose a variant (a CVAT or HSIC weight) for each seed; each says what it looks at.

A rule scores every replicate, ``[R]``, lower is better. Rules on observed data get ``Feedback``;
oracle rules get ``PotentialOutcomes``, and what they choose is marked wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from cst_lightning.distributions import log_probs, probs
from cst_lightning.errors import InputError, unknown_name
from cst_lightning.estimators import learner
from cst_lightning.feedback import MISSING, Feedback, PotentialOutcomes
from cst_lightning.fitting import fit
from cst_lightning.losses import factual_nll, observed_nll
from cst_lightning.metrics import evaluate
from cst_lightning.propensity import estimate_propensities, inverse_propensity_weights
from cst_lightning.protocols import Protocol
from cst_lightning.registry import object_at, with_offered
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
    return observed_nll(logits, rows)


def _inverse_propensity(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    """``1 / pi(a | x)`` of the rows, ``[R, N]``: the log's own propensities, else a model's of the training rows."""
    n_variants = len(logits) // len(train.x)
    propensity = rows.propensity
    if propensity is None:
        estimate = estimate_propensities(train, protocol.propensity_model, at=rows.x[::n_variants])
        propensity = estimate.repeat_interleave(n_variants, 0)
    return inverse_propensity_weights(rows, propensity, protocol.propensity_floor)[0]


def _ipw_nll(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    """Self-normalised."""
    weight = _inverse_propensity(logits, rows, train, protocol) * rows.counted
    n_observed = (rows.outcome != MISSING).sum(1, keepdim=True)
    return factual_nll(logits, rows.action, rows.outcome, weight / weight.sum(1, keepdim=True) * n_observed)


def _doubly_robust(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    """Pseudo-outcomes ``g + 1{a taken} (r - g) / pi``, ``[R, N, K, m]``: unbiased where ``g`` or ``pi`` is right.

    ``g`` are boosted trees of the training rows, so that no row helps to predict its own outcome. Where the
    outcome is missing, ``g`` stands.
    """
    n_variants = len(logits) // len(train.x)
    model = learner(_NUISANCE, per_action=False, soft=False)(train.shape, range(len(train.x)), protocol)
    fit(model, train)
    g: Tensor = model(rows.x[::n_variants]).repeat_interleave(n_variants, 0)
    here = (rows.taken & (rows.outcome != MISSING)[..., None])[..., None]
    seen = torch.nn.functional.one_hot(rows.outcome.clamp(min=0), rows.n_outcomes)[:, :, None]
    weight = _inverse_propensity(logits, rows, train, protocol)
    return g + here * (seen - g) * weight[..., None, None]


def _dr_nll(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    """NLL of every action, doubly robust (Dudik et al. 2011)."""
    loss = -(_doubly_robust(logits, rows, train, protocol) * log_probs(logits)).sum(-1)
    return _mean_by_weight(loss.mean(-1), rows)


def _cfcv(logits: Tensor, rows: Feedback, train: Feedback, protocol: Protocol) -> Tensor:
    """Counterfactual cross-validation (Saito and Yasui 2020): squared distance to doubly robust pseudo-outcomes.

    Theirs are of the effect of one treatment; these are of the outcomes of every action, which is what is learned here.
    """
    distance = _doubly_robust(logits, rows, train, protocol) - probs(logits)
    return _mean_by_weight(distance.square().sum(-1).mean(-1), rows)


def _mean_by_weight(value: Tensor, rows: Feedback) -> Tensor:
    return value.mean(1) if rows.weight is None else (value * rows.weight).sum(1) / rows.weight.sum(1)


def _oracle(metric: str) -> Callable[[Tensor, PotentialOutcomes, Feedback, Protocol], Tensor]:
    return lambda logits, rows, train, protocol: evaluate(logits, rows, [metric])[metric]


#: outcomes of the rows that a doubly robust rule looks at; as small as fits a log of hundreds of rows
_NUISANCE = HistGradientBoostingClassifier(
    learning_rate=0.05, max_iter=50, max_leaf_nodes=15, max_bins=64, early_stopping=False
)
_PROPENSITY_FIELDS = ("propensity_floor", "propensity_model")

RULES = {
    rule.name: rule
    for rule in (
        Rule("oracle_hamming", oracle=True, score=_oracle("hamming")),
        Rule("oracle_nll", oracle=True, score=_oracle("nll")),
        Rule("observed_nll", oracle=False, score=_observed_nll),
        Rule("ipw_nll", oracle=False, score=_ipw_nll, protocol_fields=_PROPENSITY_FIELDS),
        Rule("dr_nll", oracle=False, score=_dr_nll, protocol_fields=_PROPENSITY_FIELDS),
        Rule("cfcv", oracle=False, score=_cfcv, protocol_fields=_PROPENSITY_FIELDS),
    )
}


def known_rules() -> dict[str, Rule]:
    """``RULES``, and those of the entry points ``cst_lightning.rules``."""
    return with_offered("selection rule", RULES, Rule, "cst_lightning.rules")


def get_rule(name: str) -> Rule:
    """The rule called ``name``, or the one at the path ``package.module.NAME``.

    Raises:
        InputError: an unknown name, with the nearest ones; or what is at the path is no ``Rule``.
    """
    known = known_rules()
    if name in known:
        return known[name]
    if "." in name:
        return object_at(name, Rule)
    raise unknown_name("selection rule", name, known)


def scores(
    rule: Rule,
    module: StackedModule | Sequence[StackedModule],
    train: Feedback,
    held_out: Feedback | None,
    oracle: PotentialOutcomes | None,
) -> Tensor:
    """Score of every variant of every seed, float64 ``[S, W]``; a failed replicate scores infinity.

    Args:
        module: one, or several of the same seeds, whose variants then follow each other.

    Raises:
        InputError: the rule looks at rows that there are none of.
    """
    modules = [module] if isinstance(module, StackedModule) else list(module)
    rows: Feedback | PotentialOutcomes | None = oracle if rule.oracle else held_out
    if rows is None:
        what = "fully labelled validation rows" if rule.oracle else "held-out observed rows (protocol field holdout)"
        raise InputError(f"selection={rule.name} needs {what}, and there are none")
    n_seeds = len(modules[0].seeds)
    by_module = [module.logits(rows.x).cpu() for module in modules]
    logits = torch.cat([part.view(n_seeds, -1, *part.shape[1:]) for part in by_module], 1).flatten(0, 1)
    failed = torch.cat([module.failed_epoch.cpu().view(n_seeds, -1) for module in modules], 1).flatten() > 0
    rows = rows.to("cpu").expand(n_seeds).repeat(len(failed) // n_seeds)
    score = rule.score(logits, rows, train.to("cpu").expand(n_seeds), modules[0].protocol).double()
    return score.nan_to_num(nan=torch.inf).masked_fill(failed, torch.inf).view(n_seeds, -1)


def best(score: Tensor) -> list[int]:
    """The variant of lowest score for each seed; ties go to the first (the smallest weight of the grid)."""
    return [int(row.argmin()) for row in score]
