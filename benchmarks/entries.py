"""What the numbers of a run are: each beside the paper's, with its floor, its constant and the settings behind it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from benchmarks.grid import Cell, digest
from benchmarks.statistics import Summary, summarise
from benchmarks.store import Record
from cst_lightning.metrics import STANDARD
from cst_lightning.protocols import PROTOCOLS
from cst_lightning.texts import printable

TITLES = {"nll": "NLL (nats)", "hamming": "Hamming loss"}
ORACLE = "†"
UNCHANGED = "unchanged"  # what settings are called of which nothing is named
BACKBONE_TITLES = {
    "dm": "DM",
    "hsic": "HSIC",
    "udm": "UDM",
    "constant": "constant",
    "s_logistic": "S-learner, logistic",
    "t_logistic": "T-learner, logistic",
    "s_boosting": "S-learner, boosted trees",
    "dm_early": "DM, early stopping",
    "dm_scaled": "DM, temperature",
    "dm_slow": "DM at HSIC's rate",
}


@dataclass(frozen=True)
class Place:
    """Where a number stands: its data set, backbone and method, and the settings behind it."""

    dataset: str
    backbone: str
    method: str
    seeds: tuple[int, ...]
    protocol: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the protocol of that name

    @classmethod
    def of_cell(cls, cell: Cell) -> Place:
        """The place of a cell, run or not."""
        protocol = cell.protocol
        return cls(str(cell.dataset), cell.backbone, cell.method, cell.seeds, protocol.name, protocol.changes)

    @classmethod
    def of_record(cls, record: Record) -> Place:
        """The place of a record, whatever version wrote it."""
        identity, protocol = record["identity"], record["protocol"]
        # by the values it ran with: what was the protocol of that name then need not be it now
        base = PROTOCOLS[protocol["name"]].to_dict() if protocol["name"] in PROTOCOLS else {}
        changes = {name: value for name, value in protocol.items() if name not in base or base[name] != value}
        # a record may be of unknown origin; its names are shown in every format
        return cls(
            printable(identity["dataset"]),
            printable(identity["backbone"]),
            printable(identity["method"]),
            tuple(identity["seeds"]),
            printable(str(protocol["name"])),
            {printable(name): printable(v) if isinstance(v, str) else v for name, v in changes.items()},
        )

    @property
    def settings(self) -> str:
        """What was changed of the protocol: ``hidden=64, rounds=1``."""
        return ", ".join(f"{name}={value}" for name, value in self.changes.items())


@dataclass(frozen=True)
class Entry:
    """One number of a table."""

    place: Place
    metric: str
    status: str  # finished, failed or missing
    ours: Summary | None
    floor: Summary | None
    constant: Summary | None
    paper: tuple[float, float] | None  # mean, standard error
    oracle: bool
    values: dict[int, float]  # by seed, of those that finished
    key: str = ""  # of its record
    selection: str = ""  # the rule that chose a weight, where one was chosen
    best: bool = False  # lowest mean of its data set and backbone, over the seeds that all its methods finished

    @property
    def group(self) -> tuple[str, str, str]:
        """What it is compared with: the other methods of its settings, data set and backbone."""
        return self.place.settings, self.place.dataset, self.place.backbone

    @property
    def z(self) -> float | None:
        """Distance to the paper's number in combined standard errors; None without either, or for a single seed."""
        if self.ours is None or self.paper is None or math.isnan(self.ours.standard_error):
            return None
        return (self.ours.mean - self.paper[0]) / math.hypot(self.ours.standard_error, self.paper[1])

    def share(self, value: float) -> float | None:
        """How far ``value`` lies on the way from the constant (0) to the floor (1); None where one is unknown."""
        if self.floor is None or self.constant is None or self.constant.mean == self.floor.mean:
            return None
        return (self.constant.mean - value) / (self.constant.mean - self.floor.mean)


