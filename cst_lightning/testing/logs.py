"""Small random logs and protocols, and comparing what was trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape
from cst_lightning.fitting import LogDataModule
from cst_lightning.protocols import Protocol, get_protocol
from cst_lightning.stacked import StackedModule

TOLERANCE = 2e-5  # products of another batch may sum in another order


def tiny_protocol(protocol: Protocol | str = "written", **changes: Any) -> Protocol:
    """The protocol with small networks and few epochs."""
    widths = dict.fromkeys(("hidden", "hidden_udm", "hidden_cst"), 6)
    epochs = dict.fromkeys(("max_epochs", "max_epochs_hsic", "max_epochs_udm"), 3)
    small = {**widths, **epochs, "max_epochs_cst": [3], "batch_size": 16}
    return get_protocol(protocol).replace(**{**small, **changes})


class RandomLogs(LogDataModule):
    """Logs of outcomes that context and action tell a little of, the same for the same seed.

    Args:
        seeds: replicates. holdout: whether a fifth of the rows are held out.
        n, d, k, m: rows, features, actions, outcomes.
    """

    test: PotentialOutcomes

    def __init__(
        self, seeds: Sequence[int] = (0, 1), holdout: bool = True, n: int = 60, d: int = 4, k: int = 3, m: int = 2
    ) -> None:
        self.seeds = list(seeds)
        x, action, outcomes, truth = (torch.stack(t) for t in zip(*(_draw(s, n, d, k, m) for s in seeds), strict=True))
        test = PotentialOutcomes(x, outcomes, m, truth)
        policy = torch.full((len(self.seeds), n, k), 1 / k)
        self.log = Feedback(x, action, outcomes.gather(-1, action[..., None])[..., 0], k, m, policy)
        n_train = n - n // 5 if holdout else n
        held_out = self.log.row_range(n_train, n) if holdout else None
        super().__init__(self.log.row_range(0, n_train), held_out, test)
        self.shape: Shape = self.log.shape


def _draw(seed: int, n: int, d: int, k: int, m: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g)
    truth = torch.softmax(2 * torch.einsum("nd,dkm->nkm", x, torch.randn(d, k, m, generator=g)), -1)
    outcomes = torch.multinomial(truth.flatten(0, 1), 1, generator=g).view(n, k)
    return x, torch.arange(n) % k, outcomes, truth


def state_of(module: StackedModule, replicate: int) -> dict[str, Tensor]:
    """Every trained tensor of a replicate."""
    return {name: value[replicate] for name, value in module.replicate_state().items()}


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = TOLERANCE) -> bool:
    """Whether two replicates hold the same, but for rounding."""
    return all(torch.allclose(one[name], other[name], atol=tolerance, rtol=tolerance) for name in one)


def check_kind(part: Any, kind: type, check: str) -> None:
    """``part`` is a class of that kind.

    Raises:
        InputError: it is something else, such as a name or an object of the class.
    """
    if not (isinstance(part, type) and issubclass(part, kind)):
        raise InputError(f"{check}({part!r}): allowed is a class, a subclass of {kind.__name__}")


def demand(holds: Tensor | bool, message: str) -> None:
    """An ``assert`` that ``python -O`` keeps."""
    if not holds:
        raise AssertionError(message)
