"""Tables of a run: ours beside the paper's, with floor and constant, as Markdown, CSV, LaTeX and on the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from rich.table import Table
from rich.text import Text

from benchmarks.entries import ORACLE, Entry, backbone_title, main_datasets, paper_oracle, title
from benchmarks.statistics import Summary
from benchmarks.texts import markdown_text
from cst_lightning.catalogue import method_order, method_title
from cst_lightning.texts import csv_text

_COLUMNS = (
    "protocol", "settings", "dataset", "backbone", "method", "metric", "status", "n", "n_asked", "mean",
    "standard_error", "paper_mean", "paper_standard_error", "floor", "constant", "share_of_the_way", "selection",
    "oracle",
)  # fmt: skip


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


def _shared(entries: Sequence[Entry]) -> list[str]:
    """The data sets that a share of the way is averaged over: those whose floor is known, their variants left out."""
    return main_datasets(entry.place.dataset for entry in entries if entry.share(0) is not None)


def _share(values: Sequence[tuple[Entry, float]], shared: Sequence[str]) -> str:
    """Mean over all of ``shared``; nothing where one is missing, since averages of others do not compare."""
    shares = {entry.place.dataset: entry.share(value) for entry, value in values}
    found = [share for name in shared if (share := shares.get(name)) is not None]
    return f"{100 * fmean(found):.0f} %" if found and len(found) == len(shared) else ""


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
