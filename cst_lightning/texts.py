"""Names of unknown origin, made safe to show on a terminal and to open in a spreadsheet."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import TextIO

_FORMULA = (*"=+-@＝＋－＠", "\t", "\r")  # the wide ones too: spreadsheets of East Asia take them for the others
_NUMBER = re.compile(r"[+-]?[0-9]+([.,][0-9]+)?%?")


def printable(text: str) -> str:
    """The text with a ``?`` for what would steer a terminal, break a line or hide: control and format characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


class PrintableStream(io.TextIOBase):
    """Writes to ``stream`` what is ``printable``, in lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``; its length."""
        self._stream.write("".join(part if part in ("\n", "\t") else printable(part) for part in text))
        return len(text)

    def flush(self) -> None:
        """Hand on what is written."""
        self._stream.flush()


def csv_text(text: str) -> str:
    """A name as a spreadsheet shows it rather than computes it: an apostrophe before what would begin a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_value(value: object) -> object:
    """The same for a value of any type; what is a number, or a text that is one, stays as it is."""
    return csv_text(value) if isinstance(value, str) and not _NUMBER.fullmatch(value) else value


def counted(number: int, name: str) -> str:
    """``1 job``, ``3 jobs``."""
    return f"{number} {name}{'' if number == 1 else 's'}"


def spelt_alike(labels: Iterable[object]) -> list[str]:
    """Groups of texts that differ only in blanks or in upper and lower case, each in words."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        if isinstance(label, str):
            groups.setdefault(" ".join(label.casefold().split()), []).append(label)
    return [" and ".join(map(repr, sorted(group))) for _, group in sorted(groups.items()) if len(group) > 1]
