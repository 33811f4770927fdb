"""What there is to choose from by name: methods and backbones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import cst_lightning.backbones
from cst_lightning.registry import Parts, find_parts
from cst_lightning.stacked import StackedModule


@dataclass(frozen=True)
class Method:
    """What is trained on top of a backbone: nothing, or students with pseudo-labels."""

    title: str
    soft: bool = False  # the teacher's probabilities as labels, whatever the protocol has
    cvat: bool = False


METHODS = {
    "backbone": Method("backbone"),
    "pl": Method("PL"),
    "pl_cvat": Method("PL + CVAT", cvat=True),
    "pl_soft": Method("soft PL", soft=True),
    "pl_soft_cvat": Method("soft PL + CVAT", soft=True, cvat=True),
}


@cache
def backbones() -> Parts[StackedModule]:
    """All backbones of the package, and of the entry points ``cst_lightning.backbones``."""
    return find_parts("backbone", cst_lightning.backbones, StackedModule, "cst_lightning.backbones")
