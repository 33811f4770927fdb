"""How a log file is written: its kind by its name, and of CSV the encoding, delimiter and decimal sign."""

from __future__ import annotations

import codecs
import csv
import difflib
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from cst_lightning.errors import InputError
from cst_lightning.text_faults import decimal_mark, is_doubtful

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
}
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
SAMPLE_BYTES = 1 << 20
_SAMPLE_LINES = 50


@dataclass(frozen=True)
class Format:
    """How a file is written."""

    kind: str  # csv, parquet or ipc
    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    skip: int = 0  # lines before the header: empty ones, and a spreadsheet's hint of the delimiter
    bom: bool = False  # whether a byte-order mark of UTF-8 comes first
    shows_decimal: bool = False  # whether a number has the decimal sign
    #: where all that have it may have it between their thousands: place of a column, data row and text of its first one
    doubtful: tuple[tuple[int, int, str], ...] = ()

    def __str__(self) -> str:
        """In words, to tell a person what was found."""
        if self.kind != "csv":
            return {"parquet": "Parquet", "ipc": "Arrow"}[self.kind]
        name = _DELIMITERS.get(self.delimiter, repr(self.delimiter))
        decimal, bom = "comma" if self.decimal == "," else "point", " with BOM" if self.bom else ""
        return f"CSV, columns by {name}, decimal {decimal}, {self.encoding}{bom}"

    def of_answers(self) -> Format:
        """That of a CSV file to open with the program that wrote this one: always UTF-8, and spreadsheets see it."""
        if self.kind != "csv":
            return Format("csv")
        # where a spreadsheet cuts columns by semicolons, the comma is its decimal sign
        decimal = "," if self.delimiter == ";" and not self.shows_decimal else self.decimal
        return Format("csv", self.delimiter, decimal, bom=self.bom or self.encoding not in ("utf-8", "ascii"))


def find_format(path: Path, encoding: str = "utf-8", delimiter: str | None = None) -> Format:
    """How the file is written, found from its name and, for CSV, from its beginning."""
    if not path.exists():
        others = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, others, n=3, cutoff=0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{path}: no such file or folder{hint}")
    if path.is_dir():
        kinds = {_SUFFIXES.get(file.suffix, "") for file in data_files(path)} - {""}
        if len(kinds) != 1 or kinds == {"csv"}:
            raise InputError(
                f"{path}: a folder must hold files of one kind, .parquet or .arrow; CSV files go one by one"
            )
        return Format(kinds.pop())
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    kind = next((_SUFFIXES[suffix] for suffix in reversed(suffixes) if suffix in _SUFFIXES), None)
    if kind is None:
        hint = "; save the sheet as CSV first" if path.suffix in (".xlsx", ".xls", ".ods") else ""
        raise InputError(f"{path}: the name ends in {path.suffix!r}: allowed are {', '.join(_SUFFIXES)}{hint}")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty")
    return _csv_format(path, encoding, delimiter) if kind == "csv" else Format(kind)


