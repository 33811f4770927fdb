"""The constant backbone."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from cst_lightning.estimators import EstimatorBackbone, SmoothedFrequencies


class Constant(EstimatorBackbone):
    """The observed share of each outcome under each action, whatever the context: what a method must beat."""

    name = "constant"
    per_action = True

    @override
    def make_estimator(self, seed: int) -> Any:
        return SmoothedFrequencies(self.shape.n_outcomes)
