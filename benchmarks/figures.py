"""Figures of results: one style, colours that colour-blind readers tell apart, and a marker besides each colour."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks.entries import BACKBONE_TITLES, ORACLE, backbone_title, title
from benchmarks.files import replace_file
from benchmarks.statistics import Ranks
from cst_lightning.catalogue import METHODS, method_order, method_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c26a9c", "#b37400", "#3a8fc7", "#000000", "#7a7a7a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")  # not as many as colours: no two of many share both
#: of the backbones that have a title, in the order of these
_OF_BACKBONES = (*COLOURS[:3], "#7a7a7a", "#c26a9c", "#882255", "#b37400", "#3a8fc7", "#4b2e9e", "#000000")
_SAVED: Any = {
    "svg.hashsalt": "cst-lightning",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # every text of an SVG names them all
}
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_also: ContextVar[tuple[str, ...]] = ContextVar("also", default=())
_FILLS = ("full", "none", "left", "top", "right", "bottom")
_HATCHES = ("", "//", "..", "xx", "--", "++", "\\\\", "oo", "||", "**", "OO")
_HANDLE_INCHES, _LETTER_INCHES = 0.5, 0.072  # that an entry of a legend takes


def subplots(n_rows: int, n_columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """A figure of panels, ``[n_rows, n_columns]`` axes, inches a panel; drawn without a display."""
    mpl.use("agg")
    from matplotlib import pyplot as plt

    size = (width * n_columns, height * n_rows)
    return plt.subplots(n_rows, n_columns, figsize=size, layout="constrained", squeeze=False)


@contextmanager
def also_as(*kinds: str) -> Iterator[None]:
    """Within it, every figure is saved as ``pdf`` and such beside its own file."""
    token = _also.set(kinds)
    try:
        yield
    finally:
        _also.reset(token)


def save(figure: Figure, path: Path) -> None:
    """Put the figure in place whole; the same figure gives the same bytes."""
    from matplotlib import pyplot as plt

    for kind in dict.fromkeys((path.suffix[1:], *_also.get())):
        arguments: dict[str, Any] = {"format": kind, "dpi": 150, "metadata": _UNDATED.get(kind)}
        with mpl.rc_context(_SAVED):
            replace_file(path.with_suffix(f".{kind}"), partial(_write, figure, arguments))
    plt.close(figure)


def _write(figure: Figure, arguments: dict[str, Any], path: Path) -> None:
    figure.savefig(path, **arguments)
    if arguments["format"] == "svg":  # hundredths of a point are enough, and half of the bytes
        text = path.read_text(encoding="utf-8")
        short = re.sub(r'(?<= )(d|x|y|transform)="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
        path.write_text(short, encoding="utf-8", newline="\n")


def plot_comparison(compared: pd.DataFrame, path: Path) -> None:
    """Ours against the paper's, a panel a metric, with both standard errors; on the line they agree."""
    metrics = list(dict.fromkeys(compared["metric"]))
    figure, axes = subplots(1, len(metrics), 3.8, 3.6)
    for axis, metric in zip(axes[0], metrics, strict=True):
        mine = compared[compared["metric"] == metric]
        ends = [mine[["ours", "paper"]].to_numpy().min() * 0.93, mine[["ours", "paper"]].to_numpy().max() * 1.07]
        axis.plot(ends, ends, color="0.6", lw=1, zorder=0)
        for (backbone, method), points in mine.groupby(["backbone", "method"], sort=False):
            axis.errorbar(
                points["paper"], points["ours"], xerr=points["paper_se"], yerr=points["ours_se"], ls="", ms=5, lw=0.8,
                **_point_style(compared, backbone, method),
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="paper", ylabel="ours", title=title(metric))
        for side in (axis.xaxis, axis.yaxis):
            round_numbers(side)
    _legend_of_points(figure, compared)
    save(figure, path)


def plot_ranks(ranks: Ranks, path: Path) -> None:
    """Critical-difference diagram: average ranks, and bars over methods that are not told apart."""
    from scikit_posthocs import critical_difference_diagram

    figure, axes = subplots(1, 1, 9.0, 1.2 + 0.17 * len(ranks.mean))
    drawn = critical_difference_diagram(
        ranks.mean.rename(plain_text),
        ranks.pairwise_p.rename(index=plain_text, columns=plain_text),
        ax=axes[0][0],
        label_fmt_left="{label} ({rank:.1f}) ",
        label_fmt_right=" ({rank:.1f}) {label}",
        color_palette=["black"] * len(ranks.mean),
        elbow_props={"linewidth": 1},
    )
    for line in np.ravel(drawn["crossbars"]):  # which come in the order of a set, another one in each process
        line.set_xdata(sorted(line.get_xdata()))
    save(figure, path)


