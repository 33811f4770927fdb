"""An output folder at an address that fsspec knows (``--out s3://bucket/run``): a folder here, and its copy there.

The sweep writes the folder here, as it always does; what the address holds comes before, so that a sweep goes on from
any machine, and each record goes as it is written. Object stores put a file whole or not at all; one that is torn all
the same is found by its checksum, like any other (see ``store``).
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Thread
from urllib.parse import urlsplit

from fsspec.core import url_to_fs

from benchmarks.store import replace_file
from benchmarks.texts import last_line, redact
from cst_lightning.errors import InputError

_STAYS = ("wandb", "progress.json")  # of this machine and moment
_Stamp = tuple[int, int]  # bytes, and the time of the last change in ns


def is_address(text: str) -> bool:
    """Whether ``text`` is an address rather than a folder."""
    return "://" in text


def here(text: str) -> Path:
    """The folder ``text``, or that of the address ``text`` with what it holds fetched.

    Raises:
        InputError: the address cannot be used or read.
    """
    if not is_address(text):
        return Path(text)
    remote = Remote(text)
    remote.pull()
    return remote.folder


class Remote:
    """The copy of ``folder`` at ``address``.

    Attributes:
        folder: in ``results/runs``, a name of its own for each address.
        trouble: why the copy lacks something, "" where it lacks nothing.

    Raises:
        InputError: no such kind of address, its package is not installed, or it holds a password.
    """

    def __init__(self, address: str, parent: Path = Path("results", "runs")) -> None:
        if urlsplit(address).password is not None:
            raise InputError("out: an address holds no password; give it by the environment or fsspec's configuration")
        try:
            self._fs, self._root = url_to_fs(address, use_listings_cache=False)
        except Exception as error:  # of whatever package has this kind of address
            raise InputError(f"out={address}: {_said(error)}") from None
        name = re.sub("[^A-Za-z0-9.]+", "-", address)[-80:].strip("-.")
        self.address, self.trouble = address, ""
        self.folder = parent / f"{name}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"
        self._there: dict[str, _Stamp] = {}
        self._sending: Thread | None = None

    def pull(self) -> None:
        """Fetch what is there and not here.

        Raises:
            InputError: the address cannot be read.
        """
        bucket = self._root.partition("/")[0]  # "" where there are none, as in a file system
        try:
            if bucket and not self._fs.exists(bucket):  # else the first file would make it, a slip of the pen too
                raise FileNotFoundError(f"there is no {bucket}")
            found = self._fs.find(self._root, detail=True) if self._fs.exists(self._root) else {}
            for path, about in found.items():
                name = str(PurePosixPath(path).relative_to(self._root))
                here = self.folder / name
                if not _is_copied(name) or not here.resolve().is_relative_to(self.folder.resolve()):
                    continue
                if not here.exists():
                    replace_file(here, partial(self._fs.get_file, path))
                if here.stat().st_size == about["size"]:
                    self._there[name] = _stamp(here)
        except Exception as error:
            raise InputError(f"out={self.address} cannot be read: {_said(error)}") from None

    def begin(self) -> None:
        """The first ``push``, before any work.

        Raises:
            InputError: the address cannot be written.
        """
        self._push()
        if self.trouble:
            raise InputError(f"out={self.address} cannot be written: {self.trouble}")

    def push_beside(self) -> None:
        """Push while the sweep goes on, unless that is being done: an address that hangs holds nothing up."""
        if self._sending is None or not self._sending.is_alive():
            self._sending = Thread(target=self._push, daemon=True)
            self._sending.start()

    def push(self) -> None:
        """Push all that is not there yet."""
        if self._sending is not None:
            self._sending.join()
        self._push()

    def _push(self) -> None:
        """Send what is new or changed here, and remove there what was removed here. A fault is kept in ``trouble``."""
        try:
            here = {
                str(path.relative_to(self.folder).as_posix()): _stamp(path)
                for path in self.folder.rglob("*")
                if path.is_file() and _is_copied(path.relative_to(self.folder).as_posix())
            }
            for name in sorted(name for name, stamp in here.items() if self._there.get(name) != stamp):
                path = f"{self._root}/{name}"
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.put_file(str(self.folder / name), path)
                self._there[name] = here[name]
            for name in sorted(self._there.keys() - here.keys()):
                with suppress(FileNotFoundError):  # a sweep elsewhere was faster
                    self._fs.rm_file(f"{self._root}/{name}")
                del self._there[name]
            self.trouble = ""
        except Exception as error:
            self.trouble = _said(error)


def _is_copied(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and parts[0] not in _STAYS and not any(part.startswith(".") for part in parts)


def _stamp(path: Path) -> _Stamp:
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _said(error: Exception) -> str:
    return redact(last_line(str(error)) or type(error).__name__)
