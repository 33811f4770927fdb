"""Losses, as pure functions. Each returns one value a replicate, ``[R]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cst_lightning.distributions import cross_entropy, kl, nll, one_hot
from cst_lightning.feedback import MISSING, Feedback

Reduction = Literal["sum", "mean"]

_ENTRIES_AT_ONCE = 2**22  # of the Gram matrices of HSIC's RBF kernels


def factual_nll(logits: Tensor, action: Tensor, outcome: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean NLL of the observed outcomes (``L_src``), each row times ``weight`` (UDM: ``1 / pi(a | x)``).

    Args:
        logits: ``[R, B, K, m-1]``.
        action, outcome: ``[R, B]``; rows whose outcome is missing (-1) are left out.
        weight: ``[R, B]``. The sum is divided by the number of rows, not by the sum of the weights,
            as the appendix has it.
    """
    index = action[..., None, None].expand(*action.shape, 1, logits.shape[-1])
    value = nll(logits.gather(2, index)[:, :, 0], outcome)
    observed = (outcome != MISSING).to(value.dtype)
    weighted = value * observed if weight is None else value * observed * weight
    return weighted.sum(1) / observed.sum(1).clamp(min=1)


class Entries(NamedTuple):
    """What a cross-entropy is taken of: every row under every action, with a weight.

    Args:
        target: probabilities of outcomes ``1..m-1``, ``[S or R, B, K, m-1]``: the observed outcome at
            the action taken, a pseudo-label elsewhere.
        weight: ``[S or R, B, K]``; an entry of weight 0 does not count.
    """

    target: Tensor
    weight: Tensor


def observed_entries(feedback: Feedback, row_weight: Tensor | None = None) -> Entries:
    """The observed outcomes alone, ``[S, B, ...]``, by the log's weights; rows whose outcome is missing do not count.

    Args:
        row_weight: ``[S, B]`` (UDM: ``1 / pi(a | x)``).
    """
    counted = feedback.counted
    weight = feedback.taken * (counted if row_weight is None else counted * row_weight)[..., None]
    target = one_hot(feedback.outcome, feedback.n_outcomes, feedback.x.dtype)
    return Entries(target[:, :, None].expand(-1, -1, feedback.n_actions, -1), weight)


def observed_nll(logits: Tensor, feedback: Feedback, only: Tensor | None = None) -> Tensor:
    """Mean NLL of the observed outcomes by the log's weights, ``[R]``: what early stopping and selection look at.

    Args:
        logits: ``[R, N, K, m-1]``; each of the log's ``S`` replicates serves ``R / S`` of them in a row.
        only: the rows that count, bool ``[S, N]``; all by default.
    """
    outcome = feedback.outcome if only is None else feedback.outcome.masked_fill(~only, MISSING)
    n_variants = len(logits) // len(outcome)
    action, outcome = (t.repeat_interleave(n_variants, 0) for t in (feedback.action, outcome))
    if feedback.weight is None:
        return factual_nll(logits, action, outcome)
    observed = outcome != MISSING
    counted = feedback.weight.repeat_interleave(n_variants, 0) * observed
    mean = counted.sum(1, keepdim=True) / observed.sum(1, keepdim=True).clamp(min=1)
    return factual_nll(logits, action, outcome, counted / mean.clamp(min=1e-30))


def entry_nll(logits: Tensor, entries: Entries, reduction: Reduction) -> Tensor:
    """Weighted NLL of the entries: ``L_src`` or, with pseudo-labels, ``L_CST`` (Equation 2).

    Args:
        logits: ``[R, B, K, m-1]``.
        entries: one for each replicate.
        reduction: ``mean`` divides by the number of entries that count, not by the sum of their
            weights, as the appendix has it for UDM.
    """
    total = (cross_entropy(logits, entries.target) * entries.weight).sum((1, 2))
    return total if reduction == "sum" else total / (entries.weight != 0).sum((1, 2)).clamp(min=1)


def cvat(
    forward: Callable[[Tensor], Tensor],
    logits: Tensor,
    x: Tensor,
    start: Tensor,
    counterfactual: Tensor,
    *,
    xi: float,
    eps: float,
    iterations: int,
    reduction: Reduction,
    smoothing: float = 0.0,
) -> Tensor:
    """Counterfactual virtual adversarial training (``L_CVAT``): KL between clean and perturbed outcomes.

    The perturbation of a row, shared by its actions, is found by power iteration on the summed
    divergence of its counterfactual outcomes; only the perturbation gets gradients there.

    Args:
        forward: contexts ``[R, B, d]`` to logits ``[R, B, K, m-1]``, called ``iterations + 1`` times.
        logits: of the clean contexts; taken as constant (``f_theta-hat``).
        x: contexts ``[S or R, B, d]``.
        start: direction to start from, in the shape of ``x``; need not be normalised.
        counterfactual: the row's weight (1 in a log without) at actions not taken, else 0, ``[R, B, K]``. Where no
            entry counts the loss is 0.
        xi: step of the finite difference. eps: length of the perturbation. iterations: of the power method.
        reduction: over the counterfactual entries.
        smoothing: see ``kl``.
    """
    target = logits.detach()
    n_variants = len(target) // len(x)
    # the network's gradients come with rows last in memory; sums over mixed layouts are several times slower
    x = rows_last(x.repeat_interleave(n_variants, 0) if n_variants > 1 else x)
    direction = rows_last(_normalise(start).repeat_interleave(n_variants, 0))
    for _ in range(iterations):
        direction = direction.detach().requires_grad_()
        divergence = _reduce(kl(target, forward(x + xi * direction), smoothing), counterfactual, reduction)
        (gradient,) = torch.autograd.grad(divergence.sum(), direction)
        direction = _normalise(gradient)
    return _reduce(kl(target, forward(x + eps * direction.detach()), smoothing), counterfactual, reduction)


