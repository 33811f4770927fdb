"""What the columns of a log are for, and checks of them before any work starts.

Rows are counted as data rows from 1, without the header, as the person who wrote the file counts them.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cst_lightning.encoding import Labels, gaps_text, shown_list
from cst_lightning.errors import InputError
from cst_lightning.label_columns import in_order
from cst_lightning.text_faults import ISO_DATE, MISWRITTEN, fault_of_text
from cst_lightning.texts import counted

MIN_ROWS = 20
#: distinct actions or outcomes above which a column cannot be meant as one
MAX_LABELS = 1_000

_SHOWN = 5  # rows that a message lists
_NEAR = 0.65  # similarity of names from which one may be meant: 'ago' and 'age' are, 'price' and 'income' are not
_SUM_TOLERANCE = 1e-4  # of a row's propensities, as in Feedback


@dataclass(frozen=True)
class Roles:
    """Names of the columns of a log by what they are for; all are optional, since new contexts have no outcome.

    Args:
        action, outcome: the action taken, the outcome seen.
        propensity: the column of the taken action's probability under the logging policy, or a column for each
            action: named by the actions, or in the order of the sorted actions.
        features: columns of the context; by default all that have no other role.
        categorical: features that are categories although written as numbers or dates; a CSV file's are read as
            they are written (``01234``), and so are columns that are kept.
        kept: columns that are read but are no features, such as an identifier.
        group, time: columns to split the rows by; they are no features.

    A text is the list of that one name (features, categorical, kept).
    """

    action: str | None = None
    outcome: str | None = None
    propensity: str | Sequence[str] | None = None
    features: Sequence[str] | None = None
    categorical: Sequence[str] = ()
    kept: Sequence[str] = ()
    group: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        for role in ("features", "categorical", "kept"):
            if isinstance(name := getattr(self, role), str):  # not a list of its letters
                object.__setattr__(self, role, (name,))

    @property
    def propensities(self) -> list[str]:
        """The propensity columns."""
        if self.propensity is None:
            return []
        return [self.propensity] if isinstance(self.propensity, str) else list(self.propensity)

    def others(self) -> dict[str, list[str]]:
        """Columns by role, without the features."""
        single = {"action": self.action, "outcome": self.outcome, "group": self.group, "time": self.time}
        given = {role: [name] for role, name in single.items() if name is not None}
        return given | {"propensity": self.propensities, "kept": list(self.kept)}

    def feature_names(self, names: Sequence[str]) -> list[str]:
        """The features among the columns ``names``."""
        if self.features is not None:
            return list(self.features)
        taken = {name for columns in self.others().values() for name in columns}
        return [name for name in names if name not in taken]

    def used(self, names: Sequence[str]) -> list[str]:
        """The columns of ``names`` that have a role, in their order there."""
        wanted = {*self.feature_names(names), *(name for columns in self.others().values() for name in columns)}
        return [name for name in names if name in wanted]


def check_log(frame: pd.DataFrame, columns: Roles, *, where: str = "the log", all_taken: bool = True) -> None:
    """All checks of a log in memory, from names to values.

    Args:
        where: what messages call the log, such as its path.
        all_taken: whether every action that there is was taken; else there may be more propensity columns.

    Raises:
        InputError: something is not allowed; one line with the column, the row and what to do about it.

    Warns:
        UserWarning: work can go on, but not quite as one may think.
    """
    check_names(list(frame.columns), columns, where)
    if columns.action is not None and len(frame) < MIN_ROWS:
        raise InputError(f"{where}: {counted(len(frame), 'row')}: a log needs at least {MIN_ROWS}")
    check_rows(frame, columns, where)
    tallies = tallies_of(frame, columns)
    check_values(tallies, columns, where)
    if columns.action is not None:
        logged = labels_of("action", tallies[columns.action].index, where)
        if all_taken or len(columns.propensities) <= len(logged.values):
            check_taken(frame, columns, logged, where)


def check_names(names: Sequence[Hashable], columns: Roles, where: str) -> None:
    """Every column is there, once and for one purpose, and at least one is a feature."""
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        raise InputError(f"{where}: the column name {wrong[0]!r} is no text: name columns by text")
    texts = [str(name) for name in names]
    twice = [name for name, number in Counter(texts).items() if number > 1]
    if "" in twice:
        places = ", ".join(str(place) for place, name in enumerate(texts, 1) if not name)
        raise InputError(
            f"{where}: columns {places} have no name: name them or delete them (empty ones beside a table?)"
        )
    if twice:
        raise InputError(
            f"{where}: column {twice[0]!r} stands {texts.count(twice[0])} times: give each a name of its own"
        )
    roles = columns.others() | {"features": list(columns.features or ()), "categorical": list(columns.categorical)}
    for role, wanted in roles.items():
        for name in wanted:
            if name not in texts:
                raise _absent(name, role, texts, where)
    _check_single_roles(columns, texts, where)
    if columns.features is None and "" in texts:
        place = texts.index("") + 1
        raise InputError(
            f"{where}: column {place} has no name (a row index?): name it or delete it, or give features=..."
        )


def _check_single_roles(columns: Roles, names: Sequence[str], where: str) -> None:
    features = columns.feature_names(names)
    taken = Counter([*(name for role in columns.others().values() for name in role), *features])
    twice = [name for name, number in taken.items() if number > 1]
    if twice:
        raise InputError(f"{where}: column {twice[0]!r} has two roles or is named twice: a column has one role")
    read = [*features, *columns.kept, columns.group, columns.time]
    stray = [name for name in columns.categorical if name not in read]
    if stray:
        raise InputError(f"{where}: categorical column {stray[0]!r} is no feature: name features only")
    if not features:
        raise InputError(f"{where}: no column is left as a feature: at least one is needed")


def _absent(name: str, role: str, names: Sequence[str], where: str) -> InputError:
    plain = {n: n.strip().lower() for n in names}
    close = difflib.get_close_matches(name.strip().lower(), set(plain.values()), n=3, cutoff=_NEAR)
    near = sorted((n for n in names if plain[n] in close), key=lambda n: close.index(plain[n]))[:3]
    hint = f"did you mean {' or '.join(map(repr, near))}? There are" if near else "there are"
    listed = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
    return InputError(f"{where}: no column {name!r} ({role}): {hint} {listed}")


def check_rows(frame: pd.DataFrame, columns: Roles, where: str, first: int = 0) -> None:
    """Checks of some rows of a log, which begin at place ``first`` of it: what a single row can have wrong."""
    if columns.action is not None and (missing := frame[columns.action].isna().to_numpy()).any():
        raise InputError(
            f"{where}: action {columns.action!r} is missing in {rows_text(missing, first)}: fill it in or leave these "
            "rows out (empty, NA, NaN, null and such are read as missing)"
        )
    check_propensities(frame, columns, where, first)
    for name in columns.feature_names(list(frame.columns)):
        _check_feature(frame[name], name in columns.categorical, where, first)


def check_present(frame: pd.DataFrame, names: Sequence[str], where: str, first: int = 0) -> None:
    """No value is missing in the columns ``names`` of some rows of a log."""
    gaps = {name: np.flatnonzero(missing) for name in names if (missing := frame[name].isna().to_numpy()).any()}
    if gaps:
        first_gap = rows_text(frame[next(iter(gaps))].isna().to_numpy(), first)
        raise InputError(
            f"{where}: {gaps_text(gaps, 'in ' + first_gap)}: fill {'it' if len(gaps) == 1 else 'them'} in, leave these "
            "rows out, or give missing='impute'"
        )


def check_propensities(frame: pd.DataFrame, columns: Roles, where: str, first: int = 0) -> None:
    """The propensity columns hold probabilities, and those of a row sum to 1 where there are several."""
    names = columns.propensities
    for name in names:
        if (kind := kind_of(frame[name])) not in ("number", "whole number", "empty"):
            text = (pd.to_numeric(frame[name], errors="coerce").isna() & frame[name].notna()).to_numpy()
            shown = f", such as {frame[name][text].iloc[0]!r} in {rows_text(text, first)}" if text.any() else ""
            raise InputError(f"{where}: propensity {name!r} holds {kind}{shown}: only numbers are allowed")
        value = frame[name].to_numpy(dtype=float, na_value=np.nan)
        # of the action taken it is above 0; of another one it may be 0
        low, allowed = (value <= 0, "above 0, at most 1") if len(names) == 1 else (value < 0, "in 0..1")
        for wrong, what in ((np.isnan(value), "missing"), (value > 1, "above 1"), (low, "too low")):
            if wrong.any():
                shown = "" if what == "missing" else f" ({value[wrong][0]:.6g})"
                raise InputError(
                    f"{where}: propensity {name!r} is {what}{shown} in {rows_text(wrong, first)}: allowed is {allowed}"
                )
    if len(names) > 1:
        total = frame[names].sum(axis=1).to_numpy(dtype=float)
        if (wrong := abs(total - 1) > _SUM_TOLERANCE).any():
            raise InputError(
                f"{where}: propensities {', '.join(names)} sum to {total[wrong][0]:.6g} in {rows_text(wrong, first)}: "
                "the probabilities of a row sum to 1"
            )


def propensities_of(frame: pd.DataFrame, columns: Roles, actions: Labels) -> NDArray[np.float64] | None:
    """Those of some rows of a log: of the action taken, ``[N]``, or ``[N, K]`` in the order of ``actions``."""
    if isinstance(columns.propensity, str):
        return np.array(frame[columns.propensity], np.float64)
    if columns.propensity is None:
        return None
    return np.array(in_order(frame[columns.propensities], actions, "propensity"), np.float64)


def check_taken(frame: pd.DataFrame, columns: Roles, actions: Labels, where: str, first: int = 0) -> None:
    """With a propensity column for each of ``actions``, that of the action taken is above 0 in some rows of a log."""
    names, listed = columns.propensities, shown_list(actions.values)
    if columns.action is None or len(names) < 2:
        return
    if len(names) != len(actions.values):
        raise InputError(
            f"{where}: {len(names)} propensity columns for {len(actions.values)} actions ({listed}): allowed is one of "
            "the action taken, or one for each action in this order"
        )
    ordered = in_order(frame[names], actions, f"{where}: propensity")
    taken = ordered.to_numpy(dtype=float)[np.arange(len(frame)), actions.index(frame[columns.action])]
    if (wrong := taken <= 0).any():
        raise InputError(
            f"{where}: the propensity of the action taken is 0 in {rows_text(wrong, first)}: it must be above 0 "
            f"(columns {', '.join(ordered.columns)} stand for actions {listed})"
        )


def _check_feature(column: pd.Series, categorical: bool, where: str, first: int) -> None:
    kind = kind_of(column)
    if kind in ("number", "whole number"):
        value = column.to_numpy(dtype=float, na_value=np.nan)
        if (infinite := np.isinf(value)).any():
            raise InputError(
                f"{where}: column {column.name!r} is infinite in {rows_text(infinite, first)}: write a finite number, "
                "or leave it empty (missing)"
            )
    elif kind == "other":
        raise InputError(
            f"{where}: column {column.name!r} holds {type(column.dropna().iloc[0]).__name__} values: allowed are "
            "numbers, text, booleans and categories"
        )
    elif kind in ("date", "duration") and not categorical:
        raise _dates(str(column.name), column.dropna().iloc[0], where, kind)


def tally(column: pd.Series, first: int = 0) -> pd.DataFrame:
    """How often each value stands in some rows (``count``), and in which row of the log first (``row``)."""
    codes, values = pd.factorize(column)
    found = codes >= 0
    row = np.zeros(len(values), dtype=np.int64)
    row[codes[found][::-1]] = np.flatnonzero(found)[::-1] + first
    return pd.DataFrame({"count": np.bincount(codes[found], minlength=len(values)), "row": row}, index=pd.Index(values))


def tallies_of(frame: pd.DataFrame, columns: Roles, first: int = 0) -> dict[str, pd.DataFrame]:
    """``tally`` of each label and feature; of features that are numbers, of one value that is there."""
    names = list(frame.columns)
    labels = [name for name in (columns.action, columns.outcome) if name is not None]
    tallies = {name: tally(frame[name], first) for name in labels}
    for name in columns.feature_names(names):
        column = frame[name]
        whole = name in columns.categorical or kind_of(column) in ("text", "mixed")
        if whole:
            tallies[name] = tally(column, first)
        else:
            place = int(column.notna().to_numpy().argmax())
            tallies[name] = tally(column.iloc[place : place + 1], first + place)
    return tallies


def add_tallies(one: Mapping[str, pd.DataFrame], other: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Tallies of two parts of a log, the first part first, as one."""
    both = {name: pd.concat([one[name], other[name]]) for name in one}
    return {name: t.groupby(level=0, sort=False).agg({"count": "sum", "row": "min"}) for name, t in both.items()}


