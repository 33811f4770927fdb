"""From what a person's log holds to what a network takes: labels to indices and back, features to numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.exceptions import DataConversionWarning
from sklearn.feature_extraction import FeatureHasher

from cst_lightning.errors import InputError, rows_from_0, warn
from cst_lightning.feedback import MISSING
from cst_lightning.frames import as_frame
from cst_lightning.text_faults import NUMBER, dates_as_numbers, fault_of_text, is_counter
from cst_lightning.texts import counted, spelt_alike

Label = str | int | float | bool

N_HASHED = 64  # columns of a hashed category
_SHOWN = 3  # values that a warning lists
#: of a column, above which they are hashed
MAX_CATEGORIES = 100


# --- labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labels:
    """The different labels of a column, sorted; a label's place is its index.

    Args:
        role: ``action`` or ``outcome``, for messages.
        values: text, numbers or booleans, all of one kind.
    """

    role: str
    values: tuple[Label, ...]

    @classmethod
    def of(cls, role: str, column: Any) -> Labels:
        """The labels of a column ``[N]``; missing ones (None, NaN) are none.

        Raises:
            InputError: labels of several kinds, or that differ only by their type or by spaces around them.
        """
        series = _series(role, column).dropna()
        values = [_plain(value) for value in pd.unique(series)]
        # True is 1 to Python, so the one may have hidden the other among the different values
        mixed = series.dtype == object and any(value in (0, 1) for value in values)
        kinds = {type(_plain(value)) for value in series} if mixed else set()
        if series.dtype == object:  # 1 is 1.0 to Python, and likewise hides it
            firsts: dict[Any, Any] = {}
            for value in map(_plain, series):
                first = firsts.setdefault(value, value)
                if {type(first), type(value)} == {int, float}:
                    raise InputError(
                        f"{role} holds labels that differ only by type: {first!r} and {value!r}; make them one"
                    )
        if bool in kinds and kinds & {int, float}:
            raise InputError(f"{role} holds booleans and numbers, such as True and 1: make all of them one kind")
        for value in values:
            if not isinstance(value, str | int | float | bool):
                raise InputError(f"{role} holds {value!r}, a {type(value).__name__}: text, numbers and booleans go")
        shown: dict[str, Label] = {}
        for value in values:
            alike = shown.setdefault(written(value), value)
            if alike is not value:
                raise InputError(
                    f"{role} holds labels that differ only by type or spaces: {alike!r} and {value!r}; make them one"
                )
        if len({isinstance(value, str) for value in values}) > 1:
            text, number = (next(v for v in values if isinstance(v, str) == is_text) for is_text in (True, False))
            raise InputError(f"{role} holds text and numbers ({text!r} and {number!r}): make all of them one kind")
        return cls(role, tuple(sorted(values)))

    def index(self, column: Any, known_as: str = "training") -> NDArray[np.int64]:
        """Indices ``[N]`` of a column; -1 where it is missing.

        Raises:
            InputError: a label that is none of these; the message names its row.
        """
        series = _series(self.role, column)
        index = pd.Index(list(self.values), dtype=object).get_indexer(pd.Index(series.astype(object)))
        unknown = np.flatnonzero((index < 0) & series.notna().to_numpy())
        if len(unknown):
            raise InputError(
                f"{self.role} {_plain(series.iloc[unknown[0]])!r} in row {unknown[0]} (from 0) was not in {known_as}: "
                f"allowed are {shown_list(self.values)}"
            )
        return np.where(index < 0, MISSING, index)

    def array(self) -> NDArray[Any]:
        """The labels as an array of their own type."""
        array = np.array(self.values)
        return array.astype(object) if array.dtype.kind == "U" else array


def _series(role: str, column: Any) -> pd.Series[Any]:
    if isinstance(column, torch.Tensor):
        column = column.detach().cpu().numpy()
    if isinstance(column, np.ma.MaskedArray):  # what is masked is missing
        column = np.ma.filled(column.astype(object), np.nan)
    if hasattr(column, "to_pandas"):
        column = column.to_pandas()
    if isinstance(column, list | tuple) and not any(isinstance(value, list | tuple | np.ndarray) for value in column):
        column = pd.Series(list(column), dtype=object)  # NumPy would make text of all where one is text
    if isinstance(column, pd.Series) and pd.api.types.is_extension_array_dtype(column.dtype):
        column = column.astype(object)
    array = column if isinstance(column, pd.Series) else np.asarray(column)
    if array.ndim == 2 and array.shape[1] == 1:
        said = f"A column-vector y was passed when a 1d array was expected: the one column of {role} is taken"
        warn(said, DataConversionWarning)
        array = np.asarray(array)[:, 0]
    if array.ndim != 1:
        raise InputError(f"{role} has shape {array.shape}: one value a row is allowed")
    return pd.Series(np.asarray(array), dtype=object if array.dtype == object else None)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def written(value: Label) -> str:
    """What a person takes for the same label: 1, 1.0, "1", "1.0" and "1 "."""
    text = str(value).strip()
    if text == "-0.0" and not isinstance(value, str):
        return "0"  # equal to 0.0, and not to be told from it
    return text[: -len(".0")] if text.endswith(".0") and text[: -len(".0")].lstrip("+-").isdigit() else text


def shown_list(values: Sequence[Any]) -> str:
    """The first few of ``values``, for a message."""
    return ", ".join(map(repr, values[:20])) + (f" and {len(values) - 20} more" if len(values) > 20 else "")


# --- features -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A numeric column: standardised, and where training had missing values with an indicator of them beside it.

    ``low`` and ``high`` are the least and the largest value of training; None in models of older versions.
    """

    mean: float
    scale: float
    indicator: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Category:
    """A category: one column for each of ``values`` (None is a missing one); values None: too many, hashed into 64."""

    values: tuple[str | None, ...] | None


