"""What there is to choose from by name or class path: methods and backbones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import cst_lightning.backbones
from cst_lightning.errors import unknown_name
from cst_lightning.registry import Parts, class_at, find_parts, with_offered
from cst_lightning.self_training import SelfTraining
from cst_lightning.stacked import StackedModule


@dataclass(frozen=True)
class Method:
    """What is trained on top of a backbone: nothing, or students with pseudo-labels."""

    title: str
    soft: bool = False  # the teacher's probabilities as labels, whatever the protocol has
    cvat: bool = False
    student: type[SelfTraining] | None = None  # None: what the backbone has


METHODS = {
    "backbone": Method("backbone"),
    "pl": Method("PL"),
    "pl_cvat": Method("PL + CVAT", cvat=True),
    "pl_soft": Method("soft PL", soft=True),
    "pl_soft_cvat": Method("soft PL + CVAT", soft=True, cvat=True),
}


def get_method(name: str) -> Method:
    """The method called ``name``, of the project or of an entry point, or of the student at a class path."""
    if name in METHODS:
        return METHODS[name]
    known = with_offered("method", METHODS, SelfTraining, "cst_lightning.methods")
    if name not in known and "." not in name:
        raise unknown_name("method", name, known)
    found = known[name] if name in known else class_at(name, SelfTraining)
    assert isinstance(found, type)
    return Method(method_title(name), found.soft, found.cvat, found)


def method_title(name: str) -> str:
    """How tables call a method, of which the class need not be here."""
    return METHODS[name].title if name in METHODS else name


def method_order(name: str) -> tuple[int, str]:
    """Sorts methods as tables have them, one's own last."""
    own = list(METHODS)
    return (own.index(name) if name in own else len(own), name)


@cache
def backbones() -> Parts[StackedModule]:
    """All backbones of the package, and of the entry points ``cst_lightning.backbones``."""
    return find_parts("backbone", cst_lightning.backbones, StackedModule, "cst_lightning.backbones")
