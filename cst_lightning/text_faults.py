"""What text in a column is rather than categories: dates, or numbers with faults among them."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_NEARLY_ALL = 0.9  # of the rows of a column
#: how numbers and dates look that stand in a file as text
NUMBER = re.compile(r"[\s€$£]*[+-]?\d[\d.,'\s]*[\s€$£%]*")
_TIME = r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(\s*[ap]m)?"
_MONTH = "(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|(sept?|nov|dec)(ember)?|oct(ober)?)"
DATE = re.compile(
    r"(?i)\s*("
    r"\d{1,4}(?P<mark>[-./])\d{1,2}(?P=mark)\d{1,4}([T\s]+\d{1,2}:\d{2}.*)?"
    r"|(19|20)\d\d[-/](0?[1-9]|1[0-2])"  # 2020-01
    rf"|(\d{{1,4}}[-./\s]+)?{_MONTH}[-./\s]+\d{{1,4}}([-./,\s]+\d{{2,4}})?([,\s]+{_TIME})?"  # 1 Jan 2020, Jan-20
    rf"|\d{{1,2}}[-./\s]+{_MONTH}"
    rf"|{_TIME})\s*"
)


def fault_of_text(
    texts: pd.Series[Any], often: NDArray[np.int64] | None = None
) -> tuple[Literal["dates", "numbers as text", "text among numbers"], int] | None:
    """What text is rather than categories, and the place of a value that shows it; None for categories.

    Dates are those of nine rows in ten; numbers those of half of the rows, or of nine in ten where some are written as
    no program reads them (``12 %``). Codes are categories: digits alone, with a zero in front somewhere (``01``).

    Args:
        texts: without missing ones. often: in how many rows each stands, by default in one.
    """
    rows = np.ones(len(texts), np.int64) if often is None else often
    dated, written = (texts.str.fullmatch(kind.pattern).to_numpy(bool) for kind in (DATE, NUMBER))
    number = pd.to_numeric(texts, errors="coerce").notna().to_numpy()
    enough = _NEARLY_ALL * rows.sum()
    if not len(texts) or (texts.str.fullmatch(r"\d+").all() and texts.str.match(r"0\d").any()):
        return None
    if rows[dated].sum() >= enough:
        return "dates", int(dated.argmax())
    meant = rows[number | written].sum() >= enough
    if not (meant or rows[number].sum() >= rows.sum() / 2):
        return None
    place = int(number.argmin())  # the first that is none; where all are numbers, the first
    return "numbers as text" if meant and (number | written)[place] else "text among numbers", place