def hsic(x: Tensor, y: Tensor, *, kernel: str, bandwidth: float | None, normalised: bool = False) -> Tensor:
    """Biased Hilbert-Schmidt independence criterion of two samples; ``[R, B, dx]``, ``[R, B, dy]`` to ``[R]``.

    The appendix's four-index sum equals ``tr(K H L H) / B^2`` with ``H`` the centring matrix, so it
    takes ``O(B^2)`` time and memory (``O(B)`` for a linear kernel); it is never negative but for rounding.

    Args:
        kernel: ``linear`` (inner product) or ``rbf`` (``exp(-|u - v|^2 / sigma^2)``).
        bandwidth: ``sigma``; None takes the median of the positive distances of the batch.
        normalised: divide by ``sqrt(HSIC(x, x) HSIC(y, y))``, so that the value lies in 0..1 and
            does not depend on the scale of the embedding; 0 where a sample is constant.
    """
    if kernel == "linear":
        # centred, the Gram matrices are u u' and v v', and the trace of their product is |u'v|^2
        u, v = (sample - sample.mean(1, keepdim=True) for sample in (x, y))
        return _criterion(u, v, _mean_of_products, normalised)
    if len(x) * x.shape[1] ** 2 <= _ENTRIES_AT_ONCE:
        return _rbf_criterion(x, y, bandwidth, normalised)
    value: Tensor = _OneByOne.apply(x, y, bandwidth, normalised)  # type: ignore[no-untyped-call]
    return value


class _OneByOne(torch.autograd.Function):
    """``_rbf_criterion`` of a replicate at a time, with its gradient: the matrices of one are held, and no other's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, bandwidth: float | None, normalised: bool) -> Tensor:
        needed = [place for place in (0, 1) if ctx.needs_input_grad[place]]
        # made before the matrices: what stays among them would keep their memory in pieces
        values, gradients = x.new_empty(len(x)), [torch.empty_like((x, y)[place]) for place in needed]
        for replicate in range(len(x)):
            with torch.enable_grad():
                pair = [sample[replicate, None].detach() for sample in (x, y)]
                wanted = [pair[place].requires_grad_() for place in needed]
                value = _rbf_criterion(pair[0], pair[1], bandwidth, normalised)
                found = torch.autograd.grad(value.sum(), wanted) if wanted else ()
            values[replicate] = value.detach()[0]
            for gradient, one in zip(gradients, found, strict=True):
                gradient[replicate] = one[0]
        ctx.needed = needed
        ctx.save_for_backward(*gradients)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor | None] = [None] * 4
        for place, gradient in zip(ctx.needed, ctx.saved_tensors, strict=True):
            found[place] = upstream[:, None, None] * gradient
        return tuple(found)


def _rbf_criterion(x: Tensor, y: Tensor, bandwidth: float | None, normalised: bool) -> Tensor:
    u, v = (_centred(_gram(sample, bandwidth)) for sample in (x, y))
    return _criterion(u, v, _mean_of_entries, normalised)


def _criterion(u: Tensor, v: Tensor, product: Callable[[Tensor, Tensor], Tensor], normalised: bool) -> Tensor:
    value = product(u, v)
    if not normalised:
        return value
    scale = product(u, u) * product(v, v)
    constant = scale < 1e-12
    return torch.where(constant, 0 * value, value / torch.where(constant, torch.ones_like(scale), scale).sqrt())


def rows_last(tensor: Tensor) -> Tensor:
    """The same ``[R, B, ...]`` values, laid out in memory with the rows innermost."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def mean_objective(logits: Tensor, target: Tensor, counted: Tensor) -> Tensor:
    """The objective of Proposition 1 without its CVAT term, a row: ``[R]``."""
    return (cross_entropy(logits, target) * counted).sum((1, 2)) / logits.shape[1]


def _mean_of_products(u: Tensor, v: Tensor) -> Tensor:
    return (u.transpose(1, 2) @ v).square().sum((1, 2)) / u.shape[1] ** 2


def _mean_of_entries(u: Tensor, v: Tensor) -> Tensor:
    return (u * v).mean((1, 2))


def _gram(sample: Tensor, bandwidth: float | None) -> Tensor:
    products = sample @ sample.transpose(1, 2)
    norms = torch.diagonal(products, dim1=1, dim2=2)
    squared = (norms[:, :, None] + norms[:, None, :] - 2 * products).clamp(min=0)
    if bandwidth is not None:
        return torch.exp(-squared / bandwidth**2)
    seen = squared.detach().masked_fill(squared.detach() <= 0, torch.nan).flatten(1)
    median = seen.nanmedian(1).values.nan_to_num(1.0)[:, None, None]
    return torch.exp(-squared / median)


def _centred(gram: Tensor) -> Tensor:
    rows = gram.mean(1, keepdim=True)
    return gram - rows - rows.transpose(1, 2) + rows.mean(2, keepdim=True)


def _reduce(value: Tensor, counted: Tensor, reduction: Reduction) -> Tensor:
    total = (value * counted).sum((1, 2))
    return total if reduction == "sum" else total / (counted != 0).sum((1, 2)).clamp(min=1)


def _normalise(direction: Tensor) -> Tensor:
    # a plain sum of squares: torch's vector_norm takes ten times as long over the strides met here
    return direction / (direction.square().sum(-1, keepdim=True).sqrt() + 1e-8)