def shown_metrics(found: Sequence[tuple[Place, Record | None]]) -> list[str]:
    """The metrics that tables show: the paper's, then users' own that a record has."""
    recorded = {name for _, record in found for name in (record or {}).get("metrics", ())}
    return [*TITLES, *sorted(recorded - STANDARD)]


def make_entries(found: Sequence[tuple[Place, Record | None]], metric: str) -> list[Entry]:
    """An entry for every place, whether it finished or not.

    Of a user's own metric none is best: whether lower is better is not known.
    """
    entries = [_entry(place, record, metric) for place, record in found]
    groups: dict[tuple[str, str, str], list[int]] = {}
    if metric not in TITLES:
        return entries
    for number, entry in enumerate(entries):
        if entry.values:
            groups.setdefault(entry.group, []).append(number)
    for numbers in groups.values():
        if len(numbers) < 2:
            continue
        # only seeds that every method finished are compared: one that lost its bad seeds must not win by it
        common = set.intersection(*(set(entries[number].values) for number in numbers))
        means = {n: fmean(entries[n].values[seed] for seed in common) for n in numbers} if common else {}
        for number in means:
            if means[number] == min(means.values()):
                entries[number] = replace(entries[number], best=True)
    return entries


def _entry(place: Place, record: Record | None, metric: str) -> Entry:
    paper = paper_results().get((place.dataset, place.backbone, place.method, metric))
    if record is None or record["status"] != "finished":
        status = record["status"] if record else "missing"
        return Entry(place, metric, status, None, None, None, paper, False, {})
    asked, results = len(place.seeds), record["results"]
    values = {result["seed"]: result["metrics"].get(metric) for result in results}
    # records of the first version hold no constant
    floor, constant = (summarise([r.get(of, {}).get(metric) for r in results], asked) for of in ("floor", "constant"))
    finished = {seed: value for seed, value in values.items() if value is not None}
    ours = summarise(list(values.values()), asked)
    key, rule = digest(record["identity"]), printable(record["selection"] or "")
    return Entry(place, metric, "finished", ours, floor, constant, paper, record["oracle"], finished, key, rule)


@cache
def paper_results() -> dict[tuple[str, str, str, str], tuple[float, float]]:
    """The 144 numbers of the paper's tables: (data set, backbone, method, metric) to mean and standard error."""
    text = resources.files("benchmarks").joinpath("paper_results.csv").read_text(encoding="utf-8")
    return {
        (row["dataset"], row["backbone"].lower(), row["method"], row["metric"]): (
            float(row["mean"]),
            float(row["stderr"]),
        )
        for row in csv.DictReader(io.StringIO(text))
    }


def paper_oracle(entry: Entry) -> bool:
    """Whether the paper's number rests on an oracle: it chose every weight of CVAT by one."""
    return entry.paper is not None and entry.place.method == "pl_cvat"


def main_datasets(names: Iterable[str]) -> list[str]:
    """Data sets without the variants (``D1@o=2``) of those that are there themselves."""
    every = list(dict.fromkeys(names))
    return [name for name in every if "@" not in name or name.partition("@")[0] not in every]


def settings_titles(places: Iterable[Place]) -> tuple[dict[str, str], str]:
    """What to call each ``Place.settings``, and what all have in common; of several, no title names that."""
    changes = {p.settings: [f"{name}={value}" for name, value in p.changes.items()] for p in places}
    every = list(changes.values())
    shared = [change for change in every[0] if all(change in other for other in every)] if len(every) > 1 else []
    titles = {
        settings: ", ".join(change for change in mine if change not in shared) or UNCHANGED
        for settings, mine in changes.items()
    }
    return titles, ", ".join(shared)


def backbone_title(name: str) -> str:
    """How tables call a backbone."""
    return BACKBONE_TITLES.get(name, name)


def title(metric: str) -> str:
    """How tables call a metric."""
    return TITLES.get(metric, printable(metric))
