"""Random streams that belong to a replicate.

Every seed has one stream for each purpose and stage (the backbone, each round), always drawn on the
CPU, so a replicate gets the same numbers in whatever stack, order or worker and on whatever device it
trains; replicates of one seed that differ in a hyper-parameter (the CVAT weight, say) share their
initial weights, row order and dropout masks: common random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

PURPOSES = ("init", "order", "dropout", "teacher", "cvat", "held_out")

_AHEAD = 1 << 16  # 64-bit words a seed to draw ahead for a device that is not the CPU: fewer copies


def generator(seed: int, purpose: str, stage: int = 0) -> torch.Generator:
    """The stream of ``seed`` for ``purpose`` (one of ``PURPOSES``) in ``stage``: 0 a backbone, i round i."""
    entropy = _entropy(seed, purpose, stage).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(entropy) & (2**63 - 1))


class Bits:
    """Random 16-bit integers for ``S`` seeds: per seed one sequence, whatever portions it is taken in."""

    def __init__(self, seeds: Sequence[int], purpose: str, stage: int = 0, device: torch.device | str = "cpu") -> None:
        # numpy's generators draw raw words two to three times as fast as torch's
        self._sources = [np.random.SFC64(_entropy(seed, purpose, stage)) for seed in seeds]
        self._device = torch.device(device)
        self._ahead = 0 if self._device.type == "cpu" else _AHEAD
        self._left = torch.empty(len(seeds), 0, dtype=torch.int16, device=self._device)

    def take(self, n: int) -> Tensor:
        """``n`` fresh integers a seed, int16 ``[S, n]``, uniform over all 65,536 values."""
        wanted = whole_words(n)
        if wanted > self._left.shape[1]:
            n_words = max((wanted - self._left.shape[1]) // 4, self._ahead)
            words = np.stack([source.random_raw(n_words) for source in self._sources])
            fresh = to_device(torch.from_numpy(words.view(np.int16)), self._device)
            self._left = torch.cat([self._left, fresh], 1) if self._left.shape[1] else fresh
        taken, self._left = self._left[:, :n], self._left[:, wanted:]
        return taken

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint needs to go on with the same numbers, as plain values and a tensor."""
        states = [source.state for source in self._sources]
        return {"words": [state["state"]["state"].tolist() for state in states], "left": self._left.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        for source, words in zip(self._sources, state["words"], strict=True):
            source.state = source.state | {"state": {"state": np.array(words, np.uint64)}}
        self._left = state["left"].to(self._device)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on ``device``, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def whole_words(n: int) -> int:
    """``n`` 16-bit integers rounded up to whole 64-bit words, in which they are drawn."""
    return -(-n // 4) * 4


def drop_threshold(dropout: float) -> tuple[int, float]:
    """The 16-bit integer below which a unit is dropped, and the factor of a unit that is kept."""
    dropped = round(dropout * 65536)
    return dropped - 32768, 65536 / (65536 - dropped)


def keep_mask(bits: Tensor, dropout: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dropout mask of the shape of ``bits``: 0 with probability ``dropout``, else ``1 / (1 - dropout)``.

    The probability is exact to 1 / 65,536, and the scale is that of the probability used.
    """
    threshold, scale = drop_threshold(dropout)
    return (bits >= threshold).to(dtype).mul_(scale)


def uniform(bits: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in (-0.5, 0.5), of the shape of ``bits``."""
    return (bits.to(dtype) + 0.5) / 65536


def _entropy(seed: int, purpose: str, stage: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, PURPOSES.index(purpose), stage])


def row_order(generators: Sequence[torch.Generator], n_rows: int) -> Tensor:
    """A fresh permutation of the rows for each seed, int64 ``[S, N]``, on the CPU."""
    return torch.stack([torch.randperm(n_rows, generator=source) for source in generators])
