"""Log files as data frames: CSV, Parquet (a file or a partitioned folder) and Arrow, through pyarrow."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from cst_lightning.columns import Roles, check_log, check_names
from cst_lightning.errors import InputError, warn
from cst_lightning.log_format import SAMPLE_BYTES, Format, data_files, decode, find_format, is_narrow, not_text

_BLOCK_BYTES = 1 << 22  # of a CSV file in memory at a time
#: types that a CSV column may have, the narrowest first
_CSV_TYPES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("ms"), pa.string())


def read_log(
    path: str | Path,
    *,
    columns: Roles | None = None,
    rows: int | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    all_taken: bool = True,
) -> pd.DataFrame:
    """A log file as a data frame, checked; ``frame.attrs["format"]`` says in words what was found.

    Rows at the end of a log in which every column is empty, as spreadsheets leave them, are left out.

    Args:
        path: CSV (``.csv``, ``.tsv``, ``.txt``, also ``.gz`` and such), Parquet (``.parquet``, or a folder of them,
            partitioned or not), or Arrow (``.arrow``, ``.feather``, ``.ipc``).
        columns: what the columns are for; only those with a role are read. Without it all are, and no value is checked.
        rows: read only the first so many.
        encoding, delimiter: of a CSV file; the delimiter is found where it is comma, semicolon, tab or bar.
        all_taken: as in ``columns.check_log``.

    Raises:
        InputError: the file or a column cannot be used (see ``columns.check_log``).

    Warns:
        UserWarning: all numbers with a mark look like 5.637, which may be five or five thousand.
    """
    path, is_log, roles = Path(path), _is_log(columns), columns or Roles()
    if rows is not None and rows < 1:
        raise InputError(f"rows={rows}: allowed is from 1")
    form = find_format(path, encoding, delimiter)
    _warn_of_thousands(path, form, roles)
    read = _read_csv if form.kind == "csv" else _read_dataset
    table = read(path, form, roles, rows)
    frame = _to_frame(_without_empty_end(table) if is_log else table, path)
    if frame.empty:
        raise InputError(f"{path}: only a header, no rows")
    frame.attrs["format"] = str(form)
    if columns is not None:
        check_log(frame, roles, where=str(path), all_taken=all_taken)
    return frame


def column_names(path: str | Path, encoding: str = "utf-8") -> list[str]:
    """The columns of a log file."""
    path = Path(path)
    form = find_format(path, encoding)
    if form.kind == "csv":
        return _csv_names(path, form)
    return list(_open_dataset(path, form, Roles())[0].schema.names)


def read_batches(
    path: str | Path,
    rows_per_batch: int,
    *,
    columns: Roles | None = None,
    encoding: str = "utf-8",
    delimiter: str | None = None,
) -> Iterator[pd.DataFrame]:
    """The rows of a log file in order, as frames of ``rows_per_batch`` (the last may be smaller), in bounded memory.

    Types and rows are those of ``read_log``; the values are not checked (see ``columns.check_rows``). The types of a
    CSV file are found in a pass of their own, before the first batch.

    Args:
        path, columns, encoding, delimiter: as for ``read_log``.
    """
    path, is_log, columns = Path(path), _is_log(columns), columns or Roles()
    if rows_per_batch < 1:
        raise InputError(f"rows_per_batch={rows_per_batch}: allowed is from 1")
    form = find_format(path, encoding, delimiter)
    _warn_of_thousands(path, form, columns)
    if form.kind == "csv":
        batches = _csv_batches(path, form, columns)
    else:
        batches = _dataset_batches(path, form, columns, rows_per_batch)
    tables = _each_without_empty_end(batches) if is_log else batches
    return (_to_frame(table, path) for table in _of_size(tables, rows_per_batch))


def _is_log(columns: Roles | None) -> bool:
    """Whether empty rows at the end are none: of contexts to predict every row gets an answer."""
    return columns is None or columns.action is not None


# --- CSV ----------------------------------------------------------------------------------------


def _csv_options(path: Path, form: Format, columns: Roles, *, use_threads: bool = True) -> dict[str, Any]:
    names = _csv_names(path, form)
    _check_header(path, form, names, columns)
    check_names(names, columns, str(path))
    return {
        "read_options": pacsv.ReadOptions(
            use_threads=use_threads,
            encoding=form.encoding,
            column_names=names,
            skip_rows=form.skip,
            skip_rows_after_names=1,
            block_size=_BLOCK_BYTES,
        ),
        "parse_options": pacsv.ParseOptions(
            delimiter=form.delimiter,
            newlines_in_values=True,
            ignore_empty_lines=len(names) > 1,  # of a single column, one is a row without a value
        ),
        "convert_options": pacsv.ConvertOptions(
            strings_can_be_null=True,
            decimal_point=form.decimal,
            include_columns=columns.used(names),
            column_types=dict.fromkeys(columns.categorical, pa.string()),  # 01234 is not 1234
        ),
    }


def _csv_names(path: Path, form: Format) -> list[str]:
    """The header, without the spaces around its names."""
    rows = csv.reader(_beginning(path, form), delimiter=form.delimiter)
    names = [name.strip() for name in next(row for row in rows if row)]
    if all(re.fullmatch(r"[+-]?[\d.,]+", name) for name in names):
        raise InputError(f"{path}: the first line is {', '.join(names[:5])}: it must name the columns")
    return names


def _beginning(path: Path, form: Format) -> list[str]:
    """The first lines of the file, from the header on."""
    with pa.input_stream(str(path)) as stream:
        text = decode(stream.read(SAMPLE_BYTES), path, form.encoding)
    return text.splitlines(keepends=True)[form.skip :]


def _check_header(path: Path, form: Format, names: list[str], columns: Roles) -> None:
    """The first line is a header, and no title above one, as reports have it."""
    absent = not {*(name for named in columns.others().values() for name in named), *(columns.features or ())} <= {
        *names
    }
    n_empty = names.count("")
    is_title = n_empty > 1 and (absent or 2 * n_empty >= len(names))
    if is_title or (absent and is_narrow(_beginning(path, form), form.delimiter)):
        title = next(name for name in [*names, ""] if name or not any(names))
        raise InputError(
            f"{path}: the first line, {title!r}, looks like no header but like a title above the table: delete the "
            "lines above the names of the columns"
        )


def _warn_of_thousands(path: Path, form: Format, columns: Roles) -> None:
    """Of numbers such as 5.637 where nothing in the file says whether it is five or five thousand."""
    if not form.doubtful:
        return
    names = _csv_names(path, form)
    used = set(columns.used(names)) - set(columns.categorical)
    found = sorted(
        (place, row, text) for place, row, text in form.doubtful if names[place : place + 1] and names[place] in used
    )
    if not found:
        return
    place, row, text = found[0]
    others = f" (and {', '.join(repr(names[other]) for other, _, _ in found[1:4])} alike)" if found[1:] else ""
    warn(
        f"{path}: column {names[place]!r} holds {text!r} in data row {row}{others}, read as {text.replace(',', '.')}, "
        f"and no number of the file says that it is not {re.sub('[.,]', '', text)}: if so, write that, without a mark"
    )


def _read_csv(path: Path, form: Format, columns: Roles, rows: int | None) -> pa.Table:
    if rows is not None:
        return pa.concat_tables(_csv_batches(path, form, columns, rows))
    try:
        table = pacsv.read_csv(str(path), **_csv_options(path, form, columns))
    except (pa.ArrowInvalid, UnicodeDecodeError):
        try:  # only a thread alone can say in which row
            table = pacsv.read_csv(str(path), **_csv_options(path, form, columns, use_threads=False))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise _csv_error(error, path, form) from None
    if any(pa.types.is_binary(field.type) for field in table.schema):
        _find_byte(path, form)
    return table


def _csv_batches(path: Path, form: Format, columns: Roles, rows: int | None = None) -> Iterator[pa.Table]:
    """Parts of the file, each column of one type in all of them: the narrowest that fits (the first ``rows`` rows)."""
    options = _csv_options(path, form, columns)
    convert: pacsv.ConvertOptions = options["convert_options"]
    names = list(convert.include_columns)
    convert.column_types = dict.fromkeys(names, pa.string())
    level = {name: len(_CSV_TYPES) - 1 if name in columns.categorical else 0 for name in names}
    for table in _limited(_stream_csv(path, form, options), rows):
        for name in names:
            while _cast(table[name], _CSV_TYPES[level[name]], form.decimal) is None:
                level[name] += 1
    for table in _limited(_stream_csv(path, form, options), rows):
        yield pa.table({name: _cast(table[name], _CSV_TYPES[level[name]], form.decimal) for name in names})


def _stream_csv(path: Path, form: Format, options: dict[str, Any]) -> Iterator[pa.Table]:
    try:
        with pacsv.open_csv(str(path), **options) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise _csv_error(error, path, form) from None


def _cast(column: pa.ChunkedArray, kind: pa.DataType, decimal: str) -> pa.ChunkedArray | None:
    """A column of text as ``kind``; None where it does not fit."""
    if pa.types.is_string(kind):
        return column
    column = pc.utf8_trim_whitespace(column)
    if pa.types.is_floating(kind) and decimal != ".":
        if pc.any(pc.match_substring(column, ".")).as_py():  # as where a file is read in one
            return None
        column = pc.replace_substring(column, decimal, ".")
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return None


def _csv_error(error: Exception, path: Path, form: Format) -> InputError:
    _find_byte(path, form)
    text = str(error).splitlines()[0]
    if found := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+)", text):
        row = f"row {found[1]} of the file" if found[1] else "a row"
        return InputError(
            f"{path}: {row} has {found[3]} cells and the header {found[2]}: mend the row (a delimiter in a text needs "
            f"quotes); found was {form}"
        )
    return InputError(f"{path}: cannot be read as {form}: {text}")


def _find_byte(path: Path, form: Format) -> None:
    """An error that names the first byte that is no text in the file's encoding, where there is one."""
    decoder = codecs.getincrementaldecoder(form.encoding)()
    place = 0
    with pa.input_stream(str(path)) as stream:
        while block := stream.read(SAMPLE_BYTES):
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                raise not_text(path, form.encoding, error.object[error.start], place - waiting + error.start) from None
            place += len(block)


