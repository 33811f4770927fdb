"""Records at an address that fsspec knows (``--out s3://bucket/run``): a folder here, and its copy there.

The sweep writes the folder here, as it always does. What the address holds comes first, so that a sweep goes on from
any machine, and each record goes as it is written. Of two records of a cell the later one stands, a file that is no
record neither comes nor goes, and nothing there is ever deleted but a failure whose cell has finished since.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from threading import Lock, Thread
from typing import Any

from fsspec.core import url_to_fs

from benchmarks.files import is_address, is_plain, refuse_links, replace_file, write_text
from benchmarks.store import FAILED, Record, Store, examine
from benchmarks.texts import last_line, redact
from benchmarks.wandb_runs import SWEEP_ID
from cst_lightning.errors import InputError

_PUSHED = ("cells/*.json", "sweeps/*.json", SWEEP_ID)
_TABLES = ("records.parquet", "tables.md", "tables.csv", "tables.tex")
_LONGEST_NAME = 200  # bytes; sweeps write shorter ones
_PATIENCE_S = 300.0  # for what the address is asked at the end
_Stamp = tuple[int, int]  # bytes, and the time of the last change in ns


class Remote:
    """The copy of ``folder`` at ``address``.

    Attributes:
        folder: in ``results/runs``, a name of its own for each address.
        trouble: why the copy lacks something, "" where it lacks nothing.
        faults: files there that are no records, and what is wrong with each.

    Raises:
        InputError: no such kind of address, its package is not installed, it holds a secret, or ``folder`` a link.
    """

    def __init__(self, address: str, parent: Path = Path("results", "runs")) -> None:
        if re.search("[?#]|::|//.*:.*@", address):
            raise InputError(
                "out: an address is such as s3://bucket/run, without a password, a query or a chain; credentials come "
                "from the environment or fsspec's configuration"
            )
        try:
            self._fs, self._root = url_to_fs(address)
        except Exception as error:  # of whatever package has this kind of address
            raise InputError(f"out={address}: {_said(error)}") from None
        name = re.sub("[^A-Za-z0-9.]+", "-", address)[-80:].strip("-.")
        self.address, self.trouble, self.unread, self.faults = address, "", "", list[tuple[str, str]]()
        self.folder = refuse_links(parent / f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:8]}")
        self._there: dict[str, _Stamp | None] = {}  # what is known to be there, and whether it is what is here
        self._is_of_this_machine = "file" in self._fs.protocol
        self._lock, self._asked, self._sending = Lock(), False, False
        self._pushing = Lock()  # one push at a time: a slow one would put old tables over new ones

    def pull(self) -> None:
        """Fetch the records that are there, where they are later than those here; each is read once.

        Raises:
            InputError: the address cannot be read.
        """
        try:
            self._fs.invalidate_cache()
            cells, sweeps = self._list("cells"), self._list("sweeps")
            bucket = self._root.partition("/")[0]  # "" in what has none, as a file system
            if bucket and not self._there and not cells and not sweeps:
                self._fs.ls(bucket)  # else the first file would make it, a slip of the pen too
            found = self._read("cells", cells), self._read("sweeps", sweeps)
            run_id, named = f"{self._root}/{SWEEP_ID}", (self.folder / SWEEP_ID).exists()
            of_wandb = {} if named or not self._fs.exists(run_id) else self._read("wandb", [run_id])
        except Exception as error:
            raise InputError(f"out={self.address} cannot be read: {_said(error)}") from None
        self._take_records(found[0])
        for name, content in of_wandb.items():  # with it a sweep goes on in the same runs of W&B
            write_text(self.folder / SWEEP_ID, content.decode(errors="replace"))
            self._note("wandb", name, content)
        for name, content in found[1].items():
            target = self.folder / "sweeps" / name
            if not target.exists() and not target.is_symlink():
                write_text(target, content.decode(errors="replace"))
            self._note("sweeps", name, content)

    def begin(self) -> None:
        """The first push, before any work.

        Raises:
            InputError: the address cannot be written.
        """
        try:
            for name in ("cells", "sweeps", "wandb"):
                self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
            if self._is_of_this_machine:
                Store(Path(self._root)).check_writable()  # and rid of what writers left that are no more
        except Exception as error:
            self.trouble = _said(error)
        else:
            self._push()
        if self.trouble:
            raise InputError(f"out={self.address} cannot be written: {self.trouble}")

    def push_beside(self) -> None:
        """Send what is new while the sweep goes on: an address that is away or hangs holds nothing up."""
        with self._lock:
            self._asked = True
            if self._sending:
                return
            self._sending = True
        Thread(target=self._push_all, daemon=True).start()

    def refresh(self) -> None:
        """``pull`` at the end, for what other machines recorded meanwhile; a fault is kept in ``unread``."""
        self.unread = self._bounded(self.pull)

    def finish(self) -> None:
        """Send all that is not there yet; a fault is kept in ``trouble``."""
        self.trouble = self._bounded(self._push) or self.trouble

    def _bounded(self, work: Callable[[], None]) -> str:
        """Do ``work`` within a bounded time; what went wrong, or ""."""
        faults = list[str]()

        def run() -> None:
            try:
                work()
            except Exception as error:
                faults.append(_said(error))

        thread = Thread(target=run, daemon=True)
        thread.start()
        try:
            thread.join(_PATIENCE_S)
            if thread.is_alive():
                return f"no answer in {_PATIENCE_S:.0f} s"
        except KeyboardInterrupt:
            return "stopped by Ctrl-C"
        return "".join(faults)

    def _push_all(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._sending = False
                    return
                self._asked = False
            self._push()

    def _push(self) -> None:
        """Send what is new or changed here; a fault is kept in ``trouble``."""
        with self._pushing:
            try:
                self._send()
                self.trouble = ""
            except Exception as error:
                self.trouble = _said(error)

    def _send(self) -> None:
        kept = [path for kind in _PUSHED for path in self.folder.glob(kind) if is_plain(path)]
        for path in [*kept, *self._tables()]:
            name, stamp = path.relative_to(self.folder).as_posix(), _stamp(path)
            is_cell = name.startswith("cells/")
            if self._there.get(name) != stamp and not (is_cell and examine(path)[0] is None):
                self._put(path, name)
                self._there[name] = stamp
            failure = name.removesuffix(".json") + FAILED
            if is_cell and not name.endswith(FAILED) and failure in self._there:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(f"{self._root}/{failure}")
                del self._there[failure]

    def _put(self, path: Path, name: str) -> None:
        """An object store shows an object when it is whole; this machine's file systems show what is written so far."""
        target = PurePosixPath(self._root, name)
        if self._is_of_this_machine:
            replace_file(Path(target), lambda temporary: self._fs.put_file(str(path), str(temporary)))
        else:
            self._fs.put_file(str(path), str(target))

    def _tables(self) -> list[Path]:
        return [path for path in (self.folder / name for name in _TABLES) if is_plain(path)]

    def _list(self, folder: str) -> list[str]:
        try:
            paths = self._fs.ls(f"{self._root}/{folder}", detail=False)
        except FileNotFoundError:
            return []
        names = {path: PurePosixPath(path).name for path in paths}
        for name in names.values():
            fault = f"{self.address}/{folder}/{name}", "a name that no file here can have"
            if name.endswith(".json") and not name.startswith(".") and not _is_name(name) and fault not in self.faults:
                self.faults.append(fault)
        return [path for path, name in names.items() if _is_name(name) and f"{folder}/{name}" not in self._there]

    def _read(self, folder: str, paths: list[str]) -> dict[str, bytes]:
        """By name; what was deleted since it was listed is left out."""
        contents = self._fs.cat(paths, on_error="return") if paths else {}
        for content in contents.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {PurePosixPath(path).name: text for path, text in contents.items() if isinstance(text, bytes)}

    def _take_records(self, contents: dict[str, bytes]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            for name, content in contents.items():
                fetched, here = Path(temporary, name), self.folder / "cells" / name
                fetched.write_bytes(content)
                theirs, fault = examine(fetched)
                mine = examine(here)[0]
                if theirs is None:
                    self.faults.append((f"{self.address}/cells/{name}", fault))
                elif theirs["status"] == "failed" and examine(_of_success(here))[0] is not None:
                    self._there[f"cells/{name}"] = None  # superseded: the next push deletes it
                elif mine is None or _finished(theirs) > _finished(mine):
                    Store(self.folder).adopt(fetched)
                self._note("cells", name, content)

    def _note(self, folder: str, name: str, content: bytes) -> None:
        """Remember that a file is there, and whether it is the one here."""
        here = self.folder / folder / name
        same = is_plain(here) and here.read_bytes() == content
        self._there[f"{folder}/{name}"] = _stamp(here) if same else None


def here(address: str) -> tuple[Path, list[tuple[str, str]]]:
    """The folder ``address`` if it is one, else that of the address with its records; and the faults found there.

    Raises:
        InputError: the address cannot be used or read, or the folder leads elsewhere.
    """
    if not is_address(address):
        return refuse_links(Path(address)), []
    remote = Remote(address)
    remote.pull()
    return remote.folder, remote.faults


def _is_name(name: str) -> bool:
    """Whether a file here may have the name of an object there, which may be any text."""
    plain = name.isprintable() and len(name.encode()) <= _LONGEST_NAME
    return plain and re.fullmatch(r"[^.][^/\\:]*\.json", name) is not None


def _of_success(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(FAILED) + ".json") if path.name.endswith(FAILED) else path


def _finished(record: Record) -> str:
    made: Any = record["provenance"].get("finished", "")
    return str(made)


def _stamp(path: Path) -> _Stamp:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _said(error: Exception) -> str:
    return redact(last_line(str(error)) or type(error).__name__)