class FeatureEncoder:
    """Contexts as float32 ``[N, d]``: numbers standardised, categories one-hot or hashed.

    Args:
        categorical: columns that are categories (names, or places where there are no names) besides those of text.
        missing: ``error``, or ``impute``: a missing number becomes its column's mean, with an indicator beside it; a
            missing category is one of its own.
        max_categories: more of them in a column are hashed.

    Attributes:
        columns: what each column became, by its name (``x0``, ``x1``, ... where it has none).
    """

    def __init__(
        self,
        categorical: Sequence[str | int] = (),
        missing: Literal["error", "impute"] = "error",
        max_categories: int = MAX_CATEGORIES,
    ) -> None:
        if missing not in ("error", "impute"):
            raise InputError(f"missing={missing!r}: allowed are error and impute")
        names = [categorical] if isinstance(categorical, str) else categorical
        if not isinstance(names, Iterable):
            raise InputError(f"categorical={categorical!r}: allowed is a list of columns, by name or place")
        self.categorical = [name.item() if isinstance(name, np.generic) else name for name in names]
        self.missing, self.max_categories = missing, max_categories
        self.columns: dict[str, Number | Category] = {}

    def fit(self, x: Any) -> FeatureEncoder:
        """Learn means, scales and categories from contexts ``[N, columns]`` of any kind.

        Raises:
            InputError: a column that cannot be used as it is; the message names it, a row, and what to do.
        """
        frame = as_frame(x)
        categorical = [frame.columns[c] if isinstance(c, int) and c < frame.shape[1] else c for c in self.categorical]
        unknown = [name for name in categorical if name not in frame.columns]
        if unknown:
            raise InputError(f"categorical column {unknown[0]!r} is not there: allowed are {shown_list(frame.columns)}")
        self.columns = {}
        self._check_present(frame)
        for name in frame.columns:
            column = _with_missing_booleans(frame[name])
            is_category = name in categorical or (column.dtype.kind not in "biuf")
            if is_category:
                self.columns[name] = self._category(name, _checked_category(name, column, name in categorical))
            else:
                self.columns[name] = self._number(name, column)
        return self

    def transform(self, x: Any) -> NDArray[np.float32]:
        """Contexts ``[N, columns]`` as ``[N, d]``."""
        frame = as_frame(x)
        names, known, places = list(frame.columns), list(self.columns), [f"x{i}" for i in range(frame.shape[1])]
        # of an array's columns no name is known, and scikit-learn lets it stand for a table and the other way round
        if names not in (known, places) and (known != places or all(name.lstrip("-").isdigit() for name in names)):
            raise InputError(f"columns are {shown_list(names)} and were {shown_list(known)} in training: give the same")
        self._check_present(frame.set_axis(known, axis=1))
        parts = []
        for (name, kind), given in zip(self.columns.items(), frame.columns, strict=True):
            column = _with_missing_booleans(frame[given])
            if isinstance(kind, Number):
                if column.dtype.kind not in "biuf":
                    raise InputError(_not_a_number(name, column, trained=True))
                parts.append(self._numbers(name, kind, column))
            else:
                parts.append(self._indicators(name, kind, column))
            far = np.flatnonzero(~(np.abs(parts[-1]) < np.finfo(np.float32).max).all(1))
            if len(far):
                raise InputError(
                    f"column {name!r} holds a number too far from those of training in {rows_from_0(far)}: mend it"
                )
        encoded = np.concatenate(parts, 1)
        return encoded.astype(np.float32)

    def _number(self, name: str, column: pd.Series[Any]) -> Number:
        value = column.to_numpy(np.float64, na_value=np.nan)
        _check_finite(name, value)
        missing = np.isnan(value)
        if missing.all():
            raise InputError(f"column {name!r} holds no value at all: leave it out")
        seen = value[~missing]
        if (what := dates_as_numbers(seen)) is not None:
            warn(
                f"column {name!r} holds {what}: turn them into numbers that mean something (days since, weekday, "
                "month), or leave it out",
            )
        elif is_counter(value):
            warn(
                f"column {name!r} grows from each row to the next, as a counter or an identifier does, and then says "
                "nothing of new rows: leave it out, unless it is a quantity by which the rows are sorted",
            )
        with np.errstate(over="ignore"):
            scale = float(seen.std())
        if not np.isfinite(scale):
            raise InputError(f"column {name!r} holds numbers too large to be computed with, such as {seen.max():g}")
        mean = float(seen.mean())
        return Number(
            mean,
            scale if scale > 1e-12 * max(1.0, abs(mean)) else 1.0,
            bool(missing.any()),
            float(seen.min()),
            float(seen.max()),
        )

    def _numbers(self, name: str, kind: Number, column: pd.Series[Any]) -> NDArray[np.float64]:
        value = column.to_numpy(np.float64, na_value=np.nan)
        _check_finite(name, value)
        _warn_of_far(name, kind, value)
        missing = np.isnan(value)
        standard = np.where(missing, 0, (value - kind.mean) / kind.scale)
        return np.column_stack([standard, missing]) if kind.indicator else standard[:, None]

    def _check_present(self, frame: pd.DataFrame) -> None:
        """Under ``missing="error"`` no value is missing: one error for all the columns that have gaps."""
        gaps = {name: rows for name in frame if len(rows := np.flatnonzero(_is_missing(frame[name])))}
        if gaps and self.missing == "error":
            raise InputError(
                f"{gaps_text(gaps, '(NaN) in ' + rows_from_0(next(iter(gaps.values()))))}: fill "
                f"{'it' if len(gaps) == 1 else 'them'}, drop these rows, or train with missing='impute'"
            )

    def _category(self, name: str, text: pd.Series[Any]) -> Category:
        values = sorted(text.dropna().unique())
        if alike := spelt_alike(values):
            more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
            warn(
                f"column {name!r} holds categories that differ only in blanks or upper and lower case, "
                f"{', '.join(alike[:_SHOWN])}{more}: write each in one way, unless they are meant to be different"
            )
        if len(values) > self.max_categories:
            warn(
                f"column {name!r} has {len(values)} categories, more than {self.max_categories}: hashed into "
                f"{N_HASHED} columns; if it is an identifier, leave it out",
            )
            return Category(None)
        return Category((*values, None) if text.isna().any() else tuple(values))

    def _indicators(self, name: str, kind: Category, column: pd.Series[Any]) -> NDArray[np.float64]:
        text = _as_text(column)
        if kind.values is None:
            hasher = FeatureHasher(N_HASHED, input_type="string", alternate_sign=False)
            return np.asarray(hasher.transform([[] if value is None else [value] for value in text]).toarray())
        index = pd.Index(list(kind.values), dtype=object).get_indexer(pd.Index(text, dtype=object))
        new = np.flatnonzero(index < 0)
        if len(new):
            warn(
                f"column {name!r} holds {_each_in_its_rows(text.iloc[new], new)}, which training had not: counted as "
                "none of its categories",
            )
        return np.asarray(index[:, None] == np.arange(len(kind.values)), np.float64)

    # --- as plain values -------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values that ``from_dict`` takes."""
        return {
            "categorical": self.categorical,
            "missing": self.missing,
            "max_categories": self.max_categories,
            "columns": [[name, type(kind).__name__, asdict(kind)] for name, kind in self.columns.items()],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FeatureEncoder:
        """The encoder that ``to_dict`` described."""
        encoder = cls(values["categorical"], values["missing"], values["max_categories"])
        for name, kind, fields in values["columns"]:
            if kind == "Category" and fields["values"] is not None:
                fields = {"values": tuple(fields["values"])}
            encoder.columns[name] = Number(**fields) if kind == "Number" else Category(**fields)
        return encoder


def _each_in_its_rows(text: pd.Series[Any], rows: NDArray[np.int64]) -> str:
    """The first few different values of ``text``, which stand in ``rows``, each with its own."""
    codes, values = pd.factorize(text, use_na_sentinel=False)
    listed = [
        f"{'no value' if pd.isna(value) else repr(value)} in {rows_from_0(rows[codes == code])}"
        for code, value in enumerate(values[:_SHOWN])
    ]
    return " and ".join(listed) + (f" and {len(values) - _SHOWN} values more" if len(values) > _SHOWN else "")


def _with_missing_booleans(column: pd.Series[Any]) -> pd.Series[Any]:
    """Objects that are booleans and missing values, or missing ones alone, as booleans: numbers, as without a gap."""
    missing = column.isna()
    if not missing.all() and (column.dtype != object or pd.api.types.infer_dtype(column) != "boolean"):
        return column
    values = [pd.NA if gap else bool(value) for value, gap in zip(column, missing, strict=True)]
    return pd.Series(pd.array(values, dtype="boolean"))


def _checked_category(name: str, column: pd.Series[Any], asked_for: bool) -> pd.Series[Any]:
    """A column of categories as text; an error where it is a date, or rather numbers with faults among them."""
    if column.dtype.kind in "mM" and not asked_for:
        what, such_as = ("date", "days since, weekday, month") if column.dtype.kind == "M" else ("duration", "hours")
        raise InputError(
            f"column {name!r} is a {what}: turn it into numbers that mean something ({such_as}) or name it in "
            "categorical"
        )
    text = _as_text(column)
    if not asked_for and not isinstance(column.dtype, pd.CategoricalDtype):
        seen = text.dropna()
        fault = fault_of_text(seen)
        if fault is not None and fault[0] == "dates":
            raise InputError(
                f"column {name!r} holds dates, such as {seen.iloc[fault[1]]!r}: turn them into numbers that mean "
                "something (days since, weekday, month) or name it in categorical"
            )
        if fault is not None:
            raise InputError(_not_a_number(name, column))
    return text


def _not_a_number(name: str, column: pd.Series[Any], *, trained: bool = False) -> str:
    """``trained``: the column is known to hold numbers, and it is too late to take it for categories."""
    text = _as_text(column)
    is_number = pd.to_numeric(text, errors="coerce").notna() | text.fillna("").str.fullmatch(NUMBER.pattern)
    wrong = np.flatnonzero(~is_number & text.notna())
    if not len(wrong):
        example = text.dropna().iloc[0]
        remedy = "" if trained else ", or name it in categorical"
        return f"column {name!r} holds numbers as text ({example!r}): convert it to numbers{remedy}"
    remedy = "mend it, as training had numbers alone" if trained else "mend it, or name the column in categorical"
    return f"column {name!r} should hold numbers, and holds {text.iloc[wrong[0]]!r} in {rows_from_0(wrong)}: {remedy}"


def _as_text(column: pd.Series[Any]) -> pd.Series[Any]:
    values = column.to_numpy(object)
    # a whole number is written the same in a column with a missing value, where it is a float
    texts = [None if pd.isna(v) else written(v) for v in values]
    return pd.Series(texts, dtype=object)


def _check_finite(name: str, value: NDArray[np.float64]) -> None:
    infinite = np.flatnonzero(np.isinf(value))
    if len(infinite):
        raise InputError(f"column {name!r} is infinity in {rows_from_0(infinite)}: only finite numbers are allowed")


def _warn_of_far(name: str, kind: Number, value: NDArray[np.float64]) -> None:
    """Of numbers that lie farther outside of those of training than these are apart."""
    if kind.low is None or kind.high is None:
        return
    width = kind.high - kind.low
    far = np.flatnonzero((value < kind.low - width) | (value > kind.high + width))
    if len(far):
        warn(
            f"column {name!r} is {value[far[0]]:g} in {rows_from_0(far)}, far outside of {kind.low:g} to "
            f"{kind.high:g}, all that training had: predictions there are guesses; is a decimal mark lost, or a unit "
            "another one?"
        )


def _is_missing(column: pd.Series[Any]) -> NDArray[np.bool_]:
    if pd.api.types.is_float_dtype(column.dtype):  # where NaN may stand beside NA
        column = pd.Series(column.to_numpy(np.float64, na_value=np.nan))
    return np.asarray(column.isna(), bool)


def gaps_text(gaps: Mapping[str, Sized], where: str) -> str:
    """That columns have gaps, for a message.

    Args:
        gaps: the rows of the gaps by the name of the column. where: in words, those of the first.
    """
    (name, _), *others = gaps.items()
    more = ", ".join(f"{other!r} in {counted(len(rows), 'row')}" for other, rows in others)
    return f"column {name!r} is missing {where}" + f", and so {'is' if len(others) == 1 else 'are'} {more}" * bool(more)
