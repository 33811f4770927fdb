"""Readers of multi-label files: LIBSVM text and ARFF. Both name file and line of what they cannot read."""

from __future__ import annotations

import bz2
import gzip
import io
import re
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import arff

from cst_lightning.errors import InputError

_UNREADABLE = (ValueError, IndexError, NotImplementedError, StopIteration, arff.ArffError)  # of scipy's reader
_QUOTED = r"'[^']*'|\"[^\"]*\""


def read_libsvm(
    path: str | Path, *, n_features: int, n_labels: int, first_feature: int = 1, first_label: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A multi-label LIBSVM file (``.bz2`` and ``.gz`` too) as dense features ``[N, d]`` and labels ``[N, K]``.

    A line is ``label,label index:value index:value``; features left out are 0, a line that begins with
    a feature has no label. scikit-learn's reader takes that first feature for a label and cannot say
    in which line a mistake stands, so this one reads by itself.

    Args:
        n_features, n_labels: widths, stated so that a training and a test file agree.
        first_feature, first_label: index base of each, 0 or 1.

    Raises:
        InputError: no rows, or a line that does not fit; the message names file and line.
    """
    path = Path(path)
    features: list[NDArray[np.float64]] = []
    labels: list[NDArray[np.int64]] = []
    for number, raw in enumerate(_lines(path), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        try:
            x, y = _libsvm_row(line, n_features, n_labels, first_feature, first_label)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from None
        features.append(x)
        labels.append(y)
    if not features:
        raise InputError(f"{path}: no rows")
    return np.stack(features), np.stack(labels)


def _libsvm_row(
    line: str, n_features: int, n_labels: int, first_feature: int, first_label: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    tokens = re.sub(r"\s*,\s*", ",", line).split()
    named = [] if ":" in tokens[0] else [token for token in tokens[0].split(",") if token]
    x, y = np.zeros(n_features), np.zeros(n_labels, dtype=np.int64)
    for token in named:
        label = float(token) - first_label
        if not (label.is_integer() and 0 <= label < n_labels):
            raise ValueError(f"label {token}: allowed are {first_label}..{n_labels - 1 + first_label}")
        if y[int(label)]:
            raise ValueError(f"label {token} stands twice")
        y[int(label)] = 1
    previous = -1
    for token in tokens[0 if ":" in tokens[0] else 1 :]:
        index_text, _, value_text = token.partition(":")
        index = int(index_text) - first_feature
        if not 0 <= index < n_features:
            raise ValueError(f"feature {index_text}: allowed are {first_feature}..{n_features - 1 + first_feature}")
        if index <= previous:
            raise ValueError(f"feature {index_text} stands twice or out of order")
        x[index] = float(value_text) + 0.0  # turns -0.0 into 0.0
        previous = index
    if not np.isfinite(x).all():
        raise ValueError(f"feature {int(np.flatnonzero(~np.isfinite(x))[0]) + first_feature} is not a finite number")
    return x, y


def read_arff(path: str | Path, *, labels: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A dense multi-label ARFF file as features ``[N, d]`` and labels ``[N, K]``, through ``scipy.io.arff``.

    Args:
        labels: names of the label columns, wherever they stand; all others are features and must be
            numeric. A label is 1 for ``1`` or ``TRUE``, 0 for ``0`` or ``FALSE`` (quoted or padded too).

    Raises:
        InputError: sparse rows, a missing value, a column or value that is not allowed; the message names file and,
            where it is of one, the line.
    """
    path = Path(path)
    if not labels or len(set(labels)) < len(labels):
        raise InputError(f"labels={list(labels)}: allowed are different column names, at least one")
    data, numbers = _load_arff(path)
    names = {name.strip().strip("'\""): name for name in data.dtype.names or ()}
    for label in labels:
        if label not in names:
            raise InputError(f"{path}: no column {label!r}: columns are {', '.join(names)}")
    if not len(data):
        raise InputError(f"{path}: no rows")
    features = [name for name in names if name not in set(labels)]
    x = np.empty((len(data), len(features)))
    for column, name in enumerate(features):
        values = data[names[name]]
        if not np.issubdtype(values.dtype, np.number):
            raise InputError(f"{path}: feature {name!r} is not numeric: encode it first, or name it as a label")
        if not np.isfinite(values).all():
            number = numbers[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise InputError(f"{path}, line {number}: feature {name!r} is missing: fill it in or leave the row out")
        x[:, column] = values
    y = np.stack([_binary(path, label, data[names[label]], numbers) for label in labels], 1)
    return x, y


def _load_arff(path: Path) -> tuple[NDArray[np.void], list[int]]:
    """The rows as a structured array, and the line of the file that each stands in."""
    lines = _lines(path)
    start = next((number for number, line in enumerate(lines, 1) if line.lower().startswith("@data")), None)
    if start is None:
        raise InputError(f"{path}: no readable ARFF file: no line begins with @data")
    head = lines[:start]
    try:
        names = _parsed(head, []).dtype.names or ()
    except _UNREADABLE as error:
        said = str(error).strip()
        at = next((f", line {n}" for n, text in enumerate(head, 1) if text.strip() and text.strip() in said), "")
        raise InputError(f"{path}{at}: no readable ARFF header ({said})") from None
    rows = {n: line for n, line in enumerate(lines, 1) if n > start and line.strip() and not line.startswith("%")}
    for number, line in rows.items():
        if line.lstrip().startswith("{"):
            raise InputError(
                f"{path}, line {number}: sparse rows ({{index value, ...}}) are not supported: write them out"
            )
        rows[number] = _plainly(line)
        width = len(re.findall("[,\t]", re.sub(_QUOTED, "", rows[number]))) + 1
        if width != len(names):
            raise InputError(f"{path}, line {number}: {width} values, and the header has {len(names)} columns")
    texts, numbers = list(rows.values()), list(rows)
    try:
        return _parsed(head, texts), numbers
    except _UNREADABLE:
        # the reader does not say where: the line with which the rows before it cannot be read any more
        place = bisect_left(range(len(texts)), True, key=lambda last: _fault(head, texts[: last + 1]) is not None)
        raise InputError(f"{path}, line {numbers[place]}: {_fault(head, texts[: place + 1])}") from None


def _plainly(line: str) -> str:
    """A row without spaces around its values, and without quotes where they hold no space: scipy minds both."""
    bare = re.sub(r"(['\"])([^\s,'\"]+)\1", r"\2", line.strip())
    return re.sub(rf"({_QUOTED})|\s*,\s*", lambda found: found[1] or ",", bare)


def _parsed(head: Sequence[str], rows: Sequence[str]) -> NDArray[np.void]:
    return np.asarray(arff.loadarff(io.StringIO("\n".join([*head, *rows])))[0])


def _fault(head: Sequence[str], rows: Sequence[str]) -> str | None:
    try:
        _parsed(head, rows)
    except _UNREADABLE as error:
        return str(error)
    return None


def _binary(path: Path, name: str, values: NDArray[np.generic], numbers: Sequence[int]) -> NDArray[np.int64]:
    known = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0}
    texts = [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]
    out = np.empty(len(texts), dtype=np.int64)
    for row, text in enumerate(texts):
        value = known.get(text.strip().strip("'\"").strip().lower())
        if value is None:
            raise InputError(
                f"{path}, line {numbers[row]}: label {name!r} is {text!r}: allowed are 0, 1, FALSE and TRUE"
            )
        out[row] = value
    return out


def _lines(path: Path) -> list[str]:
    """The lines of a text file, of a ``.bz2`` or ``.gz`` of one; what cannot be read is named."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    opener = {".bz2": bz2.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        with opener(path, "rt", encoding="utf-8-sig") as text:
            return str(text.read()).splitlines()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from None
