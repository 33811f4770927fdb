"""Tables of a run: ours beside the paper's, with floor and constant, as Markdown, CSV, LaTeX and on the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from benchmarks.grid import Cell, digest
from benchmarks.statistics import Summary, summarise
from benchmarks.store import Record
from benchmarks.texts import csv_text, markdown_text, printable
from cst_lightning.catalogue import method_order, method_title
from cst_lightning.protocols import PROTOCOLS

TITLES = {"nll": "NLL (nats)", "hamming": "Hamming loss"}
ORACLE = "†"
_BACKBONES = {
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
_COLUMNS = (
    "protocol", "settings", "dataset", "backbone", "method", "metric", "status", "n", "n_asked", "mean",
    "standard_error", "paper_mean", "paper_standard_error", "floor", "constant", "share_of_the_way", "selection",
    "oracle",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a number stands: its data set, backbone and method, and the settings behind it."""

    dataset: str
    backbone: str
    method: str
    seeds: tuple[int, ...]
    protocol: str
    selection: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the protocol of that name

    @classmethod
    def of_cell(cls, cell: Cell) -> Place:
        """The place of a cell, run or not."""
        protocol = cell.protocol
        selection, changes = protocol.selection, protocol.changes
        return cls(str(cell.dataset), cell.backbone, cell.method, cell.seeds, protocol.name, selection, changes)

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
            identity["method"],
            tuple(identity["seeds"]),
            printable(str(protocol["name"])),
            printable(str(protocol["selection"])),
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


def make_entries(found: Sequence[tuple[Place, Record | None]], metric: str) -> list[Entry]:
    """An entry for every place, whether it finished or not."""
    entries = [_entry(place, record, metric) for place, record in found]
    groups: dict[tuple[str, str, str], list[int]] = {}
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
    key = digest(record["identity"])
    return Entry(place, metric, "finished", ours, floor, constant, paper, record["oracle"], finished, key)


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


# --- what every rendering shows ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """A line of a table: its names, and a text for each data set and for the share of the way."""

    names: tuple[str, ...]
    texts: list[str]
    kind: Literal["ours", "paper", "reference"]
    bold: list[bool] = field(default_factory=list)


def _lines(entries: Sequence[Entry], shared: Sequence[str]) -> tuple[list[str], list[_Line]]:
    """Header (names, then data sets, then the share over ``shared`` if there are any) and lines."""
    datasets = list(dict.fromkeys(entry.place.dataset for entry in entries))
    rows = list(dict.fromkeys((e.place.settings, e.place.backbone, e.place.method) for e in entries))
    order = list(dict.fromkeys(row[:2] for row in rows))
    rows.sort(key=lambda row: (order.index(row[:2]), method_order(row[2])))
    at = {(e.place.settings, e.place.backbone, e.place.method, e.place.dataset): e for e in entries}
    several = len({settings for settings, _, _ in rows}) > 1
    n_names = 3 + several
    lines = []
    for row in rows:
        found = [at.get((*row, dataset)) for dataset in datasets]
        names = ((row[0],) if several else ()) + (backbone_title(row[1]), method_title(row[2]))
        bold = [entry is not None and entry.best for entry in found] + [False]
        ours = [(entry, entry.ours.mean) for entry in found if entry is not None and entry.ours is not None]
        lines.append(_Line((*names, "ours"), [*map(_ours, found), _share(ours, shared)], "ours", bold))
        theirs = [(entry, entry.paper[0]) for entry in found if entry is not None and entry.paper is not None]
        if theirs:
            texts = [*map(_paper, found), _share(theirs, shared)]
            lines.append(_Line((*[""] * (n_names - 1), "paper"), texts, "paper"))
    for name in ("constant", "floor"):
        found = [next((e for e in entries if e.place.dataset == d and getattr(e, name)), None) for d in datasets]
        values = [(entry, getattr(entry, name)) for entry in found if entry is not None]
        if values:
            texts = [_summary(getattr(entry, name)) if entry is not None else "" for entry in found]
            share = _share([(entry, value.mean) for entry, value in values], shared)
            lines.append(_Line((name, *[""] * (n_names - 1)), [*texts, share], "reference"))
    header = (["settings"] if several else []) + ["backbone", "method", "", *datasets, "share of the way"]
    if not shared:
        header.pop()
        lines = [replace(line, texts=line.texts[:-1], bold=line.bold[:-1]) for line in lines]
    return header, lines


