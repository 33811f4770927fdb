"""Tables of a sweep: ours beside the paper's, with the floor, as Markdown, CSV, LaTeX and on the terminal."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from statistics import fmean

from rich.table import Table
from rich.text import Text

from benchmarks.grid import METHODS, Cell
from benchmarks.statistics import Summary, summarise
from benchmarks.store import Record
from cst_lightning.protocols import Protocol

TITLES = {"nll": "NLL (nats)", "hamming": "Hamming loss"}
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
ORACLE = "†"
_COLUMNS = (
    "protocol", "dataset", "backbone", "method", "metric", "status", "n", "n_asked", "mean", "standard_error",
    "paper_mean", "paper_standard_error", "floor", "selection", "oracle",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    cell: Cell
    metric: str
    status: str  # finished, failed or missing
    ours: Summary | None
    floor: Summary | None
    paper: tuple[float, float] | None  # mean, standard error
    oracle: bool
    values: dict[int, float]  # by seed, of those that finished
    best: bool = False  # lowest mean of its data set and backbone, over the seeds that all its methods finished


def make_entries(cells: Sequence[tuple[Cell, Record | None]], metric: str) -> list[Entry]:
    """An entry for every cell, whether it finished or not."""
    entries = [_entry(cell, record, metric) for cell, record in cells]
    groups: dict[tuple[str, str], list[int]] = {}
    for place, entry in enumerate(entries):
        if entry.values:
            groups.setdefault((str(entry.cell.dataset), entry.cell.backbone), []).append(place)
    for places in groups.values():
        # only seeds that every method finished are compared: one that lost its bad seeds must not win by it
        common = set.intersection(*(set(entries[place].values) for place in places))
        means = {place: fmean(entries[place].values[seed] for seed in common) for place in places} if common else {}
        for place in means:
            if means[place] == min(means.values()):
                entries[place] = replace(entries[place], best=True)
    return entries


def _entry(cell: Cell, record: Record | None, metric: str) -> Entry:
    paper = paper_results().get((str(cell.dataset), cell.backbone, cell.method, metric))
    if record is None or record["status"] != "finished":
        return Entry(cell, metric, record["status"] if record else "missing", None, None, paper, False, {})
    asked = len(cell.seeds)
    values = {result["seed"]: result["metrics"].get(metric) for result in record["results"]}
    floor = summarise([result["floor"].get(metric) for result in record["results"]], asked)
    finished = {seed: value for seed, value in values.items() if value is not None}
    ours = summarise(list(values.values()), asked)
    return Entry(cell, metric, "finished", ours, floor, paper, record["oracle"], finished)


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


def _grid(entries: Sequence[Entry]) -> tuple[list[str], list[tuple[str, str]], dict[tuple[str, str, str], Entry]]:
    """Data sets (columns), (backbone, method) pairs (rows), and the entries by both."""
    datasets = list(dict.fromkeys(str(entry.cell.dataset) for entry in entries))
    rows = list(dict.fromkeys((entry.cell.backbone, entry.cell.method) for entry in entries))
    order = list(dict.fromkeys(backbone for backbone, _ in rows))
    rows.sort(key=lambda row: (order.index(row[0]), list(METHODS).index(row[1])))
    by_place = {(str(e.cell.dataset), e.cell.backbone, e.cell.method): e for e in entries}
    return datasets, rows, by_place


def _ours(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.ours is None:
        return "no finite seed" if entry.status == "finished" else entry.status
    text = _pair(entry.ours.mean, entry.ours.standard_error) + (ORACLE if entry.oracle else "")
    return text + (f" (n={entry.ours.n}/{entry.ours.asked})" if entry.ours.n < entry.ours.asked else "")


def _pair(mean: float, error: float) -> str:
    return f"{mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")


def _paper(entry: Entry | None) -> str:
    return _pair(*entry.paper) if entry is not None and entry.paper is not None else ""


def _floor(entries: Sequence[Entry], dataset: str) -> str:
    floors = [entry.floor for entry in entries if str(entry.cell.dataset) == dataset and entry.floor is not None]
    return _pair(floors[0].mean, floors[0].standard_error) if floors else ""


def backbone_title(name: str) -> str:
    """How tables call a backbone."""
    return _BACKBONES.get(name, name)


def protocol_title(protocol: Protocol) -> str:
    """The protocol and what was changed of it: ``written with hidden=64, rounds=1``."""
    changes = ", ".join(f"{name}={value}" for name, value in protocol.changes.items())
    return f"{protocol.name} with {changes}" if changes else protocol.name


def notes(entries: Sequence[Entry]) -> list[str]:
    """What a reader of the table must know."""
    seeds = sorted({len(entry.cell.seeds) for entry in entries})
    texts = [
        f"Mean ± standard error (ddof = 1) over {' or '.join(map(str, seeds))} seeds, all rows and all actions of the "
        f"test set; protocol {protocol_title(entries[0].cell.protocol)}. Bold: lowest of its data set and backbone. "
        "Floor: the true outcome distribution; no model's expected loss is lower. "
        "Paper: Gao, Biggs, Sun, Han, Tables 1 to 5."
    ]
    if any(entry.oracle for entry in entries):
        rule = entries[0].cell.protocol.selection
        texts.append(
            f"{ORACLE} The weight was chosen by an oracle ({rule}): it saw the outcome of every action on "
            "validation rows, which nobody has in practice."
        )
    return texts


def to_markdown(entries: Sequence[Entry]) -> str:
    """One table for one metric, the paper's value under ours."""
    datasets, rows, by_place = _grid(entries)
    lines = [f"### {TITLES.get(entries[0].metric, entries[0].metric)}", ""]
    lines += ["| backbone | method | | " + " | ".join(datasets) + " |", "|---" * (3 + len(datasets)) + "|"]
    for backbone, method in rows:
        found = [by_place.get((dataset, backbone, method)) for dataset in datasets]
        ours = [f"**{_ours(entry)}**" if entry is not None and entry.best else _ours(entry) for entry in found]
        lines.append(f"| {backbone_title(backbone)} | {METHODS[method].title} | ours | " + " | ".join(ours) + " |")
        if any(entry is not None and entry.paper for entry in found):
            lines.append("| | | paper | " + " | ".join(map(_paper, found)) + " |")
    floors = [_floor(entries, dataset) for dataset in datasets]
    if any(floors):
        lines.append("| floor | | | " + " | ".join(floors) + " |")
    return "\n".join([*lines, "", *notes(entries), ""])