def check_values(tallies: Mapping[str, pd.DataFrame], columns: Roles, where: str) -> None:
    """Checks of the values of the labels and features of a whole log, which ``tally`` counted."""
    for role, name in (("action", columns.action), ("outcome", columns.outcome)):
        if name is not None:
            _check_labels(list(tallies[name].index), role, name, where)
            _check_numbers_among_labels(tallies[name], role, name, where)
    for name in columns.feature_names(list(tallies)):
        # of a feature that training had, a model may know what to do where it is missing
        if tallies[name].empty and columns.action is not None:
            raise InputError(f"{where}: column {name!r} is empty in every row: leave it out of the features")
        _check_values_of_feature(tallies[name], name, name in columns.categorical, where)


def _check_labels(labels: Sequence[Any], role: str, name: str, where: str) -> None:
    if role == "outcome" and len(labels) < 2:
        seen = f"only {labels[0]!r} is seen" if labels else "none is seen"
        raise InputError(f"{where}: outcome {name!r}: {seen}: at least two different outcomes are needed")
    if len(labels) > MAX_LABELS:
        raise InputError(
            f"{where}: {role} {name!r} has {len(labels)} different values: at most {MAX_LABELS} are allowed; "
            "join values into groups (a number by ranges)"
        )
    labels_of(role, labels, f"{where}, column {name!r}")


