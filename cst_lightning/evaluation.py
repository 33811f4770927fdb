"""In text: how well a model predicts logged rows it was not trained on, and what its recommendations would be worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cst_lightning.candidates import HeldOut
from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.columns import MIN_ROWS
from cst_lightning.encoding import Label, shown_list
from cst_lightning.errors import InputError
from cst_lightning.findings import UNCOVERED, percent
from cst_lightning.policy_value import doubly_robust, ips, snips
from cst_lightning.recommending import allowed_actions, worth

_SURE, _WORSE = 2, 1  # standard errors, above which a gain is one, and a loss is told as one
_OFF, _OFF_ERRORS = 0.1, 3  # of 1 and in standard errors, from which the mean of the weights is not what it should be
_BINS, _BIN_ROWS = 10, 50  # at most so many bins of the prediction, of at least so many rows


def beside_constant(found: HeldOut, last_epoch: int | None = None) -> str:
    """NLL of the rows held out in training, beside a constant's, and whether the features tell anything.

    Args:
        last_epoch: ``max_epochs`` where it, and not the stopping rule, ended the training.
    """
    lines = [
        f"NLL of the held-out observed outcomes: {found.nll:.4f}",
        f"  of a constant, each action's shares in the rows trained on: {found.constant:.4f}",
        f"  the model less the constant: {found.nll - found.constant:.4f} ± {found.error:.4f}",
    ]
    if found.constant - found.nll <= _SURE * found.error:
        said = "worse than the constant" if found.nll - found.constant > _WORSE * found.error else "no clear gain"
        short = f", or the training is too short (it ended at --max_epochs {last_epoch})" if last_epoch else ""
        rows = f"{',' if short else ', or'} the rows are too few"
        lines.append(f"  {said}: the features may tell nothing of the outcome{rows}{short}")
    return "\n".join(lines)


def fit_of(
    p: NDArray[np.float64], taken: NDArray[np.int64], seen: NDArray[np.int64], classifier: CounterfactualClassifier
) -> str:
    """NLL (nats) of the observed outcomes, beside a constant's; ``p`` ``[N, K, m]``, ``taken``, ``seen`` ``[N]``."""
    observed = np.flatnonzero(seen >= 0)
    if not len(observed):
        raise InputError("outcome is missing in every row: there is nothing to evaluate on")
    loss = -np.log(p[observed, taken[observed], seen[observed]].clip(1e-30))
    counts, where = classifier.outcome_counts_, "the training"
    if counts is None:
        counts, where = np.zeros((len(classifier.actions_), len(classifier.classes_)), np.int64), "these rows"
        np.add.at(counts, (taken[observed], seen[observed]), 1)
    shares = (counts + 1) / (counts + 1).sum(1, keepdims=True)
    constant = -np.log(shares[taken[observed], seen[observed]])
    lines = [f"NLL of {len(observed)} observed outcomes: {_mean(loss)}"]
    lines.append(f"  of a constant, each action's shares in {where}: {_mean(constant)}")
    lines.append(f"  the model less the constant: {_mean(loss - constant)}")
    return "\n".join(lines)


def _mean(values: NDArray[np.float64]) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean():.4f} ± {error:.4f}"


