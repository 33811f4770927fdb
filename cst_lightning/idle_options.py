"""Options of the estimator that would do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cst_lightning.candidates import fields_of
from cst_lightning.catalogue import get_method
from cst_lightning.errors import InputError
from cst_lightning.stacked import StackedModule

_OF_A_NETWORK = ("hidden", "dropout", "learning_rate", "max_epochs", "batch_size", "patience")


def check_idle(
    options: Mapping[str, Any], defaults: Mapping[str, Any], part: type[StackedModule], rule: str | None
) -> None:
    """Refuse an option that would do nothing, where it has another value than by default.

    Args:
        part, rule: what ``backbone`` or ``base``, and ``selection``, stand for.

    Raises:
        InputError: there is one.
    """
    method, idle = get_method(options["method"]), dict[str, str]()
    if not part.has_gradient:
        idle = dict.fromkeys(_OF_A_NETWORK, f"{part.name or part.__name__} is no network")
    if options["method"] == "backbone":
        idle["rounds"] = "method=backbone has no self-training"
    if not method.cvat:
        idle["cvat_weights"] = f"method={options['method']} has no CVAT"
    # a backbone that does not say what it reads may read all
    if part.protocol_fields is not None and "propensity_floor" not in (*part.protocol_fields, *fields_of(rule)):
        idle["propensity_floor"] = "neither the backbone nor the selection divides by propensities"
    for name, why in idle.items():
        given, default = options[name], defaults[name]
        if (tuple(given) != default) if name == "cvat_weights" else (given != default):
            raise InputError(f"{name}={given!r} does nothing: {why}; leave it out")
