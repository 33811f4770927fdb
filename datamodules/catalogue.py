"""Data sets by name, as the command line and records spell them: ``D1``, ``D1@o=2``, ``scene``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import datamodules
from cst_lightning.errors import InputError, unknown_name
from cst_lightning.protocols import Protocol
from cst_lightning.registry import Parts, find_parts
from datamodules.base import BanditDataModule

#: short spellings of options
ALIASES = {"o": "overlap", "K": "n_prices", "m": "n_outcomes", "n": "n_train"}


@cache
def data_modules() -> Parts[BanditDataModule]:
    """All data modules of the package, and of the entry points ``cst_lightning.data_modules``."""
    base: type[BanditDataModule] = BanditDataModule  # type: ignore[type-abstract]
    return find_parts("data set", datamodules, base, "cst_lightning.data_modules")


@dataclass(frozen=True)
class DataSpec:
    """A data set and its options, ``name@option=value,...``; options are constructor arguments or ``ALIASES``."""

    name: str
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def parse(cls, text: str) -> DataSpec:
        """Read ``text``; an unknown data set or option is an error with the nearest names."""
        name, _, rest = text.partition("@")
        own = _arguments(data_modules().get(name))
        reserved = {"seeds", "holdout", "demand", "data_dir"} | set(Protocol.__dataclass_fields__)
        allowed = [argument for argument, kind in own.items() if argument not in reserved and kind in ("int", "float")]
        options = {}
        for part in filter(None, rest.split(",")):
            key, equals, value = part.partition("=")
            option = ALIASES.get(key, key)
            if option not in allowed:
                short = [alias for alias, long in ALIASES.items() if long in allowed]
                raise unknown_name(f"option of data set {name}", key, [*allowed, *short])
            if not equals or option in options:
                raise InputError(f"data set {text!r}: write each option once, as {key}=VALUE")
            options[option] = _number(text, key, value, own[option])
        return cls(name, tuple(sorted(options.items())))

    def __str__(self) -> str:
        """The one spelling that records and tables use."""
        short = {option: alias for alias, option in ALIASES.items()}
        options = ",".join(f"{short.get(key, key)}={_plain(value)}" for key, value in self.options)
        return f"{self.name}@{options}" if options else self.name

    @property
    def protocol_fields(self) -> tuple[str, ...]:
        """Protocol fields that this data set reads: those that its constructor takes."""
        own = _arguments(data_modules().get(self.name))
        return tuple(name for name in own if name in Protocol.__dataclass_fields__)

    def make(self, seeds: Sequence[int], protocol: Protocol, data_dir: str | Path | None = None) -> BanditDataModule:
        """The data module under ``protocol``, its data not drawn yet."""
        module_class = data_modules().get(self.name)
        own = _arguments(module_class)
        given: dict[str, Any] = {name: getattr(protocol, name) for name in self.protocol_fields}
        if self.name in module_class.names and "demand" in own:
            given["demand"] = self.name
        if "data_dir" in own:
            given["data_dir"] = data_dir
        return module_class(seeds=seeds, **given, **dict(self.options))


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _number(text: str, key: str, value: str, kind: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (kind == "int" and number != int(number)):
        allowed = "a whole number" if kind == "int" else "a finite number"
        raise InputError(f"data set {text!r}: {key}={value}: allowed is {allowed}")
    return int(number) if number == int(number) else number


def _arguments(module_class: type[BanditDataModule]) -> dict[str, str]:
    """Arguments of the constructor and their types as written."""
    if any(getattr(vars(module_class).get(name), "__isabstractmethod__", False) for name in ("draw", "arrays")):
        raise InputError(f"data set {module_class.__name__} is abstract: name one that can be drawn")
    parameters = inspect.signature(module_class).parameters.items()
    return {name: getattr(p.annotation, "__name__", str(p.annotation)) for name, p in parameters}
