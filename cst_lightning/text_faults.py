"""What a column holds rather than categories or quantities: dates, or numbers with faults among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_NEARLY_ALL = 0.9  # of the rows of a column
_ENOUGH = 20  # rows, that do not grow one by one by chance
#: how numbers and dates look that stand in a file as text
NUMBER = re.compile(r"[\s€$£]*[+-]?\d[\d.,'\s]*[\s€$£%]*")
_OTHER = {",": ".", ".": ","}  # what stands between the thousands where the decimal mark is the key
#: numbers that can have one decimal mark only, those that may as well have the other between their thousands, and
#: those with something between them
_SURE, _EITHER, _GROUPED = (
    {mark: re.compile(form.format(mark=rf"\{mark}", other=rf"\{other}")) for mark, other in _OTHER.items()}
    for form in (
        r"\s*[+-]?((\d*|\d{{1,3}}({other}\d{{3}})+){mark}\d+|\d{{1,3}}({other}\d{{3}}){{2,}})\s*",
        r"\s*[+-]?[1-9]\d{{0,2}}{mark}\d{{3}}\s*",
        r"[\s€$£]*[+-]?\d{{1,3}}([{other}'\s]\d{{3}})+({mark}\d+)?[\s€$£%]*",
    )
)
_MARKS = {",": "comma", ".": "point"}
_THOUSANDS = "a number with marks between the thousands"
_OTHER_MARK = {
    mark: f"a number with a decimal {_MARKS[o]} where most have a {_MARKS[mark]}" for mark, o in _OTHER.items()
}
#: faults of a number that is written otherwise than the rest of its column
MISWRITTEN = (_THOUSANDS, *_OTHER_MARK.values())
_TIME = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(\s*[ap]m)?"
_MONTH = "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|(sept?|nov|dec)(ember)?|oct(ober)?)"
_WORD = r"[^\W\d_]{2,}"  # a month or a weekday in whatever language
DATE = re.compile(
    r"(?i)\s*("
    r"(\d{4}(?P<mark>[-./])\s?\d{1,2}(?P=mark)\s?\d{1,2}|\d{1,2}(?P<sign>[-./])\s?\d{1,2}(?P=sign)\s?(\d{2}|\d{4}))"
    r"([T,\s]+\d{1,2}:\d{2}.*)?"
    r"|(19|20)\d\d[-/](0?[1-9]|1[0-2])"  # 2020-01
    r"|(0?[1-9]|1[0-2])/(19|20)\d\d"  # 01/2020
    r"|\d{1,2}\.\s?\d{1,2}\."  # 13.02.
    rf"|{_WORD}\.?[,\s]\s*\d{{1,2}}[-./]\d{{1,2}}[-./](19|20)\d\d([,\s]+{_TIME})?"  # Tue, 13.02.2024
    rf"|(\d{{1,4}}[-./\s]+)?{_MONTH}[-./\s]+\d{{1,4}}([-./,\s]+\d{{2,4}})?([,\s]+{_TIME})?"  # 1 Jan 2020, Jan-20
    rf"|\d{{1,2}}[-./\s]+{_MONTH}"
    rf"|(3[01]|[12]\d|0?[1-9])[-./\s]+{_WORD}[-./\s]+(19|20)\d\d([,\s]+{_TIME})?"  # 13. Februar 2024
    rf"|{_TIME})\s*"
)
#: a day, or a month, which sorts as text too; a time of the day may follow
ISO_DATE = re.compile(r"\s*\d{4}-\d{2}(-\d{2}([T ]\d{2}:\d{2}.*)?)?\s*")


@dataclass(frozen=True)
class Mark:
    """A decimal mark, whether any number shows it, and whether all that do could have it between their thousands."""

    mark: str
    is_shown: bool
    is_doubtful: bool


def decimal_mark(often: Mapping[str, int]) -> Mark:
    """The decimal mark of most of the texts that show one, by how often each stands; a point where they say nothing."""
    sure, either = {",": 0, ".": 0}, {",": 0, ".": 0}
    for text, rows in often.items():
        for mark in _MARKS:
            if is_doubtful(text, mark):
                either[mark] += rows
            elif _SURE[mark].fullmatch(text):
                sure[mark] += rows
    votes = sure if any(sure.values()) else either
    return Mark("," if votes[","] > votes["."] else ".", any(votes.values()), votes is either and any(either.values()))


def is_doubtful(text: str, mark: str) -> bool:
    """Whether a number, such as 5.637, may have a decimal ``mark`` or the same sign between its thousands."""
    return _EITHER[mark].fullmatch(text) is not None


def fault_of_text(texts: pd.Series[Any], often: NDArray[np.int64] | None = None) -> tuple[str, int] | None:
    """What text is rather than categories, and the place of a value that shows it; None for categories.

    ``dates`` are those of nine rows in ten. The others are in words what the value is in a column of numbers, which has
    them in half of the rows, or in nine in ten where some are written as no program reads them (``12 %``): the first
    that does not fit the decimal mark of most. Codes are categories: digits alone, with a zero in front somewhere
    (``01``).

    Args:
        texts: without missing ones. often: in how many rows each stands, by default in one.
    """
    rows = np.ones(len(texts), np.int64) if often is None else often
    dated, written = (texts.str.fullmatch(kind.pattern).to_numpy(bool) for kind in (DATE, NUMBER))
    enough = _NEARLY_ALL * rows.sum()
    if not len(texts) or (texts.str.fullmatch(r"\d+").all() and texts.str.match(r"0\d").any()):
        return None
    if rows[dated].sum() >= enough:
        return "dates", int(dated.argmax())
    mark = decimal_mark(pd.Series(rows).groupby(texts.to_numpy()).sum().to_dict()).mark
    plain = texts if mark == "." else texts.mask(texts.str.contains(".", regex=False)).str.replace(",", ".")
    number = pd.to_numeric(plain, errors="coerce").notna().to_numpy()
    meant = rows[number | written].sum() >= enough
    if not (meant or rows[number].sum() >= rows.sum() / 2):
        return None
    if number.all():
        marked = texts.str.contains(mark, regex=False).to_numpy(bool)
        place = int(marked.argmax())
        return "a number written as text" + f", with a {_MARKS[mark]}" * bool(marked[place]), place
    place = int(number.argmin())
    text = texts.iloc[place]
    if _GROUPED[mark].fullmatch(text):
        return _THOUSANDS, place
    if _SURE[_OTHER[mark]].fullmatch(text):
        return _OTHER_MARK[mark], place
    return "a number written as text" if meant and written[place] else "text among numbers", place


#: numbers that are points in time: the form of digits, or how many of them make a second since 1970
_STAMPS = (
    (8, "%Y%m%d", "dates written as numbers"),
    (8, "%d%m%Y", "dates written as numbers"),
    (8, "%m%d%Y", "dates written as numbers"),
    (12, "%Y%m%d%H%M", "times written as numbers"),
    (14, "%Y%m%d%H%M%S", "times written as numbers"),
)
_SINCE_1970 = ((1, "seconds since 1970"), (1e3, "milliseconds since 1970"), (1e6, "microseconds since 1970"))
_FROM, _TO = 946_684_800, 2_051_222_400  # 2000 and 2035 in seconds since 1970


def dates_as_numbers(seen: NDArray[np.float64]) -> str | None:
    """What numbers are that are all points in time, and not all the same one, with an example; None for quantities.

    Days and times of 1900 to 2099 as YYYYMMDD, DDMMYYYY, MMDDYYYY, YYYYMMDDhhmm or YYYYMMDDhhmmss; 2000 to 2034 as time
    since 1970.
    """
    if not len(seen) or seen.min() == seen.max():
        return None
    for unit, what in _SINCE_1970:
        if seen.min() >= _FROM * unit and seen.max() < _TO * unit:
            return f"what looks like {what}, such as {seen[0]:.0f}"
    for digits, form, what in _STAMPS:
        # of a day in front the zero is gone
        low, high = (pd.Timestamp(day).strftime(form) for day in ("1900-01-01", "2099-12-31T23:59:59"))
        if seen.min() >= int(low) and seen.max() <= int(high) and not (seen % 1).any():
            texts = pd.Series(np.unique(seen).astype(np.int64).astype(str)).str.zfill(digits)
            days = pd.to_datetime(texts, format=form, errors="coerce")
            if days.dt.year.between(1900, 2099).all():
                return f"{what}, such as {seen[0]:.0f}"
    return None


def is_counter(value: NDArray[np.float64]) -> bool:
    """Whether whole numbers ``[N]`` grow from each row to the next, as a row's number or an identifier does."""
    return len(value) >= _ENOUGH and bool((np.diff(value) > 0).all() and not (value % 1).any())


