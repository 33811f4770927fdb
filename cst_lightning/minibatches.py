"""Minibatches of a log: where they start, in runs of bounded memory, and taking their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback

_RUN_BYTES = 1 << 27  # that a run of minibatches may take in copied rows and random bits


def batch_bounds(n_rows: int, batch_size: int) -> list[int]:
    """Where the minibatches of an epoch start, and where the last one stops; every row is in one.

    A last batch of a single row joins the one before it, since batch norm cannot train on one row.

    Raises:
        InputError: fewer rows than a batch.
    """
    if n_rows < batch_size:
        raise InputError(
            f"batch_size={batch_size}: only {n_rows} logged rows to train on, so allowed is 1..{n_rows}: take a "
            "protocol with smaller batches, or more rows (n_train of drawn data)"
        )
    starts = list(range(0, n_rows, batch_size))
    if len(starts) > 1 and n_rows - starts[-1] == 1:
        starts.pop()
    return [*starts, n_rows]


def take_rows(tensor: Tensor, rows: slice | Tensor) -> Tensor:
    """Rows of ``[S or R, N, ...]`` at the places ``rows``: a slice, or int64 ``[S, B]``."""
    if isinstance(rows, slice):
        return tensor[:, rows]
    index = rows.repeat_interleave(len(tensor) // len(rows), 0)
    return tensor[torch.arange(len(tensor), device=tensor.device)[:, None], index]


def put_rows(tensor: Tensor, order: Tensor) -> Tensor:
    """The inverse of ``take_rows`` for an order of all rows, int64 ``[S, N]``."""
    return take_rows(tensor, order.argsort(1))


def runs(bounds: Sequence[int], row_bytes: int) -> Iterator[Sequence[int]]:
    """The minibatches in runs that take bounded memory, one minibatch at least: the bounds of each run's."""
    n_together = max(1, _RUN_BYTES // (row_bytes * bounds[1]))
    for first in range(0, len(bounds) - 1, n_together):
        yield bounds[first : first + n_together + 1]


def take_batch(feedback: Feedback, order: Tensor | None, start: int, stop: int) -> tuple[Feedback, slice | Tensor]:
    """Rows ``start`` to ``stop`` of ``order``, and their places in the log."""
    if order is None:
        return feedback.row_range(start, stop), slice(start, stop)
    return feedback.rows(order[:, start:stop]), order[:, start:stop]
