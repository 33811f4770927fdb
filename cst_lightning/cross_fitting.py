"""Predictions for rows that a model was not fitted on, for looking at a log before anything is trained on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeClassifier

from cst_lightning.columns import kind_of
from cst_lightning.encoding import FeatureEncoder
from cst_lightning.errors import InputError

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

N_FOLDS = 3
_STRENGTHS = (0.01, 0.1, 1.0, 100.0)  # C of logistic regression
_LEAST_ROWS = 10  # of a class, for an AUC


def is_numeric(column: pd.Series, categorical: Sequence[str]) -> bool:
    """Whether a feature is used as a number (booleans are)."""
    return column.name not in categorical and kind_of(column) in ("number", "whole number", "yes/no")


def feature_matrix(frame: pd.DataFrame, names: Sequence[str], categorical: Sequence[str]) -> Floats:
    """Features as a matrix ``[N, d]`` for any classifier (see ``encoding.FeatureEncoder``)."""
    with warnings.catch_warnings():  # that categories get hashed is no news here
        warnings.simplefilter("ignore", UserWarning)
        encoder = FeatureEncoder([name for name in categorical if name in names], missing="impute")
        return np.asarray(encoder.fit(frame[list(names)]).transform(frame[list(names)]), dtype=np.float64)


def feature_values(column: pd.Series, categorical: Sequence[str]) -> Floats:
    """A feature as numbers ``[N]`` for a tree: a missing number is NaN, categories are numbered."""
    if is_numeric(column, categorical):
        return np.asarray(column.astype("Float64").to_numpy(dtype=float, na_value=np.nan))
    return np.asarray(_codes(column), dtype=np.float64)


def _codes(column: pd.Series) -> Codes:
    return np.asarray(pd.factorize(column)[0], dtype=np.int64)


def held_out_probabilities(x: Floats, label: Codes, n_labels: int, random_state: int) -> tuple[Floats, str]:
    """Cross-fitted probabilities ``[N, C]`` of labels ``0..C-1``, and which model gives them.

    The model is the best by log loss on the rows held out: the shares of the labels, logistic regression of four
    strengths, or a tree. A label that a fold lacks has probability 0 there.

    Raises:
        InputError: a single row, beside which there is none to fit on.
    """
    if len(x) < 2:
        raise InputError("a single row: each is predicted from the others, so at least two are needed")
    least = max(20, len(x) // 200)
    models: dict[str, Callable[[], Any]] = {
        f"logistic regression (C = {c})": partial(LogisticRegression, C=c, max_iter=500) for c in _STRENGTHS
    }
    models["a tree"] = partial(DecisionTreeClassifier, min_samples_leaf=least, random_state=random_state)
    best, chosen = _shares(label, n_labels, random_state), "shares"
    for name, make in models.items():
        found = _cross_fit(make, x, label, n_labels, random_state)
        if _log_loss(found, label) < _log_loss(best, label):
            best, chosen = found, name
    return best, chosen


def _folds(n_rows: int, random_state: int) -> KFold:
    return KFold(min(N_FOLDS, n_rows), shuffle=True, random_state=random_state)


def _shares(label: Codes, n_labels: int, random_state: int) -> Floats:
    found = np.zeros((len(label), n_labels))
    for train, test in _folds(len(label), random_state).split(label):
        found[test] = np.bincount(label[train], minlength=n_labels) / len(train)
    return found


def _cross_fit(make: Callable[[], Any], x: Floats, label: Codes, n_labels: int, random_state: int) -> Floats:
    found = np.zeros((len(label), n_labels))
    for train, test in _folds(len(label), random_state).split(x):
        seen = np.unique(label[train])
        found[np.ix_(test, seen)] = make().fit(x[train], label[train]).predict_proba(x[test]) if len(seen) > 1 else 1.0
    return found


def _log_loss(probability: Floats, label: Codes) -> float:
    return float(-np.log(probability[np.arange(len(label)), label].clip(1e-9)).mean())


def explained_share(probability: Floats, label: Codes) -> float:
    """How much of what guessing the commonest label ``[N]`` leaves is told by probabilities ``[N, C]``, in 0..1."""
    right = float((probability.argmax(1) == label).mean())
    commonest = float(np.bincount(label).max() / len(label))
    return (right - commonest) / (1 - commonest) if commonest < 1 else 0.0


def area_under_curve(probability: Floats, label: Codes) -> tuple[float, int]:
    """The largest one-against-the-rest AUC over the labels, and whose it is; 0.5 where no label has rows enough."""
    counts = np.bincount(label, minlength=probability.shape[1])
    enough = [c for c, n in enumerate(counts) if min(n, len(label) - n) >= _LEAST_ROWS]
    areas = [(_area(probability[:, c], label == c), c) for c in enough]
    return max(areas, default=(0.5, 0))


def _area(score: Floats, positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve, by ranks."""
    n = int(positive.sum())
    return float((rankdata(score)[positive].sum() - n * (n + 1) / 2) / (n * (len(positive) - n)))


def auc_of_feature(
    column: pd.Series, categorical: Sequence[str], label: Codes, n_labels: int, random_state: int
) -> tuple[float, int]:
    """``area_under_curve`` of labels ``[N]`` by one feature, cross-fitted.

    A number goes into a tree that is limited in leaves; a category tells the shares of labels among its other rows,
    however many categories there are.
    """
    if is_numeric(column, categorical):
        value, leaves = feature_values(column, categorical)[:, None], max(16, 4 * n_labels)
        tree = partial(DecisionTreeClassifier, max_leaf_nodes=leaves, min_samples_leaf=5, random_state=random_state)
        return area_under_curve(_cross_fit(tree, value, label, n_labels, random_state), label)
    code = _codes(column) + 1  # a missing one is a category too
    found, shares = np.zeros((len(label), n_labels)), _shares(label, n_labels, random_state)
    for train, test in _folds(len(label), random_state).split(label):
        counts = np.zeros((code.max(initial=0) + 1, n_labels))
        np.add.at(counts, (code[train], label[train]), 1)
        seen = counts[code[test]]
        found[test] = (seen + shares[test]) / (seen.sum(1, keepdims=True) + 1)
    return area_under_curve(found, label)