def _ours(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.ours is None:
        return "no finite seed" if entry.status == "finished" else entry.status
    text = _summary(entry.ours) + (ORACLE if entry.oracle else "")
    return text + (f" (n={entry.ours.n}/{entry.ours.asked})" if entry.ours.n < entry.ours.asked else "")


def _summary(summary: Summary) -> str:
    return spread(summary.mean, summary.standard_error)


def spread(mean: float, error: float) -> str:
    """``0.4925 ± 0.0082``; the mean alone where there is no standard error."""
    return f"{mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")


def _paper(entry: Entry | None) -> str:
    if entry is None or entry.paper is None:
        return ""
    return spread(*entry.paper) + (ORACLE if paper_oracle(entry) else "")


def paper_oracle(entry: Entry) -> bool:
    """Whether the paper's number rests on an oracle: it chose every weight of CVAT by one."""
    return entry.paper is not None and entry.place.method == "pl_cvat"


def _shared(entries: Sequence[Entry]) -> list[str]:
    """The data sets that a share of the way is averaged over: those whose floor is known, their variants left out."""
    return main_datasets(entry.place.dataset for entry in entries if entry.share(0) is not None)


def _share(values: Sequence[tuple[Entry, float]], shared: Sequence[str]) -> str:
    """Mean over all of ``shared``; nothing where one is missing, since averages of others do not compare."""
    shares = {entry.place.dataset: entry.share(value) for entry, value in values}
    found = [share for name in shared if (share := shares.get(name)) is not None]
    return f"{100 * fmean(found):.0f} %" if found and len(found) == len(shared) else ""


def main_datasets(names: Iterable[str]) -> list[str]:
    """Data sets without the variants (``D1@o=2``) of those that are there themselves."""
    every = list(dict.fromkeys(names))
    return [name for name in every if "@" not in name or name.partition("@")[0] not in every]


def backbone_title(name: str) -> str:
    """How tables call a backbone."""
    return _BACKBONES.get(name, name)


def notes(entries: Sequence[Entry], *, lowest: str = "Bold") -> list[str]:
    """What a reader of the table must know; ``lowest`` is how it marks the lowest numbers."""
    seeds = sorted({len(entry.place.seeds) for entry in entries})
    place = entries[0].place
    settings = {entry.place.settings for entry in entries}
    shared = _shared(entries)
    changed = f" with {place.settings}" if len(settings) == 1 and place.settings else ""
    over = f"{' or '.join(map(str, seeds))} {'seed' if seeds == [1] else 'seeds'}"
    texts = [
        f"Mean ± standard error (ddof = 1) over {over}, all rows and all actions of the "
        f"test set; protocol {place.protocol}{changed}. {lowest}: lowest of its data set and backbone. "
        "Constant: the observed share of each action's outcomes. "
        "Floor: the true outcome distribution; no model's expected loss is lower. "
        + (f"Share of the way: from the constant to the floor, mean over {', '.join(shared)}. " if shared else "")
        + "Paper: Gao, Biggs, Sun, Han, Tables 1 to 5."
    ]
    rules = sorted({entry.place.selection for entry in entries if entry.oracle})
    if rules:
        texts.append(
            f"{ORACLE} The weight was chosen by an oracle ({', '.join(rules)}): it saw the outcome of every action on "
            "validation rows, which nobody has in practice."
        )
    if any(map(paper_oracle, entries)):
        texts.append(
            f"{ORACLE} in the paper's rows: its weight of CVAT was chosen by an oracle, the Hamming loss on validation "
            "rows with every outcome."
        )
    return texts


# --- renderings ---------------------------------------------------------------------------------------


