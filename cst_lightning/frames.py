"""Contexts of any kind as a data frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import check_array

from cst_lightning.errors import InputError, warn


def as_frame(x: Any) -> pd.DataFrame:
    """Contexts of any kind as a frame: pandas, polars, Arrow, NumPy, sparse, torch or nested lists.

    Columns without names, and those that a table numbers from 0, are called ``x0``, ``x1``, and so on.

    Raises:
        InputError: a column name stands twice, or there is no column.
    """
    frame = _as_any_frame(x)
    if not frame.shape[1]:
        raise InputError(f"X has 0 feature(s) (shape={frame.shape}) while a minimum of 1 is required: give a column")
    return frame


def _as_any_frame(x: Any) -> pd.DataFrame:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        x = (x.float() if x.dtype is torch.bfloat16 else x).numpy()
    if isinstance(x, np.ma.MaskedArray):  # what is masked is missing
        x = np.ma.filled(x.astype(object if x.dtype.kind in "OUS" else np.float64), np.nan)
    if hasattr(x, "to_pandas"):  # polars, Arrow
        x = x.to_pandas()
    if isinstance(x, pd.DataFrame):
        twice = x.columns[x.columns.duplicated()]
        if len(twice):
            raise InputError(f"column {twice[0]!r} is there twice: give each column a name of its own")
        frame = x.copy(deep=False)
        texts = [isinstance(name, str) for name in x.columns]
        if any(texts) and not all(texts):
            other = x.columns[texts.index(False)]
            raise InputError(f"column names are text and others, such as {other!r}: name all columns by text")
        if all(texts):
            return frame.reset_index(drop=True)
        if list(x.columns) != list(range(len(texts))):  # numbers that are more than places
            return frame.set_axis([str(name) for name in x.columns], axis=1).reset_index(drop=True)
    else:
        array = _as_array(x)
        frame = pd.DataFrame(array.toarray() if hasattr(array, "toarray") else array)
        frame = frame.infer_objects() if array.dtype == object else frame
    frame.columns = [f"x{place}" for place in range(frame.shape[1])]
    return frame.reset_index(drop=True)


def _as_array(x: Any) -> Any:
    """Contexts that are no table as an array ``[N, columns]`` of numbers or objects, or as a sparse one.

    Errors begin in scikit-learn's words, and say the shape in place of the values.
    """
    if type(x).__name__ == "LazyFrame":
        raise InputError("X is a polars LazyFrame, of which no row is read yet: give X.collect()")
    try:
        array = x if isinstance(x, np.ndarray) or hasattr(x, "toarray") else np.asarray(x)
    except ValueError:
        raise InputError("X holds rows of different lengths: give each row a value for each column") from None
    if array.dtype.kind == "c":
        raise InputError("Complex data not supported: give real numbers, such as X.real")
    if array.ndim == 0:
        raise InputError(f"Expected 2D array, got scalar array instead: X is a {type(x).__name__}, and no table")
    if array.ndim == 1:
        raise InputError(
            f"Expected 2D array, got 1D array instead: X has shape {array.shape}. Reshape your data: X.reshape(-1, 1) "
            "is one column, X.reshape(1, -1) one row"
        )
    if array.ndim > 2:
        raise InputError(f"Found array with dim {array.ndim}: X has shape {array.shape}, and [rows, columns] is needed")
    try:
        if array.dtype.kind in "UST":
            text = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
            # of a list, each value as it stands there
            array = text.astype(object) if isinstance(x, np.ndarray) else np.array(x, dtype=object)
        kind = None if array.dtype == object else "numeric"
        at_least = {"ensure_min_samples": 0, "ensure_min_features": 0}
        return check_array(array, dtype=kind, accept_sparse=True, ensure_all_finite=False, **at_least)
    except (TypeError, ValueError) as error:  # in one line
        raise InputError(" ".join(str(error).split())) from None


def warn_of_order(x: Any, **arguments: Any) -> None:
    """Warn of pandas arguments whose index says of some row that it belongs to another one of ``x``.

    Rows are joined by their place. An index 0, 1, ... says nothing beside labels of another kind, such as those of a
    random split, unless they are the same ones in another order.
    """
    if not isinstance(x, pd.DataFrame):
        return
    first = {}
    for name, given in arguments.items():
        if not isinstance(given, pd.DataFrame | pd.Series) or len(given) != len(x) or given.index.equals(x.index):
            continue
        mine, theirs = np.split(x.index.append(given.index).factorize()[0], 2)
        differ = np.flatnonzero(mine != theirs)
        both = (x.index, given.index)
        tells_nothing = any(_is_default(one) for one in both) and not all(isinstance(i, pd.RangeIndex) for i in both)
        if len(differ) and not (tells_nothing and set(mine) != set(theirs)):
            first[name] = int(differ[0])
    if first:
        name, row = next(iter(first.items()))
        there, here = (index[[row]].tolist()[0] for index in (arguments[name].index, x.index))
        listed, has = " and ".join(first), "has" if len(first) == 1 else "have"
        warn(
            f"{listed} {has} another index than X, first in row {row} (from 0): {there!r} beside {here!r}; "
            f"rows are joined by their place: give {name}.loc[X.index] where the index says what "
            "belongs together, else reset_index(drop=True)"
        )


def _is_default(index: pd.Index) -> bool:
    return isinstance(index, pd.RangeIndex) and (index.start, index.step) == (0, 1)
