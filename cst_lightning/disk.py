"""Files that are written whole or not at all, and folders that are seen to be writable before any work."""

from __future__ import annotations

import os
import platform
import re
import secrets
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cst_lightning.errors import InputError


def check_writable(folder: Path, option: str, *, below: str = "") -> None:
    """Fail where nothing can be written into ``folder``, or where it will be made; nothing is made by it.

    Args:
        option: that named it. below: a folder in it that is written too.

    Raises:
        InputError: it cannot be written.
    """
    inside = folder.absolute() / below
    nearest = next(one for one in (inside, *inside.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest) as probe:
            probe.write(b"probe")
    except OSError as error:
        raise InputError(
            f"output folder {folder} cannot be written ({error.strerror}): name another with {option}"
        ) from None


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Replace ``path`` at once by what ``write`` puts into the path that it is called with.

    Its name tells by which process of which machine it is written, so that what a dead one left can be known.

    Raises:
        OSError: it cannot be written; what stood there still does, and nothing is left beside it.
    """
    # not mkstemp's, which nobody else may read, whatever the umask
    temporary = path.with_name(f".{path.name}.{this_host()}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with suppress(OSError):  # it may be none, or have a name that is too long for one
            temporary.unlink()


def this_host() -> str:
    """This machine's name, as it can stand in a file's."""
    return re.sub("[^A-Za-z0-9-]", "_", platform.node())[:40]
