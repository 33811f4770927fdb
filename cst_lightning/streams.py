"""Random streams that belong to a replicate.

Every seed has one stream for each purpose and stage (the backbone, each round), always drawn on the
CPU, so a replicate gets the same numbers in whatever stack, order or worker and on whatever device it
trains; replicates of one seed that differ in a hyper-parameter (the CVAT weight, say) share their
initial weights, row order and dropout masks: common random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PURPOSES = ("init", "order", "dropout", "teacher", "cvat")

_BUFFER = 1 << 16  # 64-bit words a seed that one refill draws; a constant, since refills drop what is left over


def generator(seed: int, purpose: str, stage: int = 0) -> torch.Generator:
    """The stream of ``seed`` for ``purpose`` (one of ``PURPOSES``) in ``stage``: 0 a backbone, i round i."""
    entropy = np.random.SeedSequence([seed, PURPOSES.index(purpose), stage]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy) & (2**63 - 1))


class Bits:
    """Random 16-bit integers for ``S`` seeds, drawn in large refills because a refill is the cheap way."""

    def __init__(self, seeds: Sequence[int], purpose: str, stage: int = 0, device: torch.device | str = "cpu") -> None:
        self._generators = [generator(seed, purpose, stage) for seed in seeds]
        self._device = torch.device(device)
        self._drawn = torch.empty(len(seeds), 0, dtype=torch.int16)
        self._buffer = self._drawn.to(self._device)
        self._used = 0

    def take(self, n: int) -> Tensor:
        """``n`` fresh integers a seed, int16 ``[S, n]``, uniform over all 65,536 values; valid until the next call."""
        if self._used + n > self._buffer.shape[1]:
            words = max(_BUFFER, -(-n // 4))
            if self._drawn.shape[1] != 4 * words:
                self._drawn = torch.empty(len(self._generators), 4 * words, dtype=torch.int16)
            for row, source in zip(self._drawn.view(torch.int64), self._generators, strict=True):
                row.random_(-(2**63), None, generator=source)  # all 64 bits; the default leaves the sign bit out
            self._buffer, self._used = self._drawn.to(self._device), 0
        taken = self._buffer[:, self._used : self._used + n]
        self._used += -(-n // 4) * 4  # whole words, so that what is taken can be seen as 64-bit words again
        return taken

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint needs to go on with the same numbers."""
        return {
            "generators": [source.get_state() for source in self._generators],
            "left": self._buffer[:, self._used :].cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where ``state_dict`` was taken."""
        states, left = state["generators"], state["left"]
        assert isinstance(states, list)
        assert isinstance(left, Tensor)
        for source, value in zip(self._generators, states, strict=True):
            source.set_state(value.cpu())
        self._drawn = left.cpu()
        self._buffer, self._used = self._drawn.to(self._device), 0


def keep_mask(bits: Tensor, dropout: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dropout mask of the shape of ``bits``: 0 with probability ``dropout``, else ``1 / (1 - dropout)``.

    The probability is exact to 1 / 65,536, and the scale is that of the probability used.
    """
    dropped = round(dropout * 65536)
    return (bits >= dropped - 32768).to(dtype).mul_(65536 / (65536 - dropped))


def uniform(bits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in (-0.5, 0.5), of the shape of ``bits``."""
    return (bits.to(dtype) + 0.5) / 65536


def row_order(generators: Sequence[torch.Generator], n_rows: int) -> Tensor:
    """A fresh permutation of the rows for each seed, int64 ``[S, N]``, on the CPU."""
    return torch.stack([torch.randperm(n_rows, generator=source) for source in generators])
