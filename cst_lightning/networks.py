"""Networks with a leading replicate axis ``R = S * W``: seeds times variants of a hyper-parameter.

A network is called as ``network(x, bits)`` with contexts ``[S or R, B, d]`` and, in training, the
random bits that its dropout asks for (``n_bits(B)`` a seed; None evaluates without dropout), and with
``track=False`` where running statistics must stay (a teacher's pass, CVAT's). It returns the logits
``[R, B, K, m-1]`` and the embedding ``[R, B, h]`` (None where there is none). Inside, features come
before rows (``[R, h, B]``): narrow layers multiply several times faster so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from cst_lightning.errors import InputError
from cst_lightning.feedback import Shape
from cst_lightning.streams import generator, keep_mask

Architecture = Literal["written", "released"]

SLOPE = 0.01  # of LeakyReLU below 0


class Output(NamedTuple):
    """What a network returns."""

    logits: Tensor  # [R, B, K, m-1]
    embedding: Tensor | None  # [R, B, h]


class StackedLinear(nn.Module):
    """``R`` linear layers as one batched product; initial weights as ``torch.nn.Linear`` draws them."""

    def __init__(self, n_in: int, n_out: int, n_variants: int, sources: Sequence[torch.Generator]) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_in)
        drawn = [torch.empty(n_out, n_in + 1).uniform_(-bound, bound, generator=source) for source in sources]
        values = torch.stack(drawn).repeat_interleave(n_variants, 0)
        self.weight = nn.Parameter(values[..., :-1].contiguous())  # [R, out, in]
        self.bias = nn.Parameter(values[..., -1:].contiguous())  # [R, out, 1]

    def forward(self, x: Tensor) -> Tensor:
        """``[R, in, B]`` to ``[R, out, B]``; ``[S, in, B]`` is shared by the variants of a seed without a copy."""
        n_replicates, n_out, n_in = self.weight.shape
        if x.shape[0] == n_replicates:
            return torch.baddbmm(self.bias, self.weight, x)
        shared = torch.baddbmm(self.bias.view(x.shape[0], -1, 1), self.weight.view(x.shape[0], -1, n_in), x)
        return shared.view(n_replicates, n_out, -1)


class OutcomeNetwork(nn.Module):
    """The outcome network: contexts to an embedding, the embedding to the logits of every action.

    ``written`` (the paper's text: three layers) is Linear, dropout, LeakyReLU, Linear (= embedding);
    then dropout, LeakyReLU, Linear for each further layer. ``released`` (the paper's code, ``Net`` in
    ``main_multi.py``) is the same embedding; then Linear, dropout, LeakyReLU twice, Linear, and
    dropout on the logits too.

    Args:
        shape: sizes of the problem.
        seeds: one a replicate group, ``S`` of them.
        n_variants: replicates that share a seed, ``W``.
        hidden: units of every hidden layer.
        depth: linear layers in all (at least 3); by default 3 for ``written``, 5 for ``released``.
        dropout: probability of dropping a unit, in [0, 1).
        architecture: ``written`` or ``released``.
        stage: of the streams that initial weights come from (see ``streams.generator``).
    """

    def __init__(
        self,
        shape: Shape,
        seeds: Sequence[int],
        n_variants: int = 1,
        *,
        hidden: int = 128,
        depth: int | None = None,
        dropout: float = 0.2,
        architecture: Architecture = "written",
        stage: int = 0,
    ) -> None:
        super().__init__()
        depth = depth or (5 if architecture == "released" else 3)
        if hidden < 1 or depth < 3:
            raise InputError(f"hidden={hidden}, depth={depth}: allowed are hidden >= 1 and depth >= 3")
        if not 0 <= dropout < 1:
            raise InputError(f"dropout={dropout}: allowed is 0 <= dropout < 1")
        self.shape, self.n_seeds, self.n_variants, self.dropout = shape, len(seeds), n_variants, dropout
        n_logits = shape.n_actions * (shape.n_outcomes - 1)
        head = ["drop", "act", "linear"] * (depth - 2)
        if architecture == "released":
            head = ["linear", "drop", "act"] * (depth - 3) + ["linear", "drop"]
        self.steps = ("linear", "drop", "act", "linear", "embedding", *head)
        sources = [generator(seed, "init", stage) for seed in seeds]
        sizes = [shape.n_features, *[hidden] * (depth - 1), n_logits]
        self.linear = nn.ModuleList(StackedLinear(n_in, n_out, n_variants, sources) for n_in, n_out in pairwise(sizes))
        self.n_masked = sum(
            sizes[self.steps[: i + 1].count("linear")] for i, step in enumerate(self.steps) if step == "drop"
        )

    def n_bits(self, n_rows: int) -> int:
        """Random 16-bit integers a seed that one pass over ``n_rows`` rows takes."""
        return self.n_masked * n_rows if self.dropout else 0

    def forward(self, x: Tensor, bits: Tensor | None = None, *, track: bool = True) -> Output:
        """See the module's docstring."""
        h = x.transpose(-1, -2)
        n_rows = h.shape[-1]
        masks = keep_mask(bits, self.dropout, h.dtype) if bits is not None and self.dropout else None
        used, layer, embedding = 0, 0, None
        for step in self.steps:
            if step == "linear":
                h = self.linear[layer](h)
                layer += 1
            elif step == "act":
                h = F.leaky_relu(h, SLOPE)
            elif step == "embedding":
                embedding = h.transpose(-1, -2)
            elif masks is not None:
                width = h.shape[1]
                mask = masks[:, used : used + width * n_rows].view(self.n_seeds, 1, width, n_rows)
                used += width * n_rows
                h = (h.view(self.n_seeds, -1, width, n_rows) * mask).view(h.shape)
        logits = h.transpose(-1, -2).view(-1, n_rows, self.shape.n_actions, self.shape.n_outcomes - 1)
        return Output(logits, embedding)


class LiftedNetwork(nn.Module):
    """A plain ``nn.Module`` of one model, lifted to a stack of ``R`` of them by ``torch.func``.

    Args:
        factory: called without arguments once a seed, under that seed; returns a module that maps
            ``[B, d]`` to logits ``[B, K]`` (``m = 2``) or ``[B, K, m-1]``, or to a pair (logits,
            embedding ``[B, h]``), which HSIC needs. Its ``nn.Dropout`` layers draw from the
            replicate's own stream; other random layers are not supported.
        shape, seeds, n_variants, stage: as for ``OutcomeNetwork``.
    """

    def __init__(
        self, factory: Callable[[], nn.Module], shape: Shape, seeds: Sequence[int], n_variants: int = 1, stage: int = 0
    ) -> None:
        super().__init__()
        self.shape, self.n_seeds, self.n_variants = shape, len(seeds), n_variants
        modules = []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(generator(seed, "init", stage).initial_seed())
                module = _build(factory)
            _check_lifted(module, shape)
            modules.append(_replace_dropout(module))
        modules = [module for module in modules for _ in range(n_variants)]
        parameters, buffers = stack_module_state(modules)
        self._template = (modules[0].to("meta"),)  # a tuple hides it from nn.Module: its weights are not ours
        learned = {name: value.requires_grad for name, value in modules[0].named_parameters()}
        self.stacked = nn.ParameterDict(
            {_flat(name): nn.Parameter(value.detach(), learned[name]) for name, value in parameters.items()}
        )
        for name, value in buffers.items():
            self.register_buffer(_flat(name), value)
        self._names, self._buffer_names = list(parameters), list(buffers)

    def n_bits(self, n_rows: int) -> int:
        """Random 16-bit integers a seed that one pass takes: the 64 bits that dropout is hashed from."""
        return 4

    def forward(self, x: Tensor, bits: Tensor | None = None, *, track: bool = True) -> Output:
        """See the module's docstring."""
        template = self._template[0]
        template.train(bits is not None)
        parameters = {name: self.stacked[_flat(name)] for name in self._names}
        buffers = {name: getattr(self, _flat(name)) for name in self._buffer_names}
        if not track:
            buffers = {name: value.clone() for name, value in buffers.items()}
        if bits is not None:
            words = bits.contiguous().view(torch.int64)[:, 0].repeat_interleave(self.n_variants)
            for name in self._buffer_names:
                if name.endswith(_Dropout.KEY):
                    buffers[name] = words
        if x.shape[0] == self.n_seeds:
            x = x.repeat_interleave(self.n_variants, 0)

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Any:
            return functional_call(template, (parameters, buffers), (x,))

        out = torch.vmap(one, randomness="error")(parameters, buffers, x)
        logits, embedding = out if isinstance(out, tuple) else (out, None)
        return Output(logits if logits.ndim == 4 else logits[..., None], embedding)


class _Dropout(nn.Module):
    """Dropout whose mask is a hash of a 64-bit word, the layer and the position, so it can be vmapped."""

    KEY = "dropout_word"

    def __init__(self, p: float, layer: int) -> None:
        super().__init__()
        self.p, self.layer = p, layer
        self.register_buffer(self.KEY, torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        z = torch.arange(x.numel(), device=x.device).view(x.shape) + (self.layer << 40)
        z = _mix(_mix(z) + getattr(self, self.KEY))  # the finaliser of splitmix64, twice
        kept = ((z >> 40) & 0xFFFFFF) >= round(self.p * 2**24)
        return x * kept / (1 - self.p)


def _mix(z: Tensor) -> Tensor:
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        z = (z ^ ((z >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _build(factory: Callable[[], nn.Module]) -> nn.Module:
    try:
        module = None if isinstance(factory, nn.Module) else factory()
    except TypeError as error:
        raise InputError(f"network {factory!r} cannot be called without arguments ({error}): give a lambda") from error
    if not isinstance(module, nn.Module):
        raise InputError(
            "network: allowed is a class or function that returns a new nn.Module, called without arguments"
        )
    return module


def _replace_dropout(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Dropout):
        return _Dropout(module.p, 0)
    names = [name for name, child in module.named_modules() if isinstance(child, nn.Dropout)]
    for layer, name in enumerate(names):
        child = module.get_submodule(name)
        assert isinstance(child, nn.Dropout)
        module.set_submodule(name, _Dropout(child.p, layer))
    return module


def _check_lifted(module: nn.Module, shape: Shape) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        was_training = module.training
        out = module.eval()(torch.zeros(2, shape.n_features))
        module.train(was_training)
    logits = out[0] if isinstance(out, tuple) else out
    allowed = [(2, shape.n_actions, shape.n_outcomes - 1)] + [(2, shape.n_actions)] * (shape.n_outcomes == 2)
    if tuple(logits.shape) not in allowed:
        raise InputError(
            f"network {type(module).__name__} maps [2, {shape.n_features}] to {tuple(logits.shape)}: allowed is "
            + " or ".join(map(str, allowed))
        )


def _flat(name: str) -> str:
    return name.replace(".", "__")
