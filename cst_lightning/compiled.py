"""The compiled way of training on a CPU: ``kernels.py`` for torch tensors, an ``OutcomeNetwork`` and Adam.

What can be wrong with what it is given is found here: compiled code looks at no bounds. It covers what
``covers`` says; ``docs/performance.md`` says what it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from cst_lightning import kernels
from cst_lightning.errors import InputError
from cst_lightning.losses import Entries
from cst_lightning.networks import SLOPE, OutcomeNetwork, StackedLinear
from cst_lightning.streams import drop_threshold, whole_words


class Cvat(NamedTuple):
    """CVAT of a run of minibatches: see ``losses.cvat``."""

    weight: Tensor  # [R]; replicates of weight 0 are spared the extra passes
    counterfactual: Tensor  # [S, n, K]
    bits: Tensor  # int16 [S, ...]: for each minibatch those of its start, then those of each pass
    xi: float
    eps: float
    iterations: int
    smoothing: float


def train(
    network: OutcomeNetwork,
    optimizer: torch.optim.Adam,
    x: Tensor,
    entries: Entries,
    bits: Tensor,
    bounds: Sequence[int],
    active: Tensor,
    *,
    mean: bool,
    cvat: Cvat | None = None,
) -> Tensor:
    """Train the active replicates of ``network`` in place; the sum of each one's minibatch losses, float64 ``[R]``.

    One training at a time in a process: the call holds BLAS to one thread while it lasts.

    Args:
        x: contexts ``[S, n, d]``.
        entries: of the rows, ``[S or R, n, K, 1]`` and ``[S or R, n, K]``.
        bits: of dropout, int16 ``[S, ...]``: what each minibatch takes, one after the other.
        bounds: minibatch ``i`` holds rows ``bounds[i]`` to ``bounds[i + 1]``.
        active: bool ``[R]``; the other replicates stay as they are.
        mean: whether a minibatch's loss is divided by its number of entries of weight other than 0.
    """
    n_replicates, n_seeds = network.n_seeds * network.n_variants, network.n_seeds
    target, weight = _same_length(network, x, entries)
    if cvat is None:
        none = torch.empty(n_seeds, 0, dtype=torch.int16)
        cvat = Cvat(torch.zeros(n_replicates), torch.empty(n_seeds, 0, 0), none, 1.0, 1.0, 0, 0.0)
    _check_sizes(network, x, bits, bounds, cvat)
    _check("active", active, [n_replicates], ())
    parameters = _parameters(network)
    moments = [[_moments(optimizer, parameter) for parameter in kind] for kind in parameters]
    losses = np.zeros(n_replicates)
    arguments = (
        _layers(*parameters),
        _layers(*([mean_ for mean_, _ in kind] for kind in moments)),
        _layers(*([square for _, square in kind] for kind in moments)),
        _adam(optimizer, parameters[0][0], len(bounds) - 1),
        _gates(network.steps, network.dropout),
        kernels.Rows(_array(x), _array(target), _array(weight), _array(cvat.counterfactual), mean),
        kernels.Bits(_array(bits), _array(cvat.bits), np.array(bounds)),
        kernels.Cvat(
            _array(cvat.weight.float()),
            np.float32(cvat.xi),
            np.float32(cvat.eps),
            cvat.iterations,
            np.float32(cvat.smoothing),
        ),
        _array(active),
        losses,
    )
    with _blas().limit(limits=1, user_api="blas"):  # more threads than one only wait at these sizes
        kernels.train(*arguments)
    for parameter in parameters[0] + parameters[1]:
        optimizer.state[parameter]["step"] += len(bounds) - 1
    return torch.from_numpy(losses)


def logits_with_dropout(network: OutcomeNetwork, x: Tensor, bits: Tensor, bounds: Sequence[int]) -> Tensor:
    """Logits of a pass with dropout, ``[S, n, d]`` to ``[R, n, K, 1]``; ``bits`` and ``bounds`` as for ``train``."""
    out = np.empty((network.n_seeds * network.n_variants, x.shape[1], network.shape.n_actions), np.float32)
    layers = _layers(*_parameters(network))
    none = np.empty((network.n_seeds, 0), np.int16)
    with _blas().limit(limits=1, user_api="blas"):
        kernels.predict(
            layers,
            _gates(network.steps, network.dropout),
            _array(x),
            kernels.Bits(_array(bits), none, np.array(bounds)),
            out,
        )
    return torch.from_numpy(out)[..., None]


def covers(network: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Whether compiled code trains them: Adam without extras over all of an ``OutcomeNetwork`` as it was built."""
    if type(optimizer) is not torch.optim.Adam or len(optimizer.param_groups) != 1:
        return False
    if type(network) is not OutcomeNetwork or network.shape.n_outcomes != 2:
        return False
    group, parameters = optimizer.param_groups[0], list(network.parameters())
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in network.modules())
    return (
        not any(group[name] for name in ("weight_decay", "amsgrad", "maximize"))
        and {id(parameter) for parameter in group["params"]} == {id(parameter) for parameter in parameters}
        and all(type(layer) is StackedLinear for layer in network.linear)
        and all(p.requires_grad and p.is_contiguous() and p.device.type == "cpu" for p in parameters)
        and not hooked
    )


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _same_length(network: OutcomeNetwork, x: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
    """Target and weight both as ``[S, n, K]``, or both as ``[R, n, K]``."""
    size, n_seeds = (x.shape[1], network.shape.n_actions), len(x)
    allowed = (n_seeds, n_seeds * network.n_variants)
    _check("target", entries.target, allowed, (*size, 1))
    _check("weight", entries.weight, allowed, size)
    target, weight = entries.target[..., 0], entries.weight
    most = max(len(target), len(weight))
    target, weight = (t.repeat_interleave(most // len(t), 0) if len(t) < most else t for t in (target, weight))
    return target.float(), weight.float()


def _check(name: str, tensor: Tensor, lengths: Sequence[int], rest: Sequence[int]) -> None:
    """Compiled code does not look at bounds, so a shape that is not allowed must not reach it."""
    if len(tensor) not in lengths or tuple(tensor.shape[1:]) != tuple(rest):
        first, others = " or ".join(map(str, dict.fromkeys(lengths))), ", ".join(map(str, rest))
        raise InputError(f"{name} has shape {tuple(tensor.shape)}: allowed is [{first}, {others}]")


def _check_sizes(network: OutcomeNetwork, x: Tensor, bits: Tensor, bounds: Sequence[int], cvat: Cvat) -> None:
    """The same for what ``StackedModule`` itself hands over."""
    n_replicates, sizes = network.n_seeds * network.n_variants, [stop - start for start, stop in pairwise(bounds)]
    needed = sum(whole_words(network.n_bits(size)) for size in sizes)
    _check("x", x, [network.n_seeds], (bounds[-1], network.shape.n_features))
    _check("bits", bits, [network.n_seeds], (needed,))
    _check("CVAT weight", cvat.weight, [n_replicates], ())
    if cvat.bits.shape[1]:
        _check("counterfactual", cvat.counterfactual, [network.n_seeds], (x.shape[1], network.shape.n_actions))
        starts = sum(whole_words(size * network.shape.n_features) for size in sizes)
        _check("CVAT bits", cvat.bits, [network.n_seeds], (starts + (cvat.iterations + 1) * needed,))


def _parameters(network: OutcomeNetwork) -> tuple[list[Tensor], list[Tensor]]:
    layers = cast("Iterable[StackedLinear]", network.linear)
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def _layers(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> kernels.Layers:
    # no copies: what is trained is their memory
    return kernels.Layers(
        tuple(t.detach().numpy() for t in weights), tuple(t.detach().squeeze(-1).numpy() for t in biases)
    )


def _array(tensor: Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


@cache
def _gates(steps: tuple[str, ...], dropout: float) -> kernels.Gates:
    dropped, active = np.zeros((2, steps.count("linear")), np.bool_)
    layer = -1
    for step in steps:
        layer += step == "linear"
        dropped[layer] |= step == "drop" and dropout > 0
        active[layer] |= step == "act"
    threshold, scale = drop_threshold(dropout)
    return kernels.Gates(dropped, active, threshold, np.float32(scale), np.float32(SLOPE))


def _adam(optimizer: torch.optim.Adam, parameter: Tensor, n_batches: int) -> kernels.Adam:
    group = optimizer.param_groups[0]
    beta1, beta2 = (float(beta) for beta in group["betas"])
    steps = float(optimizer.state[parameter]["step"]) + np.arange(1, n_batches + 1)
    rate, correction = float(group["lr"]) / (1 - beta1**steps), 1 / np.sqrt(1 - beta2**steps)
    numbers = (np.float32(number) for number in (1 - beta1, beta2, 1 - beta2, group["eps"]))
    return kernels.Adam(rate.astype(np.float32), correction.astype(np.float32), *numbers)


def _moments(optimizer: torch.optim.Adam, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """Adam's running means for a parameter, made as its first step makes them."""
    state = optimizer.state[parameter]
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return state["exp_avg"], state["exp_avg_sq"]