def to_csv(entries: Sequence[Entry]) -> str:
    """Every entry as a row, in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for entry in entries:
        ours, paper = entry.ours, entry.paper or ("", "")
        writer.writerow(
            [
                entry.cell.protocol.name, str(entry.cell.dataset), entry.cell.backbone, entry.cell.method, entry.metric,
                entry.status, ours.n if ours else 0, len(entry.cell.seeds), ours.mean if ours else "",
                "" if ours is None or math.isnan(ours.standard_error) else ours.standard_error, *paper,
                entry.floor.mean if entry.floor else "", entry.cell.protocol.selection, entry.oracle,
            ]
        )  # fmt: skip
    return out.getvalue()


def to_latex(entries: Sequence[Entry]) -> str:
    """The Markdown table for a paper, with booktabs."""
    datasets, rows, by_place = _grid(entries)

    def tex(text: str) -> str:
        for plain, escaped in (("_", r"\_"), ("%", r"\%"), ("&", r"\&"), ("#", r"\#"), (" ± ", r"$\pm$")):
            text = text.replace(plain, escaped)
        return text.replace(ORACLE, r"$^\dagger$")

    lines = [r"\begin{tabular}{lll" + "r" * len(datasets) + "}", r"\toprule"]
    lines += ["Backbone & Method & & " + " & ".join(map(tex, datasets)) + r" \\", r"\midrule"]
    for backbone, method in rows:
        found = [by_place.get((dataset, backbone, method)) for dataset in datasets]
        ours = [rf"\textbf{{{tex(_ours(e))}}}" if e is not None and e.best else tex(_ours(e)) for e in found]
        lines.append(
            f"{tex(backbone_title(backbone))} & {tex(METHODS[method].title)} & ours & " + " & ".join(ours) + r" \\"
        )
        if any(entry is not None and entry.paper for entry in found):
            lines.append("& & paper & " + " & ".join(tex(_paper(entry)) for entry in found) + r" \\")
    floors = [_floor(entries, dataset) for dataset in datasets]
    if any(floors):
        lines += [r"\midrule", "Floor & & & " + " & ".join(map(tex, floors)) + r" \\"]
    lines += [r"\bottomrule", r"\end{tabular}"]
    comment = "".join(f"% {text}\n" for text in notes(entries))
    return f"% {TITLES.get(entries[0].metric, entries[0].metric)}\n{comment}" + "\n".join(lines) + "\n"


def to_terminal(entries: Sequence[Entry]) -> Table:
    """The Markdown table for a terminal."""
    datasets, rows, by_place = _grid(entries)
    table = Table(title=TITLES.get(entries[0].metric, entries[0].metric), title_justify="left")
    for column in ("backbone", "method", ""):
        table.add_column(column)
    for dataset in datasets:
        table.add_column(dataset, justify="right")
    previous = None
    for backbone, method in rows:
        if previous not in (None, backbone):
            table.add_section()
        found = [by_place.get((dataset, backbone, method)) for dataset in datasets]
        ours = [Text(_ours(e), style="bold" if e is not None and e.best else "") for e in found]
        name = backbone_title(backbone) if backbone != previous else ""
        table.add_row(name, METHODS[method].title, "ours", *ours)
        if any(entry is not None and entry.paper for entry in found):
            table.add_row("", "", "paper", *(Text(_paper(entry), style="dim") for entry in found))
        previous = backbone
    floors = [_floor(entries, dataset) for dataset in datasets]
    if any(floors):
        table.add_section()
        table.add_row("floor", "", "", *floors)
    return table