def _check_numbers_among_labels(tallied: pd.DataFrame, role: str, name: str, where: str) -> None:
    """A number that is written otherwise than the others would be a label of its own, and make text of all."""
    texts = pd.Series(list(tallied.index), dtype=object)
    if (
        isinstance(tallied.index.dtype, pd.CategoricalDtype)
        or not texts.map(lambda label: isinstance(label, str)).all()
    ):
        return
    fault = fault_of_text(texts, tallied["count"].to_numpy())
    if fault is not None and fault[0] in MISWRITTEN:
        kind, place = fault
        raise InputError(
            f"{where}: {role} {name!r} is {texts[place]!r} in data row {tallied['row'].iloc[place] + 1}, {kind}: write "
            "all its numbers alike, without marks between the thousands"
        )


def labels_of(role: str, values: Iterable[Any], where: str) -> Labels:
    """``Labels`` of the different values of a column; an error names file and column."""
    try:
        return Labels.of(role, pd.Series(list(values), dtype=object))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_values_of_feature(tallied: pd.DataFrame, name: str, categorical: bool, where: str) -> None:
    kind = kind_of(pd.Series(tallied.index))
    # of a type of categories it is meant as they are
    asked_for = categorical or isinstance(tallied.index.dtype, pd.CategoricalDtype)
    if kind in ("text", "mixed") and not asked_for:
        _check_text(tallied, name, where)


