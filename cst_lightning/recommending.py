"""From predicted outcomes to the action to take."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cst_lightning.encoding import Labels, shown_list
from cst_lightning.errors import InputError, rows_from_0
from cst_lightning.label_columns import in_order, names_some


def worth(value: Any, shape: tuple[int, ...], actions: Labels, outcomes: Labels) -> NDArray[np.float64]:
    """Worth of outcomes (see ``recommend``), in a shape that goes with probabilities of ``shape``, ``[n, K, m]``."""
    if value is None:
        if isinstance(outcomes.values[0], str):
            raise InputError(f"value: outcomes are text, so give each of {shown_list(outcomes.values)} a number")
        return np.array(outcomes.values, float)
    if isinstance(value, pd.Series) and _has_names(value.index):
        value = value.to_dict()
    if isinstance(value, pd.DataFrame) and not names_some(value.columns, outcomes):
        by_outcome = _has_names(value.index) and names_some(value.index, outcomes)
        value = value.T if by_outcome or names_some(value.columns, actions) else value
    value = in_order(value, outcomes, "value")
    if isinstance(value, pd.DataFrame) and _has_names(value.index):
        value = in_order(value.T, actions, "value").T
    if isinstance(value, Mapping):
        missing = [label for label in outcomes.values if label not in value]
        if missing or len(value) > len(outcomes.values):
            raise InputError(f"value: give each of {shown_list(outcomes.values)} a number, and nothing else")
        return np.transpose([_column(label, value[label], actions) for label in outcomes.values])
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


def _has_names(index: pd.Index) -> bool:
    """Whether an index is more than the places 0, 1, ..."""
    return not isinstance(index, pd.RangeIndex) or (index.start, index.step) != (0, 1)


def _column(outcome: Any, value: Any, actions: Labels) -> list[float]:
    """What one outcome is worth under each action, ``[K]``."""
    if isinstance(value, pd.Series):
        value = value.to_dict()
    if isinstance(value, Mapping):
        unknown = [label for label in value if label not in actions.values]
        lacking = [label for label in actions.values if label not in value]
        if unknown or lacking:
            fault = f"{unknown[0]!r} is no action" if unknown else f"action {lacking[0]!r} is missing"
            raise InputError(
                f"value of outcome {outcome!r}: {fault}: give each of {shown_list(actions.values)} a number, and "
                "nothing else"
            )
        return [_number(value[label], f"outcome {outcome!r} under action {label!r}") for label in actions.values]
    if not (isinstance(value, str) and value == "action"):
        return [_number(value, f"outcome {outcome!r}")] * len(actions.values)
    if isinstance(actions.values[0], str):
        raise InputError(
            f"value of outcome {outcome!r}: it is to be worth its action, and the actions are text "
            f"({shown_list(actions.values)}): give a dict of a number for each"
        )
    return [float(label) for label in actions.values]


def _number(value: Any, what: str) -> float:
    """A finite number."""
    shown = value.item() if isinstance(value, np.generic) else value
    if isinstance(shown, int | float) and np.isfinite(shown):
        return float(shown)
    raise InputError(
        f"value of {what} is {shown!r}: allowed are a finite number, 'action' (the number that the action is), or a "
        "number for each action"
    )


def allowed_actions(actions: Any, n_rows: int, known: Labels) -> NDArray[np.bool_]:
    """Which actions are allowed in each row, bool ``[n, K]``: see ``recommend``."""
    n_actions = len(known.values)
    if actions is None:
        return np.ones((n_rows, n_actions), bool)
    is_table = hasattr(actions, "columns")
    actions = in_order(actions, known, "actions")
    given = actions if isinstance(actions, list | tuple) else np.asarray(actions)
    if isinstance(given, np.ndarray) and given.ndim == 0:
        raise InputError(f"actions={actions!r}: allowed is a list of them, such as [{actions!r}]")
    nested = [_is_list(row) for row in given]
    if (isinstance(given, np.ndarray) and given.dtype == bool) or is_table:
        allowed = _as_mask(given)
    elif not any(nested):
        allowed = np.repeat(_places(given, known, "")[None], n_rows, 0)
    elif not all(nested):
        raise InputError("actions holds lists and single ones: allowed is a list for every row, or a list of lists")
    elif len(given) != n_rows:
        raise InputError(f"actions has {len(given)} list(s) for {n_rows} rows: allowed is one list for each row")
    elif _is_mask(given, known):
        allowed = _as_mask([list(row) for row in given])
    else:
        allowed = np.stack([_places(row, known, f" of row {place} (from 0)") for place, row in enumerate(given)])
    if allowed.shape != (n_rows, n_actions):
        raise InputError(f"actions has shape {allowed.shape}: booleans of shape ({n_rows}, {n_actions}) are allowed")
    empty = np.flatnonzero(~allowed.any(1))
    if len(empty):
        raise InputError(f"actions allows none in {rows_from_0(empty)}: at least one is needed")
    return allowed


def by_row(actions: Any) -> bool:
    """Whether what ``allowed_actions`` takes is a table, or a list for each row."""
    return hasattr(actions, "columns") or (isinstance(actions, pd.Series) and any(map(_is_list, actions)))


def _is_list(row: Any) -> bool:
    return isinstance(row, list | tuple | set | np.ndarray | pd.Series)


def _is_mask(rows: Any, known: Labels) -> bool:
    """Whether lists, one a row, say of each action whether it is allowed, and cannot be lists of actions."""
    if any(isinstance(row, set) or len(row) != len(known.values) for row in rows):
        return False
    values = {value for row in rows for value in row if isinstance(value, Hashable)}
    of_booleans = all(isinstance(value, bool | np.bool_) for row in rows for value in row)
    are_labels = isinstance(known.values[0], bool) if of_booleans else bool(values & set(known.values))
    return values <= {0, 1} and not are_labels


def _as_mask(rows: Any) -> NDArray[np.bool_]:
    """Booleans, or 0 and 1, as booleans."""
    mask = np.asarray(rows)
    if mask.dtype != bool and not np.isin(mask, (0, 1)).all():
        raise InputError("actions is a table, or lists, of something else than booleans: True where one is allowed")
    return mask.astype(bool)


def _places(labels: Any, known: Labels, where: str) -> NDArray[np.bool_]:
    """Which actions a list names, bool ``[K]``; ``where`` names the list in messages."""
    places = pd.Index(list(known.values), dtype=object).get_indexer(pd.Index(list(labels), dtype=object))
    # as Labels has it: a boolean is no number, although Python says that True is 1
    kind = isinstance(known.values[0], bool)
    for label, place in zip(labels, places, strict=True):
        if place < 0 or isinstance(label, bool | np.bool_) != kind:
            shown = label.item() if isinstance(label, np.generic) else label
            raise InputError(f"actions: {shown!r}{where} was not in training: allowed are {shown_list(known.values)}")
    found = np.bincount(places, minlength=len(known.values))
    if (found > 1).any() and where:
        twice = known.values[int(found.argmax())]
        raise InputError(f"actions: {twice!r} stands twice in the list{where}: a mask is an array of booleans")
    return found > 0