# --- Parquet and Arrow --------------------------------------------------------------------------


def _open_dataset(path: Path, form: Format, columns: Roles) -> tuple[ds.Dataset, list[str]]:
    """The file or folder, and the columns to read."""
    files, base = ([str(file) for file in data_files(path)], str(path)) if path.is_dir() else ([str(path)], None)
    try:
        found = ds.dataset(files, format=form.kind, partitioning="hive", partition_base_dir=base)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read as {form}: {str(error).splitlines()[0]}") from None
    names = [name for name in found.schema.names if not re.fullmatch(r"__index_level_\d+__", name)]  # a pandas index
    check_names(names, columns, str(path))
    return found, columns.used(names)


def _read_dataset(path: Path, form: Format, columns: Roles, rows: int | None) -> pa.Table:
    found, names = _open_dataset(path, form, columns)
    try:
        return found.to_table(columns=names) if rows is None else found.head(rows, columns=names)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read as {form}: {str(error).splitlines()[0]}") from None


def _dataset_batches(path: Path, form: Format, columns: Roles, rows_per_batch: int) -> Iterator[pa.Table]:
    found, names = _open_dataset(path, form, columns)
    try:
        for fragment in found.get_fragments():
            # one row group at a time: a scan of the whole would read up to a gigabyte ahead of a slow reader
            for part in fragment.split_by_row_group() if form.kind == "parquet" else [fragment]:
                for batch in part.to_batches(schema=found.schema, columns=names, batch_size=rows_per_batch):
                    yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: cannot be read as {form}: {str(error).splitlines()[0]}") from None


