"""Looking after stores: ``sweep verify DIR`` checks one, ``sweep merge A B --out C`` joins several machines'."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from benchmarks.files import PARTS, is_address, is_plain, refuse_links, replace_file
from benchmarks.grid import digest
from benchmarks.remote import here
from benchmarks.report import write_tables
from benchmarks.store import Record, Store
from cst_lightning.errors import InputError
from cst_lightning.texts import counted, printable

_MOST_NAMED = 10  # contradictions; one is enough to look into


def verify(folder: Path, elsewhere: Sequence[tuple[str, str]] = ()) -> int:
    """Say of every file among the records whether it is one; the exit status is 1 if a file is not.

    Args:
        elsewhere: files at the address that ``folder`` is a copy of which are none, and what is wrong with each.
    """
    if not (folder / "cells").is_dir() and not (folder / PARTS / "cells").is_dir():
        raise InputError(f"{folder} holds no records (cells/*.json): name a folder that a sweep wrote")
    store, parts = Store(folder), Store(folder / PARTS)
    faults = [*((str(path), fault) for path, fault in store.faults() + parts.faults()), *elsewhere]
    records = store.read_all()
    for path, fault in faults:
        print(f"{printable(path)}: {fault}")
    failed = sum(record["status"] == "failed" for record in records)
    older = sum("checksum" not in record for record in records)
    waiting = len(parts.read_all())
    print(
        f"{len(records)} records ({failed} of cells that failed), {len(records) - older} with the checksum of their "
        f"content, {older} of an older version that has none; "
        + (f"{waiting} of parts that wait for the others of their cells; " if waiting else "")
        + f"{len(faults)} other files"
        + (": the next sweep in this folder sets them aside and runs their cells again" if faults else "")
    )
    return 1 if faults else 0


def merge(arguments: Sequence[str]) -> int:
    """Join stores into one and write its tables; the exit status is 1 if a file was left out as no record."""
    sources, out = _sources(arguments)
    chosen = [_choose([target, *same]) for target, *same in zip(_stores(out), *map(_stores, sources), strict=True)]
    for target, paths in zip(_stores(out), chosen, strict=True):
        for path, fault in target.set_aside_faults():
            print(f"set aside: {printable(str(path))} ({fault})")
        for path in paths.values():
            target.adopt(path)
    for source in sources:
        for path in filter(is_plain, sorted((source / "sweeps").glob("*.json"))):
            if not _copy(path, out / "sweeps" / path.name):
                kept = printable(str(out / "sweeps" / path.name))
                print(f"{printable(str(path))} asks for other cells than {kept}, which was kept")
    write_tables(Store(out))
    faults = [found for source in sources for store in _stores(source) for found in store.faults()]
    for path, fault in faults:
        print(f"left out, since it is no record: {printable(str(path))} ({fault})")
    parts = f", and {len(chosen[1])} of parts" if chosen[1] else ""
    joined = f"{counted(len(chosen[0]), 'record')} of {counted(len(sources), 'folder')}{parts}"
    print(f"{joined} are in {printable(str(out))}")
    return 1 if faults else 0


def _sources(arguments: Sequence[str]) -> tuple[list[Path], Path]:
    """The folders to join, and where to; checked."""
    parser = ArgumentParser(prog="python -m benchmarks.sweep merge", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("folders", type=str, nargs="*", help="folders or addresses that sweeps wrote")
    parser.add_argument("--out", type=str, required=True, help="where the joined store goes; may be one of them")
    options = parser.parse_args(list(arguments))
    if not options.folders:
        raise InputError("merge wants folders or addresses that sweeps wrote: merge A B --out C")
    if is_address(options.out):
        raise InputError(f"out={options.out}: allowed is a folder")
    found = [here(folder) for folder in options.folders]
    sources, out = [folder for folder, _ in found], refuse_links(Path(options.out))
    for source in sources:
        if source.resolve() in out.resolve().parents:
            raise InputError(f"out={out} lies in {source}, whose files it would mix with: name another folder")
    for path, fault in (fault for _, faults in found for fault in faults):
        print(f"left out, since it is no record: {printable(path)} ({fault})")
    for source in sources:
        if not any(store.read_all() for store in _stores(source)):
            raise InputError(f"{source} holds no records (cells/*.json): name a folder that a sweep wrote")
    Store(out).check_writable()
    return sources, out


def _stores(folder: Path) -> tuple[Store, Store]:
    """The records of a sweep's cells, and those of parts that wait for the others of their cells."""
    return Store(folder), Store(folder / PARTS)


def _choose(stores: Sequence[Store]) -> dict[str, Path]:
    """The file of each cell: the first that finished, else the first. Two that finished must agree."""
    best: dict[str, tuple[Path, Record]] = {}
    contradictions = []
    for store in stores:
        for key, (path, record) in store.found().items():
            known = best.get(key)
            if known is None or (known[1]["status"], record["status"]) == ("failed", "finished"):
                best[key] = path, record
            elif known[1]["status"] == record["status"] == "finished" and (difference := _difference(known[1], record)):
                contradictions.append(f"{printable(str(known[0]))} and {printable(str(path))}: {difference}")
    if contradictions:
        more = len(contradictions) - _MOST_NAMED
        raise InputError(
            f"nothing was merged: {len(contradictions)} cells have two results. "
            + "; ".join(contradictions[:_MOST_NAMED])
            + (f"; and {more} more" if more > 0 else "")
            + ". Move away the file that is not to be kept"
        )
    return {key: path for key, (path, _) in best.items()}


def _difference(one: Record, other: Record) -> str:
    """In what the values of two records of a cell differ, if in anything; where and when they were made is no value."""
    place = f"{one['identity']['dataset']}/{one['identity']['backbone']}/{one['identity']['method']}"
    for mine, theirs in zip(one["results"], other["results"], strict=False):
        for metric in mine["metrics"]:
            a, b = mine["metrics"][metric], theirs["metrics"].get(metric)
            if a != b:
                return f"{place}, seed {mine['seed']}, {metric} is {a} and {b}"
    for name in sorted((one.keys() & other.keys()) - {"provenance", "checksum"}):
        if _plain(one[name]) != _plain(other[name]):
            return f"{place} differs in {name}"
    return ""


def _plain(value: Any) -> str:
    return digest({"": value})


def _copy(source: Path, target: Path) -> bool:
    """Copy a file where none stands; whether the target then has the source's content."""
    if not target.exists() and not target.is_symlink():
        replace_file(target, lambda temporary: shutil.copyfile(source, temporary))
    return is_plain(target) and target.read_bytes() == source.read_bytes()
