"""Counterfactual classification: learn the outcome of every action from logs of the actions taken.

Counterfactual Self-Training (Gao, Biggs, Sun, Han) and its backbones on PyTorch Lightning. All
replicates of a comparison (seeds times hyper-parameters) train as one LightningModule.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cst_lightning.version import VERSION

if TYPE_CHECKING:
    from cst_lightning.backbones.direct_method import DirectMethod
    from cst_lightning.backbones.hsic import HSIC
    from cst_lightning.backbones.uniform_dm import UniformDM
    from cst_lightning.classifier import CounterfactualClassifier
    from cst_lightning.errors import InputError
    from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape
    from cst_lightning.fitting import LogDataModule, fit
    from cst_lightning.logs import read_log
    from cst_lightning.metrics import evaluate
    from cst_lightning.protocols import MATCHED, RELEASED, WRITTEN, Protocol, get_protocol
    from cst_lightning.rounds import Round
    from cst_lightning.self_training import SelfTraining, self_train
    from cst_lightning.stacked import StackedModule

__version__ = VERSION

__all__ = [
    "HSIC",
    "MATCHED",
    "RELEASED",
    "WRITTEN",
    "CounterfactualClassifier",
    "DirectMethod",
    "Feedback",
    "InputError",
    "LogDataModule",
    "PotentialOutcomes",
    "Protocol",
    "Round",
    "SelfTraining",
    "Shape",
    "StackedModule",
    "UniformDM",
    "evaluate",
    "fit",
    "get_protocol",
    "read_log",
    "self_train",
]

# where each of them is: imported when it is asked for, since PyTorch and Lightning take seconds
_IN = {
    "backbones.direct_method": ("DirectMethod",),
    "backbones.hsic": ("HSIC",),
    "backbones.uniform_dm": ("UniformDM",),
    "classifier": ("CounterfactualClassifier",),
    "errors": ("InputError",),
    "feedback": ("Feedback", "PotentialOutcomes", "Shape"),
    "fitting": ("LogDataModule", "fit"),
    "logs": ("read_log",),
    "metrics": ("evaluate",),
    "protocols": ("MATCHED", "RELEASED", "WRITTEN", "Protocol", "get_protocol"),
    "rounds": ("Round",),
    "self_training": ("SelfTraining", "self_train"),
    "stacked": ("StackedModule",),
}
_MODULES = {name: module for module, names in _IN.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