_CODES = re.compile(r"-1|-?9+")  # numbers that often stand for no number
_STANDS = 5  # rows that each of them is in, at least
_FEW_CODES = 3  # different ones at an end of a column, at most
_FAR, _FAR_CODE = 3, 1  # interquartile ranges between them and all else: of any number, of one that is often a code
_MANY = 10  # different numbers in a column that is no scale of a few steps


def sentinels(seen: NDArray[np.float64]) -> list[float]:
    """Numbers that rather stand for none (9999, -1): a few that come again and again, far from all others of a column.

    -99, -999 and so on need not be far, where all others are above zero.

    Args:
        seen: the column, ``[N]``, without missing ones.
    """
    value, often = np.unique(seen, return_counts=True)
    if len(value) < _MANY:
        return []
    if value[0] <= -99 and value[1] >= 0 and often[0] >= _STANDS and _CODES.fullmatch(f"{value[0]:g}"):  # however far
        return [float(value[0])]
    low, high = np.quantile(seen, [0.25, 0.75])
    if low == high:
        low, high = np.quantile(seen, [0.05, 0.95])
    found = []
    for end in (1, -1):
        for n_codes in range(1, _FEW_CODES + 1):
            gap = abs(value[::end][-n_codes] - value[::end][-n_codes - 1])
            codes = value[::end][-n_codes:]
            known = all(_CODES.fullmatch(f"{code:g}") for code in codes)
            is_far = gap > (_FAR_CODE if known else _FAR) * (high - low) > 0
            if is_far and often[::end][-n_codes:].min() >= _STANDS:
                found += codes.tolist()
                break
    return found
