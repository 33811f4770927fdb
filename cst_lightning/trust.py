"""Whose code a configuration file may have imported: that of packages which the user typed, and of no other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from jsonargparse import set_parsing_settings

from cst_lightning.errors import InputError

_PATH = re.compile(r"(?<![\w./\\-])([A-Za-z_]\w*)(?:\.[A-Za-z_]\w*)+(?![\w/\\-])")
_REFUSED = re.compile(r"Importing '([^']+)' is not allowed")


def split_trust(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without ``--trust PACKAGE ...``, and those packages."""
    rest, trusted, taking = list[str](), list[str](), False
    for argument in arguments:
        name, is_given, value = argument.partition("=")
        if name == "--trust":
            taking = True
            trusted += [value] if is_given else []
        elif taking and not argument.startswith("-"):
            trusted.append(argument)
        else:
            taking = False
            rest.append(argument)
    return rest, trusted


def packages_typed(arguments: Sequence[str]) -> set[str]:
    """Packages of the class paths that stand in the arguments themselves; the name of a file is no class path."""
    found = set[str]()
    for before, argument in pairwise(["", *arguments]):
        name, is_given, value = argument.partition("=")
        text = value if is_given and name.startswith("-") else argument
        if "--config" not in (before, name) and "-c" not in (before, name) and not _is_there(text):
            found |= {match[1] for match in _PATH.finditer(text)}
    return found


@contextmanager
def importing_only(packages: Iterable[str]) -> Iterator[None]:
    """Within, jsonargparse imports nothing that a value names but what lies in ``packages`` (or modules).

    It asks at the import itself, so that no way of writing a configuration leads around it. After it, nothing is
    allowed.

    Raises:
        InputError: one is no name of a package.
    """
    own = sorted(set(packages))
    for name in own:
        if not all(part.isidentifier() for part in name.split(".")) or name.partition(".")[0] == "jsonargparse":
            raise InputError(f"trust={name}: allowed is the name of a package")
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=own)
    try:
        yield
    finally:
        set_parsing_settings(import_path_denylist=own)


def refused(message: str) -> InputError | None:
    """What to say where the message of an error says that an import was refused."""
    found = _REFUSED.search(message)
    return None if found is None else not_trusted(found[1])


def not_trusted(path: str) -> InputError:
    """The error of a class path that a file names."""
    package = path.partition(".")[0]
    return InputError(
        f"{path} comes from a file, and importing it runs its code: add --trust {package} if you trust that package"
    )


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, or of characters that none has
        return False
