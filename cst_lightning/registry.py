"""Finding parts (backbones, data sets, ...) by name, or by class path."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar

from cst_lightning.errors import InputError, unknown_name

T = TypeVar("T")
V = TypeVar("V")


@dataclass
class Parts(Generic[T]):
    """Parts that were found: name to class, and module or entry point to the reason why it could not be imported."""

    kind: str
    base: type[T]
    found: dict[str, type[T]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> type[T]:
        """The part called ``name``, or the class at the path ``package.module.Class``."""
        if name in self.found:
            return self.found[name]
        if "." in name:
            return self._at_path(name)
        error = unknown_name(self.kind, name, self.found)
        broken = "; ".join(f"{module} could not be imported: {reason}" for module, reason in self.failed.items())
        raise InputError(f"{error}{'; ' + broken if broken else ''}")

    def _at_path(self, path: str) -> type[T]:
        try:
            return class_at(path, self.base)
        except InputError as error:
            raise InputError(f"{self.kind} {error}") from error.__cause__


def class_at(path: str, base: type[T], packages: Sequence[str] | None = None) -> type[T]:
    """The subclass of ``base`` at the path ``package.module.Class``.

    Args:
        packages: the only ones that anything is imported from; all by default, for a path that the user typed.
    """
    if packages is not None:
        check_trusted(path, packages)
    part = _at(path)
    if not (inspect.isclass(part) and issubclass(part, base)):
        raise InputError(f"{path!r} is no {base.__name__}")
    return part


def check_trusted(path: str, packages: Sequence[str]) -> None:
    """Refuse a path of another package than these.

    Raises:
        InputError: it is of another one.
    """
    if path.partition(".")[0] not in packages:
        raise InputError(f"{path!r} is of no trusted package: allowed are {', '.join(packages)}")


def object_at(path: str, base: type[T]) -> T:
    """The ``base`` at the path ``package.module.NAME``."""
    part = _at(path)
    if not isinstance(part, base):
        raise InputError(f"{path!r} is no {base.__name__}")
    return part


def _at(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module_name), name)
    except Exception as error:  # whatever the module raises when it is imported
        raise InputError(f"{path!r} cannot be imported: {error}") from error


def path_of(part: type) -> str:
    """The path that ``class_at`` finds ``part`` by."""
    if "." in part.__qualname__ or part.__module__ == "__main__":
        raise InputError(f"{part.__qualname__} of {part.__module__} cannot be named by a path: put it into a module")
    return f"{part.__module__}.{part.__qualname__}"


def find_parts(kind: str, package: ModuleType, base: type[T], group: str) -> Parts[T]:
    """The parts of a package, and those that installed packages offer as entry points of ``group``.

    A part is a class with a ``name`` (or several ``names``) that a module of ``package`` defines from ``base``, or that
    an entry point of one of its names leads to.

    Raises:
        InputError: two parts have one name.
    """
    parts = Parts(kind, base)
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        try:
            module = importlib.import_module(info.name)
        except Exception as error:  # a broken part must not take the others down; it is listed with its reason
            parts.failed[info.name] = f"{type(error).__name__}: {error}"
            continue
        for part in vars(module).values():
            if inspect.isclass(part) and issubclass(part, base) and part.__module__ == module.__name__:
                for name in _names(part):
                    _add(kind, parts.found, name, part)
    offers, failed = offered(kind, group)
    parts.failed |= failed
    for name, part in offers.items():
        if not (inspect.isclass(part) and issubclass(part, base)):
            parts.failed[f"entry point {name}"] = f"{part!r} is no {base.__name__}"
        elif name not in _names(part):
            parts.failed[f"entry point {name}"] = (
                f"{part.__qualname__} is called {' or '.join(_names(part)) or 'nothing'}"
            )
        else:
            _add(kind, parts.found, name, part)
    return parts


def with_offered(kind: str, known: Mapping[str, V], base: type, group: str) -> dict[str, V]:
    """``known``, and what installed packages offer as entry points of ``group``; a warning names what cannot be had.

    Args:
        base: what is offered must be one, or a class of it.

    Raises:
        InputError: two parts have one name.
    """
    both, (offers, failed) = dict(known), offered(kind, group)
    failed = failed | {
        f"entry point {name}": f"it is no {base.__name__}" for name in offers if not _is(offers[name], base)
    }
    for place, reason in failed.items():
        warnings.warn(f"{kind} left out: {place} of {group} could not be imported: {reason}", stacklevel=2)
    for name, part in offers.items():
        if _is(part, base):
            _add(kind, both, name, part)
    return both


@cache
def offered(kind: str, group: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the entry points of ``group`` lead to, by name, and the reasons why some could not be imported.

    Raises:
        InputError: two packages offer one name.
    """
    found: dict[str, Any] = {}
    failed = {}
    for entry in sorted(entry_points(group=group)):
        try:
            part = entry.load()
        except Exception as error:  # as above
            failed[f"entry point {entry.name}"] = f"{type(error).__name__}: {error}"
            continue
        _add(kind, found, entry.name, part)
    return found, failed


def _is(part: Any, base: type) -> bool:
    return isinstance(part, base) or (inspect.isclass(part) and issubclass(part, base))


def _names(part: type) -> tuple[str, ...]:
    """Of its own, and not of the class that it extends."""
    own = vars(part)
    return tuple(own.get("names") or ((own["name"],) if own.get("name") else ()))


def _add(kind: str, found: dict[str, Any], name: str, part: Any) -> None:
    if found.setdefault(name, part) is not part:
        raise InputError(f"two parts are called {kind} {name!r}: {found[name]} and {part}")
