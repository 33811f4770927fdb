"""The ways to train an epoch of minibatches: autograd, compiled code, CUDA graphs. A fit chooses one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytorch_lightning as pl
import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor

from cst_lightning import compiled
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback
from cst_lightning.graphs import RecordedSteps, can_record
from cst_lightning.losses import Entries
from cst_lightning.minibatches import runs, take_batch
from cst_lightning.networks import OutcomeNetwork
from cst_lightning.streams import whole_words

if TYPE_CHECKING:
    from cst_lightning.stacked import StackedModule

# what Lightning calls at every minibatch, of a module and of callbacks
_AT_STEPS = ("on_before_optimizer_step",)
_AT_GRADIENTS = ("on_before_backward", "on_after_backward", *_AT_STEPS)
_OF_A_MODULE = ("backward", "manual_backward", *_AT_GRADIENTS)

#: called with the log, the order of its rows ``[S, N]`` (None: as they lie) and the minibatches' bounds; trains on them
#: and gives the sum of each replicate's minibatch losses, ``[R]``
Epoch = Callable[[Feedback, Tensor | None, Sequence[int]], Tensor]


def choose(module: StackedModule, optimizer: torch.optim.Optimizer) -> str:
    """``compiled``, ``graphs`` or ``autograd``: the fastest that does what the module says, and its callbacks."""
    if not module.compiled or module.trainer.precision != "32-true" or _are_gradients_watched(module):
        return "autograd"
    if module.can_compile() and compiled.covers(module.network, optimizer):
        return "compiled"
    return "graphs" if module.device.type == "cuda" and can_record(module) else "autograd"


def _are_gradients_watched(module: StackedModule) -> bool:
    """Whether something is called with the gradients of every minibatch; ``WandbLogger.watch`` hooks parameters."""
    hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters())
    return hooked or overrides(module, pl.LightningModule, _OF_A_MODULE) or _has_callback(module, _AT_GRADIENTS)


def _has_callback(module: StackedModule, names: Sequence[str]) -> bool:
    callbacks: list[pl.Callback] = module.trainer.callbacks  # type: ignore[attr-defined]
    # of the object: a LambdaCallback has them without a class of its own
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(pl.Callback, name)
        for callback, name in product(callbacks, names)
    )


def start(module: StackedModule, optimizer: LightningOptimizer, feedback: Feedback) -> Epoch:
    """What trains an epoch of this fit by ``module.engine``."""
    if module.engine == "compiled":
        return partial(_compiled, module, optimizer)
    if module.engine == "graphs":
        return partial(_recorded, RecordedSteps(module, optimizer.optimizer, feedback))
    every_step = overrides(module, pl.LightningModule, _AT_STEPS) or _has_callback(module, _AT_STEPS)
    return partial(_autograd, module, optimizer, every_step)


def _autograd(
    module: StackedModule,
    optimizer: LightningOptimizer,
    every_step: bool,
    feedback: Feedback,
    order: Tensor | None,
    bounds: Sequence[int],
) -> Tensor:
    total = torch.zeros_like(module.failed_epoch, dtype=torch.float32)
    for number, (first, last) in enumerate(pairwise(bounds), 2):
        batch, rows = take_batch(feedback, order, first, last)
        optimizer.optimizer.zero_grad(set_to_none=True)
        loss = module.batch_loss(batch, rows)
        if loss.shape != total.shape:
            raise InputError(
                f"batch_loss of {type(module).__name__} gave {tuple(loss.shape)}: allowed is one value a replicate, "
                f"{tuple(total.shape)}; a mean over replicates would tie them to each other"
            )
        module.manual_backward(loss.sum())
        # Lightning's wrapper counts global steps and calls hooks; one an epoch keeps its cost off the other minibatches
        (optimizer if every_step or number == len(bounds) else optimizer.optimizer).step()
        total += loss.detach()
    return total


def _recorded(steps: RecordedSteps, feedback: Feedback, order: Tensor | None, bounds: Sequence[int]) -> Tensor:
    return steps.epoch(order, bounds)


def _compiled(
    module: StackedModule,
    optimizer: LightningOptimizer,
    feedback: Feedback,
    order: Tensor | None,
    bounds: Sequence[int],
) -> Tensor:
    network, shape = module.network, module.shape
    assert isinstance(network, OutcomeNetwork)
    assert isinstance(optimizer.optimizer, torch.optim.Adam)
    total = torch.zeros_like(module.failed_epoch, dtype=torch.float64)
    passes = module.protocol.cvat_iterations + 2
    a_row = 2 * (passes * network.n_masked + shape.n_features) + 4 * (shape.n_features + 3 * shape.n_actions)
    for run in runs(bounds, a_row * len(module.seeds)):
        sizes = [last - first for first, last in pairwise(run)]
        part, rows = take_batch(feedback, order, run[0], run[-1])
        total += compiled.train(
            network,
            optimizer.optimizer,
            part.x,
            Entries(*module.entries(part, rows)),
            module.random("dropout", sum(whole_words(network.n_bits(size)) for size in sizes)),
            [last - run[0] for last in run],
            module.active & torch.isfinite(total),
            mean=module.reduction == "mean",
            cvat=module.compiled_cvat(rows, sizes),
        )
    return total.float()


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Within, this thread takes numbers below 1e-38 for 0, where the CPU can.

    Networks that fit their rows perfectly have gradients so small, and CPUs take a hundred times as long for them.
    Weights do not change by it: what is lost is far below their rounding.
    """
    before = torch.full((1,), 1e-40, dtype=torch.float32, device="cpu").mul(1).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def count_step(optimizer: LightningOptimizer) -> None:
    """A step of no gradient, for Lightning to count an epoch that took none of its own."""
    optimizer.optimizer.zero_grad(set_to_none=True)
    optimizer.step()


def overrides(part: object, base: type, names: Sequence[str]) -> bool:
    """Whether the class of ``part`` has any of the methods ``names`` otherwise than ``base``."""
    return any(getattr(type(part), name) is not getattr(base, name) for name in names)
