"""Warnings and errors of a log that has too little to learn from, for whatever is trained on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cst_lightning.candidates import N_FOLDS
from cst_lightning.cross_fitting import explained_share, held_out_probabilities
from cst_lightning.encoding import Labels
from cst_lightning.errors import InputError, warn
from cst_lightning.estimators import EstimatorBackbone
from cst_lightning.findings import CONTINUOUS, EXPLAINED, first_few
from cst_lightning.stacked import StackedModule
from cst_lightning.texts import counted, spelt_alike

_OVERLAP_ROWS = 2_000  # that overlap is looked at in

Model = Literal["s_learner", "t_learner", "network"]  # what is trained: None stands for not known yet below

#: what is predicted for an action of which no outcome counts, few do, and all are the same
_NONE: dict[Model | None, str] = {
    "s_learner": "what is predicted for {it} comes from other actions",
    "t_learner": "what is predicted for {it} is a guess, since each action has a model of its own",
    "network": "what is predicted for {it} is a guess, since each action has output weights of its own",
    None: "what is predicted for {it} is a guess, or comes from other actions where all share one model",
}
_FEW: dict[Model | None, str] = {
    "s_learner": "what is predicted for {it} comes from other actions",
    "t_learner": "what is predicted for {it} rests on these alone, since each action has a model of its own",
    "network": "what is predicted for {it} rests on these, over layers that are shared with other actions",
    None: "what is predicted for {it} comes from other actions, or rests on these alone where each has a model of its "
    "own",
}
_ALIKE: dict[Model | None, str] = {
    "s_learner": "what is predicted for {it} leans on other actions, since all share one model",
    "t_learner": "{they} will be predicted so",
    "network": "{they} will most likely be predicted so, since each action has output weights of its own",
    None: "{they} will most likely be predicted so, or like other actions where all share one model",
}


def check_classes(labels: Labels, n_rows: int) -> None:
    """That labels come more than once, as no class can be learned from a single row, and in one spelling.

    Args:
        n_rows: that have a label.

    Warns:
        UserWarning: of text that is different in more than half of the rows, or differs only in case or blanks.

    Raises:
        InputError: numbers that are.
    """
    if alike := spelt_alike(labels.values):
        warn(
            f"{labels.role} holds labels that differ only in blanks or upper and lower case, {first_few(alike)}: each "
            "is a class of its own; write each in one way, unless they are meant to be different"
        )
    n_different = len(labels.values)
    if n_different <= max(2, CONTINUOUS * n_rows):
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
    actions: Labels,
    outcomes: Labels,
    counts: NDArray[np.int64],
    part: type[StackedModule] | None = None,
    *,
    weighted: bool = False,
) -> None:
    """Of actions and outcomes with too little to learn from: one warning of each kind.

    Args:
        counts: how often each outcome was seen of each action, ``[K, m]``, in rows that count.
        part: the backbone that is trained; None: not known yet.
        weighted: whether rows of weight 0 were left out of ``counts``.
    """
    if len(actions.values) == 1:
        said = f"action is {actions.values[0]!r} in every row: nothing can be said of another one"
        warn(said)
    model, seen = _model_of(part), counts.sum(1)
    observed = "observed outcomes of a weight above 0" if weighted else "observed outcomes"
    none, few = seen == 0, (seen > 0) & (seen < N_FOLDS)
    alike = (seen >= N_FOLDS) & ((counts > 0).sum(1) == 1)
    only = [repr(outcomes.values[place]) for place in counts.argmax(1)]
    _warn_of(
        actions, none, lambda _: f"has 0 {observed}", f"have 0 {observed} each", f"{_NONE[model]}; leave {{it}} out"
    )
    _warn_of(
        actions, few, lambda k: f"has {seen[k]} {observed}", f"have fewer than {N_FOLDS} {observed} each",
        f"{_FEW[model]}; leave {{it}} out",
    )  # fmt: skip
    _warn_of(
        actions, alike, lambda k: f"was only ever seen with outcome {only[k]}",
        "were only ever seen with a single outcome each", f"{_ALIKE[model]}; log {{it}} more",
    )  # fmt: skip
    _warn_of_rare_outcomes(outcomes, counts.sum(0), " of a weight above 0" if weighted else "")


def _warn_of_rare_outcomes(outcomes: Labels, seen: NDArray[np.int64], which: str) -> None:
    """Of all rare ones in one warning; ``seen``: in how many rows each was, ``[m]``, and ``which`` these are."""
    rare = np.flatnonzero(seen < N_FOLDS)
    listed = first_few([repr(outcomes.values[k]) for k in rare])
    if len(rare) == 1:
        said = f"outcome {listed} has {counted(int(seen[rare[0]]), 'row')}{which}: what leads to it"
    else:
        said = f"{len(rare)} of {len(outcomes.values)} outcomes have fewer than {N_FOLDS} rows{which} each ({listed}): "
        said += "what leads to them"
    if len(rare):
        warn(f"{said} can hardly be learned; join what means the same for what you decide, such as a range of numbers")


def _model_of(part: type[StackedModule] | None) -> Model | None:
    if part is None:
        return None
    if not issubclass(part, EstimatorBackbone):
        return "network"
    return "t_learner" if part.per_action else "s_learner"


def _warn_of(actions: Labels, these: NDArray[np.bool_], one: Callable[[int], str], many: str, meaning: str) -> None:
    """Of one kind of actions, in a single warning however many they are."""
    which = np.flatnonzero(these)
    if len(which) == 1:
        warn(f"action {actions.values[which[0]]!r} {one(which[0])}: {meaning.format(it='it', they='it')}")
    elif len(which):
        listed = first_few([repr(actions.values[k]) for k in which])
        warn(f"actions {listed} {many}: {meaning.format(it='them', they='they')}")


def warn_of_no_overlap(x: NDArray[np.float32], taken: NDArray[np.int64], n_actions: int) -> None:
    """Of a log in which the features tell the action: nothing there separates what the one does from the other."""
    rows = np.random.default_rng(0).permutation(len(taken))[:_OVERLAP_ROWS]
    with threadpool_limits(1), warnings.catch_warnings():
        # that hardly any action comes twice was said
        warnings.filterwarnings("ignore", message="The number of unique classes is greater than")
        propensity, _ = held_out_probabilities(x[rows].astype(np.float64), taken[rows], n_actions, 0)
    if explained_share(propensity, taken[rows]) > EXPLAINED:
        warn(
            "the action is a function of the features, so no context shows two actions: what is predicted for other "
            "actions than a context's own is a guess; `diagnose` says more"
        )
