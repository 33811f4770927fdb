"""Threads of the libraries that scikit-learn computes with."""

from __future__ import annotations

from threadpoolctl import threadpool_limits

_MANY_ROWS = 100_000


def few_threads(n_rows: int) -> threadpool_limits:
    """Within, OpenMP and BLAS have one thread for a log of few rows; a user's ``n_jobs`` stays.

    More hardly pay there, and wait long where other work holds the cores.
    """
    return threadpool_limits(1 if n_rows < _MANY_ROWS else None)