def plot_overlap(overlap: pd.DataFrame, path: Path) -> None:
    """NLL over the effective sample size, a panel a backbone; dashed the constant, dotted the floor."""
    groups = list(overlap.groupby("backbone", sort=False))
    figure, axes = subplots(1, len(groups), 3.0, 3.0)
    for axis, (backbone, of_backbone) in zip(axes[0], groups, strict=True):
        mine = of_backbone.sort_values("effective_sample_size")
        for method in in_order(mine["method"]):
            points = mine[mine["method"] == method]
            axis.errorbar(
                points["effective_sample_size"], points["mean"], yerr=points["standard_error"], ms=5, lw=1,
                label=method_name(method) + mark(points), **line_style(overlap["method"], method),
            )  # fmt: skip
        places = mine.drop_duplicates("dataset")
        for name, style in (("constant", "--"), ("floor", ":")):
            if places[name].notna().any():
                # no plain line: those come first in a legend
                axis.errorbar(places["effective_sample_size"], places[name], ls=style, color="0.5", lw=1, label=name)
        axis.set(
            xscale="log", yscale="log", xlabel="effective sample size / N", ylabel="NLL",
            title=_backbone_name(str(backbone)),
        )  # fmt: skip
        round_numbers(axis.xaxis)
        round_numbers(axis.yaxis)
    legend_below(figure, axes.flat)
    save(figure, path)


