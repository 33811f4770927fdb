"""Counterfactual classification: learn the outcome of every action from logs of the actions taken.

Counterfactual Self-Training (Gao, Biggs, Sun, Han) and its backbones on PyTorch Lightning. All
replicates of a comparison (seeds times hyper-parameters) train as one LightningModule.
"""

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
from cst_lightning.version import VERSION

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
