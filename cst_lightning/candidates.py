"""Training the ways that a method can be had in, and choosing among them by what was observed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cst_lightning.catalogue import get_method
from cst_lightning.distributions import log_probs
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback
from cst_lightning.fitting import LogDataModule
from cst_lightning.propensity import Overlap, inverse_propensity_weights, logged_or_estimated
from cst_lightning.protocols import Protocol
from cst_lightning.selection import get_rule, scores
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule
from cst_lightning.texts import counted

N_FOLDS = 5  # a model holds out one of them
AUTO = "auto"  # the simplest within a standard error of the lowest observed NLL of the models' average
_ROWS = 2000  # that tell how far models differ; it is a mean of many entries each


@dataclass(frozen=True)
class Candidate:
    """A way to train that was tried, and its score by the rule (lower is better; None where nothing was chosen)."""

    method: str
    cvat_weight: float | None
    score: float | None


@dataclass(frozen=True)
class HeldOut:
    """NLL (nats) of the observed outcomes held out.

    Attributes:
        nll: of the models' average. constant: of each action's shares in the rows trained on, averaged likewise.
        error: standard error of their difference.
    """

    nll: float
    constant: float
    error: float


def folds(log: Feedback, n_models: int, random: np.random.RandomState) -> tuple[Feedback, Feedback]:
    """Rows to train on and rows held out, ``[n_models, ...]``, each with the actions and outcomes of the whole.

    Every fold has rows that count (an outcome that was seen, with a weight above 0): one without would score nothing.

    Args:
        log: of one replicate. n_models: how many of the five folds are held out, each by one model.

    Raises:
        InputError: fewer rows count than there are folds.
    """
    strata = (log.action[0] * (log.n_outcomes + 1) + log.outcome[0]).numpy()
    counts = (log.counted[0] > 0).numpy()
    if counts.sum() < N_FOLDS:
        which = "" if log.weight is None else ", with a weight above 0,"
        raise InputError(
            f"outcome is seen{which} in {counted(int(counts.sum()), 'row')}: at least {N_FOLDS} are needed"
        )
    order = np.lexsort((random.random_sample(log.n_rows), strata, ~counts))
    n_held_out = log.n_rows // N_FOLDS
    # dealt like cards: every fifth row of the sorted log goes to the same fold, and all folds are of one size
    dealt = order[: n_held_out * N_FOLDS].reshape(n_held_out, N_FOLDS).T
    held_out = np.sort(dealt[random.permutation(N_FOLDS)[:n_models]], 1)
    is_out = np.zeros((n_models, log.n_rows), bool)
    np.put_along_axis(is_out, held_out, True, 1)
    train = np.nonzero(~is_out)[1].reshape(n_models, -1)
    whole = log.expand(n_models)
    return whole.rows(torch.from_numpy(train)), whole.rows(torch.from_numpy(held_out))


def train_candidates(
    part: type[StackedModule],
    method: str,
    rule: str | None,
    data: LogDataModule,
    seeds: Sequence[int],
    protocol: Protocol,
    fitter: Callable[..., None],
) -> tuple[StackedModule, list[Candidate], Candidate]:
    """Train ``method`` and everything simpler, and keep what scores lowest by ``rule`` on the rows held out.

    Args:
        rule: ``AUTO`` or the name of one; None trains ``method`` alone.
        protocol: its ``cvat_weights`` are tried.

    Returns:
        The model with one replicate a seed, all candidates, and the one that the model is.
    """
    backbone = part(data.train.shape, seeds, protocol, part.default_grid(protocol))
    fitter(backbone, data)
    if backbone.n_variants > 1:  # HSIC's weight
        best, _ = _choose(rule or protocol.selection, [backbone], data)
        backbone = backbone.select([best] * len(seeds))
    modules, names, weights = [backbone], ["backbone"], [0.0]
    if method != "backbone":
        kind = get_method(method)
        grid = [0.0] * (rule is not None or not kind.cvat) + sorted(protocol.cvat_weights) * kind.cvat
        labels = protocol.replace(labels="soft" if kind.soft else "hard")
        students = self_train(backbone, data, cvat_weights=grid, fitter=fitter, protocol=labels, student=kind.student)
        modules.append(students)
        plain = method if kind.student else "pl_soft" if kind.soft else "pl"
        names += [method if weight else plain for weight in grid]
        weights += grid
    if rule is None:
        chosen, score = len(names) - 1, np.full(len(names), np.nan)
    else:
        chosen, score = _choose(rule, modules, data)
    candidates = [
        Candidate(name, weight or None, None if rule is None else float(value))
        for name, weight, value in zip(names, weights, score, strict=True)
    ]
    model = backbone if chosen == 0 else modules[1].select([chosen - 1] * len(seeds))
    return model, candidates, candidates[chosen]


def overlap_of(part: type[StackedModule], rule: str | None, log: Feedback, protocol: Protocol) -> Overlap | None:
    """Of the weights of ``log``, which has one replicate, where the backbone or the rule divides by propensities."""
    if "propensity_floor" not in (*(part.protocol_fields or ()), *fields_of(rule)):
        return None
    propensity = logged_or_estimated(log, protocol.propensity_model)
    return inverse_propensity_weights(log, propensity, protocol.propensity_floor)[1]


def fields_of(rule: str | None) -> tuple[str, ...]:
    """The protocol fields that the rule of a ``selection`` reads."""
    return get_rule(rule).protocol_fields if rule and rule != AUTO else ()


def held_out_nll(module: StackedModule, train: Feedback, rows: Feedback) -> HeldOut:
    """How well a model predicts the ``rows`` that it held out, beside what needs no features.

    Args:
        module: one replicate a model, each trained on its own rows of ``train``.
    """
    # one more of each, as for a constant anywhere here
    counts = torch.ones(len(train.x), train.n_actions, train.n_outcomes, dtype=torch.float64)
    model = torch.arange(len(train.x))[:, None]
    at = (model.expand_as(train.action), train.action, train.outcome.clamp(min=0))
    counts.index_put_(at, train.counted.double(), accumulate=True)
    shares = (counts / counts.sum(-1, keepdim=True)).log()
    action, outcome, weight = rows.action, rows.outcome.clamp(min=0), rows.counted.double()

    def by_model(value: torch.Tensor) -> NDArray[np.float64]:
        return np.asarray((value * weight).sum(1) / weight.sum(1))

    log_p = log_probs(module.logits(rows.x).cpu().double())
    loss, constant = -log_p[model, torch.arange(rows.n_rows), action, outcome], -shares[model, action, outcome]
    saved = ambiguity(module, rows, len(rows.x))[0, 0]
    of_shares = float((_divergence(shares, 0)[action] * weight).sum() / weight.sum())
    gain = loss - constant
    error = (weight * (gain - by_model(gain).mean())).square().sum().sqrt() / weight.sum()
    nll = nll_of_average(by_model(loss), saved)
    return HeldOut(float(nll), float(nll_of_average(by_model(constant), of_shares)), float(error))


def _choose(rule: str, modules: Sequence[StackedModule], data: LogDataModule) -> tuple[int, NDArray[np.float64]]:
    """The candidate to keep, and the score of each: the mean over the models, each on the rows that it held out."""
    named = get_rule("observed_nll" if rule == AUTO else rule)
    score = np.asarray(scores(named, modules, data.train, data.validation, None))
    if rule != AUTO or data.validation is None:
        return int(score.mean(0).argmin()), score.mean(0)
    saved = np.concatenate([ambiguity(module, data.validation, len(data.validation.x))[0] for module in modules])
    return simplest(score, saved), nll_of_average(score, saved)


def simplest(score: NDArray[np.float64], saved: NDArray[np.float64]) -> int:
    """The first candidate that is within one standard error of the lowest score: a doubtful gain is not taken.

    Args:
        score: of each model, ``[F, W]``, candidates ordered from simple to complex. saved: by averaging, ``[W]``.
    """
    mean = nll_of_average(score, saved)
    lowest = int(mean.argmin())
    if len(score) == 1:
        return lowest
    with np.errstate(invalid="ignore"):  # of a candidate that failed
        error = (score - score[:, [lowest]]).std(0, ddof=1) / math.sqrt(len(score))
    return int(np.argmax(mean <= mean[lowest] + error))


def nll_of_average(score: NDArray[np.float64], saved: Any) -> NDArray[np.float64]:
    """NLL of the models' average: the mean of theirs less what averaging saves, and never below 0.

    Both are estimates, and of different things: the mean is of outcomes that were seen, each under the model that held
    its row out; what is saved is an expectation under all models, were outcomes to follow their average. Where few rows
    count and the models are sure and disagree, it can come out larger than the mean, and 0 is the nearest NLL.

    Args:
        score: NLL of each model, ``[F, ...]``. saved: by averaging (``ambiguity``), ``[...]``.
    """
    return np.asarray(np.maximum(score.mean(0) - saved, 0.0))


def ambiguity(module: StackedModule, held_out: Feedback, n_models: int) -> NDArray[np.float64]:
    """How much lower the NLL of the models' average is than the mean of theirs on observed rows, nats, ``[S, W]``.

    What is predicted with is the average of the models, but a row is held out by one of them alone, so its NLL cannot
    be measured there. That of the single models can, and the difference needs no outcomes: it is the mean over models
    and rows, at the action taken, of KL(average || model), where outcomes follow the average (the ambiguity
    decomposition of Krogh and Vedelsby 1995, for the log loss Heskes 1998). Without it, self-training is paid for a
    smoothness that the average has anyway.

    Args:
        module: of ``S * n_models`` replicates with ``W`` variants each.
        held_out: the rows that each model held out, ``[S * n_models, N]``. All models of a log predict all its rows,
            although all but one were trained on a row: how far they differ there stands for new rows.
    """
    n_logs, step = len(held_out.x) // n_models, -(-n_models * held_out.n_rows // _ROWS)
    x, action, weight = (
        part.cpu().reshape(n_logs, -1, *part.shape[2:])[:, ::step]
        for part in (held_out.x, held_out.action, held_out.counted)
    )
    logits = module.logits(x.repeat_interleave(n_models, 0)).cpu().double()
    log_p = log_probs(logits).view(n_logs, n_models, module.n_variants, *logits.shape[1:3], -1)
    divergence = _divergence(log_p, 1)  # [S, W, N, K]
    taken = divergence.gather(-1, action[:, None, :, None].expand(*divergence.shape[:3], 1))[..., 0]
    saved = (taken * weight[:, None]).sum(-1) / weight.sum(-1, keepdim=True)
    return np.asarray(saved.nan_to_num(nan=0.0))  # of a replicate that failed, which no rule chooses


def _divergence(log_p: torch.Tensor, models: int) -> torch.Tensor:
    """Mean over the axis ``models`` of KL(average || model); outcomes are the last axis."""
    average = torch.logsumexp(log_p, models, keepdim=True) - math.log(log_p.shape[models])
    return (average.exp() * (average - log_p)).sum(-1).mean(models)
