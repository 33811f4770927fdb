"""Training the ways that a method can be had in, and choosing among them by what was observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cst_lightning.catalogue import get_method
from cst_lightning.feedback import Feedback
from cst_lightning.fitting import LogDataModule
from cst_lightning.protocols import Protocol
from cst_lightning.selection import get_rule, scores
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule

N_FOLDS = 5  # a model holds out one of them


@dataclass(frozen=True)
class Candidate:
    """A way to train that was tried, and its score by the rule (lower is better; None where nothing was chosen)."""

    method: str
    cvat_weight: float | None
    score: float | None


def folds(log: Feedback, n_models: int, random: np.random.RandomState) -> tuple[Feedback, Feedback]:
    """Rows to train on and rows held out, ``[n_models, ...]``, each with the actions and outcomes of the whole.

    Args:
        log: of one replicate. n_models: how many of the five folds are held out, each by one model.
    """
    strata = (log.action[0] * (log.n_outcomes + 1) + log.outcome[0]).numpy()
    order = np.lexsort((random.random_sample(log.n_rows), strata))
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
        rule: None trains ``method`` alone.
        protocol: its ``cvat_weights`` are tried.

    Returns:
        The model with one replicate a seed, all candidates, and the one that the model is.
    """
    backbone = part(data.train.shape, seeds, protocol, part.default_grid(protocol))
    fitter(backbone, data)
    if backbone.n_variants > 1:  # HSIC's weight
        score = _scores(rule or protocol.selection, [backbone], data)
        backbone = backbone.select([int(np.argmin(score))] * len(seeds))
    modules, names, weights = [backbone], ["backbone"], [0.0]
    if method != "backbone":
        kind = get_method(method)
        grid = [0.0] * (rule is not None or not kind.cvat) + list(protocol.cvat_weights) * kind.cvat
        labels = protocol.replace(labels="soft" if kind.soft else "hard")
        students = self_train(backbone, data, cvat_weights=grid, fitter=fitter, protocol=labels, student=kind.student)
        modules.append(students)
        plain = method if kind.student else "pl_soft" if kind.soft else "pl"
        names += [method if weight else plain for weight in grid]
        weights += grid
    if rule is None:
        chosen, score = len(names) - 1, np.full(len(names), np.nan)
    else:
        score = _scores(rule, modules, data)
        chosen = int(np.argmin(score))
    candidates = [
        Candidate(name, weight or None, None if rule is None else float(value))
        for name, weight, value in zip(names, weights, score, strict=True)
    ]
    model = backbone if chosen == 0 else modules[1].select([chosen - 1] * len(seeds))
    return model, candidates, candidates[chosen]


def _scores(rule: str, modules: Sequence[StackedModule], data: LogDataModule) -> NDArray[np.float64]:
    """One score a candidate: the mean over the models, each on the rows that it held out."""
    return np.asarray(scores(get_rule(rule), modules, data.train, data.validation, None).mean(0))