def to_markdown(entries: Sequence[Entry]) -> str:
    """One table for one metric, the paper's value under ours."""
    header, lines = _lines(entries, _shared(entries))
    header = list(map(markdown_text, header))
    out = [f"### {title(entries[0].metric)}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for line in lines:
        bold = line.bold or [False] * len(line.texts)
        texts = [f"**{text}**" if strong else text for text, strong in zip(line.texts, bold, strict=True)]
        out.append(f"| {' | '.join([*map(markdown_text, line.names), *texts])} |")
    return "\n\n".join(["\n".join(out), *notes(entries)]) + "\n"


def title(metric: str) -> str:
    """How tables call a metric."""
    return TITLES.get(metric, metric)


def to_csv(entries: Sequence[Entry]) -> str:
    """Every entry as a row, in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for entry in entries:
        ours, paper, place = entry.ours, entry.paper or ("", ""), entry.place
        share = entry.share(ours.mean) if ours else None
        names = (place.protocol, place.settings, place.dataset, place.backbone, place.method)
        writer.writerow(
            [
                *map(csv_text, names), entry.metric, entry.status,
                ours.n if ours else 0, len(place.seeds), ours.mean if ours else "",
                "" if ours is None or math.isnan(ours.standard_error) else ours.standard_error, *paper,
                entry.floor.mean if entry.floor else "", entry.constant.mean if entry.constant else "",
                "" if share is None else share, csv_text(place.selection), entry.oracle,
            ]
        )  # fmt: skip
    return out.getvalue()


def to_latex(entries: Sequence[Entry]) -> str:
    """The Markdown table for a paper, variants of data sets in a table of their own.

    It needs booktabs, and graphicx to fit the width of the text.
    """
    main = main_datasets(entry.place.dataset for entry in entries)
    variants = [entry for entry in entries if entry.place.dataset not in main]
    tables = [_tabular([entry for entry in entries if entry.place.dataset in main], _shared(entries))]
    tables += [_tabular(variants, ())] if variants else []
    comment = "".join(f"% {text}\n" for text in notes(entries))
    return f"% {title(entries[0].metric)}\n{comment}" + "\n\\medskip\n".join(tables)


def _tabular(entries: Sequence[Entry], shared: Sequence[str]) -> str:
    header, lines = _lines(entries, shared)
    n_names = len(lines[0].names)
    out = [r"\noindent\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
    out += [r"\begin{tabular}{" + "l" * n_names + "r" * (len(header) - n_names) + "}", r"\toprule"]
    out += [" & ".join(map(_tex, header)) + r" \\", r"\midrule"]
    previous: tuple[str, ...] = ()
    for line in lines:
        group = line.names[: n_names - 2] if line.kind == "ours" else (line.kind,)
        names = line.names
        if line.kind == "ours" and group == previous:  # the backbone stands once
            names = (*[""] * (n_names - 2), *line.names[n_names - 2 :])
        elif line.kind != "paper" and previous and group != previous and previous != ("reference",):
            out.append(r"\midrule")
        previous = group if line.kind != "paper" else previous
        bold = line.bold or [False] * len(line.texts)
        texts = [
            rf"\textbf{{{_tex(text)}}}" if strong else _tex(text) for text, strong in zip(line.texts, bold, strict=True)
        ]
        out.append(" & ".join([*map(_tex, names), *texts]) + r" \\")
    out += [r"\bottomrule", r"\end{tabular}}"]
    return "\n".join(out) + "\n"


_TEX = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", " ± ": r"$\pm$", ORACLE: r"$^\dagger$", "−": "$-$",
}  # fmt: skip


def _tex(text: str) -> str:
    text = re.sub(r"^-(?=\d)", "−", text)  # a hyphen is no minus sign
    return re.sub("|".join(map(re.escape, _TEX)), lambda found: _TEX[found[0]], text)


def to_terminal(entries: Sequence[Entry]) -> Table:
    """The Markdown table for a terminal."""
    header, lines = _lines(entries, _shared(entries))
    n_names = len(lines[0].names)
    table = Table(title=title(entries[0].metric), title_justify="left")
    for number, column in enumerate(header):
        table.add_column(Text(column), justify="left" if number < n_names else "right")
    previous: tuple[str, ...] = ()
    for line in lines:
        group = line.names[: n_names - 2] if line.kind == "ours" else (line.kind,)
        if line.kind != "paper" and previous and group != previous:
            table.add_section()
        names = line.names
        if line.kind == "ours" and group == previous:  # the backbone stands once
            names = (*[""] * (n_names - 2), *line.names[n_names - 2 :])
        bold = line.bold or [False] * len(line.texts)
        dim = "dim" if line.kind == "paper" else ""
        texts = [Text(text, style="bold" if strong else dim) for text, strong in zip(line.texts, bold, strict=True)]
        table.add_row(*map(Text, names), *texts)
        previous = group if line.kind != "paper" else previous
    return table