# --- tables -------------------------------------------------------------------------------------


def _limited(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """The first ``rows`` rows of them."""
    left = rows
    for table in tables:
        if left is None:
            yield table
            continue
        yield table.slice(0, left)
        left -= len(table)
        if left <= 0:
            return


def _without_empty_end(table: pa.Table) -> pa.Table:
    """The rows up to the last one that holds a value."""
    end = len(table)
    while end and not any(column[end - 1].is_valid for column in table.columns):
        end -= 1
    return table.slice(0, end)


def _each_without_empty_end(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all tables up to the last one that holds a value."""
    waiting: list[pa.Table] = []  # rows without a value, which are the end unless others follow
    for table in tables:
        full = _without_empty_end(table)
        if len(full):
            yield from waiting
            yield full
            waiting = []
        if len(full) < len(table):
            waiting.append(table.slice(len(full)))


def _of_size(tables: Iterator[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of ``n_rows``; the last may have fewer."""
    waiting: list[pa.Table] = []
    n_waiting = 0
    for table in tables:
        waiting.append(table)
        n_waiting += len(table)
        while n_waiting >= n_rows:
            joined = pa.concat_tables(waiting)
            yield joined.slice(0, n_rows)
            waiting, n_waiting = [joined.slice(n_rows)], n_waiting - n_rows
    if n_waiting:
        yield pa.concat_tables(waiting)


def _to_frame(table: pa.Table, path: Path) -> pd.DataFrame:
    """Types that pandas and the checks know: numbers, booleans, text, categories, times."""
    changed = {}
    for field in table.schema:
        kind = field.type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            raise InputError(
                f"{path}: column {field.name!r} holds {kind}: allowed are numbers, text, booleans and times"
            )
        if pa.types.is_decimal(kind):
            changed[field.name] = pa.float64()
        elif pa.types.is_date(kind):
            changed[field.name] = pa.timestamp("ms")
        elif pa.types.is_time(kind):
            changed[field.name] = pa.string()
    for name, kind in changed.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table[name].cast(kind))
    return table.to_pandas(ignore_metadata=True)
