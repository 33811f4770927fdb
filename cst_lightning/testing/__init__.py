"""Checks of a part of one's own: what is promised of a backbone, a method, a data module, a metric, a selection rule.

Each check makes small random logs, raises ``AssertionError`` with one line that says what does not hold, and passes on
what the part itself raises. None needs pytest; a test calls one and is done.
"""

from cst_lightning.testing.backbones import check_backbone
from cst_lightning.testing.data_modules import check_data_module
from cst_lightning.testing.logs import RandomLogs, close, state_of, tiny_protocol
from cst_lightning.testing.methods import check_method
from cst_lightning.testing.scores import check_metric, check_rule

__all__ = [
    "RandomLogs",
    "check_backbone",
    "check_data_module",
    "check_method",
    "check_metric",
    "check_rule",
    "close",
    "state_of",
    "tiny_protocol",
]
