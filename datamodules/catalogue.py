"""Data sets by name, as the command line and records spell them: ``D1``, ``D1@o=2``, ``scene``."""

from __future__ import annotations

import ast
import inspect
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
ALIASES = {"o": "overlap", "K": "n_prices", "n": "n_train"}


@cache
def data_modules() -> Parts[BanditDataModule]:
    """All data modules of the package."""
    return find_parts("data set", datamodules, BanditDataModule)  # type: ignore[type-abstract]


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
        allowed = [argument for argument in own if argument not in reserved]
        options = {}
        for part in filter(None, rest.split(",")):
            key, equals, value = part.partition("=")
            option = ALIASES.get(key, key)
            if option not in allowed:
                raise unknown_name(f"option of data set {name}", key, allowed)
            if not equals or option in options:
                raise InputError(f"data set {text!r}: write each option once, as {key}=VALUE")
            try:
                options[option] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                raise InputError(f"data set {text!r}: {key}={value} is no number") from None
            if not isinstance(options[option], (int, float)):
                raise InputError(f"data set {text!r}: {key}={value} is no number")
        return cls(name, tuple(sorted(options.items())))

    def __str__(self) -> str:
        """The one spelling that records and tables use."""
        short = {option: alias for alias, option in ALIASES.items()}
        options = ",".join(f"{short.get(key, key)}={_plain(value)}" for key, value in self.options)
        return f"{self.name}@{options}" if options else self.name

    @property
    def protocol_fields(self) -> tuple[str, ...]:
        """Protocol fields that this data set reads: those that its constructor takes, and the holdout."""
        own = _arguments(data_modules().get(self.name))
        return ("holdout", *(name for name in own if name in Protocol.__dataclass_fields__ and name != "holdout"))

    def make(self, seeds: Sequence[int], protocol: Protocol, data_dir: str | Path | None = None) -> BanditDataModule:
        """The data module under ``protocol``, its data not drawn yet."""
        module_class = data_modules().get(self.name)
        own = _arguments(module_class)
        given: dict[str, Any] = {name: getattr(protocol, name) for name in self.protocol_fields}
        if "demand" in own:
            given["demand"] = self.name
        if "data_dir" in own:
            given["data_dir"] = data_dir
        return module_class(seeds=seeds, **given, **dict(self.options))


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _arguments(module_class: type[BanditDataModule]) -> list[str]:
    return list(inspect.signature(module_class).parameters)
