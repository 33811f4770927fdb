"""Means and standard errors over seeds, paired comparisons, and ranks over data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats


@dataclass(frozen=True)
class Summary:
    """Mean and standard error of the seeds that finished; ``asked`` says of how many."""

    mean: float
    standard_error: float  # NaN for a single seed
    n: int
    asked: int


def summarise(values: Sequence[float | None], asked: int) -> Summary | None:
    """Mean and ``std(ddof=1) / sqrt(n)`` of the values that are there; None where there is none."""
    finished = [value for value in values if value is not None and math.isfinite(value)]
    if not finished:
        return None
    # scipy's sem is the same to the last digit and a hundred times slower, and a report asks for thousands
    error = float(np.std(finished, ddof=1) / np.sqrt(len(finished))) if len(finished) > 1 else math.nan
    return Summary(float(np.mean(finished)), error, len(finished), asked)


@dataclass(frozen=True)
class Difference:
    """Mean difference of two methods over the seeds that both finished, with its 95 % t interval and p value."""

    mean: float
    standard_error: float
    low: float
    high: float
    p: float
    n: int


def paired_difference(first: Mapping[int, float], second: Mapping[int, float]) -> Difference | None:
    """``first - second``, paired by seed: a paired t test. None for fewer than two common seeds.

    (A signed-rank or permutation test of five pairs cannot go below p = 0.06.)
    """
    seeds = sorted(set(first) & set(second))
    if len(seeds) < 2:
        return None
    differences = np.array([first[seed] - second[seed] for seed in seeds])
    mean, error = float(differences.mean()), float(stats.sem(differences))
    if error == 0:  # the same difference for every seed
        return Difference(mean, 0.0, mean, mean, float(mean == 0), len(seeds))
    test = stats.ttest_1samp(differences, 0)
    interval = test.confidence_interval(0.95)
    return Difference(mean, error, float(interval.low), float(interval.high), float(test.pvalue), len(seeds))


def holm(p: Sequence[float]) -> list[float]:
    """P values adjusted for being this many (Holm 1979), in the given order."""
    from statsmodels.stats.multitest import multipletests

    return [float(value) for value in multipletests(list(p), method="holm")[1]] if len(p) else []


@dataclass(frozen=True)
class Ranks:
    """Average ranks over data sets (1 is the lowest loss), and which pairs a Nemenyi test tells apart."""

    mean: pd.Series  # by method
    friedman_p: float
    pairwise_p: pd.DataFrame


def rank_methods(losses: pd.DataFrame) -> Ranks | None:
    """Ranks of the columns (methods) of losses, one row a data set; None for fewer than 3 methods or 2 data sets."""
    from scikit_posthocs import posthoc_nemenyi_friedman

    losses = losses.dropna(axis=1)
    if losses.shape[1] < 3 or losses.shape[0] < 2:
        return None
    friedman = stats.friedmanchisquare(*(losses[name] for name in losses))
    pairwise = posthoc_nemenyi_friedman(losses.to_numpy())
    pairwise.index = pairwise.columns = losses.columns
    return Ranks(losses.rank(axis=1).mean(), float(friedman.pvalue), pairwise)
