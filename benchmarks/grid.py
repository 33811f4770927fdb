"""What to run: presets, jobs and cells, and the identity that says whether two runs are the same."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from cst_lightning.catalogue import METHODS as METHODS
from cst_lightning.catalogue import backbones as backbones
from cst_lightning.catalogue import get_method, method_order
from cst_lightning.errors import InputError, unknown_name
from cst_lightning.estimators import EstimatorBackbone
from cst_lightning.protocols import Protocol, get_protocol
from cst_lightning.selection import get_rule
from cst_lightning.self_training import SelfTraining
from cst_lightning.stacked import StackedModule
from datamodules.catalogue import DataSpec, data_modules

RECORD_VERSION = 2


_LAST_SEED = (2**32 - 2) // 81  # the data's seed is 81 r + 1, and numpy's legacy stream takes 32 bits
_DIGITS = 20  # of a seed, with zeros before it
MOST_SEEDS = 1_000_000  # of a sweep

#: protocol fields that every training reads
_TRAINING = (
    "architecture", "depth", "dropout", "batch_size", "shuffle", "stopping", "patience", "min_improvement", "keep",
)  # fmt: skip
_IMPUTING = ("rounds", "labels")
_SELF_TRAINING = (
    *_IMPUTING, "hidden_cst", "learning_rate_cst", "max_epochs_cst", "keep_cst", "teacher_dropout", "drop_median",
    "warm_start", "reduction",
)  # fmt: skip
_LOSSES = {"entries", "batch_loss", "training_step"}  # one of them says what a backbone learns
_CVAT = ("cvat_weights", "cvat_xi", "cvat_eps", "cvat_iterations", "cvat_smoothing")


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
        method = get_method(self.method)
        fields = {*self.dataset.protocol_fields, *(_TRAINING if backbone.has_gradient else ())}
        student = method.student or backbone.student_class or SelfTraining
        parts = [backbone] + ([student] if self.method != "backbone" else [])
        own = [part.protocol_fields if _says_what_it_reads(part) else None for part in parts]
        if None in own:
            fields |= set(self.protocol.to_dict()) - {"name"}
        fields |= {name for of_part in own for name in of_part or ()}
        if self.method != "backbone":
            fields |= set(_SELF_TRAINING if backbone.has_gradient else _IMPUTING)
        if method.cvat:
            fields |= set(_CVAT)
        if method.cvat or len(backbone.default_grid(self.protocol)) > 1:
            fields |= {"selection", *get_rule(self.protocol.selection).protocol_fields}
        values = self.protocol.to_dict() | ({"labels": "soft"} if method.soft else {})
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
            identity["self_training_version"] = student.version
        return identity

    @cached_property
    def key(self) -> str:
        """Digest of the identity; names the cell's record."""
        return digest(self.identity)

    @property
    def label(self) -> str:
        """``D1/dm/pl``."""
        return f"{self.dataset}/{self.backbone}/{self.method}"


def _says_what_it_reads(part: type[StackedModule]) -> bool:
    """A part of someone's own that inherits the list of another part may read more."""
    return part.__module__.startswith("cst_lightning.") or "protocol_fields" in vars(part)


