"""The toy of the paper: two moons, two actions with opposite outcomes, a biased logging policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import make_moons
from typing_extensions import override

from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes
from datamodules.base import BanditDataModule, Draw, data_seed

Floats = NDArray[np.float64]


class MoonsDataModule(BanditDataModule):
    """Two customer types on two moons: P0 buys under A0 alone, P1 under A1 alone.

    A1 is logged with propensity ``exp(-(x0 - min x0))``, so it is rare at large ``x0``.

    Args:
        seeds, holdout: see ``BanditDataModule``.
        n_train: observed points. n_test: points to evaluate on, of which the first ``n_validation`` are
            fully labelled validation points. noise: standard deviation of the moons.
    """

    names = ("moons",)

    def __init__(
        self,
        seeds: Sequence[int] = (0, 1, 2, 3, 4),
        holdout: float = 0.0,
        *,
        n_train: int = 50,
        n_validation: int = 100,
        n_test: int = 1000,
        noise: float = 0.1,
    ) -> None:
        super().__init__(seeds, holdout)
        if not (n_train >= 2 and 1 <= n_validation < n_test and noise >= 0):
            raise InputError(
                f"n_train={n_train}, n_validation={n_validation}, n_test={n_test}, noise={noise}: allowed are "
                "n_train >= 2, 1 <= n_validation < n_test and noise >= 0"
            )
        self.n_train, self.n_validation, self.n_test, self.noise = n_train, n_validation, n_test, noise

    @override
    def draw(self) -> Draw:
        parts = [self._draw_one(data_seed(seed)) for seed in self.seeds]
        x, outcomes, x_test, test_outcomes, action, propensity = (
            torch.from_numpy(np.stack([part[i] for part in parts])) for i in range(6)
        )
        test = PotentialOutcomes(x_test, test_outcomes)
        return Draw(
            log=Feedback(x, action, outcomes.gather(-1, action[..., None])[..., 0], 2),
            log_outcomes=PotentialOutcomes(x, outcomes, propensity=propensity),
            oracle_validation=test.row_range(0, self.n_validation),
            test=test.row_range(self.n_validation, self.n_test),
        )

    def _draw_one(self, seed: int) -> tuple[NDArray[np.generic], ...]:
        rng = np.random.RandomState(seed)
        x, kind = make_moons(self.n_train, noise=self.noise, random_state=rng)
        x_test, test_kind = make_moons(self.n_test, noise=self.noise, random_state=rng)
        second = np.exp(-(x[:, 0] - x[:, 0].min()))
        action = (rng.random_sample(self.n_train) < second).astype(np.int64)
        return (x, _outcomes(kind), x_test, _outcomes(test_kind), action, np.stack([1 - second, second], 1))


def _outcomes(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([1 - kind, kind], 1)
