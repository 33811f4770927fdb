"""Whose code a configuration file may have imported: that of packages which the user typed, and of no other."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from cst_lightning.errors import InputError

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
#: names of files that hold data; any other may be a configuration, whatever it is called
_DATA = (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".svm", ".arff", ".bz2", ".gz", ".ckpt", ".npy", ".html")


def trusted_files(arguments: Sequence[str], packages: Sequence[str]) -> list[str]:
    """The arguments without ``--trust PACKAGE ...``, once every configuration file among them has been looked at.

    A file may name code of ``packages``, of those after ``--trust``, and what stands in the arguments themselves; any
    other text in it that is a path into a package which could be imported is refused, before anything is.

    Args:
        arguments: of a command line. What follows ``--config`` is a configuration file, and so is any other file that
            is not named as data are.

    Raises:
        InputError: with the path, the file, and what to type; or the file says whom to trust.
    """
    rest, trusted, taking = list[str](), list(packages), False
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
    typed = {word for argument in rest for word in re.split("[=,@]", argument)}
    values = [argument.partition("=")[2] if argument.startswith("-") else argument for argument in rest]
    after = {value for before, value in pairwise(["", *rest]) if before in ("-c", "--config")}
    after |= {argument.partition("=")[2] for argument in rest if argument.startswith(("-c=", "--config="))}
    for value in values:
        if _is_file(value) and (value in after or not value.endswith(_DATA)):
            _look(Path(value), trusted, typed, set())
    return rest


def _is_file(text: str) -> bool:
    try:
        return bool(text) and Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or of characters that none has
        return False


def _look(file: Path, trusted: Sequence[str], typed: set[str], seen: set[Path]) -> None:
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return  # who reads it says what is wrong with it
    if isinstance(content, dict) and content.get("trust"):
        raise InputError(f"trust={content['trust']} in {file}: packages are trusted on the command line, not in a file")
    for text in _texts(content):
        package = text.partition(".")[0]
        others = [path for path in (str(file.parent / text), text) if not text.endswith(_DATA) and _is_file(path)]
        for other in others:
            _look(Path(other), trusted, typed, seen)
        if not others and _PATH.fullmatch(text) and text not in typed and package not in trusted and _is_there(package):
            raise InputError(
                f"{text} comes from {file}, and importing it runs its code: add --trust {package} if you trust that "
                "package"
            )


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content.partition("@")[0].strip()
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _texts(key)
            yield from _texts(value)
    elif isinstance(content, list):
        for value in content:
            yield from _texts(value)


def _is_there(package: str) -> bool:
    try:  # of a package's own name, which imports nothing
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
