"""The categorical outcome given logits, as an exponential family.

Logits ``[..., m-1]`` are the log-odds of outcomes ``1..m-1`` against outcome 0, so ``m = 2`` has one
logit and every function below is finite, in value and gradient, at logits of any size. A target is a
probability of outcomes ``1..m-1`` in the same shape (one-hot for an observed outcome).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def log_normaliser(logits: Tensor) -> Tensor:
    """``A(l) = log(1 + sum_k exp l_k)``, which is ``-log p(outcome 0)``; ``[..., m-1]`` to ``[...]``."""
    if logits.shape[-1] == 1:
        return F.softplus(logits[..., 0])
    return torch.logsumexp(_with_zero(logits), -1)


def log_probs(logits: Tensor) -> Tensor:
    """Log-probabilities of all outcomes, ``[..., m-1]`` to ``[..., m]``."""
    if logits.shape[-1] == 1:
        return torch.cat([F.logsigmoid(-logits), F.logsigmoid(logits)], -1)
    return torch.log_softmax(_with_zero(logits), -1)


def probs(logits: Tensor) -> Tensor:
    """Probabilities of all outcomes, ``[..., m-1]`` to ``[..., m]``."""
    return log_probs(logits).exp()


def positive_probs(logits: Tensor) -> Tensor:
    """Probabilities of outcomes ``1..m-1``, ``[..., m-1]``: the mean parameter of the family."""
    if logits.shape[-1] == 1:
        return torch.sigmoid(logits)
    return torch.softmax(_with_zero(logits), -1)[..., 1:]


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """``-sum_k t_k log p_k`` for targets ``[..., m-1]`` (hard or soft); result ``[...]``."""
    return log_normaliser(logits) - (target * logits).sum(-1)


def nll(logits: Tensor, outcome: Tensor) -> Tensor:
    """``-log p(outcome)`` for outcome indices ``[...]`` (index -1, a missing outcome, scores as outcome 0)."""
    return cross_entropy(logits, one_hot(outcome, logits.shape[-1] + 1, logits.dtype))


def kl(p_logits: Tensor, q_logits: Tensor, smoothing: float = 0.0) -> Tensor:
    """``KL(p || q)`` as the family's Bregman divergence, ``[..., m-1]`` twice to ``[...]``.

    With ``smoothing`` s it is ``sum_k p_k log(p_k / (q_k + s) + s)``, as the released code has it
    (s = 1e-7): bounded, and without a gradient where ``q_k`` is far below s.
    """
    if smoothing:
        p, q = probs(p_logits), probs(q_logits)
        return (p * torch.log(p / (q + smoothing) + smoothing)).sum(-1)
    if p_logits.shape[-1] == 1:
        # of two outcomes, let 1 be the one that p holds unlikely (or q, where p is even): no two large terms cancel
        likely = (p_logits > 0) | ((p_logits == 0) & (q_logits > 0))
        sign = 1 - 2 * likely.to(p_logits.dtype)
        p_logits, q_logits = sign * p_logits, sign * q_logits
    p = positive_probs(p_logits)
    return (p * (p_logits - q_logits)).sum(-1) + log_normaliser(q_logits) - log_normaliser(p_logits)


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats, ``[..., m-1]`` to ``[...]``."""
    return cross_entropy(logits, positive_probs(logits))


def mode(logits: Tensor) -> Tensor:
    """The likeliest outcome, int64 ``[...]``; ties go to the lower index."""
    if logits.shape[-1] == 1:
        return (logits[..., 0] > 0).to(torch.int64)
    return _with_zero(logits).argmax(-1)


def one_hot(outcome: Tensor, n_outcomes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Outcome indices ``[...]`` as targets ``[..., m-1]``."""
    return (outcome[..., None] == torch.arange(1, n_outcomes, device=outcome.device)).to(dtype)


def _with_zero(logits: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(logits[..., :1]), logits], -1)