def _check_text(tallied: pd.DataFrame, name: str, where: str) -> None:
    """Text that is meant as numbers or dates is an error."""
    fault = fault_of_text(texts := pd.Series(list(map(str, tallied.index)), dtype=object), tallied["count"].to_numpy())
    if fault is None:
        return
    kind, place = fault
    if kind == "dates":
        raise _dates(name, texts[place], where)
    raise InputError(
        f"{where}: column {name!r} holds {texts[place]!r} in data row {tallied['row'].iloc[place] + 1}, {kind}: "
        "correct it, leave it empty (missing), or name the column as categorical"
    )


def _dates(name: str, shown: object, where: str, kind: str = "date") -> InputError:
    parts = "hours, days" if kind == "duration" else "weekday, hour, days since a start"
    return InputError(
        f"{where}: column {name!r} holds {kind}s, such as {_short(shown)}: make numbers of it ({parts}), leave it "
        f"out of the features (kept=[{name!r}]), or name it as categorical"
    )


def _short(shown: object) -> str:
    """A date without the midnight that a file of days does not have."""
    return str(shown).removesuffix(" 00:00:00")


def time_order(column: pd.Series, where: str, first: int = 0) -> pd.Series:
    """A column to sort by time: numbers, dates and durations as they are, text as the ISO dates that it must be.

    Raises:
        InputError: text that is no ISO date, which would sort by its letters, or something without an order in time.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):  # their own order may be another one
        column = column.astype(column.cat.categories.dtype)
    kind = kind_of(column)
    if kind in ("number", "whole number", "date", "duration"):
        return column
    if kind not in ("text", "mixed"):
        raise InputError(f"{where}: column {column.name!r} (time) holds {kind} values: allowed are dates and numbers")
    text = column.astype(object)
    is_date = text.map(lambda value: isinstance(value, str) and ISO_DATE.fullmatch(value) is not None)
    dates = pd.to_datetime(text.where(is_date), format="ISO8601", utc=True, errors="coerce")
    if (wrong := dates.isna().to_numpy()).any():
        raise InputError(
            f"{where}: column {column.name!r} (time) holds {text[wrong].iloc[0]!r} in {rows_text(wrong, first)}, whose "
            "order in time is not known: write dates as 2024-01-31 (or 2024-01-31 17:05), or give numbers"
        )
    return dates


def kind_of(column: pd.Series) -> str:
    """A number, whole number, yes/no, text, date, duration, mixed (numbers and text), empty or other: what it holds."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return kind_of(pd.Series(column.cat.categories)) if len(column.cat.categories) else "empty"
    found = pd.api.types.infer_dtype(column, skipna=True)
    kinds = {
        "floating": "number",
        "mixed-integer-float": "number",
        "decimal": "number",
        "integer": "whole number",
        "boolean": "yes/no",
        "string": "text",
        "mixed-integer": "mixed",
        "empty": "empty",
        **dict.fromkeys(("datetime64", "datetime", "date", "time", "period"), "date"),
        **dict.fromkeys(("timedelta64", "timedelta"), "duration"),
    }
    if found == "mixed" and all(isinstance(value, str | float | bool | int) for value in column.dropna()):
        return "mixed"
    if found == "empty" or column.isna().all():
        return "empty"
    return kinds.get(found, "other")


def rows_text(wrong: NDArray[np.bool_], first: int = 0) -> str:
    """The rows where ``wrong`` is true, for a message; the first of them is row ``first`` of the log, from 0."""
    rows = np.flatnonzero(wrong) + first + 1
    if len(rows) == 1:
        return f"data row {rows[0]}"
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"data rows {', '.join(map(str, rows[:_SHOWN]))}{more}"


def describe_columns(frame: pd.DataFrame, columns: Roles | None = None) -> pd.DataFrame:
    """A row for each column: ``column``, ``type``, ``missing`` (rows), ``distinct`` (values) and ``role``."""
    columns = columns or Roles()
    names = list(frame.columns)
    role = dict.fromkeys(columns.feature_names(names), "feature")
    role |= dict.fromkeys(columns.categorical, "feature, categorical")
    role |= {name: role for role, named in columns.others().items() for name in named}
    rows = [
        (name, kind_of(frame[name]), int(frame[name].isna().sum()), frame[name].nunique(), role.get(name, ""))
        for name in names
    ]
    return pd.DataFrame(rows, columns=["column", "type", "missing", "distinct", "role"])
