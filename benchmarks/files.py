"""Files of a run's folder: written whole or not at all, and read with care, since it may come from elsewhere."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from cst_lightning.disk import this_host, write_whole
from cst_lightning.errors import InputError

ASIDE = "set-aside"
PARTS = "parts"  # of jobs cut by seeds: a store of their records
# what a run's folder has of its own, besides files that are replaced and never written into
_OWN = (
    *("cells", ASIDE, PARTS, f"{PARTS}/cells", f"{PARTS}/{ASIDE}", "sweeps", "figures"),
    *("wandb", "wandb/locks", "wandb/asked", "wandb/sweep-id", "wandb/output.log"),
)


class OutputError(OSError):
    """The output folder cannot be written: the disk is full, a quota is spent, the share is gone."""


def is_address(text: str) -> bool:
    """Whether ``text`` is an address rather than a folder."""
    return "://" in text


def refuse_links(folder: Path) -> Path:
    """``folder``, a run's, where nothing that is read or written in it lies elsewhere; it may be a link itself.

    Raises:
        InputError: it has a link, or what is neither a file nor a folder, in the place of its own.
    """
    for path in (folder / name for name in _OWN):
        refuse_link(path)
    for path in (folder / "wandb" / "locks").glob("*"):  # each is opened to be locked, and made where it is not
        refuse_link(path)
    for path in (folder / "figures").glob("settings-*"):  # a report writes into them, and deletes old figures there
        refuse_link(path)
    return folder


def refuse_link(path: Path) -> None:
    """Raise where ``path``, of a run's folder, is a link, or a pipe or such, for which a reader would wait."""
    if path.is_symlink():
        raise InputError(
            f"{path} is a link to {path.readlink()}, and what is written into a run must stay in its folder: put "
            "what is there in the link's place, or delete the link"
        )
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is neither a file nor a folder: delete it")


def is_plain(path: Path) -> bool:
    """Whether a file of a folder from elsewhere may be read: no link, which could lead anywhere, and no pipe."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:  # a part of its way is a file
        return False


def read_plain(path: Path, most_bytes: int) -> str:
    """The text of a file of a folder from elsewhere.

    Raises:
        OSError: there is none, or it cannot be read. ValueError: it is a link, a pipe, too large, or no text.
    """
    if unfit := why_unfit(path, most_bytes):
        raise ValueError(unfit)
    return path.read_text(encoding="utf-8")


def why_unfit(path: Path, most_bytes: int) -> str:
    """Why a file is not to be read, "" if it may be: a pipe would be waited for, a link could lead anywhere."""
    about = path.lstat()  # once: another sweep may delete and write it meanwhile
    if not stat.S_ISREG(about.st_mode):
        return "a link" if stat.S_ISLNK(about.st_mode) else "no file"
    return f"too large: {about.st_size:,} bytes" if about.st_size > most_bytes else ""


def is_alive(pid: int) -> bool:
    """Whether this machine runs a process of that number; True where the system does not say.

    Raises:
        OverflowError: no process has such a number.
    """
    if sys.platform == "win32":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of somebody else's
        return True
    return True


def is_left_over(path: Path) -> bool:
    """Whether a temporary file's writer, a process of this machine, is no more. Clocks are not asked: they may jump."""
    named = re.fullmatch(rf"\..+\.{re.escape(this_host())}\.([0-9]{{1,10}})\.[0-9a-f]+", path.name)
    return named is not None and int(named[1]) < 2**31 and not is_alive(int(named[1]))


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` at once: a reader sees the old content or the new, never a part."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """``write_whole`` of a file of a run's.

    Raises:
        OutputError: it cannot be written; what stood there still does.
    """
    try:
        write_whole(path, write)
    except OSError as error:
        raise OutputError(
            f"{path.parent} cannot be written ({error.strerror or error}): {path.name} was not; free space there and "
            "give the same command again, what is recorded stays"
        ) from error
