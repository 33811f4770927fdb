"""Finding parts (backbones, data sets) by name, or by class path."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Generic, TypeVar

from cst_lightning.errors import InputError, unknown_name

T = TypeVar("T")


@dataclass
class Parts(Generic[T]):
    """The parts of a package: name to class, and module to the reason why it could not be imported."""

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
    module_name, _, class_name = path.rpartition(".")
    if packages is not None and module_name.partition(".")[0] not in packages:
        raise InputError(f"{path!r} is of no trusted package: allowed are {', '.join(packages)}")
    try:
        part = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever the module raises when it is imported
        raise InputError(f"{path!r} cannot be imported: {error}") from error
    if not (inspect.isclass(part) and issubclass(part, base)):
        raise InputError(f"{path!r} is no {base.__name__}")
    return part


def path_of(part: type) -> str:
    """The path that ``class_at`` finds ``part`` by."""
    if "." in part.__qualname__ or part.__module__ == "__main__":
        raise InputError(f"{part.__qualname__} of {part.__module__} cannot be named by a path: put it into a module")
    return f"{part.__module__}.{part.__qualname__}"


def find_parts(kind: str, package: ModuleType, base: type[T]) -> Parts[T]:
    """Every class with a ``name`` (or several ``names``) that a module of ``package`` defines from ``base``.

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
            if not (inspect.isclass(part) and issubclass(part, base) and part.__module__ == module.__name__):
                continue
            own = vars(part)
            for name in own.get("names") or ((own["name"],) if own.get("name") else ()):
                if name in parts.found:
                    raise InputError(f"two parts are called {kind} {name!r}: {parts.found[name]} and {part}")
                parts.found[name] = part
    return parts