def plot_losses(losses: pd.DataFrame, path: Path) -> None:
    """NLL against Hamming loss, a panel a data set: a method good at one need not be at the other."""
    groups = list(losses.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        for row in of_dataset.itertuples():
            axis.plot(row.hamming, row.nll, ls="", ms=5, **_point_style(losses, row.backbone, row.method))
        axis.set(title=wrapped(dataset), xlabel="Hamming loss", ylabel="NLL", yscale="log")
        round_numbers(axis.yaxis)
    _legend_of_points(figure, losses)
    save(figure, path)


def plot_calibration(calibration: pd.DataFrame, path: Path) -> None:
    """Reliability curves, a panel a data set: the share that came true where so much was predicted."""
    groups = list(calibration.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        axis.plot([0, 1], [0, 1], color="0.6", lw=1)
        for method in in_order(of_dataset["method"]):
            points = of_dataset[of_dataset["method"] == method]
            style = line_style(calibration["method"], method)
            label = method_name(method) + mark(points)
            axis.plot(points["predicted"], points["observed"], ms=4, lw=1, label=label, **style)
        axis.set(title=wrapped(dataset), xlabel="predicted", ylabel="observed", xlim=(0, 1), ylim=(0, 1))
    legend_below(figure, axes)
    save(figure, path)


def plot_weights(weights: pd.DataFrame, path: Path) -> None:
    """Test NLL over the CVAT weight, a panel a data set: what the choice of a weight is worth."""
    groups = list(weights.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        tried = sorted(set(of_dataset["weight"]))  # side by side: 0 has no place on a logarithmic axis
        for (backbone, method), points in of_dataset.sort_values("weight").groupby(["backbone", "method"], sort=False):
            axis.errorbar(
                list(map(tried.index, points["weight"])), points["mean"], yerr=points["standard_error"], ms=5, lw=1,
                **_point_style(weights, backbone, method),
            )  # fmt: skip
        axis.set_xticks(range(len(tried)), [f"{weight:g}" for weight in tried])
        axis.set(title=wrapped(dataset), xlabel="CVAT weight", ylabel="NLL")
    _legend_of_points(figure, weights)
    save(figure, path)


def plot_costs(costs: pd.DataFrame, path: Path) -> None:
    """CPU time of each (data set, backbone), all its methods and seeds together."""
    taken = costs.groupby(["dataset", "backbone"], sort=False)["cpu_seconds"].max().unstack()
    figure, axes = subplots(1, 1, 8.0, 3.2)
    width = 0.8 / int(taken.notna().sum(axis=1).max())
    there = taken.notna()
    # the bars of a data set stand in its middle, however many it has
    offset = (there.cumsum(axis=1) - 1).sub((there.sum(axis=1) - 1) / 2, axis=0) * width
    for backbone in taken.columns:
        mine = there[backbone].to_numpy()
        place = (np.arange(len(taken)) + offset[backbone].to_numpy())[mine]
        style = {"color": _of_backbone(_OF_BACKBONES, taken.columns, backbone), "edgecolor": "white", "lw": 0.5}
        hatch, label = _of_backbone(_HATCHES, taken.columns, backbone), _backbone_name(str(backbone))
        axes[0][0].bar(place, taken[backbone].to_numpy()[mine] / 60, width, label=label, hatch=hatch, **style)
    many = len(taken) > 7
    turned: dict[str, Any] = {"rotation": 40, "ha": "right"} if many else {}
    axes[0][0].set_xticks(np.arange(len(taken)), list(map(plain_text, taken.index)), **turned)
    axes[0][0].set(ylabel="CPU minutes")
    legend_below(figure, axes.flat)
    save(figure, path)


def panels(n: int) -> tuple[Figure, list[Any]]:
    """``n`` panels in rows of four."""
    n_columns = min(n, 4)
    width, height = (2.4, 2.4) if n > 2 else (4.2, 3.2)
    figure, axes = subplots(-(-n // n_columns), n_columns, width, height)
    for axis in axes.flat[n:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:n])


def legend_below(figure: Figure, axes: Iterable[Any], *, marked: bool = False) -> None:
    """One legend below all panels, of what any of them shows, in as many columns as there is room for.

    Args:
        marked: whether the mark of an oracle stands elsewhere in the figure, so that the legend is to explain it.
    """
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            # of points with errors the point alone: with the bars across it any marker looks like a diamond
            handles.setdefault(label, handle[0] if isinstance(handle, mpl.container.ErrorbarContainer) else handle)
    _legend(figure, handles, marked=marked)


def _legend_of_points(figure: Figure, frame: pd.DataFrame) -> None:
    """Of figures in which colour and filling tell the backbone and the marker the method: each of them once."""
    backbones, methods = dict[str, Any](), dict[str, Any]()
    for backbone in dict.fromkeys(frame["backbone"]):
        style: dict[str, Any] = _point_style(frame, backbone, "backbone")
        backbones[_backbone_name(backbone)] = mpl.lines.Line2D([], [], **style | {"ls": "", "marker": "o", "ms": 7})
    for method in in_order(frame["method"]):
        name = "backbone alone" if method == "backbone" else method_name(method)
        style = {"marker": line_style(frame["method"], method)["marker"], "color": "0.3", "mfc": "none", "ms": 6}
        methods[name + mark(frame[frame["method"] == method])] = mpl.lines.Line2D([], [], ls="", **style)
    _legend(figure, backbones, methods)


def _legend(figure: Figure, *groups: Mapping[str, Any], marked: bool = False) -> None:
    """Each group in columns of its own."""
    labels = [label for group in groups for label in group]
    marked = marked or any(ORACLE in label for label in labels)
    entry = _HANDLE_INCHES + _LETTER_INCHES * max(map(len, labels))
    figure.set_figwidth(max(figure.get_figwidth(), entry + 0.3))
    most = max(len(groups), int(figure.get_figwidth() / entry))
    n_rows = next(n for n in range(1, len(labels) + 1) if sum(-(-len(group) // n) for group in groups) <= most)
    # its room is its own, and not the panels'
    figure.set_figheight(figure.get_figheight() + 0.2 * (n_rows + marked))
    empty = ("", mpl.lines.Line2D([], [], ls=""))
    padded = len(groups) > 1
    entries = [entry for group in groups for entry in (*group.items(), *[empty] * (padded * (-len(group) % n_rows)))]
    figure.legend(
        [handle for _, handle in entries],
        [label for label, _ in entries],
        loc="outside lower center",
        ncols=-(-len(entries) // n_rows),
        fontsize="small",
        title=f"{ORACLE} an oracle chose its weight" if marked else None,
        title_fontsize="small",
    )


def in_order(methods: Iterable[str]) -> list[str]:
    """Each once, as tables have them."""
    return sorted(set(methods), key=method_order)


def line_style(methods: Iterable[Any], method: object) -> dict[str, str]:
    """Colour and marker of a method, the same in every figure."""
    names = list(dict.fromkeys([*METHODS, *methods]))
    return {"color": _cycle(COLOURS, names, method), "marker": _cycle(MARKERS, names, method)}


def _point_style(frame: pd.DataFrame, backbone: object, method: object) -> dict[str, str]:
    """Of a backbone and a method: colour and filling tell the backbone, the marker the method, in every figure."""
    colour, filling = (_of_backbone(values, frame["backbone"], backbone) for values in (_OF_BACKBONES, _FILLS))
    return {"color": colour, "fillstyle": filling, "marker": line_style(frame["method"], method)["marker"]}


def _of_backbone(values: Sequence[str], backbones: Iterable[Any], backbone: object) -> str:
    """What of ``values`` is a backbone's own."""
    return _cycle(values, dict.fromkeys([*BACKBONE_TITLES, *backbones]), backbone)


def mark(points: pd.DataFrame) -> str:
    """The mark of numbers that an oracle had a part in."""
    return ORACLE if points["oracle"].any() else ""


def wrapped(dataset: object) -> str:
    """A data set's name in lines that fit over a panel."""
    return "\n".join(textwrap.wrap(plain_text(dataset).replace(",", ", "), 26))


def _cycle(values: Sequence[str], names: Any, name: object) -> str:
    return values[list(names).index(name) % len(values)]


def round_numbers(axis: Any) -> None:
    """Round numbers on a logarithmic axis, however short it is."""
    low, high = sorted(axis.get_view_interval())
    if high > 5 * low:  # evenly spaced ones would crowd at its upper end
        axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_major_locator(mpl.ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(mpl.ticker.ScalarFormatter())


def plain_text(name: object) -> str:
    """A name in which matplotlib takes no dollars for a formula."""
    return str(name).replace("$", r"\$")


def _backbone_name(name: str) -> str:
    return plain_text(backbone_title(name))


def method_name(name: str) -> str:
    """How a legend calls a method."""
    return plain_text(method_title(name))
