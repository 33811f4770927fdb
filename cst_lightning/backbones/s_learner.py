"""S-learners: one scikit-learn model of the outcome from context and action together."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from typing_extensions import override

from cst_lightning.estimators import EstimatorBackbone, action_columns


class LogisticSLearner(EstimatorBackbone):
    """Ridge logistic regression on the standardised context and an indicator of the action.

    Its strength by five-fold cross-validation of the NLL on observed rows.
    """

    name = "s_logistic"

    @override
    def make_estimator(self, seed: int) -> Any:
        columns = action_columns(self.shape.n_features, self.shape.n_actions)
        model = make_pipeline(columns, LogisticRegression(max_iter=1000))
        return GridSearchCV(model, {"logisticregression__C": np.logspace(-4, 1, 6)}, scoring="neg_log_loss")


class BoostedSLearner(EstimatorBackbone):
    """Gradient-boosted trees with the action as a category, their number by five-fold cross-validation.

    ``HistGradientBoostingClassifier`` at a learning rate of 0.05, 15 leaves a tree and 64 bins a feature, not
    tuned further.
    """

    name = "s_boosting"

    @override
    def make_estimator(self, seed: int) -> Any:
        model = HistGradientBoostingClassifier(
            learning_rate=0.05,
            max_leaf_nodes=15,
            max_bins=min(255, max(64, self.shape.n_actions)),  # weighted bins take time in their number
            categorical_features=[self.shape.n_features],
            early_stopping=False,
            random_state=seed,
        )
        return GridSearchCV(model, {"max_iter": [12, 25, 50, 100, 200]}, scoring="neg_log_loss")
