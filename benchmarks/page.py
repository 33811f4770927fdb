"""One HTML page of one or several runs that needs nothing else: no network, no other file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from benchmarks.entries import (
    ORACLE,
    UNCHANGED,
    Entry,
    Place,
    backbone_title,
    make_entries,
    paper_oracle,
    settings_titles,
    shown_metrics,
    title,
)
from benchmarks.grid import digest
from benchmarks.store import Record
from benchmarks.tables import notes
from benchmarks.texts import said
from cst_lightning.catalogue import method_title
from cst_lightning.texts import counted

_PLAIN = " ,;:=()[]{}!?$*+@-._~"  # what stands for itself in a data address

_LONGEST_WORD = 16  # letters; what is longer is a name, which paper's width may break anywhere
_ONE_PANEL = 400  # points: a figure so wide can still be read when it is scaled to the width of a phone


@dataclass(frozen=True)
class Section:
    """A part of a report: texts, then a figure of the folder ``figures``, then a table."""

    title: str
    level: int = 2
    texts: Sequence[str] = ()
    figure: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    of: str = ""  # the title of the settings that it belongs to, where there are several

    @property
    def name(self) -> str:
        """Its title, and the settings': no other part of a report has the same."""
        return f"{self.title}, {self.of[:1].lower()}{self.of[1:]}" if self.of else self.title


@dataclass(frozen=True)
class Run:
    """A run's folder, what stands in it, and the parts of its report."""

    folder: Path
    found: Sequence[tuple[Place, Record | None]]
    sections: Sequence[Section]


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call the runs: their folders, whole where two have one name."""
    folders = [run.folder for run in runs]
    alike = len({folder.name for folder in folders}) < len(folders)
    return [str(folder) if alike else folder.name for folder in folders]


def render(runs: Sequence[Run], compared: Sequence[Section] = ()) -> str:
    """The page of ``runs``, and sections that compare them. Every name in it is escaped, every figure is inside it."""
    environment = Environment(loader=PackageLoader("benchmarks", "."), autoescape=True, trim_blocks=True)
    names = run_names(runs)
    protocols = {place.protocol for run in runs for place, _ in run.found}
    titles, _ = settings_titles(place for run in runs for place, _ in run.found)
    entries = [[e for metric in shown_metrics(run.found) for e in make_entries(run.found, metric)] for run in runs]
    environment.filters["code"] = _code
    environment.tests["name"] = lambda text: max(map(len, text.split()), default=0) > _LONGEST_WORD
    return environment.get_template("page.html.j2").render(
        title=" and ".join(names),
        names=names,
        runs=runs,
        compared=compared,
        headlines=[_headline(run, of_run) for run, of_run in zip(runs, entries, strict=True)],
        notes=[notes(of_run, a_row_each=True) for of_run in entries],
        contents=[_contents(run, f"r{number}") for number, run in enumerate(runs, 1)],
        numbers=[
            _number(name, entry, titles, named=len(protocols) > 1)
            for name, of_run in zip(names, entries, strict=True)
            for entry in of_run
        ],
        provenance=[row for name, run in zip(names, runs, strict=True) for row in _provenance(name, run)],
        picture=_picture,
        oracle=ORACLE,
    )


def _contents(run: Run, prefix: str) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """The parts of a run's report, each with its own parts: where they are on the page, and their titles."""
    contents: list[tuple[str, str, list[tuple[str, str]]]] = []
    for number, section in enumerate(run.sections):
        at = f"{prefix}s{number}"
        if section.level == 2:
            contents.append((at, section.title, []))
        elif section.level == 3 and contents:
            contents[-1][2].append((at, section.title))
    return contents


