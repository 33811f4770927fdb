"""What to run: presets, jobs and cells, and the identity that says whether two runs are the same."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import cst_lightning.backbones
from cst_lightning.errors import InputError, unknown_name
from cst_lightning.protocols import Protocol, get_protocol
from cst_lightning.registry import Parts, find_parts
from cst_lightning.selection import get_rule
from cst_lightning.self_training import SelfTraining
from cst_lightning.stacked import StackedModule
from datamodules.catalogue import DataSpec, data_modules

METHODS = ("backbone", "pl", "pl_cvat")
RECORD_VERSION = 1
_LAST_SEED = (2**32 - 2) // 81  # the data's seed is 81 r + 1, and numpy's legacy stream takes 32 bits

#: protocol fields that every training reads
_TRAINING = (
    "architecture", "depth", "dropout", "batch_size", "shuffle", "stopping", "patience", "min_improvement", "keep",
)  # fmt: skip
_SELF_TRAINING = (
    "hidden_cst", "learning_rate_cst", "max_epochs_cst", "keep_cst", "rounds", "labels", "teacher_dropout",
    "drop_median", "warm_start", "reduction",
)  # fmt: skip
_CVAT = ("cvat_weights", "cvat_xi", "cvat_eps", "cvat_iterations", "cvat_smoothing")


@cache
def backbones() -> Parts[StackedModule]:
    """All backbones of the package."""
    return find_parts("backbone", cst_lightning.backbones, StackedModule)


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a data set, backbone and method over its seeds."""

    dataset: DataSpec
    backbone: str
    method: str
    seeds: tuple[int, ...]
    protocol: Protocol

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that changes the cell's numbers and nothing else: an explicit choice of fields."""
        backbone = backbones().get(self.backbone)
        fields = {*_TRAINING, *self.dataset.protocol_fields}
        if backbone.protocol_fields is None:
            fields |= set(self.protocol.to_dict()) - {"name"}
        else:
            fields |= set(backbone.protocol_fields)
        if self.method != "backbone":
            fields |= set(_SELF_TRAINING)
        if self.method == "pl_cvat":
            fields |= set(_CVAT)
        if self.method == "pl_cvat" or len(backbone.default_grid(self.protocol)) > 1:
            fields |= {"selection", *get_rule(self.protocol.selection).protocol_fields}
        values = self.protocol.to_dict()
        identity = {
            "record_version": RECORD_VERSION,
            "dataset": str(self.dataset),
            "dataset_version": data_modules().get(self.dataset.name).version,
            "backbone": self.backbone,
            "backbone_version": backbone.version,
            "method": self.method,
            "seeds": list(self.seeds),
            "protocol": {name: values[name] for name in sorted(fields)},
        }
        if self.method != "backbone":
            identity["self_training_version"] = SelfTraining.version
        return identity

    @property
    def key(self) -> str:
        """Digest of the identity; names the cell's record."""
        return digest(self.identity)

    @property
    def label(self) -> str:
        """``D1/dm/pl``."""
        return f"{self.dataset}/{self.backbone}/{self.method}"


