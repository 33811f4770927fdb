"""A fitted scikit-learn learner as bytes, in the format of skops: what is read back runs nothing that it names."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import Any

from sklearn.base import BaseEstimator

from cst_lightning.errors import InputError, warn

_OURS = "cst_lightning"
#: what fitted models of scikit-learn hold besides estimators, and skops does not know for harmless
_HELD = {
    "functools.partial",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
    "sklearn.utils.validation.check_array",
}


def to_bytes(model: Any, trust: Collection[str] = ()) -> bytes:
    """A fitted estimator, to be kept.

    Args:
        trust: packages that will be trusted when it is read.

    Warns:
        UserWarning: it holds what reading refuses without more of them.

    Raises:
        InputError: skops is not installed.
    """
    data: bytes = skops_io().dumps(model)
    if strange := _strange(skops_io().get_untrusted_types(data=data), trust):
        packages = sorted({name.partition(".")[0] for name in strange})
        warn(f"{type(model).__name__} holds {strange[0]}: loading needs trust={packages}")
    return data


def from_bytes(data: bytes, trust: Collection[str], place: object) -> Any:
    """The estimator that ``to_bytes`` kept.

    Args:
        trust: packages of which anything may be called that ``data`` names.
        place: where it was found, for messages.

    Raises:
        InputError: it names what is not trusted, or skops is not installed.
    """
    skops = skops_io()
    types = skops.get_untrusted_types(data=data)
    if strange := _strange(types, trust):
        raise InputError(f"{place} names {strange[0]}, which is not trusted: name its package in trust if you know it")
    return skops.loads(data, trusted=types)


def skops_io() -> Any:
    """The module ``skops.io``.

    Raises:
        InputError: it is not installed.
    """
    try:
        import skops.io  # an extra
    except ImportError as error:
        raise InputError("a scikit-learn learner is kept with skops: pip install 'cst-lightning[skops]'") from error
    return skops.io


def _strange(types: Iterable[str], trust: Collection[str]) -> list[str]:
    return [name for name in types if name.partition(".")[0] not in trust and not _only_keeps(name)]


def _only_keeps(name: str) -> bool:
    """Whether it is a class that does nothing but keep what it is given, since skops calls whatever a file names.

    Such are estimators of scikit-learn and of this package, and what they hold; a function never is.
    """
    module, _, own = name.rpartition(".")
    if name in _HELD or module.partition(".")[0] not in ("sklearn", _OURS):
        return name in _HELD
    try:
        part = getattr(importlib.import_module(module), own)
    except (ImportError, AttributeError):
        return False
    return isinstance(part, type) and issubclass(part, BaseEstimator)