def _code(text: str) -> Markup:
    """Escaped, with what stands in backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _picture(run: Run, name: str) -> tuple[str, bool]:
    """A figure as a data address, as text, which is a fifth shorter than in base 64; and whether it has many panels."""
    text = (run.folder / "figures" / name).read_text(encoding="utf-8")
    width = re.search(r'<svg[^>]*? width="([0-9.]+)pt"', text)
    address = "data:image/svg+xml," + quote(" ".join(text.split()), safe=_PLAIN)
    return address, width is not None and float(width[1]) > _ONE_PANEL


def _headline(run: Run, entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """The first things to know: what, how much of it, and who won."""
    status = Counter(record["status"] if record else "missing" for _, record in run.found)
    places = [place for place, _ in run.found]
    cpu: dict[tuple[str, str, str], float] = {}
    for place, record in run.found:
        if record is not None:
            key = place.settings, place.dataset, place.backbone
            cpu[key] = max(cpu.get(key, 0.0), record["provenance"].get("cpu_seconds", 0.0))
    seeds = sorted({len(place.seeds) for place in places})
    titles, _ = settings_titles(places)
    # of several settings one alone: a lowest or a count over all would compare what differs
    base = next((settings for settings, called in titles.items() if called == UNCHANGED), places[0].settings)
    entries = [entry for entry in entries if entry.place.settings == base]
    of = f", {titles[base]} settings" if titles[base] == UNCHANGED else f", {titles[base]}"
    of = of if len(titles) > 1 else ""
    facts = [
        ("protocol", ", ".join(dict.fromkeys(place.protocol for place in places))),
        ("cells", ", ".join(f"{number} {name}" for name, number in sorted(status.items()))),
        ("settings", str(len(titles)) if len(titles) > 1 else ""),
        ("seeds a cell", " or ".join(map(str, seeds))),
        ("CPU time", said(sum(cpu.values()))),
    ]
    lowest: Counter[str] = Counter()
    for dataset in dict.fromkeys(place.dataset for place in places):
        mine = [e for e in entries if e.metric == "nll" and e.place.dataset == dataset and e.ours is not None]
        if mine:
            best = min(mine, key=lambda e: e.ours.mean if e.ours else math.inf)
            mark = ORACLE if best.oracle else ""
            lowest[f"{backbone_title(best.place.backbone)}, {method_title(best.place.method)}{mark}"] += 1
    first = lowest.most_common(3)
    others = lowest.total() - sum(n for _, n in first)
    won = [*first, ("others", others)] if others else first
    # names hold commas
    facts += [(f"lowest NLL{of}", "; ".join(f"{name} ({counted(n, 'data set')})" for name, n in won))]
    known = [abs(entry.z) for entry in entries if entry.z is not None]
    if known:
        near = f"{sum(z <= 3 for z in known)} of {len(known)} within 3 standard errors"
        of_paper = all(entry.place.protocol in ("written", "released") for entry in entries)
        facts.append((f"against the paper{of}", near + ("" if of_paper else "; its settings are others")))
    return facts


def _number(run: str, entry: Entry, titles: Mapping[str, str], *, named: bool) -> dict[str, Any]:
    """A row of the table that can be sorted: plain values, and texts of those that need one."""
    place, ours = entry.place, entry.ours
    share = entry.share(ours.mean) if ours else None
    protocol = f"{place.protocol}, " if named and "protocol" not in place.changes else ""
    return {
        "run": run,
        "settings": protocol + titles[place.settings],
        "dataset": place.dataset,
        "backbone": backbone_title(place.backbone),
        "method": method_title(place.method),
        "metric": title(entry.metric),
        "status": entry.status,
        "n": f"{ours.n}/{ours.asked}" if ours else f"0/{len(place.seeds)}",
        "mean": ours.mean if ours else None,
        "error": ours.standard_error if ours and not math.isnan(ours.standard_error) else None,
        "oracle": entry.oracle,
        "best": entry.best,
        "constant": entry.constant.mean if entry.constant else None,
        "floor": entry.floor.mean if entry.floor else None,
        "share": None if share is None else 100 * share,
        "paper": entry.paper,
        "paper_oracle": paper_oracle(entry),
        "z": entry.z,
    }


def _provenance(name: str, run: Run) -> list[tuple[str, ...]]:
    """Where each number comes from."""
    rows: list[tuple[str, ...]] = []
    for place, record in run.found:
        if record is None:
            continue
        made, commit = record["provenance"], record["provenance"].get("git_commit") or ""
        versions = ", ".join(f"{name} {number}" for name, number in made.get("versions", {}).items())
        seconds = made.get("cpu_seconds")
        rows.append(
            (
                name,
                " ".join(filter(None, ("/".join((place.dataset, place.backbone, place.method)), place.settings))),
                digest(record["identity"]),
                commit[:12] + "+" * commit.endswith("+"),
                made["finished"],
                f"{made.get('machine', '')}, {made.get('device', '')}",
                "" if seconds is None else f"{seconds:.0f}",
                f"Python {made.get('python', '')}, {versions}",
            )
        )
    return rows