def data_files(folder: Path) -> list[Path]:
    """Files of a folder that hold rows; names that begin with ``.`` or ``_`` are other programs' notes."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix in _SUFFIXES and path.is_file()]
    return [path for path in found if not any(part[0] in "._" for part in path.relative_to(folder).parts)]


def digest_of(path: Path) -> str:
    """The sha256 of a log file, or of the files of a folder in their order."""
    found = hashlib.sha256()
    for file in data_files(path) if path.is_dir() else [path] * path.is_file():
        with file.open("rb") as content:
            found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()


def _csv_format(path: Path, encoding: str, delimiter: str | None) -> Format:
    """Delimiter and decimal sign from the first lines; the encoding is what it is said to be."""
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        raise InputError(f"encoding={encoding!r} is not known: try utf-8, utf-16 or cp1252") from None
    with pa.input_stream(str(path)) as stream:
        sample = stream.read(SAMPLE_BYTES)
    if sample[:4] == b"PK\x03\x04":
        raise InputError(f"{path}: this is a workbook or an archive, not text: save the sheet as CSV first")
    _check_mark(sample, path, codec)
    text = decode(sample, path, codec)
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    every = text.splitlines()
    skip = next(number for number, line in enumerate(every) if line.strip())
    if hint := re.fullmatch(r'"?sep=(.)"?', every[skip].strip(), re.IGNORECASE):
        skip, delimiter = skip + 1, delimiter or hint[1]
    lines = [line for line in every[skip:] if line.strip()]
    if delimiter is None:
        delimiter = _find_delimiter(lines[:_SAMPLE_LINES])
    elif len(delimiter) != 1:
        raise InputError(f"delimiter={delimiter!r}: allowed is one character")
    form = Format("csv", delimiter, ".", codec, skip, bom=sample.startswith(codecs.BOM_UTF8))
    return form if delimiter == "," else _with_decimal(form, lines[1:])


def _check_mark(sample: bytes, path: Path, codec: str) -> None:
    """A byte-order mark at the beginning proves the encoding, whatever it is said to be."""
    utf_16 = sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    proved = "utf-8" if sample.startswith(codecs.BOM_UTF8) else "utf-16" if utf_16 else None
    if proved and not codec.startswith(("utf-16", "utf-32") if utf_16 else "utf-8"):
        raise InputError(
            f"{path}: the file is not written in {codec}, it begins with the byte-order mark of {proved}: pass "
            f"encoding='{proved}'"
        )


def decode(sample: bytes, path: Path, codec: str) -> str:
    """The beginning of a file as text; bytes that are no text in ``codec`` are an ``InputError``."""
    if codec == "utf-8" and b"\0" in sample[:100]:
        raise InputError(f"{path}: the file is not written in utf-8, it looks like utf-16: pass encoding='utf-16'")
    try:
        text = codecs.getincrementaldecoder(codec)().decode(sample)
    except UnicodeDecodeError as error:
        raise not_text(path, codec, sample[error.start], error.start) from None
    return text.removeprefix("\ufeff")


def not_text(path: Path, codec: str, byte: int, place: int) -> InputError:
    """The error of a byte, at that place of the file, that is no text in ``codec``."""
    other = "cp1252 (Windows, Western Europe)" if codec != "cp1252" else "utf-8"
    return InputError(
        f"{path}: byte 0x{byte:02x} at position {place} is no {codec} text: save the file as UTF-8, or pass its "
        f"encoding, such as {other}"
    )


def _find_delimiter(lines: Sequence[str]) -> str:
    """The sign that cuts the lines into the most columns, as many in most of the lines as in the header."""

    def fit(sign: str) -> tuple[float, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=sign)]
        alike = sum(width == widths[0] for width in widths) / len(widths)
        return (alike if widths[0] > 1 else 0, widths[0])

    return max(_DELIMITERS, key=fit)


def is_narrow(lines: Sequence[str], delimiter: str) -> bool:
    """Whether the first line has fewer columns than most others, by the ``delimiter`` that was found or another one."""
    lines = [line for line in lines if line.strip()][:_SAMPLE_LINES]
    first, width = _widths(lines, delimiter)
    if first == width > 1:
        return False
    return any(2 < width > first for first, width in (_widths(lines, sign) for sign in _DELIMITERS))


def _widths(lines: Sequence[str], delimiter: str) -> tuple[int, int]:
    """Columns of the first line, and of more than half of the others; 0 where these differ."""
    first, *others = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
    width, often = Counter(others).most_common(1)[0] if others else (0, 0)
    return first, width if 2 * often > len(others) else 0


def _with_decimal(form: Format, lines: Sequence[str]) -> Format:
    """With the decimal mark of most of the cells that show one."""
    rows = list(csv.reader(lines, delimiter=form.delimiter))
    found = decimal_mark(Counter(cell for row in rows for cell in row))
    doubtful: dict[int, tuple[int, int, str]] = {}
    for number, row in enumerate(rows if found.is_doubtful else (), 1):
        for place, cell in enumerate(row):
            if is_doubtful(cell, found.mark):
                doubtful.setdefault(place, (place, number, cell.strip()))
    return replace(form, decimal=found.mark, shows_decimal=found.is_shown, doubtful=tuple(doubtful.values()))
