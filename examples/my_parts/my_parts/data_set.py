"""A data set: two coupons, of which the second works for customers with a high first feature."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cst_lightning import Feedback, PotentialOutcomes
from datamodules.base import BanditDataModule, Draw, data_seed


class Coupons(BanditDataModule):
    """Whole numbers and numbers among the arguments are options: ``--datasets coupons@n_train=500``."""

    names = ("coupons",)

    def __init__(self, seeds: Sequence[int] = (0, 1), holdout: float = 0.0, *, n_train: int = 200) -> None:
        super().__init__(seeds, holdout)
        self.n_train = n_train

    def draw(self) -> Draw:
        parts = [self._draw_one(np.random.default_rng(data_seed(seed))) for seed in self.seeds]
        x, chance, outcomes, action = (torch.from_numpy(np.stack(values)) for values in zip(*parts, strict=True))
        n = self.n_train
        seen = outcomes[:, :n].gather(-1, action[:, :n, None])[..., 0]
        everything = PotentialOutcomes(x, outcomes, probabilities=torch.stack([1 - chance, chance], -1))
        return Draw(
            log=Feedback(x[:, :n], action[:, :n], seen, n_actions=2),
            log_outcomes=everything.row_range(0, n),
            oracle_validation=None,
            test=everything.row_range(n, n + 500),
        )

    def _draw_one(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.uniform(size=(self.n_train + 500, 4))
        chance = np.stack([np.full(len(x), 0.4), x[:, 0]], 1)
        return x, chance, rng.binomial(1, chance), rng.integers(2, size=len(x))
