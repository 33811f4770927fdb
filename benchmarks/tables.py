"""Tables of a run: ours beside the paper's, with floor and constant, as Markdown, CSV, LaTeX and on the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from rich.table import Table
from rich.text import Text

from benchmarks.entries import (
    ORACLE,
    TITLES,
    UNCHANGED,
    Entry,
    backbone_title,
    main_datasets,
    paper_oracle,
    settings_titles,
    title,
)
from benchmarks.statistics import Summary
from benchmarks.texts import markdown_text, minus
from cst_lightning.catalogue import method_order, method_title
from cst_lightning.texts import csv_text, printable

_COLUMNS = (
    "protocol", "settings", "dataset", "backbone", "method", "metric", "status", "n", "n_asked", "mean",
    "standard_error", "paper_mean", "paper_standard_error", "floor", "constant", "share_of_the_way", "selection",
    "oracle",
)  # fmt: skip
# of LaTeX's article in footnotesize, in points: its line, a letter or digit, and what is left beside a column
_LINE, _LETTER, _SPACE = 345, 4.15, 2.5
_LABEL = 20  # letters that a name may have beside its numbers
_PAGE = 44  # lines of a table on a page of it


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
    titles, _ = settings_titles(entry.place for entry in entries)
    lines = []
    for row in rows:
        found = [at.get((*row, dataset)) for dataset in datasets]
        names = ((titles[row[0]],) if several else ()) + (backbone_title(row[1]), method_title(row[2]))
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
    return minus(f"{100 * fmean(found):.0f} %") if found and len(found) == len(shared) else ""


def notes(entries: Sequence[Entry], *, a_row_each: bool = False) -> list[str]:
    """What a reader of the table must know; ``a_row_each``: it has a row a number, and a star at the lowest."""
    seeds = sorted({len(entry.place.seeds) for entry in entries})
    places = [entry.place for entry in entries]
    settings, protocols = {place.settings for place in places}, dict.fromkeys(place.protocol for place in places)
    shared, (_, in_all) = _shared(entries), settings_titles(places)
    changed = f" with {places[0].settings}" if len(settings) == 1 and places[0].settings else ""
    own = sorted({entry.metric for entry in entries} - set(TITLES))
    marked = len(own) < len({entry.metric for entry in entries})
    of_group = f"{'settings, ' if len(settings) > 1 else ''}data set and backbone"
    lowest = f"{'★' if a_row_each else 'Bold'}: lowest of its {of_group}. " if marked else ""
    unmarked = (
        f"Of {' and '.join(map(title, own))} none is marked: whether lower is better is not known. " if own else ""
    )
    bound = "; no model's expected loss is lower" if marked else ""
    over = f"Mean ± standard error (ddof = 1) over {' or '.join(map(str, seeds))} seeds"
    about = [
        f"{'One seed, without a standard error' if seeds == [1] else over}, all rows and all actions of the "
        f"test set; protocol {' and '.join(protocols)}{changed}.",
        f"{lowest}{unmarked}Constant: the observed share of each action's outcomes.",
        f"Floor: the true outcome distribution{bound}.",
    ]
    if shared:
        mean = f", mean over {', '.join(shared)}" if len(shared) > 1 and not a_row_each else ""
        about.append(f"Share of the way: from the constant to the floor{mean}.")
    if any(entry.paper for entry in entries):
        about.append("Paper: Gao, Biggs, Sun, Han, Tables 1 to 5.")
    texts = [" ".join(about)]
    if len(settings) > 1:
        texts.append(
            f"Settings: what was changed of the protocol; {UNCHANGED}: nothing"
            + (f" but {in_all}, which all have and none names again." if in_all else ".")
        )
    rules = sorted({entry.selection for entry in entries if entry.oracle})
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
    name, header = markdown_text(title(entries[0].metric)), list(map(markdown_text, header))
    out = [f"### {name}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for line in lines:
        bold = line.bold or [False] * len(line.texts)
        texts = [f"**{text}**" if strong else text for text, strong in zip(line.texts, bold, strict=True)]
        out.append(f"| {' | '.join([*map(markdown_text, line.names), *texts])} |")
    return "\n\n".join(["\n".join(out), *map(markdown_text, notes(entries))]) + "\n"


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
                *map(csv_text, names), csv_text(printable(entry.metric)), entry.status,
                ours.n if ours else 0, len(place.seeds), ours.mean if ours else "",
                "" if ours is None or math.isnan(ours.standard_error) else ours.standard_error, *paper,
                entry.floor.mean if entry.floor else "", entry.constant.mean if entry.constant else "",
                "" if share is None else share, csv_text(entry.selection), entry.oracle,
            ]
        )  # fmt: skip
    return out.getvalue()


def to_latex(entries: Sequence[Entry]) -> str:
    """The Markdown table for a paper: in blocks of data sets that fit a line of 345 pt in footnotesize.

    Variants of data sets are in tables of their own; below all stands what their marks mean. It needs booktabs, and
    graphicx, which shrinks what is wider than a line; its first line says so.
    """
    main = main_datasets(entry.place.dataset for entry in entries)
    variants = [entry for entry in entries if entry.place.dataset not in main]
    tables = _tabulars([entry for entry in entries if entry.place.dataset in main], _shared(entries))
    tables += _tabulars(variants, ()) if variants else []
    name = title(entries[0].metric)
    about = [" $\\pm$ ".join(map(_tex, text.split(" ± "))) for text in notes(entries)]
    return "\n".join(
        [
            rf"% {name}; needs \usepackage{{booktabs,graphicx}}",
            rf"\par\medskip\begingroup\footnotesize\raggedright\setlength{{\parindent}}{{0pt}}\setlength{{\tabcolsep}}{{{_SPACE}pt}}",
            rf"\textbf{{{_tex(name)}}}\par\nobreak\smallskip\nobreak",
            "\\par\\medskip\n".join(tables) + r"\par\smallskip",
            *(text + r"\par" for text in about),
            r"\endgroup",
            "",
        ]
    )


def _tabulars(entries: Sequence[Entry], shared: Sequence[str]) -> list[str]:
    """As many tables as the width of a line and the height of a page ask for."""
    header, lines = _lines(entries, shared)
    n_names = len(lines[0].names)
    columns = header[n_names:]
    first = _LETTER * max((len(_label(line)) for line in lines if len(_label(line)) <= _LABEL), default=0)
    blocks: list[list[int]] = [[]]
    used = first
    for number, column in enumerate(columns):
        width = _LETTER * max(len(column), *(len(line.texts[number]) for line in lines)) + 2 * _SPACE
        if blocks[-1] and used + width > _LINE:
            blocks.append([])
            used = first
        blocks[-1].append(number)
        used += width
    tables = []
    for block in blocks:
        groups: dict[str, list[_Line]] = {}
        for line in lines:
            if any(line.texts[number] for number in block):
                # a line of the paper's stands under ours, in its group
                title = next(reversed(groups)) if line.kind == "paper" else _group(line)
                groups.setdefault(title, []).append(line)
        tables += [_tabular(part, [columns[n] for n in block], block) for part in _pages(groups)]
    return tables


def _label(line: _Line) -> str:
    return "  paper" if line.kind == "paper" else line.names[0] if line.kind == "reference" else line.names[-2]


def _group(line: _Line) -> str:
    """What stands over its lines: backbone, and settings where there are several."""
    return ", ".join(reversed(line.names[:-2])) if line.kind == "ours" else ""


def _pages(groups: dict[str, list[_Line]]) -> list[dict[str, list[_Line]]]:
    """Whole groups, as many as fit a page."""
    pages: list[dict[str, list[_Line]]] = [{}]
    for name, lines in groups.items():
        if pages[-1] and sum(1 + len(of) for of in pages[-1].values()) + len(lines) > _PAGE:
            pages.append({})
        pages[-1][name] = lines
    return pages


def _tabular(groups: dict[str, list[_Line]], columns: Sequence[str], block: Sequence[int]) -> str:
    out = [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"]
    out += [r"\begin{tabular}{@{}l" + "r" * len(columns) + "@{}}", r"\toprule"]
    out += [" & ".join(["", *map(_tex, columns)]) + r" \\"]
    for name, lines in groups.items():
        out.append(r"\midrule")
        for part in textwrap.wrap(name, int(_LINE / _LETTER / 1.5)):
            out.append(rf"\multicolumn{{{len(columns) + 1}}}{{@{{}}l@{{}}}}{{\textit{{{_tex(part)}}}}} \\")
        for line in lines:
            label = r"\quad paper" if line.kind == "paper" else _tex(_label(line))
            if len(_label(line)) > _LABEL:  # it has a line of its own
                out.append(rf"\multicolumn{{{len(columns) + 1}}}{{@{{}}l@{{}}}}{{{label}}} \\*")
                label = ""
            cells = [(line.texts[n], bool(line.bold) and line.bold[n]) for n in block]
            texts = [rf"\textbf{{{_tex(text)}}}" if strong else _tex(text) for text, strong in cells]
            out.append(" & ".join([label, *texts]) + r" \\")
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}}"])


_TEX = {
    "\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", " ± ": r"$\pm$", ORACLE: r"$^\dagger$", "−": "$-$",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"{\ttfamily\char34}", "`": "{}`{}",
}  # fmt: skip


# what stands for something else; what the next character would make another of; what not every engine can print
_NO_TEXT = re.compile(
    "|".join(map(re.escape, _TEX)) + "|-(?=-)|'(?=')|[^ -~À-ÖØ-öø-ž–—‘’“”…]|[ÐÞðþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų]"
)


def _tex(text: str) -> str:
    return _NO_TEXT.sub(lambda found: _TEX.get(found[0]) or _of_code(found[0]), unicodedata.normalize("NFC", text))


def _of_code(character: str) -> str:
    return f"{character}{{}}" if character in "-'" else rf"\texttt{{U+{ord(character):04X}}}"


def to_terminal(entries: Sequence[Entry]) -> Table:
    """The Markdown table for a terminal."""
    header, lines = _lines(entries, _shared(entries))
    n_names = len(lines[0].names)
    table = Table(title=Text(title(entries[0].metric)), title_justify="left")
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
