"""Where W&B is logged to, and what of the environment W&B itself would stumble over."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cst_lightning.errors import InputError
from cst_lightning.texts import printable

_IN_NO_NAME = "/\\#?%:"  # of a project or an entity
_LONGEST_NAME, _LONGEST_TAG = 128, 64  # letters
MODES = ("online", "offline", "disabled")
INIT_S = 20  # that W&B may take to answer before a run is given up; WANDB_INIT_TIMEOUT replaces it


@dataclass(frozen=True)
class Tracking:
    """Where to log: see the options of the sweep. ``mode`` None is online where a key is found, else offline.

    ``project`` None is ``WANDB_PROJECT``'s, else cst-lightning.
    """

    mode: str | None
    project: str | None
    entity: str | None
    tags: tuple[str, ...]
    folder: Path


def check_names(project: str | None, entity: str | None, tags: Sequence[str]) -> None:
    """Refuse what W&B takes for no name, since it would log nothing: ``InputError``, which names the option."""
    for option, name in (("wandb_project", project), ("wandb_entity", entity)):
        if name is not None and not (0 < len(name.strip()) <= _LONGEST_NAME and not set(name) & set(_IN_NO_NAME)):
            allowed = f"1 to {_LONGEST_NAME} letters, and none of {' '.join(_IN_NO_NAME)}"
            raise InputError(f"{option}={printable(name)!r}: allowed are {allowed}")
    for tag in tags:
        if not 0 < len(tag.strip()) <= _LONGEST_TAG:
            raise InputError(f"wandb_tags={printable(tag)!r}: allowed are tags of 1 to {_LONGEST_TAG} letters")


def init_timeout() -> float:
    """Seconds that the start of a run may take; the variable is W&B's own."""
    try:
        seconds = float(os.environ.get("WANDB_INIT_TIMEOUT") or INIT_S)
    except ValueError:
        return INIT_S
    return seconds if 0 < seconds < math.inf else INIT_S


def settle_environment() -> None:
    """Leave nothing in this process's environment by which W&B would log otherwise, or not start."""
    os.environ["WANDB_INIT_TIMEOUT"] = str(init_timeout())  # W&B itself refuses to start with one that is no number
    # a service that the sweep's process has; the mode is told; a run that is resumed would get its points again
    for name in ("WANDB_SERVICE", "WANDB_MODE", "WANDB_RESUME", "WANDB_RUN_ID"):
        os.environ.pop(name, None)
