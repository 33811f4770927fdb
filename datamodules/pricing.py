"""The pricing data D1 to D5: customers with 50 features, prices 1 to K, buy or not (or how many)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from scipy.special import expit, softmax
from typing_extensions import override

from cst_lightning.errors import InputError, unknown_name
from cst_lightning.feedback import Feedback, PotentialOutcomes
from datamodules.base import BanditDataModule, Draw, data_seed, draw_actions

Floats = NDArray[np.float64]

DEMANDS = ("D1", "D2", "D3", "D4", "D5")
_N_TERMS = 50  # length of a in h(x), whatever the number of features
_CACHED_ROWS = 512  # rows at a time, so that the sums stay in cache
# in logits; with steps below 1.4 no customer's likeliest outcome would be one of those between none and the most
_STEP = 2.0


class PricingDataModule(BanditDataModule):
    """D1 to D5 of the paper's appendix, drawn as the released code draws them.

    The legacy numpy stream of seed ``81 r + 1`` is used in the code's order, so ``price_term="code"``
    with the defaults gives the very rows behind the paper's tables.

    Args:
        demand: ``D1`` to ``D5``.
        seeds, holdout: see ``BanditDataModule``.
        overlap: 0 is the default policy ``pi(p = i | x) = x_i / sum_j x_j``; ``o > 0`` is the softmax
            of ``o * x_i`` (Table 5). Both over the first ``n_prices`` features.
        n_prices: ``K``, prices 1 to K.
        unlogged: how many of the highest prices the policy never sets: nothing is observed about them.
        n_outcomes: ``m``, how many a customer buys: 0 to ``m - 1``. With 3: none, one, or many. More than two follow an
            ordered logit: ``P(r >= k) = expit(v - 2 (k - 1))`` where ``v`` is the logit of buying in the two-outcome
            data of the same seed, whose contexts and actions are the same.
        n_train, n_validation, n_test: rows; the validation rows are the first of the test rows, as
            in the code, and are not evaluated on.
        n_features: ``d``.
        price_term: D3 and D4 only: ``text`` is ``step(x) * p``, ``code`` is ``2 * step(x) * p``.
    """

    names: ClassVar[tuple[str, ...]] = DEMANDS

    def __init__(
        self,
        demand: str = "D1",
        seeds: Sequence[int] = (0, 1, 2, 3, 4),
        holdout: float = 0.0,
        *,
        overlap: float = 0.0,
        n_prices: int = 5,
        unlogged: int = 0,
        n_outcomes: int = 2,
        n_train: int = 1000,
        n_validation: int = 500,
        n_test: int = 10_000,
        n_features: int = 50,
        price_term: Literal["text", "code"] = "code",
    ) -> None:
        super().__init__(seeds, holdout)
        if demand not in DEMANDS:
            raise unknown_name("demand", demand, DEMANDS)
        if price_term not in ("text", "code"):
            raise unknown_name("price_term", price_term, ("text", "code"))
        if overlap < 0:
            raise InputError(f"overlap={overlap}: allowed is from 0")
        if not 2 <= n_prices <= n_features:
            raise InputError(f"n_prices={n_prices}: allowed is from 2 to n_features={n_features}")
        if not 0 <= unlogged < n_prices:
            raise InputError(f"unlogged={unlogged}: allowed is from 0, below n_prices={n_prices}")
        if n_outcomes < 2:
            raise InputError(f"n_outcomes={n_outcomes}: allowed is from 2")
        if not (n_train >= 1 and 1 <= n_validation < n_test):
            raise InputError(
                f"n_train={n_train}, n_validation={n_validation}, n_test={n_test}: allowed are "
                "n_train >= 1 and 1 <= n_validation < n_test"
            )
        self.demand, self.overlap, self.n_prices, self.price_term = demand, overlap, n_prices, price_term
        self.unlogged, self.n_outcomes = unlogged, n_outcomes
        self.n_train, self.n_validation, self.n_test, self.n_features = n_train, n_validation, n_test, n_features

    @override
    def draw(self) -> Draw:
        parts = [self._draw_one(RandomState(data_seed(seed))) for seed in self.seeds]

        def stack(name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([part[name] for part in parts]))

        log_outcomes = stack("train_outcomes")
        action = stack("action")
        outcome = log_outcomes.gather(-1, action[..., None])[..., 0]
        test = PotentialOutcomes(
            stack("x_test"),
            stack("test_outcomes"),
            self.n_outcomes,
            probabilities=stack("test_probabilities"),
            propensity=stack("test_propensity"),
        )
        return Draw(
            log=Feedback(
                stack("x_train"), action, outcome, self.n_prices, self.n_outcomes, allow_unlogged=self.unlogged > 0
            ),
            log_outcomes=PotentialOutcomes(
                stack("x_train"),
                log_outcomes,
                self.n_outcomes,
                probabilities=stack("train_probabilities"),
                propensity=stack("train_propensity"),
            ),
            oracle_validation=test.row_range(0, self.n_validation),
            test=test.row_range(self.n_validation, self.n_test),
        )

    def _draw_one(self, rng: RandomState) -> dict[str, NDArray[np.generic]]:
        x_train, x_test = self._draw_contexts(rng)
        a, b, c = self._draw_appeal(rng)
        train_propensity = self.propensity(x_train)
        action = draw_actions(train_propensity, rng)
        train_probabilities = self._probabilities(x_train, a, b, c)
        test_probabilities = self._probabilities(x_test, a, b, c)
        return {
            "x_train": x_train,
            "x_test": x_test,
            "action": action,
            "train_propensity": train_propensity,
            "test_propensity": self.propensity(x_test),
            "train_probabilities": train_probabilities,
            "test_probabilities": test_probabilities,
            "train_outcomes": _draw_outcomes(train_probabilities, rng),
            "test_outcomes": _draw_outcomes(test_probabilities, rng),
        }

    def propensity(self, x: Floats) -> Floats:
        """Logging policy, ``[N, K]`` for contexts ``[N, d]``."""
        first = x[:, : self.n_prices - self.unlogged]
        policy = softmax(first * self.overlap, axis=1) if self.overlap > 0 else first / first.sum(1, keepdims=True)
        return np.pad(policy, ((0, 0), (0, self.unlogged)))

    def probabilities(self, seed: int, x: Floats) -> Floats:
        """Of every outcome at each price under the demand of ``seed``, ``[N, K, m]`` for contexts ``[N, d]``."""
        rng = RandomState(data_seed(seed))
        self._draw_contexts(rng)
        return self._probabilities(x, *self._draw_appeal(rng))

    def contexts(self, seed: int) -> Floats:
        """Contexts of the log of ``seed``, holdout and all, ``[N, d]``, without drawing anything else."""
        return self._draw_contexts(RandomState(data_seed(seed)))[0]

    def _draw_contexts(self, rng: RandomState) -> tuple[Floats, Floats]:
        """Of the log and of the test rows."""
        x_train = rng.uniform(size=(self.n_train, self.n_features))
        rng.uniform(size=(self.n_validation, self.n_features))  # the code draws these rows and never uses them
        return x_train, rng.uniform(size=(self.n_test, self.n_features))

    def _draw_appeal(self, rng: RandomState) -> tuple[Floats, Floats, Floats]:
        """``a``, ``b`` and ``c`` of ``appeal``."""
        a = rng.uniform(size=_N_TERMS)
        b, c = (rng.uniform(size=(_N_TERMS, self.n_features)) for _ in range(2))
        return a, b, c

    def _probabilities(self, x: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
        logit = self._buying_logit(x, a, b, c)
        bounds = np.arange(self.n_outcomes - 1) * _STEP
        at_least = expit(logit[..., None] - bounds)  # 1, 2, ..., m - 1
        return np.asarray(-np.diff(at_least, axis=-1, prepend=1, append=0))

    def _buying_logit(self, x: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
        """Logit of buying at each price, ``[N, K]``."""
        price = np.arange(1, self.n_prices + 1)
        if self.demand == "D2":
            return np.asarray(((x[:, 0] - 0.5) * 5)[:, None] - 0.4 * price)
        base = appeal(x, a, b, c)[:, None]
        factor = 2 if self.price_term == "code" else 1
        if self.demand == "D1":
            slope = x[:, 0, None] * price * 2
        elif self.demand == "D3":
            slope = stepwise1(x[:, 0])[:, None] * price * factor
        elif self.demand == "D4":
            slope = stepwise2(x[:, 0], x[:, 1])[:, None] * price * factor
        else:
            slope = (x[:, 0] + x[:, 1])[:, None] * price
        return np.asarray(base - slope)


def appeal(x: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    """``h(x) = sum_i a_i exp(-sum_j b_ij |x_j - c_ij|) / 0.008``, ``[N]``.

    The formula that the paper prints lacks the minus and the scale and saturates every outcome; this is
    the code's. Sums run in the code's order, so that the outcomes drawn from it agree bit for bit.
    """
    total = np.zeros(len(x))
    for start in range(0, len(x), _CACHED_ROWS):
        columns = np.ascontiguousarray(x[start : start + _CACHED_ROWS].T)
        exponent = np.zeros((len(a), columns.shape[1]))
        distance = np.empty_like(exponent)
        for j, column in enumerate(columns):
            np.subtract(column, c[:, j, None], out=distance)
            np.abs(distance, out=distance)
            distance *= b[:, j, None]
            exponent -= distance
        for weight, term in zip(a, np.exp(exponent), strict=True):
            total[start : start + _CACHED_ROWS] += weight * term
    return total / 0.008


def stepwise1(x: Floats) -> Floats:
    """Price sensitivity of D3, a step function of the first feature."""
    return np.array([0.7, 0.5, 0.3, 0.1])[np.searchsorted([0.1, 0.3, 0.6], x, side="right")]


def stepwise2(x: Floats, y: Floats) -> Floats:
    """Price sensitivity of D4: falls with the first feature, and is 0.2 higher where the second exceeds 0.5."""
    low = np.array([0.45, 0.35, 0.25, 0.15])[np.searchsorted([0.1, 0.3, 0.6], x, side="right")]
    high = np.array([0.65, 0.55, 0.45, 0.35])[np.searchsorted([0.1, 0.3, 0.6], x, side="right")]
    return np.where(y > 0.5, high, low)


def _draw_outcomes(probabilities: Floats, rng: RandomState) -> NDArray[np.int64]:
    """An outcome an entry, ``[N, K]``: price by price, row by row."""
    by_price = probabilities.swapaxes(0, 1)
    if probabilities.shape[-1] == 2:
        return np.asarray(rng.binomial(1, by_price[..., 1]).T.copy())  # as the released code draws them
    uniform = rng.random_sample(by_price.shape[:2])
    reached = uniform[..., None] >= by_price.cumsum(-1)[..., :-1]
    return np.asarray(reached.sum(-1).T.copy())
