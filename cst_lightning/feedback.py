"""The records that data arrive in: what a method may see, and what only an evaluation may see.

Every record has a leading replicate axis ``S``. ``Feedback`` is all that training ever receives;
``PotentialOutcomes`` is what benchmarks know besides and is never accepted where ``Feedback`` is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cst_lightning.errors import InputError, rows_from_0

MISSING = -1  # an outcome that was not observed


@dataclass(frozen=True)
class Shape:
    """Sizes of a problem: ``d`` features, ``K`` actions, ``m`` outcomes."""

    n_features: int
    n_actions: int
    n_outcomes: int = 2

    def __post_init__(self) -> None:
        for name, least in (("n_features", 1), ("n_actions", 1), ("n_outcomes", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)}: allowed are integers from {least}")


class _Record:
    """Moving and cutting of a frozen record of tensors ``[S, N, ...]``; no check is run again."""

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        new = copy.copy(self)
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                object.__setattr__(new, field.name, change(value))
        return new

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same record on ``device``; Lightning calls this for every batch."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def rows(self, index: Tensor) -> Self:
        """Rows ``index``, int64 ``[S, n]`` (a choice for each replicate), of every tensor."""
        replicate = torch.arange(len(index), device=index.device)[:, None]
        return self._map(lambda tensor: tensor[replicate, index])

    def row_range(self, start: int, stop: int) -> Self:
        """Rows ``start`` to ``stop`` of every replicate, as views."""
        return self._map(lambda tensor: tensor[:, start:stop])

    def expand(self, n_replicates: int) -> Self:
        """A record of one replicate, seen ``n_replicates`` times without a copy."""
        return self._map(lambda tensor: tensor.expand(n_replicates, *tensor.shape[1:]))

    def repeat(self, n_variants: int) -> Self:
        """Each replicate ``n_variants`` times in a row, ``[S * n_variants, N, ...]``."""
        return self._map(lambda tensor: tensor.repeat_interleave(n_variants, 0))


@dataclass(frozen=True, eq=False)
class Feedback(_Record):
    """Logged bandit feedback: contexts, the action taken, the outcome observed.

    Args:
        x: contexts, float ``[S, N, d]`` (``[N, d]`` is taken as one replicate).
        action: the action taken, ``[S, N]``, in ``0..K-1``.
        outcome: the outcome observed, ``[S, N]``, in ``0..m-1``; -1 (or NaN) where it is missing:
            such a row is left out of every factual loss.
        n_actions: ``K``.
        n_outcomes: ``m``.
        propensity: where it was logged, the probability of each action, ``[S, N, K]``.
        allow_unlogged: accept logs in which some action never occurs (there is nothing to learn
            about it, and inverse-propensity weights do not exist for it).
        weight: how much a row counts, ``[S, N]``, from 0; kept divided by its mean over a replicate's rows.

    Raises:
        InputError: a value is not allowed; the message names field, replicate and row.
    """

    x: Tensor
    action: Tensor
    outcome: Tensor
    n_actions: int
    n_outcomes: int = 2
    propensity: Tensor | None = None
    allow_unlogged: bool = False
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if self.n_actions < 1 or self.n_outcomes < 2:
            raise InputError(
                f"n_actions={self.n_actions}, n_outcomes={self.n_outcomes}: allowed are from 1, and from 2"
            )
        x = _batched(self.x).to(torch.float32)
        size = tuple(x.shape[:2])
        _check_contexts(x)
        action = _indices("action", self.action, size, self.n_actions, missing_allowed=False)
        outcome = _indices("outcome", self.outcome, size, self.n_outcomes, missing_allowed=True)
        for name, value in (("x", x), ("action", action), ("outcome", outcome)):
            object.__setattr__(self, name, value)
        if self.propensity is not None:
            object.__setattr__(self, "propensity", _propensity(self.propensity, (*size, self.n_actions), action))
        if self.weight is not None:
            object.__setattr__(self, "weight", _weights(self.weight, size))
        self.check_logged()

    def check_logged(self) -> None:
        """Every action occurs in every replicate, unless ``allow_unlogged``; else an ``InputError``."""
        action, size = self.action, tuple(self.action.shape)
        if not self.allow_unlogged:
            seen = torch.zeros(size[0], self.n_actions, dtype=torch.bool, device=action.device).scatter_(
                1, action, True
            )
            if not seen.all():
                replicate, never = (int(i) for i in (~seen).nonzero()[0])
                raise InputError(
                    f"action {never} was never logged (replicate {replicate}, {size[1]} rows): every action of "
                    f"0..{self.n_actions - 1} must occur; pass allow_unlogged=True to train without it"
                )

    @property
    def shape(self) -> Shape:
        """Sizes ``(d, K, m)`` of the problem."""
        return Shape(self.x.shape[-1], self.n_actions, self.n_outcomes)

    @property
    def n_replicates(self) -> int:
        """``S``."""
        return self.x.shape[0]

    @property
    def n_rows(self) -> int:
        """``N``."""
        return self.x.shape[1]

    @property
    def taken(self) -> Tensor:
        """Whether an action is the one taken, bool ``[S, N, K]``."""
        return self.action[..., None] == torch.arange(self.n_actions, device=self.action.device)

    @property
    def counted(self) -> Tensor:
        """How much the observed outcome of a row counts, float32 ``[S, N]``: 0 where it is missing."""
        observed = (self.outcome != MISSING).to(self.x.dtype)
        return observed if self.weight is None else observed * self.weight

    @property
    def n_missing(self) -> Tensor:
        """Rows without an outcome, int64 ``[S]``."""
        return (self.outcome == MISSING).sum(1)


@dataclass(frozen=True, eq=False)
class PotentialOutcomes(_Record):
    """The outcome under every action: known in benchmarks only, for evaluation only.

    Args:
        x: contexts, float ``[S, N, d]``.
        outcomes: the outcome of each action, ``[S, N, K]``, in ``0..m-1``.
        n_outcomes: ``m``.
        probabilities: where known, the true distribution of the outcome, ``[S, N, K, m]``.
        propensity: where known, the logging policy, ``[S, N, K]``.
    """

    x: Tensor
    outcomes: Tensor
    n_outcomes: int = 2
    probabilities: Tensor | None = None
    propensity: Tensor | None = None

    def __post_init__(self) -> None:
        x = _batched(self.x).to(torch.float32)
        _check_contexts(x)
        outcomes = as_tensor("outcomes", self.outcomes)
        size = (*x.shape[:2], outcomes.shape[-1])
        outcomes = _indices("outcomes", outcomes, size, self.n_outcomes, missing_allowed=False)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "outcomes", outcomes)
        for name, shape in (("probabilities", (*size, self.n_outcomes)), ("propensity", size)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _distribution(name, value, shape))

    @property
    def n_actions(self) -> int:
        """``K``."""
        return self.outcomes.shape[-1]

    def likeliest(self) -> Tensor:
        """The Bayes classifier ``f*``, ``[S, N, K]``: the likeliest outcome; the outcome where the truth is unknown."""
        return self.outcomes if self.probabilities is None else self.probabilities.argmax(-1)

    def floor(self) -> dict[str, Tensor]:
        """Expected NLL and Hamming loss of the true distribution, ``[S]`` each; empty where it is unknown.

        No model's expected loss is lower: the NLL floor is the mean entropy of the true outcome
        distribution, the Hamming floor the mean probability of all but the likeliest outcome.
        """
        if self.probabilities is None:
            return {}
        p = self.probabilities.double()
        entropy = torch.special.entr(p).sum(-1)
        return {"nll": entropy.mean((1, 2)), "hamming": (1 - p.amax(-1)).mean((1, 2))}


def as_tensor(name: str, value: Any) -> Tensor:
    """Numbers of any kind (an array, a data frame, nested lists) as a tensor; text or complex is an ``InputError``."""
    if isinstance(value, Tensor):
        tensor = value
    else:
        array = np.asarray(value)  # data frames too
        if array.dtype.kind not in "biuf":
            raise InputError(f"{name} is of type {array.dtype}: only numbers are allowed; encode other values first")
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if tensor.is_complex():
        raise InputError(f"{name} is complex: only real numbers are allowed")
    return tensor


def _batched(x: Any) -> Tensor:
    tensor = as_tensor("x", x)
    if tensor.ndim == 2:
        tensor = tensor[None]
    if tensor.ndim != 3 or 0 in tensor.shape:
        raise InputError(f"x has shape {tuple(tensor.shape)}: allowed is [N, d] or [S, N, d], without an empty axis")
    return tensor


def _check_contexts(x: Tensor) -> None:
    if not torch.isfinite(x).all():
        replicate, row, column = (int(i) for i in (~torch.isfinite(x)).nonzero()[0])
        raise InputError(
            f"x holds {float(x[replicate, row, column])} in column {column}, {rows_from_0([row])}, replicate "
            f"{replicate}: only finite numbers are allowed; fill or drop missing values first"
        )


def _indices(name: str, value: Any, size: tuple[int, ...], n_values: int, *, missing_allowed: bool) -> Tensor:
    tensor = as_tensor(name, value)
    if tensor.ndim == len(size) - 1:
        tensor = tensor[None]
    if tuple(tensor.shape) != size:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: x asks for {size}")
    if tensor.is_floating_point():
        missing = torch.isnan(tensor)
        if missing.any() and not missing_allowed:
            row = rows_from_0([int(missing.nonzero()[0][1])])
            raise InputError(f"{name} is missing in {row}: every row needs one")
        tensor = torch.where(missing, torch.full_like(tensor, MISSING), tensor)
        if (tensor != tensor.round()).any():
            raise InputError(
                f"{name} holds {float(tensor[tensor != tensor.round()][0])}: only whole numbers are allowed"
            )
    tensor = tensor.to(torch.int64)
    wrong = (tensor < (MISSING if missing_allowed else 0)) | (tensor >= n_values)
    if wrong.any():
        where = [int(i) for i in wrong.nonzero()[0]]
        raise InputError(
            f"{name} is {int(tensor[tuple(where)])} in {rows_from_0([where[1]])}, replicate {where[0]}: "
            f"allowed are 0..{n_values - 1}" + (" (and -1 for missing)" if missing_allowed else "")
        )
    return tensor


def _weights(value: Any, size: tuple[int, ...]) -> Tensor:
    tensor = as_tensor("weight", value).to(torch.float32)
    tensor = tensor[None] if tensor.ndim == 1 else tensor
    if tuple(tensor.shape) != size:
        raise InputError(f"weight has shape {tuple(tensor.shape)}: x asks for {size}")
    _check_weights("weight", tensor)
    return tensor / tensor.mean(1, keepdim=True)


def weights_of_rows(name: str, value: Any, n_rows: int) -> Tensor:
    """How much each row of a table ``X`` counts, ``[N]``: finite, from 0, and above in some row.

    Raises:
        InputError: it is something else; the message says ``name``.
    """
    tensor = as_tensor(name, value)
    if tensor.ndim != 1:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: one value a row of X is allowed, {(n_rows,)}")
    if len(tensor) != n_rows:
        raise InputError(f"{name} has {len(tensor)} rows, X has {n_rows}")
    _check_weights(name, tensor)
    return tensor


def _check_weights(name: str, tensor: Tensor) -> None:
    wrong = ~(torch.isfinite(tensor) & (tensor >= 0))
    if wrong.any():
        row = rows_from_0([int(wrong.nonzero()[0][-1])])
        raise InputError(f"{name} is {float(tensor[wrong][0])} in {row}: allowed are finite values from 0")
    if (tensor == 0).all(-1).any():
        raise InputError(f"{name} is zero in every row: at least one row must count")


def _distribution(name: str, value: Any, size: tuple[int, ...]) -> Tensor:
    tensor = as_tensor(name, value)
    if tensor.ndim == len(size) - 1:
        tensor = tensor[None]
    if tuple(tensor.shape) != size:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: allowed is {size}")
    wrong = ~((tensor >= 0) & (tensor <= 1)).all(-1) | ((tensor.sum(-1) - 1).abs() > 1e-4)
    if wrong.any():
        rows = rows_from_0(sorted({int(i) for i in wrong.nonzero()[:, 1]}))
        raise InputError(f"{name} is no distribution in {rows}: values in 0..1 that sum to 1 are allowed")
    return tensor


def _propensity(value: Any, size: tuple[int, ...], action: Tensor) -> Tensor:
    tensor = _distribution("propensity", value, size)
    tensor = tensor.to(torch.float32)
    taken = tensor.gather(-1, action[..., None])[..., 0]
    if (taken <= 0).any():
        rows = rows_from_0(sorted({int(i) for i in (taken <= 0).nonzero()[:, 1]}))
        raise InputError(f"propensity of the action taken is 0 in {rows}: it must be above 0")
    return tensor
