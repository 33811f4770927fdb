"""Labels of actions and outcomes as typed on a command line, where all are text and YAML reads some otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from cst_lightning.encoding import Label, Labels, shown_list, written
from cst_lightning.errors import InputError


def by_label(value: Mapping[str, Any] | None, outcomes: NDArray[Any], actions: NDArray[Any]) -> dict[Any, Any] | None:
    """Worth by outcome as typed, or by outcome and action, by the labels themselves: typed ones are all text."""
    if value is None:
        return None
    known, taken, whole = _known(outcomes.tolist()), _known(actions.tolist()), dict[Any, Any]()
    for name, worth in value.items():
        if isinstance(worth, Mapping) and any(_found(rest, taken) is None for rest in worth):
            joined = {f"{name}.{rest}": number for rest, number in worth.items()}  # --value.1.5 2 is {"1": {"5": 2}}
            if _found(name, known) is None or all(_found(one, known) is not None for one in joined):
                whole |= joined
                continue
        whole[name] = worth
    worths = [
        dict(zip(as_labels(list(worth), actions, f"value.{name}") or (), worth.values(), strict=True))
        if isinstance(worth, Mapping)
        else worth
        for name, worth in whole.items()
    ]
    return dict(zip(as_labels(list(whole), outcomes, "value") or (), worths, strict=True))


def as_labels(typed: Sequence[Label] | None, labels: NDArray[Any], option: str = "actions") -> list[Any] | None:
    """Which of ``labels`` ``[K]`` were typed for ``option``; None where nothing was.

    Raises:
        InputError: one is none of them.
    """
    if typed is None:
        return None
    known = _known(labels.tolist())
    found = [_found(name, known) for name in typed]
    if None in found:
        unknown = typed[found.index(None)]
        raise InputError(f"{option}: {unknown!r} was not in training: allowed are {', '.join(known)}")
    return found


def with_never_taken(typed: Sequence[Label], logged: pd.Series) -> list[Label]:
    """Actions as the log has them, and those that it lacks as labels of the same kind."""
    labels = Labels.of("action", logged).values
    known, found = _known(labels), list[Label]()
    for name in typed:
        label = _found(name, known)
        if label is None:
            label = _like(labels[0], name) if labels else name
        if label is None:
            raise InputError(f"actions={written(name)}: it is no label like those of the log, {shown_list(labels)}")
        found.append(label)
    return found


def _known(labels: Sequence[Label]) -> dict[str, Label]:
    """Labels by what is typed for them; booleans in lower case too."""
    known = {written(label): label for label in labels}
    return known | {str(label).lower(): label for label in labels if isinstance(label, bool)}


def _found(name: Label, known: Mapping[str, Label]) -> Label | None:
    """The label that was typed, numbers however they are written (14.90); None: it is none."""
    if isinstance(name, bool):  # YAML reads yes and on so
        name = _meant(name, known)
    if (label := known.get(written(name))) is not None:
        return label
    alike = (label for label in known.values() if type(label) in (int, float) and _like(label, name) == label)
    return next(alike, None)


def _like(label: Label, name: Label) -> Label | None:
    """What was typed as a label of the kind of another one; None where it cannot be."""
    kind = type(label)
    if kind is str:
        return name if isinstance(name, str) else written(name)
    if kind is bool:
        return {"true": True, "false": False}.get(written(name).lower())
    try:
        number = Decimal(written(name))
    except InvalidOperation:
        return None
    return kind(number) if number.is_finite() and (kind is float or number == int(number)) else None


def _meant(value: bool, known: Mapping[str, Any]) -> Label:
    """The one label among ``known`` that YAML reads as ``value``; else itself."""
    words = ("yes", "on", "true", "y") if value else ("no", "off", "false", "n")
    meant = [label for label in known if label.lower() in words]
    return meant[0] if len(meant) == 1 else value
