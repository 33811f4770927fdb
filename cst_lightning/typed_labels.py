"""Labels of actions and outcomes as typed on a command line, where all are text and YAML reads some otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from cst_lightning.encoding import Label, Labels, shown_list, written
from cst_lightning.errors import InputError


def by_label(value: Mapping[str, Any] | None, labels: NDArray[Any]) -> dict[Any, Any] | None:
    """Values by outcome as typed, by the outcome itself: on a command line every label is text."""
    if value is None:
        return None
    return dict(zip(as_labels(list(value), labels, "value") or (), value.values(), strict=True))


def as_labels(typed: Sequence[Label] | None, labels: NDArray[Any], option: str = "actions") -> list[Any] | None:
    """Which of ``labels`` ``[K]`` were typed for ``option``; None where nothing was.

    Raises:
        InputError: one is none of them.
    """
    if typed is None:
        return None
    known = _known(labels.tolist())
    # YAML reads yes and on as booleans
    typed = [_meant(name, known) if isinstance(name, bool) else name for name in typed]
    unknown = [name for name in typed if written(name) not in known]
    if unknown:
        raise InputError(f"{option}: {unknown[0]!r} was not in training: allowed are {', '.join(known)}")
    return [known[written(name)] for name in typed]


def with_never_taken(typed: Sequence[Label], logged: pd.Series) -> list[Label]:
    """Actions as the log has them, and those that it lacks as labels of the same kind."""
    labels = Labels.of("action", logged).values
    known, found = _known(labels), list[Label]()
    for name in typed:
        name = _meant(name, known) if isinstance(name, bool) else name
        label = known.get(written(name), name)
        if written(name) not in known and labels and not isinstance(labels[0], str):
            kind = type(labels[0])
            with suppress(ValueError):
                label = written(name).lower() == "true" if kind is bool else kind(name)
            if not isinstance(label, kind) or written(label).lower() != written(name).lower():
                raise InputError(f"actions={written(name)}: it is no label like those of the log, {shown_list(labels)}")
        found.append(label)
    return found


def _known(labels: Sequence[Label]) -> dict[str, Label]:
    """Labels by what is typed for them; booleans in lower case too."""
    known = {written(label): label for label in labels}
    return known | {str(label).lower(): label for label in labels if isinstance(label, bool)}


def _meant(value: bool, known: Mapping[str, Any]) -> Label:
    """The one label among ``known`` that YAML reads as ``value``; else itself."""
    words = ("yes", "on", "true", "y") if value else ("no", "off", "false", "n")
    meant = [label for label in known if label.lower() in words]
    return meant[0] if len(meant) == 1 else value
