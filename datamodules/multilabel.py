"""Multi-label data as bandit feedback: each label is an action, and its presence the outcome."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from typing_extensions import override

from cst_lightning.errors import InputError, rows_from_0
from cst_lightning.feedback import Feedback, PotentialOutcomes
from datamodules.base import BanditDataModule, Draw, data_seed, draw_actions
from datamodules.download import SCENE, YEAST, Source, load_source

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TEMPERATURE = 3.0


@dataclass(frozen=True)
class BanditLog:
    """A multi-label set as bandit feedback: action ``[N]``, outcome ``[N]``, logging policy ``[N, K]``."""

    action: Ints
    outcome: Ints
    propensity: Floats


def bandit_feedback(
    x: Floats,
    y: Ints,
    *,
    logging_fraction: float = 0.05,
    temperature: float = _TEMPERATURE,
    seed: int | RandomState = 0,
    n_trees: int = 100,
) -> BanditLog:
    """Turn any multi-label set into bandit feedback with a logging policy learned from a part of it.

    One random forest a label is trained on ``logging_fraction`` of the rows; the policy is the softmax
    of ``temperature`` times its probability of each label; the outcome is whether the label drawn is
    one of the row's (Swaminathan and Joachims 2015, as the paper and its code use it).

    Args:
        x: features ``[N, d]``. y: labels ``[N, K]`` of 0 and 1.
        logging_fraction: in (0, 1]; at least one row is used.
        seed: of the legacy numpy stream, or the stream itself.

    Raises:
        InputError: shapes disagree, or ``y`` holds something other than 0 and 1.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or 0 in (*x.shape, *y.shape):
        raise InputError(f"x has shape {x.shape}, y {y.shape}: allowed are [N, d] and [N, K] with the same N")
    if not np.isin(y, (0, 1)).all():
        row, column = (int(i[0]) for i in np.nonzero(~np.isin(y, (0, 1))))
        raise InputError(f"y is {y[row, column]} in {rows_from_0([row])}, label {column}: allowed are 0 and 1")
    if not 0 < logging_fraction <= 1:
        raise InputError(f"logging_fraction={logging_fraction}: allowed is above 0, at most 1")
    rng = seed if isinstance(seed, RandomState) else RandomState(seed)
    rows = rng.choice(len(x), max(1, int(len(x) * logging_fraction)), replace=False)
    scores = np.zeros(y.shape)
    for label in range(y.shape[1]):
        # one forest after the other on one stream; scikit-learn's multi-output wrapper would copy the stream
        forest = RandomForestClassifier(n_estimators=n_trees, random_state=rng).fit(x[rows], y[rows, label])
        if 1 in forest.classes_:  # a label that those rows lack has probability 0
            scores[:, label] = forest.predict_proba(x)[:, list(forest.classes_).index(1)]
    propensity = softmax(temperature * scores, axis=1)
    action = draw_actions(propensity, rng)
    return BanditLog(action, y[np.arange(len(y)), action].astype(np.int64), propensity)


class MultiLabelDataModule(BanditDataModule):
    """A multi-label set, split and logged anew for each replicate as the released code does it.

    All rows are standardised together, half of them are test rows (``train_test_split`` with seed
    ``81 r + 1``), and the first ``n_validation`` test rows are validation rows.

    Args:
        seeds, holdout: see ``BanditDataModule``.
        logging_fraction: share of the training rows that the logging policy is trained on: 0.05 in the
            paper's text, 0.2 in its code.
        data_dir: folder that holds the files; by default they are downloaded and cached.
    """

    n_validation = 500
    n_trees = 100  # of each label's forest in the logging policy

    def __init__(
        self,
        seeds: Sequence[int] = (0, 1, 2, 3, 4),
        holdout: float = 0.0,
        *,
        logging_fraction: float = 0.05,
        data_dir: str | Path | None = None,
    ) -> None:
        super().__init__(seeds, holdout)
        if not 0 < logging_fraction <= 1:
            raise InputError(f"logging_fraction={logging_fraction}: allowed is above 0, at most 1")
        self.logging_fraction, self.data_dir = logging_fraction, data_dir

    @abstractmethod
    def arrays(self) -> tuple[Floats, Ints]:
        """Features ``[N, d]`` and labels ``[N, K]`` of all rows."""

    @override
    def draw(self) -> Draw:
        x, y = self.arrays()
        x = StandardScaler().fit_transform(x)
        parts = [self._draw_one(x, y, data_seed(seed)) for seed in self.seeds]

        def stack(name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([part[name] for part in parts]))

        test = PotentialOutcomes(stack("x_test"), stack("y_test"))
        if test.x.shape[1] <= self.n_validation:
            raise InputError(
                f"n_validation={self.n_validation} leaves no test rows of {test.x.shape[1]}: set it lower on the class"
            )
        outcomes = stack("y_train")
        action = stack("action")
        return Draw(
            log=Feedback(stack("x_train"), action, outcomes.gather(-1, action[..., None])[..., 0], y.shape[1]),
            log_outcomes=PotentialOutcomes(stack("x_train"), outcomes, propensity=stack("propensity")),
            oracle_validation=test.row_range(0, self.n_validation),
            test=test.row_range(self.n_validation, test.x.shape[1]),
        )

    def _draw_one(self, x: Floats, y: Ints, seed: int) -> dict[str, NDArray[Any]]:
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.5, random_state=seed)
        log = bandit_feedback(x_train, y_train, logging_fraction=self.logging_fraction, seed=seed, n_trees=self.n_trees)
        return {
            "x_train": x_train,
            "x_test": x_test,
            "y_train": y_train,
            "y_test": y_test,
            "action": log.action,
            "propensity": log.propensity,
        }


class _Published(MultiLabelDataModule):
    source: Source

    @override
    def arrays(self) -> tuple[Floats, Ints]:
        return load_source(self.source, self.data_dir)


class SceneDataModule(_Published):
    """Scene (Boutell et al. 2004): 2407 images, 294 features, 6 labels."""

    names = ("scene",)
    source = SCENE


class YeastDataModule(_Published):
    """Yeast (Elisseeff and Weston 2002): 2417 genes, 103 features, 14 labels."""

    names = ("yeast",)
    source = YEAST


class SyntheticMultiLabelDataModule(MultiLabelDataModule):
    """scikit-learn's generated multi-label set, small and without a download: for tests and smoke runs."""

    names = ("multilabel",)
    n_validation = 50
    n_trees = 10

    @override
    def arrays(self) -> tuple[Floats, Ints]:
        x, y = make_multilabel_classification(n_samples=400, n_features=12, n_classes=4, random_state=0)
        return x, y.astype(np.int64)
