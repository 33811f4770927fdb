"""T-learner: one scikit-learn model of the outcome for each action."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typing_extensions import override

from cst_lightning.estimators import EstimatorBackbone


class LogisticTLearner(EstimatorBackbone):
    """Ridge logistic regression on the standardised context, an own one for each action.

    Its strength by five-fold cross-validation of the NLL on observed rows; an action of which fewer than
    two rows of some outcome were logged gets the constant.
    """

    name = "t_logistic"
    per_action = True

    @override
    def make_estimator(self, seed: int) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        return GridSearchCV(model, {"logisticregression__C": np.logspace(-4, 1, 6)}, scoring="neg_log_loss")
