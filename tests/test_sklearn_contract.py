"""scikit-learn's own checks of an estimator, on a log of a single action: then outcomes are a plain target."""

import numpy as np
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

from cst_lightning import CounterfactualClassifier


class OneAction(CounterfactualClassifier):
    """``fit(X, y)`` and predictions ``[n]``, as the checks call them."""

    def fit(self, X, y, sample_weight=None):  # noqa: N803
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        return super().fit(X, np.zeros(_num_samples(y)), y, sample_weight=sample_weight)

    def predict_proba(self, X):  # noqa: N803
        return super().predict_proba(X)[:, 0]

    def predict(self, X):  # noqa: N803
        likeliest = self.predict_proba(X).argmax(-1)
        return self.classes_[likeliest]

    def score(self, X, y, sample_weight=None):  # noqa: N803
        return np.average(self.predict(X) == np.asarray(y), weights=sample_weight)


_DRAWN = "minibatches and held-out rows are drawn: a row twice is not one of weight two to the last digit"
DOES_NOT_HOLD = {
    "check_sample_weight_equivalence_on_dense_data": _DRAWN,
    "check_sample_weight_equivalence_on_sparse_data": _DRAWN,
}


_QUICK = {"max_epochs": 40, "hidden": 16, "learning_rate": 0.02, "random_state": 0}


@parametrize_with_checks(
    [
        OneAction(n_models=1, method="backbone", **_QUICK),
        OneAction(n_models=2, method="pl_soft", rounds=1, **_QUICK),  # chosen by "auto"
    ],
    expected_failed_checks=lambda estimator: DOES_NOT_HOLD,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
