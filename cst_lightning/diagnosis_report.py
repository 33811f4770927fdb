"""A diagnosis as text for a terminal and as one HTML page."""

from __future__ import annotations

import io
import math
import shutil
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from cst_lightning.diagnosis import Diagnosis
from cst_lightning.errors import InputError
from cst_lightning.findings import VERY_FEW_ROWS, percent
from cst_lightning.texts import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TITLES = {"problem": "Problem", "warning": "Warning", "info": "Note"}
_MOST_PANELS = 12
_MOST_BARS = 20
_MOST_NAMES = 5  # in a sentence
_MOST_LINES = 30  # of a table in the text
_N_BINS = 25

Table = tuple[list[str], list[list[str]]]


def render_text(found: Diagnosis) -> str:
    """The diagnosis for a terminal."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    lines = [headline(found), ""]
    for finding in found.findings:
        lines += textwrap.wrap(f"{_TITLES[finding.severity].upper()}: {finding.title}", width, subsequent_indent="  ")
        for text in (finding.meaning, f"What to do: {finding.advice}"):
            lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
        lines.append("")
    if not found.findings:
        lines += ["Nothing was found that speaks against this log.", ""]
    for title, table, n_rows in (
        ("Actions", actions_table(found), found.actions["rows"]),
        ("Outcomes", outcomes_table(found), found.outcomes["rows"]),
    ):
        header, rows = table
        most = n_rows.to_numpy().argsort(kind="stable")[::-1][:_MOST_LINES]
        shown = [rows[place] for place in sorted(most)]
        lines += [title, *_folded(pd.DataFrame(shown, columns=header), width)]
        lines += [f"and {len(rows) - len(shown)} more, with fewer rows; the page has them all"] * (
            len(shown) < len(rows)
        )
        lines.append("")
    return "\n".join([*lines, *textwrap.wrap(overlap_words(found), width)]) + "\n"


def _folded(table: pd.DataFrame, width: int) -> list[str]:
    """A table in blocks of columns of at most ``width`` characters, each of which begins with the first column."""
    (first, own), *others = [(name, 1 + max(map(len, [name, *table[name]]))) for name in table]
    blocks, left = [[first]], width - own
    for name, size in others:
        if size > left and len(blocks[-1]) > 1:
            blocks.append([first])
            left = width - own
        blocks[-1].append(name)
        left -= size
    return [line for names in blocks for line in (table[names].to_string(index=False), "")][:-1]


def headline(found: Diagnosis) -> str:
    """Sizes of the log, in a line."""
    role = found.columns["role"]
    n_features = int(role.str.startswith("feature").sum())
    observed = int(found.actions["observed"].sum())
    return (
        f"{counted(found.n_rows, 'row')} ({observed} with an outcome), {counted(n_features, 'feature')}, "
        f"{counted(len(found.actions), 'action')}, {counted(len(found.outcomes), 'outcome')}"
    )


def overlap_words(found: Diagnosis) -> str:
    """Where propensities come from and what they say."""
    numbers = found.overlap
    source = {"shares": "the shares of the actions, which no model betters"}.get(found.model, found.model)
    sampled = f", on a sample of {found.n_modelled} rows" if found.n_modelled < found.n_rows else ""
    stands_for = found.actions["stands for"]
    shares = dict.fromkeys([percent(stands_for.min()), percent(stands_for.max())])  # one where both read the same
    return (
        f"Overlap: propensities by {source}{sampled}. The rows of an action stand, by their weights 1 / propensity, "
        f"for {' to '.join(shares)} of all rows: for about 100 % where every row "
        "had a chance of it. Effective sample size of the weights: "
        f"{percent(numbers['effective'])} of the rows; largest weight {numbers['largest']:.1f}, cut at 100 in "
        f"{counted(int(numbers['clipped']), 'row')}; {percent(numbers['no chance'])} of the rows had a chance below "
        f"{percent(numbers['threshold'])} of some action{_left_out(found)}."
    )


def _left_out(found: Diagnosis) -> str:
    """The actions that the share of rows with almost no chance leaves out."""
    rare = found.actions[found.actions["rows"] < VERY_FEW_ROWS]
    if rare.empty:
        return ""
    listed = ", ".join(map(repr, rare["action"][:_MOST_NAMES]))
    more = f" and {len(rare) - _MOST_NAMES} more" if len(rare) > _MOST_NAMES else ""
    return f", not counting actions logged in fewer than {VERY_FEW_ROWS} rows: {listed}{more}"


def actions_table(found: Diagnosis) -> Table:
    """A row for each action, as texts."""
    shares = [name for name in found.actions if str(name).startswith("P(")]
    rows = []
    for row in found.actions.to_dict("records"):
        rows.append(
            [
                _label(row["action"]),
                str(row["rows"]),
                percent(row["share"]),
                str(row["observed"]),
                *("" if math.isnan(row[name]) else percent(row[name]) for name in shares),
                percent(row["stands for"]),
                "" if math.isnan(row["largest"]) else f"{row['largest']:.1f}",
                percent(row["no chance"]),
            ]
        )
    header = ["action", "rows", "share", "observed", *map(str, shares), "stands for", "largest weight", "no chance"]
    return header, rows


def _label(label: object) -> str:
    """A label in a table; in quotes where blanks at its ends would not be seen."""
    text = str(label)
    return repr(text) if text != text.strip() else text


def outcomes_table(found: Diagnosis) -> Table:
    """A row for each outcome, as texts."""
    rows = [[_label(name), str(n), percent(share)] for name, n, share in found.outcomes.itertuples(index=False)]
    return ["outcome", "rows", "share"], rows


def columns_table(found: Diagnosis) -> Table:
    """A row for each column of the log, as texts."""
    return list(found.columns.columns), found.columns.astype(str).to_numpy().tolist()


def render_page(found: Diagnosis) -> str:
    """The page: every name in it is escaped, every figure is inside it.

    Raises:
        InputError: Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader
        from markupsafe import Markup
    except ImportError as error:
        raise InputError(
            "the page needs Jinja2: pip install 'cst-lightning[report]'; the text needs nothing"
        ) from error
    environment = Environment(loader=PackageLoader("cst_lightning", "."), autoescape=True, trim_blocks=True)
    return environment.get_template("diagnosis.html.j2").render(
        headline=headline(found),
        findings=found.findings,
        titles=_TITLES,
        overlap=overlap_words(found),
        parts=found.drift_parts,
        drift_auc=f"{found.drift_auc:.3f}",
        actions=actions_table(found),
        outcomes=outcomes_table(found),
        columns=columns_table(found),
        outcome_figure=Markup(_svg(_draw_outcomes, found)),
        overlap_figure=Markup(_svg(_draw_propensities, found)),
        drift_figure=Markup(_svg(_draw_drift, found)),
    )


