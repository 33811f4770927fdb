"""Means and standard errors over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
    error = float(stats.sem(finished)) if len(finished) > 1 else math.nan
    return Summary(float(np.mean(finished)), error, len(finished), asked)