def student_groups(methods: Sequence[str]) -> list[list[str]]:
    """Methods whose students train in one stack: of one class, with one kind of labels."""
    groups: dict[Any, list[str]] = {(None, False): [], (None, True): []}
    for method in methods:
        kind = get_method(method)
        if method != "backbone":
            groups.setdefault((kind.student, kind.soft), []).append(method)
    return [group for group in groups.values() if group]


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
class Block:
    """Every one of some data sets with every one of some backbones and methods."""

    datasets: tuple[str, ...]
    backbones: tuple[str, ...]
    methods: tuple[str, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """A named choice of blocks, and defaults that the command line can replace."""

    blocks: tuple[Block, ...]
    seeds: tuple[int, ...]
    protocol: str
    overrides: Mapping[str, Any]
    about: str


_ALL = ("dm", "hsic", "udm")
_PAPER = ("backbone", "pl", "pl_cvat")
_SKLEARN = ("s_logistic", "t_logistic", "s_boosting")
_REAL = ("D1", "D2", "D3", "D4", "D5", "scene", "yeast")
_FIXED = {"stopping": "fixed", "keep": "last", "keep_cst": "last", "max_epochs": 1000, "max_epochs_cst": [1000]}
#: differences of the released code's self-training from the text
_OF_CST: tuple[dict[str, Any], ...] = (
    {},
    {"hidden_cst": 128},
    {"teacher_dropout": False, "drop_median": False},
    {"cvat_smoothing": 0.0},
    {"reduction": "sum"},
    {"selection": "oracle_nll"},
    {"architecture": "written"},
    {"stopping": "converged"},
)
_SEPARATE = "benchmarks.separate_passes.SeparatePasses"
_SHORT = {"max_epochs": 3, "max_epochs_hsic": 3, "max_epochs_udm": 3, "max_epochs_cst": [3], "batch_size": 32}

PRESETS = {
    "smoke": Preset(
        blocks=(
            Block(("D1@n=128,n_test=600,n_validation=100", "multilabel", "moons"), _ALL, _PAPER),
            Block(
                ("multilabel",), (*_SKLEARN, "constant", "dm_early", "dm_scaled", "dm_slow"), ("backbone", "pl_soft")
            ),
        ),
        seeds=(0, 1),
        protocol="written",
        overrides=_SHORT,
        about="every kind of data x backbone x method for three epochs: does it run",
    ),
    "quick": Preset(
        blocks=(Block(("D1",), _ALL, _PAPER),),
        seeds=(0, 1, 2, 3, 4),
        protocol="matched",
        overrides={"cvat_weights": [0.1, 1.0]},
        about="D1 under the matched protocol, whose early stopping ends within minutes, with two CVAT weights",
    ),
    "paper": Preset(
        blocks=(
            Block(_REAL, _ALL, _PAPER),
            Block(("D1@o=1", "D1@o=2", "D1@o=3"), ("dm",), _PAPER),
        ),
        seeds=(0, 1, 2, 3, 4),
        protocol="written",
        overrides={},
        about="every cell of the paper's tables: 72",
    ),
    "baselines": Preset(
        blocks=(
            Block(_REAL, ("constant", "dm_early", "dm_scaled", "dm_slow"), ("backbone",)),
            Block(_REAL, _SKLEARN, ("backbone", "pl", "pl_soft")),
        ),
        seeds=(0, 1, 2, 3, 4),
        protocol="released",
        overrides={},
        about="what any method must be seen against: constants, scikit-learn's learners with CST on top, DM's variants",
    ),
    "overlap": Preset(
        blocks=(
            Block(tuple(f"D1@o={o}" for o in (1, 2, 3, 5, 10, 20)), ("dm", "udm", "s_logistic"), _PAPER),
            Block(("D1", "D1@unlogged=1", "D1@unlogged=2"), ("dm", "udm", "s_logistic"), _PAPER),
        ),
        seeds=tuple(range(10)),
        protocol="matched",
        overrides={},
        about="D1 under logging policies from even to near deterministic, and with prices that were never set",
    ),
    "deviations": Preset(
        blocks=(
            *(Block(("D1",), ("dm",), _PAPER, changes) for changes in _OF_CST),
            Block(("D1",), ("dm",), (_SEPARATE,)),
            Block(("scene",), ("hsic",), ("backbone", "pl", _SEPARATE)),
            Block(("D3", "D4"), ("dm",), _PAPER),
            Block(("D3", "D4"), ("dm",), _PAPER, {"price_term": "text"}),
            Block(("scene",), ("dm",), _PAPER),
            Block(("scene",), ("dm",), _PAPER, {"logging_fraction": 0.05}),
            Block(("D1",), ("hsic", "dm_slow"), ("backbone",)),
            Block(("D1",), ("hsic",), ("backbone",), {"hsic_kernel": "rbf", "hsic_bandwidth": 0.5}),
            Block(("D1",), ("udm",), ("backbone",)),
            Block(("D1",), ("udm",), ("backbone",), {"hidden_udm": 128}),
            Block(("D1",), ("udm",), ("backbone",), {"propensity_model": "multinomial"}),
        ),
        seeds=(0, 1, 2, 3, 4),
        protocol="released",
        overrides={},
        about="what each difference between the paper's code and its text does, one at a time",
    ),
    "ablation": Preset(
        blocks=tuple(
            Block(_REAL, ("dm",), (*_PAPER, "pl_soft"), {"hidden": width, "hidden_cst": width, **stopping})
            for width in (8, 32, 128)
            for stopping in ({}, _FIXED)
        ),
        seeds=(0, 1, 2, 3, 4),
        protocol="matched",
        overrides={"cvat_weights": [0.1, 1.0]},
        about="width 8, 32, 128 x early stopping or 1000 epochs x backbone, PL, soft PL, PL + CVAT",
    ),
}


def parse_seeds(texts: Sequence[str | int]) -> tuple[int, ...]:
    """Seeds from ``["0..4", "7"]``; a seed given twice is an error."""
    seeds: list[int] = []
    for text in map(str, texts):
        first, dots, last = text.partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise InputError(f"seeds: {text[:50]!r} is neither a number from 0 nor a range such as 0..4")
        # before they are numbers: of thousands of digits Python makes none
        if any(len(number) > _DIGITS or int(number) > _LAST_SEED for number in (first, last or "0")):
            raise InputError(f"seeds: {text[:50]}: allowed are 0 to {_LAST_SEED}")
        span = range(int(first), int(last if dots else first) + 1)
        if not span:
            raise InputError(f"seeds: {text!r} is neither a number from 0 nor a range such as 0..4")
        if len(seeds) + len(span) > MOST_SEEDS:
            raise InputError(f"seeds: {text}: allowed are {MOST_SEEDS:,} at most")
        seeds += span
    for seed, times in Counter(seeds).items():
        if times > 1:
            raise InputError(f"seeds: {seed} is given twice")
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
            preset has keeps the preset's backbones, a backbone its methods; others get DM, HSIC and UDM, and
            the paper's methods. A backbone without gradients gets no method with CVAT.
        overrides: protocol fields that replace the protocol's.
    """
    if preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    chosen = PRESETS[preset]
    for method in methods or ():
        get_method(method)
    seed_list = parse_seeds(seeds) if seeds is not None else chosen.seeds
    base = get_protocol(protocol or chosen.protocol)
    jobs = []
    for text, name, block in _entries(chosen, datasets, backbone_names):
        resolved = base.replace(**{**chosen.overrides, **block.overrides, **(overrides or {})})
        get_rule(resolved.selection)
        asked = dict.fromkeys(sorted(methods or block.methods, key=method_order))
        fitting = tuple(method for method in asked if _can(name, method))
        if not fitting and backbone_names is None:
            continue  # the preset's own choice, and not the user's
        if not fitting:
            allowed = ", ".join(m for m in METHODS if _can(name, m))
            raise InputError(f"methods: backbone {name} has no gradient for CVAT or a student; allowed are {allowed}")
        jobs.append(Job(DataSpec.parse(text), name, fitting, seed_list, resolved))
    for name in dict.fromkeys(job.backbone for job in jobs):
        _check_loss(name)
    for job, times in Counter(jobs).items():
        if times > 1:
            raise InputError(f"{job.label} is given twice")
    _check_selection(jobs)
    return jobs


def _check_loss(name: str) -> None:
    """A backbone of someone's own that says nothing to train must not start."""
    part = backbones().get(name)
    says = any(vars(one).keys() & _LOSSES for one in part.__mro__[: part.__mro__.index(StackedModule)])
    if issubclass(part, EstimatorBackbone) and part.make_estimator is EstimatorBackbone.make_estimator:
        raise InputError(f"backbone {name} has no estimator: it must define make_estimator")
    if not says:
        raise InputError(f"backbone {name} has no loss: it must define entries or batch_loss")


def _can(backbone: str, method: str) -> bool:
    kind = get_method(method)
    return backbones().get(backbone).has_gradient or not (kind.cvat or kind.student)


def _entries(
    preset: Preset, datasets: Sequence[str] | None, backbone_names: Sequence[str] | None
) -> Iterator[tuple[str, str, Block]]:
    """Data sets and backbones, each with the blocks of the preset that hold it."""
    planned: dict[str, dict[str, list[Block]]] = {}
    for block in preset.blocks:
        for text, name in product(block.datasets, block.backbones):
            planned.setdefault(str(DataSpec.parse(text)), {}).setdefault(name, []).append(block)
    for text in planned if datasets is None else [str(DataSpec.parse(text)) for text in datasets]:
        own = planned.get(text, {})
        for name in backbone_names if backbone_names is not None else own or _ALL:
            for block in own.get(name, [Block((text,), (name,), _PAPER)]):
                yield text, name, block


def _check_selection(jobs: Sequence[Job]) -> None:
    for job in jobs:
        protocol = job.protocol
        chooses = any(get_method(method).cvat for method in job.methods) and len(protocol.cvat_weights) > 1
        chooses |= len(backbones().get(job.backbone).default_grid(protocol)) > 1
        if chooses and not get_rule(protocol.selection).oracle and protocol.holdout == 0:
            raise InputError(
                f"selection={protocol.selection} looks at held-out observed rows, and protocol {protocol.name} holds "
                "out none: add --override.holdout 0.2, or choose an oracle rule"
            )
