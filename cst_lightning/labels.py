"""Pseudo-labels: what a teacher imputes, and how much of it is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import torch
from torch import Tensor

from cst_lightning.distributions import mode, one_hot, positive_probs
from cst_lightning.feedback import MISSING, Feedback


def pseudo_labels(logits: Tensor, labels: str) -> Tensor:
    """Targets ``[R, N, K, m-1]`` from a teacher's logits: its likeliest outcome (``hard``) or its distribution."""
    if labels == "soft":
        return positive_probs(logits)
    return one_hot(mode(logits), logits.shape[-1] + 1, logits.dtype)


def with_factual(target: Tensor, feedback: Feedback) -> Tensor:
    """Targets ``[S or R, N, K, m-1]`` with the observed outcome at the action taken (where it is not missing)."""
    observed = one_hot(feedback.outcome, feedback.n_outcomes, target.dtype)
    here = (feedback.taken & (feedback.outcome != MISSING)[..., None])[..., None]
    n_labellings = len(target) // len(here)
    observed, here = (t.repeat_interleave(n_labellings, 0) for t in (observed, here))
    return torch.where(here, observed[:, :, None], target)


def counted_entries(feedback: Feedback) -> Tensor:
    """How much each row counts under each action, ``[S, N, K]``: its weight, 0 at an outcome that is missing."""
    elsewhere = torch.ones_like(feedback.counted) if feedback.weight is None else feedback.weight
    return torch.where(feedback.taken, feedback.counted[..., None], elsewhere[..., None])


def label_error(labels: Tensor, feedback: Feedback, truth: Tensor, n_outcomes: int) -> Tensor:
    """Share of wrong pseudo-labels by action and true outcome, ``[R, K, m]`` (NaN where there is no entry).

    Args:
        labels: outcome indices of every action, ``[R, N, K]``; only actions not taken are counted.
        truth: the right ones, ``[S, N, K]``.
    """
    n_labellings = len(labels) // len(feedback.action)
    truth, taken = (t.repeat_interleave(n_labellings, 0) for t in (truth, feedback.taken))
    of_class = torch.nn.functional.one_hot(truth, n_outcomes).bool() & ~taken[..., None]
    wrong = (labels != truth)[..., None] & of_class
    return wrong.sum(1) / of_class.sum(1)


def at_median(p: Tensor, bounds: Sequence[int]) -> Tensor:
    """Whether a value is exactly the median of its action in its minibatch, bool ``[R, N, K]``.

    The median of an even number lies between the middle two, so it is a value where they are the same.
    """
    parts: list[Tensor] = []
    sizes = [stop - start for start, stop in pairwise(bounds)]
    for size, alike in groupby(sizes):  # all minibatches of one size at once
        start = sum(part.shape[1] for part in parts)
        part = p[:, start : start + size * len(list(alike))]
        batches = part.reshape(len(p), -1, size, p.shape[2]).transpose(2, 3)
        ordered = batches.contiguous().sort(-1).values
        low, high = ordered[..., (size - 1) // 2, None], ordered[..., size // 2, None]
        tied = (batches == low) & (batches == high)
        parts.append(tied.transpose(2, 3).flatten(1, 2))
    return torch.cat(parts, 1)
