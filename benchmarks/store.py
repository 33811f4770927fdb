"""Records on disk: one JSON file a cell, replaced atomically; everything else is derived from them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.grid import Cell
from cst_lightning.errors import InputError

Record = dict[str, Any]


class Store:
    """The records of a folder, ``cells/<label>-<key>.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_writable(self) -> None:
        """Fail before any work where the folder cannot be written."""
        try:
            (self.folder / "cells").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder / "cells") as probe:
                probe.write(b"probe")
        except OSError as error:
            raise InputError(
                f"output folder {self.folder} cannot be written ({error.strerror}): name another with --out"
            ) from None

    def path(self, cell: Cell) -> Path:
        """Where the record of ``cell`` stands."""
        name = cell.label.replace("/", "-").replace("@", "-").replace("=", "").replace(",", "-")
        return self.folder / "cells" / f"{name}-{cell.key}.json"

    def read(self, cell: Cell) -> Record | None:
        """The record of ``cell``; None where there is none, or what stands there is no record of it.

        A file that cannot be read as the cell's record is set aside as ``*.damaged``, so that the cell runs again.
        """
        path = self.path(cell)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["identity"] == cell.identity and record["status"] in ("finished", "failed"):
                return dict(record)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            pass
        if path.exists():
            path.replace(path.with_suffix(".damaged"))
        return None

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Put the record of ``cell`` in place whole, in full precision."""
        write_text(self.path(cell), json.dumps(record, indent=1, allow_nan=False))

    def discard(self, cell: Cell) -> None:
        """Forget the record of ``cell``."""
        self.path(cell).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` at once: a reader sees the old content or the new, never a part."""
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, cells: Iterable[tuple[Cell, Record | None]]) -> None:
    """``records.parquet``: a row for each cell, seed and metric of the finished cells, in full precision."""
    rows = [row for cell, record in cells if record is not None for row in rows_of(cell, record)]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    _replace(path, lambda temporary: pq.write_table(table, temporary))


_SCHEMA = pa.schema(
    [
        ("protocol", pa.string()),
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


def rows_of(cell: Cell, record: Record) -> list[dict[str, Any]]:
    """The record as rows of ``records.parquet``; a replicate that failed has a row with no value."""
    if record["status"] != "finished":
        return []
    rows = []
    for result in record["results"]:
        common = {
            "protocol": cell.protocol.name,
            "dataset": str(cell.dataset),
            "backbone": cell.backbone,
            "method": cell.method,
            "seed": result["seed"],
            "cvat_weight": result["cvat_weight"],
            "backbone_weight": result["backbone_weight"],
            "selection": record["selection"],
            "oracle": record["oracle"],
            "status": result["status"],
            "epochs": result["epochs"],
            "key": cell.key,
            "git_commit": record["provenance"]["git_commit"],
        }
        for metric in record["metrics"]:
            value = result["metrics"].get(metric)
            rows.append({**common, "metric": metric, "value": value, "floor": result["floor"].get(metric)})
    return rows


def _replace(path: Path, write: Callable[[Path], object]) -> None:
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
