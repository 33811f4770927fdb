"""Minibatches on a GPU as CUDA graphs: one launch a minibatch, whatever number of small kernels it takes.

A step is recorded once for each size of minibatch; before each replay its inputs (rows, random bits) are copied into
the places that the recording reads. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cst_lightning.feedback import Feedback
from cst_lightning.networks import OutcomeNetwork
from cst_lightning.streams import Bits

if TYPE_CHECKING:
    from cst_lightning.stacked import StackedModule

_WARM_UP = 3  # steps before a recording, as PyTorch asks for; what they changed is put back
#: what a recording freezes: a class that overrides one of them may do there what cannot be frozen
_RECORDED = ("batch_loss", "entries", "entry_loss", "new_epoch", "bits", "random", "repeat", "for_replicates")


def can_record(module: StackedModule) -> bool:
    """Whether a step is known to be the same kernels every time: all of its parts are this package's."""
    ours = all(getattr(type(module), name).__module__.startswith("cst_lightning.") for name in _RECORDED)
    return ours and isinstance(module.network, OutcomeNetwork)


class RecordedSteps:
    """The steps of one fit: a recording for each size of minibatch.

    Args:
        module: whose ``batch_loss`` is minimised. optimizer: made with ``capturable=True`` on a GPU.
        feedback: the whole log.
    """

    def __init__(self, module: StackedModule, optimizer: torch.optim.Optimizer, feedback: Feedback) -> None:
        self._module, self._optimizer, self._feedback = module, optimizer, feedback
        self._steps: dict[int, Callable[[Tensor], Tensor]] = {}

    def epoch(self, order: Tensor | None, bounds: Sequence[int]) -> Tensor:
        """Train on every minibatch of an epoch; the sum of its losses, ``[R]``."""
        n_rows, n_seeds = self._feedback.n_rows, len(self._module.seeds)
        if order is None:
            order = torch.arange(n_rows, device=self._feedback.x.device).expand(n_seeds, -1)
        total = torch.zeros_like(self._module.failed_epoch, dtype=torch.float32)
        for start, stop in pairwise(bounds):
            rows = order[:, start:stop]
            if stop - start not in self._steps:
                self._steps[stop - start] = self._record(rows.clone())
            total += self._steps[stop - start](rows)
        return total

    def _record(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """A step on whatever rows it is then called with, as many as ``rows``."""
        module, optimizer, feedback = self._module, self._optimizer, self._feedback
        batch, tape = feedback.rows(rows), _Tape(module.streams)

        def step() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = module.batch_loss(batch, rows)
            loss.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        with _kept(module, optimizer), tape.in_place_of_streams(module):
            _warm_up(step, tape, rows.device)
        if rows.is_cuda:
            with tape.in_place_of_streams(module):
                step = _captured(step)

        def run(new: Tensor) -> Tensor:
            rows.copy_(new)
            fresh = feedback.rows(rows)
            for name in ("x", "action", "outcome", "propensity", "weight"):
                if getattr(batch, name) is not None:
                    getattr(batch, name).copy_(getattr(fresh, name))
            tape.refill()
            with tape.in_place_of_streams(module):
                return step()

        return run


def _warm_up(step: Callable[[], Tensor], tape: _Tape, device: torch.device) -> None:
    """Let kernels and workspaces be chosen before the recording, and the tape learn which bits a step takes."""
    if device.type != "cuda":
        step()
        return
    side = _side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            tape.rewind()
            step()
    torch.cuda.current_stream(device).wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One a device: for each stream that is ever used cuBLAS takes tens of megabytes, and keeps them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _captured(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay() -> Tensor:
        graph.replay()
        return loss

    return replay


@contextmanager
def _kept(module: StackedModule, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Weights and the optimizer's moments are as before when it ends; moments made in it are zero."""
    state = module.replicate_state()
    weights = {name: value.detach().clone() for name, value in state.items()}
    moments = {p: {k: v.clone() for k, v in values.items()} for p, values in optimizer.state.items()}
    yield
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(weights[name])
        for parameter, values in optimizer.state.items():
            for key, value in values.items():
                value.copy_(moments[parameter][key] if parameter in moments else torch.zeros_like(value))


class _Tape:
    """Takes the place of a module's random streams: a step finds its bits where its recording found them."""

    def __init__(self, streams: Mapping[str, Bits]) -> None:
        self._streams = streams
        self._places: list[tuple[str, Tensor]] = []
        self._next = 0

    @contextmanager
    def in_place_of_streams(self, module: StackedModule) -> Iterator[None]:
        """While it lasts, ``module`` takes its bits from here, from the first place on."""
        self.rewind()
        module.streams = {name: _Taker(self, name) for name in self._streams}
        try:
            yield
        finally:
            module.streams = self._streams

    def rewind(self) -> None:
        """Begin with the first place."""
        self._next = 0

    def take(self, name: str, n: int) -> Tensor:
        """The bits of the next place, which is made when it is first asked for."""
        if self._next == len(self._places):
            none = self._streams[name].take(0)
            self._places.append((name, none.new_zeros(len(none), n)))
        self._next += 1
        return self._places[self._next - 1][1]

    def refill(self) -> None:
        """Fresh bits into every place, in the order in which a step takes them."""
        for name, place in self._places:
            place.copy_(self._streams[name].take(place.shape[1]))


class _Taker:
    """The tape's side of one stream."""

    def __init__(self, tape: _Tape, name: str) -> None:
        self._tape, self._name = tape, name

    def take(self, n: int) -> Tensor:
        """See ``Bits.take``."""
        return self._tape.take(self._name, n)
