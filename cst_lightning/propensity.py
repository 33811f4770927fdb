"""Estimated propensities and what they say about overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from torch import Tensor

from cst_lightning.errors import InputError, rows_from_0
from cst_lightning.feedback import Feedback
from cst_lightning.threads import few_threads

PropensityModel = Literal["multinomial", "one_vs_rest"]


@dataclass(frozen=True)
class Overlap:
    """How well each action is covered; one value a replicate, ``[S]`` lists."""

    n_clipped: list[int]  # rows whose taken action's propensity lay below the floor
    effective_sample_size: list[float]  # of the weights 1 / pi(a | x), as a share of the rows
    largest_weight: list[float]


def estimate_propensities(
    feedback: Feedback, model: PropensityModel = "multinomial", at: Tensor | None = None
) -> Tensor:
    """Logistic-regression propensities of every action, float32 ``[S, N, K]``; rows sum to one.

    Fitted on the log, predicted at its own contexts or at the contexts ``at``, ``[S, N', d]``.

    ``multinomial`` fits one softmax regression (L2, C = 1); ``one_vs_rest`` is what the released code
    fits (liblinear, one action against the rest, normalised). An action that was never logged gets 0.
    """
    estimates = []
    queries = feedback.x if at is None else at
    for x, action, query in zip(feedback.x.cpu(), feedback.action.cpu().numpy(), queries.cpu(), strict=True):
        estimate = np.zeros((len(query), feedback.n_actions))
        seen = np.unique(action)
        if len(seen) == 1:
            estimate[:, seen] = 1
        else:
            with few_threads(len(x)):
                estimate[:, seen] = _regression(model, len(seen)).fit(x, action).predict_proba(query)
        estimates.append(torch.from_numpy(estimate).float())
    return torch.stack(estimates).to(feedback.x.device)


def _regression(model: PropensityModel, n_actions: int) -> LogisticRegression | OneVsRestClassifier:
    if model == "multinomial":
        return LogisticRegression(max_iter=1000)
    single = LogisticRegression(solver="liblinear", random_state=0, max_iter=1000)
    return OneVsRestClassifier(single) if n_actions > 2 else single  # of two, one against the rest is a single fit


def logged_or_estimated(feedback: Feedback, model: PropensityModel) -> Tensor:
    """The log's own propensities, ``[S, N, K]``, else those of ``estimate_propensities``."""
    return estimate_propensities(feedback, model) if feedback.propensity is None else feedback.propensity


def inverse_propensity_weights(feedback: Feedback, propensity: Tensor, floor: float) -> tuple[Tensor, Overlap]:
    """Weights ``1 / pi(a | x)`` of the rows, ``[S, N]``, propensities clipped at ``floor``.

    Args:
        propensity: ``[S, N, K]``.
        floor: least propensity used, in (0, 1); 0 clips nothing and fails on a propensity of 0.
    """
    if not 0 <= floor < 1:
        raise InputError(f"propensity_floor={floor}: allowed is 0 <= floor < 1")
    taken = propensity.gather(-1, feedback.action[..., None])[..., 0]
    if floor == 0 and (taken <= 0).any():
        raise InputError("an estimated propensity is 0 and propensity_floor is 0: set a floor such as 0.01")
    weight = 1 / taken.clamp(min=floor)
    size = weight.sum(1) ** 2 / (weight**2).sum(1) / weight.shape[1]
    return weight, Overlap((taken < floor).sum(1).tolist(), size.tolist(), weight.amax(1).tolist())


def whole_propensity(given: Any, taken: NDArray[np.int64], n_actions: int) -> Tensor:
    """``[N, K]`` from that, or from the propensity of the action taken, ``[N]``: the others then share the rest evenly.

    (Nothing that this package does with logged propensities looks at those of the actions not taken.)

    Raises:
        InputError: that of the action taken is 0, above 1 or no number; the message names rows, from 0.
    """
    try:
        value = np.array(given, float)
    except (TypeError, ValueError):
        raise InputError("propensity holds something else than numbers: allowed are probabilities") from None
    n_rows = len(taken)
    if value.shape not in ((n_rows,), (n_rows, n_actions)):
        raise InputError(f"propensity has shape {value.shape}: allowed are ({n_rows},) and ({n_rows}, {n_actions})")
    of_taken = value if value.ndim == 1 else value[np.arange(n_rows), taken]
    wrong = np.flatnonzero(~((of_taken > 0) & (of_taken <= 1)))
    if len(wrong):
        shown = ", ".join(dict.fromkeys(f"{value:g}" for value in of_taken[wrong[:5]]))
        said = f"propensity of the action taken is {shown} in {rows_from_0(wrong)}"
        raise InputError(f"{said}: allowed is above 0, at most 1")
    if value.ndim == 2:
        return torch.from_numpy(value)
    rest = (1 - value) / max(1, n_actions - 1)
    if n_actions == 1 and (value < 1).any():
        row = rows_from_0([int(value.argmin())])
        raise InputError(f"propensity is {value.min():g} in {row}: with one action it is 1")
    every = np.repeat(rest[:, None], n_actions, 1)
    every[np.arange(n_rows), taken] = value
    return torch.from_numpy(every)
