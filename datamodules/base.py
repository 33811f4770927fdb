"""What every data module of a log has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from typing_extensions import override

from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape
from cst_lightning.fitting import whole


def data_seed(replicate: int) -> int:
    """Seed of the data of a replicate, as the released code has it."""
    return 81 * replicate + 1


def draw_actions(propensity: NDArray[np.float64], rng: np.random.RandomState) -> NDArray[np.int64]:
    """An action a row from the policy ``[N, K]``, drawn as ``RandomState.choice`` row by row would."""
    cumulative = propensity.cumsum(1)
    uniform = rng.random_sample(len(propensity))
    # choice counts how many normalised cumulative probabilities the uniform reaches
    return np.asarray((uniform[:, None] >= cumulative / cumulative[:, -1:]).sum(1))


@dataclass(frozen=True)
class Draw:
    """What ``draw`` returns: a log with one replicate a seed, and what only evaluation may see."""

    log: Feedback
    log_outcomes: PotentialOutcomes | None  # of the rows of the log
    oracle_validation: PotentialOutcomes | None  # fully labelled validation rows, for oracle rules
    test: PotentialOutcomes


class BanditDataModule(pl.LightningDataModule):
    """A log with one replicate a seed, split once into what training sees and what evaluation sees.

    A data loader hands out the whole record as its one batch: a module cuts its own minibatches.

    Args:
        seeds: replicates; replicate ``r`` draws its data from seed ``81 r + 1``.
        holdout: share of the logged rows held out as observed validation, in [0, 1).

    Attributes:
        train: logged rows to train on. validation: held-out logged rows (None for ``holdout=0``).
        train_outcomes, oracle_validation, test: potential outcomes, for evaluation only.
    """

    #: names on the command line, in records and in tables
    names: ClassVar[tuple[str, ...]] = ()
    #: raise it when a change alters the data: it is part of a run's identity
    version: ClassVar[int] = 1

    def __init__(self, seeds: Sequence[int], holdout: float) -> None:
        super().__init__()
        self.seeds = [int(seed) for seed in seeds]
        if len(set(self.seeds)) < len(self.seeds) or not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds={self.seeds}: allowed are different integers from 0, at least one")
        if not 0 <= holdout < 1:
            raise InputError(f"holdout={holdout}: allowed is from 0, below 1")
        self.holdout = holdout
        self._splits: tuple[Feedback, Feedback | None, PotentialOutcomes | None] | None = None
        self._drawn: Draw | None = None

    @abstractmethod
    def draw(self) -> Draw:
        """Draw or read the data of all replicates."""

    @override
    def setup(self, stage: str | None = None) -> None:
        """Draw once; Lightning calls this again before every stage."""
        if self._drawn is None:
            self._drawn = self.draw()
            self._splits = self._split(self._drawn)

    def _split(self, drawn: Draw) -> tuple[Feedback, Feedback | None, PotentialOutcomes | None]:
        log = drawn.log
        n_held_out = round(self.holdout * log.n_rows)
        if n_held_out == 0:
            return log, None, drawn.log_outcomes
        if n_held_out == log.n_rows:
            raise InputError(f"holdout={self.holdout} of {log.n_rows} rows leaves none to train on")
        orders = [np.random.default_rng([data_seed(seed), 1]).permutation(log.n_rows) for seed in self.seeds]
        order = torch.from_numpy(np.stack(orders))
        held_out, kept = order[:, :n_held_out].sort(1).values, order[:, n_held_out:].sort(1).values
        outcomes = drawn.log_outcomes.rows(kept) if drawn.log_outcomes is not None else None
        train = log.rows(kept)
        train.check_logged()  # the rows held out may hold the last of an action
        return train, log.rows(held_out), outcomes

    @property
    def _ready(self) -> Draw:
        self.setup()
        assert self._drawn is not None
        return self._drawn

    @property
    def shape(self) -> Shape:
        """Sizes of the problem."""
        return self._ready.log.shape

    @property
    def train(self) -> Feedback:
        """Logged rows to train on."""
        self.setup()
        assert self._splits is not None
        return self._splits[0]

    @property
    def validation(self) -> Feedback | None:
        """Logged rows held out from training."""
        self.setup()
        assert self._splits is not None
        return self._splits[1]

    @property
    def train_outcomes(self) -> PotentialOutcomes | None:
        """Potential outcomes of the training rows: for auditing pseudo-labels, never for training."""
        self.setup()
        assert self._splits is not None
        return self._splits[2]

    @property
    def oracle_validation(self) -> PotentialOutcomes | None:
        """Fully labelled validation rows: for oracle selection only."""
        return self._ready.oracle_validation

    @property
    def test(self) -> PotentialOutcomes:
        """Fully labelled test rows."""
        return self._ready.test

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return whole(self.train)

    @override
    def val_dataloader(self) -> Any:
        return whole(self.validation) if self.validation is not None else []

    @override
    def test_dataloader(self) -> DataLoader[Any]:
        return whole(self.test)

    @override
    def predict_dataloader(self) -> DataLoader[Any]:
        return whole(self.test.x)
