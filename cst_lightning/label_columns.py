"""Tables that have a column for each label, such as one for each action."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from cst_lightning.encoding import Labels, shown_list, written
from cst_lightning.errors import InputError


def names_some(names: Iterable[Any], labels: Labels) -> bool:
    """Whether some of the names are labels."""
    return bool({written(name) for name in names} & {written(label) for label in labels.values})


def in_order(table: Any, labels: Labels, name: str) -> Any:
    """A pandas, polars or Arrow table whose columns are named by ``labels``, in their order; all else as it is.

    Columns of which none is named by a label stay in their order.

    Args:
        name: of the argument, for messages.

    Raises:
        InputError: only some columns are named by a label, or a label has none or two.
    """
    if not isinstance(table, pd.Series) and hasattr(table, "to_pandas"):
        table = table.to_pandas()
    if not isinstance(table, pd.DataFrame):
        return table
    columns = [written(column) for column in table.columns]
    wanted = [written(label) for label in labels.values]
    if not names_some(table.columns, labels):
        return table
    if sorted(columns) != sorted(wanted):
        wrong = next((c for c in table.columns if written(c) not in wanted), None)
        lacking = next((v for v in labels.values if written(v) not in columns), None)
        if wrong is not None:
            fault = f"column {wrong!r} is no {labels.role}"
        else:
            fault = "a column stands twice" if lacking is None else f"{labels.role} {lacking!r} has no column"
        raise InputError(f"{name}: {fault}: allowed is one column for each of {shown_list(labels.values)}, or an array")
    return table.iloc[:, [columns.index(label) for label in wanted]]