def digest(identity: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Job:
    """One (data set, backbone) with all its seeds and methods: what a worker trains in one go."""

    dataset: DataSpec
    backbone: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    protocol: Protocol

    @property
    def cells(self) -> list[Cell]:
        """Its cells, in the order they are finished."""
        return [Cell(self.dataset, self.backbone, method, self.seeds, self.protocol) for method in self.methods]

    @property
    def label(self) -> str:
        """``D1/dm``."""
        return f"{self.dataset}/{self.backbone}"


@dataclass(frozen=True)
class Preset:
    """A named choice: blocks of (data sets, backbones), and defaults that the command line can replace."""

    blocks: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    seeds: tuple[int, ...]
    protocol: str
    overrides: Mapping[str, Any]
    about: str


_ALL = ("dm", "hsic", "udm")
_SHORT = {"max_epochs": 3, "max_epochs_hsic": 3, "max_epochs_udm": 3, "max_epochs_cst": [3], "batch_size": 32}

PRESETS = {
    "smoke": Preset(
        blocks=((("D1@n=128,n_test=600,n_validation=100", "multilabel", "moons"), _ALL),),
        seeds=(0, 1),
        protocol="written",
        overrides=_SHORT,
        about="every kind of data x backbone x method for three epochs: does it run",
    ),
    "quick": Preset(
        blocks=((("D1",), _ALL),),
        seeds=(0, 1, 2, 3, 4),
        protocol="matched",
        overrides={"cvat_weights": [0.1, 1.0]},
        about="D1 under the matched protocol, whose early stopping ends within minutes, with two CVAT weights",
    ),
    "paper": Preset(
        blocks=(
            (("D1", "D2", "D3", "D4", "D5", "scene", "yeast"), _ALL),
            (("D1@o=1", "D1@o=2", "D1@o=3"), ("dm",)),
        ),
        seeds=(0, 1, 2, 3, 4),
        protocol="written",
        overrides={},
        about="every cell of the paper's tables: 72",
    ),
}


def parse_seeds(texts: Sequence[str | int]) -> tuple[int, ...]:
    """Seeds from ``["0..4", "7"]``; a seed given twice is an error."""
    seeds: list[int] = []
    for text in map(str, texts):
        first, dots, last = text.partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()) or (dots and int(last) < int(first)):
            raise InputError(f"seeds: {text!r} is neither a number from 0 nor a range such as 0..4")
        seeds += range(int(first), int(last if dots else first) + 1)
    for seed, times in Counter(seeds).items():
        if times > 1:
            raise InputError(f"seeds: {seed} is given twice")
        if seed > _LAST_SEED:
            raise InputError(f"seeds: {seed}: allowed are 0 to {_LAST_SEED}")
    if not seeds:
        raise InputError("seeds: give at least one, such as 0..4")
    return tuple(seeds)


def make_jobs(
    preset: str,
    *,
    protocol: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    datasets: Sequence[str] | None = None,
    backbone_names: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[str | int] | None = None,
) -> list[Job]:
    """All jobs of a sweep. Everything is checked here, before any work.

    Args:
        datasets, backbone_names, methods, seeds: replace the preset's choice. A data set that the
            preset has keeps the preset's backbones, any other gets them all.
        overrides: protocol fields that replace the protocol's.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    resolved = get_protocol(protocol or chosen.protocol).replace(**{**chosen.overrides, **(overrides or {})})
    get_rule(resolved.selection)
    for method in methods or ():
        if method not in METHODS:
            raise unknown_name("method", method, METHODS)
    ordered = tuple(method for method in METHODS if method in (methods or METHODS))
    seed_list = parse_seeds(seeds) if seeds is not None else chosen.seeds
    jobs = []
    for spec, names in _pairs(chosen, datasets, backbone_names):
        for name in names:
            backbones().get(name)
            jobs.append(Job(spec, name, ordered, seed_list, resolved))
    for job in jobs:
        if jobs.count(job) > 1:
            raise InputError(f"{job.label} is given twice")
    _check_selection(resolved, ordered, jobs)
    return jobs


def _pairs(
    preset: Preset, datasets: Sequence[str] | None, backbone_names: Sequence[str] | None
) -> Iterator[tuple[DataSpec, Sequence[str]]]:
    own = {str(DataSpec.parse(text)): names for texts, names in preset.blocks for text in texts}
    for text in datasets if datasets is not None else own:
        spec = DataSpec.parse(text)
        yield spec, backbone_names if backbone_names is not None else own.get(str(spec), _ALL)


def _check_selection(protocol: Protocol, methods: Sequence[str], jobs: Sequence[Job]) -> None:
    chooses = "pl_cvat" in methods and len(protocol.cvat_weights) > 1
    chooses |= any(len(backbones().get(job.backbone).default_grid(protocol)) > 1 for job in jobs)
    if chooses and not get_rule(protocol.selection).oracle and protocol.holdout == 0:
        raise InputError(
            f"selection={protocol.selection} looks at held-out observed rows, and protocol {protocol.name} holds out "
            "none: add --override.holdout 0.2, or choose an oracle rule"
        )
