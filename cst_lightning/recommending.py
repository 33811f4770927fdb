"""From predicted outcomes to the action to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cst_lightning.encoding import Labels, shown_list
from cst_lightning.errors import InputError, rows_from_0


def worth(value: Any, shape: tuple[int, ...], actions: Labels, outcomes: Labels) -> NDArray[np.float64]:
    """Worth of outcomes (see ``recommend``), in a shape that goes with probabilities of ``shape``, ``[n, K, m]``."""
    if value is None:
        if isinstance(outcomes.values[0], str):
            raise InputError(f"value: outcomes are text, so give each of {shown_list(outcomes.values)} a number")
        return np.array(outcomes.values, float)
    if isinstance(value, Mapping):
        missing = [label for label in outcomes.values if label not in value]
        if missing or len(value) > len(outcomes.values):
            raise InputError(f"value: give each of {shown_list(outcomes.values)} a number, and nothing else")
        value = np.transpose([_column(value[label], actions) for label in outcomes.values])
    try:
        worth = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"value={value!r}: numbers are allowed") from None
    if worth.shape not in (shape[2:], shape[1:], shape) or not np.isfinite(worth).all():
        raise InputError(
            f"value has shape {worth.shape}: allowed are finite numbers of shape {shape[2:]} (by outcome), "
            f"{shape[1:]} (by action and outcome) or {shape}"
        )
    return worth


def _column(value: Any, actions: Labels) -> list[Any]:
    """What one outcome is worth under each action, ``[K]``."""
    if value != "action":
        return [value] * len(actions.values)
    if isinstance(actions.values[0], str):
        raise InputError(
            f"value: an outcome is to be worth its action, and the actions are text ({shown_list(actions.values)}): "
            "give a number by action and outcome"
        )
    return list(actions.values)


def allowed_actions(actions: Any, n_rows: int, known: Labels) -> NDArray[np.bool_]:
    """Which actions are allowed in each row, bool ``[n, K]``: see ``recommend``."""
    n_actions = len(known.values)
    if actions is None:
        return np.ones((n_rows, n_actions), bool)
    given = actions if isinstance(actions, list | tuple) else np.asarray(actions)
    if isinstance(given, np.ndarray) and given.ndim == 0:
        raise InputError(f"actions={actions!r}: allowed is a list of them, such as [{actions!r}]")
    if isinstance(given, np.ndarray) and given.dtype == bool:
        allowed = given
    else:
        a_row = len(given) == n_rows and all(isinstance(row, list | tuple | set | np.ndarray) for row in given)
        rows = [_places(row, known) for row in given] if a_row else [_places(given, known)] * n_rows
        allowed = np.stack(rows) if rows else np.ones((0, n_actions), bool)
    if allowed.shape != (n_rows, n_actions):
        raise InputError(f"actions has shape {allowed.shape}: booleans of shape ({n_rows}, {n_actions}) are allowed")
    empty = np.flatnonzero(~allowed.any(1))
    if len(empty):
        raise InputError(f"actions allows none in {rows_from_0(empty[:1])}: at least one is needed")
    return allowed


def _places(labels: Any, known: Labels) -> NDArray[np.bool_]:
    """Which actions a list names, bool ``[K]``."""
    allowed = np.zeros(len(known.values), bool)
    places = known.index(list(labels))
    if (places < 0).any():
        raise InputError(f"actions={labels!r} holds a missing one: allowed are {shown_list(known.values)}")
    allowed[places] = True
    return allowed