# --- figures ------------------------------------------------------------------------------------


def _svg(draw: Callable[[Diagnosis], Figure], found: Diagnosis) -> str:
    """A figure as an SVG element; the same figure gives the same text."""
    import matplotlib as mpl

    # identifiers must differ between the figures of a page
    with mpl.rc_context({"svg.hashsalt": draw.__name__, "svg.fonttype": "none"}):
        figure, out = draw(found), io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    return text[text.index("<svg") :].replace(
        "<svg ", f'<svg role="img" aria-label="{(draw.__doc__ or "").rstrip(".")}" ', 1
    )


def _figure(n_rows: int, n_columns: int, width: float, height: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * n_columns, height * n_rows), layout="constrained")
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


def _name(label: object, width: int = 18) -> str:
    """A label for a figure: short, and no formula where it has dollars."""
    return textwrap.shorten(str(label), width, placeholder="…").replace("$", r"\$") or "…"


def _draw_outcomes(found: Diagnosis) -> Figure:
    """Share of each outcome by action, with 95 % intervals."""
    table = found.actions[found.actions["observed"] > 0][:_MOST_BARS]
    labels = list(found.outcomes["outcome"])[1 if len(found.outcomes) == 2 else 0 :][: len(_COLOURS)]
    figure, (axis,) = _figure(1, 1, 7.5, 3.4)
    place, width = np.arange(len(table)), 0.8 / len(labels)
    for number, label in enumerate(labels):
        share, n = table[f"P({label})"].to_numpy(dtype=float), table["observed"].to_numpy(dtype=float)
        low, high = _wilson(share, n)
        at = place + (number - (len(labels) - 1) / 2) * width
        axis.bar(at, share, width, color=_COLOURS[number], label=_name(label))
        axis.errorbar(at, share, [share - low, high - share], fmt="none", ecolor="0.2", lw=1, capsize=2)
    axis.set_xticks(place, [_name(action) for action in table["action"]], rotation=30 if len(table) > 6 else 0)
    axis.set(xlabel="action", ylabel="share of the observed outcomes", ylim=(0, None))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize="small")
    return figure


def _wilson(share: np.ndarray[Any, Any], n: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """95 % intervals of shares of ``n`` rows (Wilson)."""
    z = 1.96
    middle, half = share + z**2 / (2 * n), z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)
    return np.minimum(low, share), np.maximum(high, share)


def _draw_propensities(found: Diagnosis) -> Figure:
    """Histograms of the propensity of each action: of the rows that took it and of the others."""
    places = [int(place) for place in found.actions["rows"].to_numpy().argsort(kind="stable")[::-1][:_MOST_PANELS]]
    n_columns = min(3, len(places))
    n_rows = -(-len(places) // n_columns)
    figure, axes = _figure(n_rows, n_columns, 7.5 / n_columns, 2.3)
    bins = np.linspace(0, 1, _N_BINS + 1)
    for axis, place in zip(axes, sorted(places), strict=False):
        chance, mine = found.propensity[:, place], found.taken == place
        for rows, name, colour in ((mine, "took it", _COLOURS[1]), (~mine, "did not", _COLOURS[0])):
            if rows.any():
                weight = np.full(rows.sum(), 1 / rows.sum())
                axis.hist(chance[rows], bins, weights=weight, histtype="step", lw=1.6, color=colour, label=name)
        axis.set_title(_name(found.actions["action"].iloc[place]), fontsize="medium")
        axis.set(xlim=(0, 1))
        axis.tick_params(labelsize="small")
    for axis in axes[len(places) :]:
        axis.set_visible(False)
    figure.supxlabel("propensity", fontsize="medium")
    figure.supylabel("share of these rows", fontsize="medium")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize="small")
    return figure


def _draw_drift(found: Diagnosis) -> Figure:
    """How well each column alone tells the two parts apart."""
    shown = found.drift[:_MOST_BARS][::-1]
    figure, (axis,) = _figure(1, 1, 7.5, 0.8 + 0.24 * len(shown))
    axis.barh(np.arange(len(shown)), shown["auc"] - 0.5, left=0.5, color=_COLOURS[0])
    axis.set_yticks(np.arange(len(shown)), [_name(name, 30) for name in shown["column"]], fontsize="small")
    axis.axvline(0.5, color="0.4", lw=1)
    axis.set(xlabel="AUC of telling the parts apart (0.5: alike)", xlim=(min(0.45, shown["auc"].min() - 0.02), 1))
    return figure