def calibration(
    p: NDArray[np.float64], taken: NDArray[np.int64], seen: NDArray[np.int64], classifier: CounterfactualClassifier
) -> str:
    """By action: how often each outcome was predicted and seen, and the gap between both in bins of the prediction."""
    rows = []
    for k, label in enumerate(classifier.actions_):
        mine = (taken == k) & (seen >= 0)
        n_outcomes = len(classifier.classes_)
        for r, outcome in enumerate(classifier.classes_):
            if r == 0 and n_outcomes == 2:
                continue  # one less the other
            if not mine.any():
                continue
            predicted, hit = p[mine, k, r], (seen[mine] == r).astype(float)
            # bins of equal numbers of rows: a rare outcome has its predictions close to 0
            order = np.argsort(predicted, kind="stable")
            parts = np.array_split(order, min(_BINS, max(1, len(order) // _BIN_ROWS)))
            gap = sum(abs(predicted[part].mean() - hit[part].mean()) * len(part) for part in parts) / len(order)
            rows.append((str(label), str(outcome), len(order), predicted.mean(), hit.mean(), gap))
    columns = ["action", "outcome", "rows", "predicted", "observed", "calibration error"]
    table = pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="%.4f")
    return f"\ncalibration by action:\n{table}\n"


def value_not_known(why: InputError) -> str:
    """What stands in the place of ``value_of_recommendations`` where these rows do not tell it."""
    return f"value of the recommended actions: not known ({why})"


def check_enough(seen: NDArray[np.int64]) -> None:
    """An interval of a mean wants some rows with an outcome, ``seen`` ``[N]``; of fewer it only looks like one."""
    if (n_rows := int((seen >= 0).sum())) < MIN_ROWS:
        raise InputError(f"rows with an outcome: {n_rows}; at least {MIN_ROWS} are needed for an interval")


def value_of_recommendations(
    classifier: CounterfactualClassifier,
    p: NDArray[np.float64],
    taken: NDArray[np.int64],
    seen: NDArray[np.int64],
    propensity: NDArray[np.float64],
    value: Mapping[Any, Any] | None,
    actions: Sequence[Label] | None,
    floor: float,
) -> str:
    """What the logged actions were worth, and by IPS, SNIPS and doubly robust the recommended ones would have been.

    Args:
        p: predictions ``[N, K, m]``. taken, seen: indices ``[N]``; seen -1 where no outcome was.
        propensity: ``[N, K]``. value, actions: as for ``CounterfactualClassifier.recommend``.
        floor: least propensity divided by.
    """
    labels = classifier.action_labels_
    try:
        of_outcome = worth(value, p.shape, labels, classifier.outcome_labels_)
    except InputError as error:
        return value_not_known(error)
    expected = (p * of_outcome).sum(-1)
    reward = np.where(seen >= 0, np.broadcast_to(of_outcome, p.shape[1:])[taken, seen], np.nan)
    policy = np.where(allowed_actions(actions, len(p), labels), expected, -np.inf).argmax(1)
    without = ~np.isin(policy, taken[seen >= 0])
    if without.any():
        names = shown_list([labels.values[k] for k in np.unique(policy[without])])
        why = f"{without.sum()} of {len(p)} rows were recommended an action that no row with an outcome has: {names}"
        return value_not_known(InputError(f"{why}; name those that these rows have with --actions"))
    lines = [f"value of a row as logged: {_mean(reward[seen >= 0])}", "value of a row by the recommended actions:"]
    try:
        estimates = {
            "IPS": ips(policy, taken, reward, propensity, floor=floor),
            "SNIPS": snips(policy, taken, reward, propensity, floor=floor),
            "doubly robust": doubly_robust(policy, taken, reward, propensity, expected, floor=floor),
        }
    except InputError as error:
        return value_not_known(error)
    for name, estimate in estimates.items():
        lines.append(
            f"  {name}: {estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f} at 95 %), "
            f"{estimate.effective_sample_size:.0f} rows' worth of {estimate.n_rows}, largest weight "
            f"{estimate.largest_weight:.1f}, {estimate.n_clipped} propensities below the floor {floor}"
        )
    observed = seen >= 0
    return "\n".join([*lines, *_doubts(policy[observed], taken[observed], propensity[observed], floor)])


def _doubts(
    policy: NDArray[np.int64], taken: NDArray[np.int64], propensity: NDArray[np.float64], floor: float
) -> Iterator[str]:
    """What speaks against the estimates above: their intervals know nothing of it.

    Args:
        policy, taken: indices ``[n]`` of the recommended and the logged actions. propensity: ``[n, K]``.
    """
    rows = np.arange(len(policy))
    none = float((propensity[rows, policy] < floor).mean())
    if none > UNCOVERED:
        yield (
            f"  doubtful: in {percent(none)} of these rows the recommended action had a chance below {floor}, and what "
            "it is worth there no row says"
        )
    weight = (policy == taken) / np.maximum(propensity[rows, taken], floor)
    # of 1{policy takes it} / pi the expectation is 1 where every recommended action has a chance
    mean, error = weight.mean(), weight.std(ddof=1) / np.sqrt(len(weight))
    if abs(mean - 1) > max(_OFF, _OFF_ERRORS * error):
        yield (
            f"  doubtful: the weights stand for {percent(mean)} of these rows, and for about 100 % where the "
            "propensities are right and every recommended action had a chance"
        )
