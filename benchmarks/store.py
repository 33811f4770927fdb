"""Records on disk: one JSON file a cell, replaced atomically; everything else is derived from them.

Several sweeps may write one folder at once, from one machine or many, and no lock is needed: a record appears whole
under its name or not at all, two writers of one cell write the same values, and a failure stands in a file of its
own, so that it cannot replace what another sweep finished. A lock on a shared file system would outlive its holder.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, SupportsFloat

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.files import ASIDE, PARTS, is_left_over, replace_file, why_unfit, write_text
from benchmarks.grid import Cell, digest
from benchmarks.record_shape import LARGEST, is_record
from cst_lightning.disk import check_writable

Record = dict[str, Any]
FAILED = ".failed.json"
_LARGEST_RECORD = 1 << 30  # bytes; of a hundred thousand seeds
_LONGEST_NAME = 150  # of a record's file, without its key


def finite_or_none(value: SupportsFloat) -> float | None:
    """A number as records keep it: None for NaN, infinity and what is as good as infinite."""
    number = float(value)
    return number if abs(number) <= LARGEST else None


class Store:
    """The records of a folder, ``cells/<label>-<key>.json``; of cells that failed, ``<label>-<key>.failed.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check_writable(self) -> None:
        """Fail before any work where the folder cannot be written; one that is not there yet is not made by it."""
        check_writable(self.folder, "--out", below="cells")
        for left in self._temporary():
            if is_left_over(left):
                with suppress(OSError):
                    left.unlink()

    def path(self, cell: Cell, *, failed: bool = False) -> Path:
        """Where the record of ``cell`` stands, or that of its failure."""
        return self.folder / "cells" / (_name(cell.identity) + (FAILED if failed else ".json"))

    def read(self, cell: Cell) -> Record | None:
        """The record of ``cell``; None where there is none, or what stands there is no record of it."""
        found = [examine(self.path(cell, failed=failed))[0] for failed in (True, False)]
        return _better(*found)

    def read_all(self) -> list[Record]:
        """The record of each cell in the folder, of this command's cells and of others, in the order of their names."""
        return [record for _, record in self.found().values()]

    def found(self) -> dict[str, tuple[Path, Record]]:
        """By each cell's key the file and the record of its success, else of its failure."""
        best: dict[str, tuple[Path, Record]] = {}
        for path in self._files():
            record = examine(path)[0]
            if record is None:
                continue
            key = digest(record["identity"])
            if key not in best or _better(best[key][1], record) is record:
                best[key] = path, record
        return best

    def faults(self) -> list[tuple[Path, str]]:
        """Files among the records that are none, and what is wrong with each: torn, damaged, or of something else."""
        faults = [(path, examine(path)[1]) for path in self._files()]
        return [(path, fault) for path, fault in faults if fault]

    def set_aside_faults(self) -> list[tuple[Path, str]]:
        """Move what ``faults`` finds to ``set-aside/``: where each file is now, and what is wrong with it."""
        return [(moved, fault) for path, fault in self.faults() if (moved := self._set_aside(path))]

    def write(self, cell: Cell, record: Mapping[str, Any]) -> None:
        """Put the record of ``cell`` in place whole, in full precision; what cannot be read there is set aside."""
        failed = record["status"] == "failed"
        path, text = self.path(cell, failed=failed), json.dumps(sealed(record), indent=1, allow_nan=False)
        if examine(path)[1]:  # a fault: a file that a sweep beside this one has just deleted has none
            self._set_aside(path)
        write_text(path, text)
        if not failed:
            self.path(cell, failed=True).unlink(missing_ok=True)

    def adopt(self, path: Path) -> None:
        """Put a record of another store in place, byte for byte."""
        target = self.folder / "cells" / path.name
        if path.resolve() != target.resolve():
            replace_file(target, lambda temporary: shutil.copyfile(path, temporary))
        if not path.name.endswith(FAILED):
            target.with_suffix(FAILED).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """All in ``cells`` but hidden files, which are being written or the system's."""
        return sorted(path for path in (self.folder / "cells").glob("*") if not path.name.startswith("."))

    def _temporary(self) -> list[Path]:
        """What is being written in the folder, or was when its writer died."""
        folders = (self.folder, *(self.folder / name for name in ("cells", f"{PARTS}/cells", "sweeps")))
        return sorted(path for folder in folders for path in folder.glob(".*.*.*.*"))

    def _set_aside(self, path: Path) -> Path | None:
        target = self.move_away(path)
        if target is not None and examine(target, path.name)[0] is not None:
            target.replace(path)  # a sweep beside this one has just put a good one there
            return None
        return target

    def move_away(self, path: Path) -> Path | None:
        """Move a file away: where ``path`` was moved to; None where another sweep was faster."""
        target = self.folder / ASIDE / f"{path.stem}.{secrets.token_hex(4)}{path.suffix}"
        target.parent.mkdir(exist_ok=True)
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
        return target


def examine(path: Path, name: str | None = None) -> tuple[Record | None, str]:
    """The record in a file, or None and what is wrong with it; ``(None, "")`` where there is no file.

    Args:
        name: that the file has or had, by default that of ``path``.
    """
    try:
        if unfit := why_unfit(path, _LARGEST_RECORD):
            return None, unfit
        record = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        fault = _fault(record)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return None, "torn or damaged: no whole JSON"
    if fault:
        return None, fault
    name, own = name or path.name, _name(record["identity"])
    allowed = {f"{own}.json"} | ({own + FAILED} if record["status"] == "failed" else set())
    if name in allowed:
        return record, ""
    beside = (path.parent / f"{own}.json").exists()
    return None, f"{'a copy of' if beside else 'under a name of its own: by its content it is'} {own}.json"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _fault(record: Any) -> str:
    """What is wrong with the content of a file, if anything."""
    if not isinstance(record, dict) or not isinstance(record.get("identity"), dict):
        return "no record of a cell"
    if record.get("checksum", checksum(record)) != checksum(record):
        return "damaged: its checksum is not that of its content"
    return "" if is_record(record) else "no record of a cell that this version knows"


def _better(one: Record | None, other: Record | None) -> Record | None:
    """Of two records of a cell the one that finished, else the first."""
    if one is None or (other is not None and one["status"] == "failed" and other["status"] == "finished"):
        return other
    return one


def sealed(record: Mapping[str, Any]) -> Record:
    """The record as it will be read, with the checksum of its content."""
    content: Record = json.loads(json.dumps(record, allow_nan=False))
    return content | {"checksum": checksum(content)}


def checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a record without its checksum, in hexadecimal."""
    content = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _name(identity: Mapping[str, Any]) -> str:
    """Of the file of a record, without its ending: readable, unique by its key, and never a path."""
    label = f"{identity['dataset']}/{identity['backbone']}/{identity['method']}"
    readable = label.replace("/", "-").replace("@", "-").replace("=", "").replace(",", "-")
    return f"{re.sub(r'[^A-Za-z0-9._+-]|^[.]', '_', readable)[:_LONGEST_NAME]}-{digest(identity)}"


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
