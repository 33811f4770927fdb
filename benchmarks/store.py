"""Records on disk: one JSON file a cell, replaced atomically; everything else is derived from them."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.grid import Cell, digest
from cst_lightning.errors import InputError

Record = dict[str, Any]
_STALE_S = 60  # no write takes as long


def finite_or_none(value: SupportsFloat) -> float | None:
    """A number as JSON keeps it: None for NaN and infinity."""
    number = float(value)
    return number if math.isfinite(number) else None


class Store:
    """The records of a folder, ``cells/<label>-<key>.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_writable(self) -> None:
        """Fail before any work where the folder cannot be written; one that is not there yet is not made by it."""
        cells = self.folder.absolute() / "cells"
        nearest = next(folder for folder in (cells, *cells.parents) if folder.exists())
        try:
            with tempfile.TemporaryFile(dir=nearest) as probe:
                probe.write(b"probe")
            for left in (self.folder / "cells").glob(".*.json.*"):  # by a process killed while it wrote
                if time.time() - left.stat().st_mtime > _STALE_S:
                    left.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(
                f"output folder {self.folder} cannot be written ({error.strerror}): name another with --out"
            ) from None

    def path(self, cell: Cell) -> Path:
        """Where the record of ``cell`` stands."""
        name = cell.label.replace("/", "-").replace("@", "-").replace("=", "").replace(",", "-")
        return self.folder / "cells" / f"{name}-{cell.key}.json"

    def read(self, cell: Cell) -> Record | None:
        """The record of ``cell``; None where there is none, or what stands there is no record of it."""
        path = self.path(cell)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["identity"] == cell.identity and record["status"] in ("finished", "failed"):
                return dict(record)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def read_all(self) -> list[Record]:
        """Every readable record of the folder, of this command's cells and of others, in the order of their names."""
        found = (_read(path) for path in self._paths())
        return [record for record in found if record is not None]

    def unreadable(self) -> list[Path]:
        """Files among the records that are none: torn, damaged, or of something else."""
        return [path for path in self._paths() if _read(path) is None]

    def _paths(self) -> list[Path]:
        return sorted((self.folder / "cells").glob("*.json"))

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Put the record of ``cell`` in place whole, in full precision; what cannot be read there is set aside."""
        path = self.path(cell)
        if path.exists() and self.read(cell) is None:
            path.replace(path.with_suffix(".damaged"))
        write_text(self.path(cell), json.dumps(record, indent=1, allow_nan=False))


def _read(path: Path) -> Record | None:
    try:
        record: Record = json.loads(path.read_text(encoding="utf-8"))
        return record if path.stem.endswith(digest(record["identity"])) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` at once: a reader sees the old content or the new, never a part."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, records: Iterable[Record]) -> None:
    """``records.parquet``: a row for each cell, seed and metric of the finished records, in full precision."""
    rows = [row for record in records for row in rows_of(record)]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    replace_file(path, lambda temporary: pq.write_table(table, temporary))


_SCHEMA = pa.schema(
    [
        ("protocol", pa.string()),
        ("overrides", pa.string()),
        ("dataset", pa.string()),
        ("backbone", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int64()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("cvat_weight", pa.float64()),
        ("backbone_weight", pa.float64()),
        ("selection", pa.string()),
        ("oracle", pa.bool_()),
        ("floor", pa.float64()),
        ("status", pa.string()),
        ("epochs", pa.int64()),
        ("key", pa.string()),
        ("git_commit", pa.string()),
    ]
)


def rows_of(record: Record) -> list[dict[str, Any]]:
    """The record as rows of ``records.parquet``; a replicate that failed has a row with no value."""
    if record["status"] != "finished":
        return []
    rows = []
    identity = record["identity"]
    for result in record["results"]:
        common = {
            "protocol": record["protocol"]["name"],
            "overrides": json.dumps(record["overrides"]) if record["overrides"] else "",
            "dataset": identity["dataset"],
            "backbone": identity["backbone"],
            "method": identity["method"],
            "seed": result["seed"],
            "cvat_weight": result["cvat_weight"],
            "backbone_weight": result["backbone_weight"],
            "selection": record["selection"],
            "oracle": record["oracle"],
            "status": result["status"],
            "epochs": result["epochs"],
            "key": digest(identity),
            "git_commit": record["provenance"]["git_commit"],
        }
        for metric in record["metrics"]:
            value = result["metrics"].get(metric)
            rows.append({**common, "metric": metric, "value": value, "floor": result["floor"].get(metric)})
    return rows


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace ``path`` at once by what ``write`` puts into the path that it is called with."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
