"""The one error that bad input raises, and warnings of input that work can go on with."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

_SHOWN = 5  # rows that a message lists
_NAMES = 15  # names that it does: all that come with the package
_BETWEEN = ("cst_lightning", "datamodules", "sklearn", "pytorch_lightning")  # packages that a user's call goes through


class InputError(ValueError):
    """Input that cannot be worked with; the message names the field, row or option and what is allowed."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not known, with the nearest known names first."""
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    near += [n for n in difflib.get_close_matches(name, names, n=3, cutoff=0.5) if n not in near]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return InputError(f"unknown {kind} {name!r}: {hint}Allowed: {', '.join(names[:_NAMES])}{more}")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of what the line asked for that called into this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def rows_from_0(rows: Sequence[int] | NDArray[Any]) -> str:
    """Rows of an array for a message, the first few of them; the command line makes rows of a file of it."""
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:_SHOWN]))}{more} (from 0)"
