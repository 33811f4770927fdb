"""Warnings and errors of a log that has too little to learn from, for whatever is trained on it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cst_lightning.candidates import N_FOLDS
from cst_lightning.cross_fitting import explained_share, held_out_probabilities
from cst_lightning.encoding import Labels
from cst_lightning.errors import InputError, warn
from cst_lightning.findings import CONTINUOUS, EXPLAINED

_OVERLAP_ROWS = 2_000  # that overlap is looked at in


#: what the predictions of a rare action are made of, by whether each action has a model of its own; None: not known
_SOURCES = {
    False: "comes from other actions",
    True: "rests on these alone, since each action has a model of its own",
    None: "comes from other actions, or rests on these alone where each has a model of its own",
}


def check_classes(labels: Labels, n_rows: int) -> None:
    """That labels come more than once: no class can be learned from a single row.

    Warns:
        UserWarning: of text that is different in more than half of the ``n_rows`` rows.

    Raises:
        InputError: numbers that are.
    """
    n_different = len(labels.values)
    if n_different <= CONTINUOUS * n_rows:
        return
    if not isinstance(labels.values[0], str):
        raise InputError(
            f"Unknown label type: {labels.role} holds {n_different} different numbers in {n_rows} rows, so it is "
            "continuous or an identifier: cut it into a few classes"
        )
    warn(
        f"{labels.role} holds {n_different} different texts in {n_rows} rows: each is a class of its own, seen once or "
        "twice; if it is an identifier, take another column"
    )


def warn_of_rare(
    actions: Labels, outcomes: Labels, counts: NDArray[np.int64], *, per_action: bool | None = None
) -> None:
    """Of actions with too little to learn from.

    Args:
        counts: how often each outcome was seen of each action, ``[K, m]``.
        per_action: whether each action gets a model of its own (a T-learner); None: not known yet.
    """
    if len(actions.values) == 1:
        said = f"action is {actions.values[0]!r} in every row: nothing can be said of another one"
        warn(said)
    for label, of_action in zip(actions.values, counts, strict=True):
        if of_action.sum() < N_FOLDS:
            what = f"has {of_action.sum()} observed outcomes: what is predicted for it {_SOURCES[per_action]}"
            warn(f"action {label!r} {what}; leave it out")
        elif (of_action > 0).sum() == 1:
            only = outcomes.values[int(of_action.argmax())]
            what = f"was only ever seen with outcome {only!r}: it will be predicted so; log it more"
            warn(f"action {label!r} {what}")


def warn_of_no_overlap(x: NDArray[np.float32], taken: NDArray[np.int64], n_actions: int) -> None:
    """Of a log in which the features tell the action: nothing there separates what the one does from the other."""
    rows = np.random.default_rng(0).permutation(len(taken))[:_OVERLAP_ROWS]
    with threadpool_limits(1):
        propensity, _ = held_out_probabilities(x[rows].astype(np.float64), taken[rows], n_actions, 0)
    if explained_share(propensity, taken[rows]) > EXPLAINED:
        warn(
            "the action is a function of the features, so no context shows two actions: what is predicted for other "
            "actions than a context's own is a guess; `diagnose` says more"
        )
