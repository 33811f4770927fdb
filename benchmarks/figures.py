"""Figures of results: one style, colours that colour-blind readers tell apart, and a marker besides each colour."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks.analysis import MOST_WRONG
from benchmarks.entries import ORACLE, Entry, backbone_title, main_datasets, title
from benchmarks.statistics import Ranks
from benchmarks.store import replace_file
from cst_lightning.catalogue import METHODS, method_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c26a9c", "#b37400", "#3a8fc7", "#000000", "#7a7a7a")
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
_also: ContextVar[tuple[str, ...]] = ContextVar("also", default=())
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_FILLS = ("full", "none", "left", "top", "right", "bottom")
_HATCHES = ("", "//", "..", "xx", "--", "++", "\\\\", "oo", "||", "**")
_CURVE_POINTS = 40  # of a round
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
        with mpl.rc_context({"svg.hashsalt": "cst-lightning", "svg.fonttype": "none", "pdf.fonttype": 42}):
            replace_file(path.with_suffix(f".{kind}"), partial(_write, figure, arguments))
    plt.close(figure)


def _write(figure: Figure, arguments: dict[str, Any], path: Path) -> None:
    figure.savefig(path, **arguments)
    if arguments["format"] == "svg":  # hundredths of a point are enough, and half of the bytes
        text = path.read_text(encoding="utf-8")
        short = re.sub(r'(?<= )d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
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
                label=_name(str(backbone), str(method)) + _mark(points), **_point(compared, backbone, method),
            )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="paper", ylabel="ours", title=title(metric))
        for side in (axis.xaxis, axis.yaxis):
            _plain(side)
    legend_below(figure, axes.flat)
    save(figure, path)


def plot_ranks(ranks: Ranks, path: Path) -> None:
    """Critical-difference diagram: average ranks, and bars over methods that are not told apart."""
    from scikit_posthocs import critical_difference_diagram

    figure, axes = subplots(1, 1, 9.0, 1.2 + 0.17 * len(ranks.mean))
    drawn = critical_difference_diagram(
        ranks.mean.rename(_plain_text),
        ranks.pairwise_p.rename(index=_plain_text, columns=_plain_text),
        ax=axes[0][0],
        label_fmt_left="{label} ({rank:.1f}) ",
        label_fmt_right=" ({rank:.1f}) {label}",
        color_palette=["black"] * len(ranks.mean),
        elbow_props={"linewidth": 1},
    )
    for line in np.ravel(drawn["crossbars"]):  # which come in the order of a set, another one in each process
        line.set_xdata(sorted(line.get_xdata()))
    save(figure, path)


def plot_rounds(rounds: pd.DataFrame, labels: pd.DataFrame, path: Path) -> None:
    """Theorem 1's quantities and Proposition 1's objective by round, of one method of one backbone."""
    ((backbone, method),) = rounds[["backbone", "method"]].drop_duplicates().to_numpy()
    figure, grid = subplots(2, 2, 4.2, 3.0)
    (wrong, error), (consistency, objective) = grid
    datasets = main_datasets(rounds["dataset"])
    width = 0.7 / len(datasets)
    for place, (dataset, colour, marker) in enumerate(zip(datasets, cycle(_COLOURS), cycle(_MARKERS), strict=False)):
        mine, of_labels = rounds[rounds["dataset"] == dataset], labels[labels["dataset"] == dataset]
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "ms": 4,
            "lw": 1,
            "label": _plain_text(dataset) + _mark(mine),
        }
        by_round = mine.groupby("round").mean(numeric_only=True)
        at = of_labels["round"] + (place - (len(datasets) - 1) / 2) * width
        wrong.plot(at, of_labels["error"], **style | {"ls": "", "ms": 3})
        first = mine[mine["round"] == 1]
        error.plot([0, *by_round.index], [first["teacher_error"].mean(), *by_round["student_error"]], **style)
        consistency.plot(by_round.index, by_round["inconsistency"], **style)
        if mine["bound"].notna().any():
            # with the data set's marker: colour is not the only sign
            known: dict[str, Any] = {"ls": ":", "lw": 1, "color": colour, "marker": marker, "ms": 3, "mfc": "none"}
            error.plot([0, by_round.index.max()], [min(mine["bound"].mean(), 1.0)] * 2, **known)
            consistency.plot([1, by_round.index.max()], [mine["mu"].mean()] * 2, **known)
        start = by_round["objective_start"].iloc[0]
        objective.plot([0, *by_round.index], [start, *by_round["objective_imputed"]], **style)
    wrong.axhline(MOST_WRONG, ls="--", color="0.4", lw=1)
    wrong.set(title="wrong labels, a point an action\nand class (dashed: 0.2)", xlabel="round", ylabel="share")
    error.set(title="error against f*\n(dotted: bound, cut at 1)", xlabel="round (0: backbone)", ylabel="Err")
    consistency.set(title="changed within CVAT's\ndistance (dotted: f*'s, μ)", xlabel="round", ylabel="R_B")
    objective.set(title="objective a row,\nafter imputing", xlabel="round (0: backbone)", ylabel="nats")
    for axis in grid.flat:
        axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
        axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    figure.suptitle(_name(backbone, method))
    legend_below(figure, grid.flat)
    save(figure, path)


def plot_overlap(overlap: pd.DataFrame, path: Path) -> None:
    """NLL over the effective sample size, a panel a backbone; dashed the constant, dotted the floor."""
    backbones = list(dict.fromkeys(overlap["backbone"]))
    figure, axes = subplots(1, len(backbones), 3.0, 3.0)
    for axis, backbone in zip(axes[0], backbones, strict=True):
        mine = overlap[overlap["backbone"] == backbone].sort_values("effective_sample_size")
        mine = mine[~mine["dataset"].str.contains("unlogged")]  # of actions without support it says nothing
        for method, points in mine.groupby("method", sort=False):
            axis.errorbar(
                points["effective_sample_size"], points["mean"], yerr=points["standard_error"], ms=5, lw=1,
                label=_method(str(method)) + _mark(points), **_line(overlap["method"], method),
            )  # fmt: skip
        places = mine.drop_duplicates("dataset")
        axis.plot(places["effective_sample_size"], places["constant"], ls="--", color="0.5", lw=1)
        axis.plot(places["effective_sample_size"], places["floor"], ls=":", color="0.5", lw=1)
        axis.set(
            xscale="log", yscale="log", xlabel="effective sample size / N", ylabel="NLL", title=_backbone(backbone)
        )
        _plain(axis.xaxis)
        _plain(axis.yaxis)
    legend_below(figure, axes.flat)
    save(figure, path)


def plot_losses(entries: Mapping[str, Sequence[Entry]], path: Path) -> None:
    """NLL against Hamming loss, a panel a data set: a method good at one need not be at the other."""
    both = {
        (e.place.dataset, e.place.backbone, e.place.method): [e.ours.mean] for e in entries["nll"] if e.ours is not None
    }
    for e in entries["hamming"]:
        if e.ours is not None:
            both[e.place.dataset, e.place.backbone, e.place.method].append(e.ours.mean)
    marked = {(e.place.backbone, e.place.method) for e in entries["nll"] if e.oracle}
    datasets = main_datasets(name for name, _, _ in both)
    frame = pd.DataFrame(list(both), columns=["dataset", "backbone", "method"])
    figure, axes = panels(len(datasets))
    for axis, dataset in zip(axes, datasets, strict=True):
        for (name, backbone, method), (nll, hamming) in both.items():
            if name == dataset:
                label = _name(backbone, method) + (ORACLE if (backbone, method) in marked else "")
                axis.plot(hamming, nll, ls="", ms=5, label=label, **_point(frame, backbone, method))
        axis.set(title=_wrapped(dataset), xlabel="Hamming loss", ylabel="NLL", yscale="log")
        _plain(axis.yaxis)
    legend_below(figure, axes)
    save(figure, path)


def plot_calibration(calibration: pd.DataFrame, path: Path) -> None:
    """Reliability curves, a panel a data set: the share that came true where so much was predicted."""
    groups = list(calibration.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        axis.plot([0, 1], [0, 1], color="0.6", lw=1)
        for method, points in of_dataset.groupby("method", sort=False):
            style = _line(calibration["method"], method)
            label = _method(str(method)) + _mark(points)
            axis.plot(points["predicted"], points["observed"], ms=4, lw=1, label=label, **style)
        axis.set(title=_wrapped(dataset), xlabel="predicted", ylabel="observed", xlim=(0, 1), ylim=(0, 1))
    legend_below(figure, axes)
    save(figure, path)


def plot_curves(curves: pd.DataFrame, path: Path) -> None:
    """Training loss and the NLL of held-out rows over the epochs, a panel a data set; round follows round."""
    groups = list(curves.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        lines = of_dataset.groupby(["method", "series"], sort=False)
        for (method, series), points in lines:
            line = _line(curves["method"], method)
            what = "held-out NLL" if series == "validation_nll" else "training loss"
            label = f"{_method(str(method))}{_mark(points)}, {what}"
            style = "--" if series == "validation_nll" else "-"
            joined = _one_after_another(points)
            every = max(1, len(joined) // 5)
            axis.plot(joined["epoch"], joined["mean"], ls=style, lw=1.2, ms=4, markevery=every, label=label, **line)
            low, high = (joined["mean"] + sign * joined["standard_error"].fillna(0) for sign in (-1, 1))
            axis.fill_between(joined["epoch"], low, high, color=line["color"], alpha=0.2, lw=0)
        axis.set(title=_wrapped(dataset), xlabel="epoch", ylabel="nats", yscale="log")
        _plain(axis.yaxis)
    legend_below(figure, axes)
    save(figure, path)


def _one_after_another(points: pd.DataFrame) -> pd.DataFrame:
    """The points of several rounds as one line with a gap between rounds, each begun where the one before it ended.

    Of a round as many as a panel shows, evenly spaced from its end.
    """
    parts, start = list[pd.DataFrame](), 0
    for _, whole in points.groupby("stage", sort=False):
        of_stage = whole[:: -math.ceil(len(whole) / _CURVE_POINTS)][::-1]
        parts += [of_stage.assign(epoch=of_stage["epoch"] + start), of_stage[:1].assign(mean=float("nan"))]
        start += of_stage["epoch"].max()
    return pd.concat(parts[:-1], ignore_index=True)


def plot_weights(weights: pd.DataFrame, path: Path) -> None:
    """Test NLL over the CVAT weight, a panel a data set: what the choice of a weight is worth."""
    groups = list(weights.groupby("dataset", sort=False))
    figure, axes = panels(len(groups))
    for axis, (dataset, of_dataset) in zip(axes, groups, strict=True):
        for (backbone, method), points in of_dataset.groupby(["backbone", "method"], sort=False):
            axis.errorbar(
                points["weight"], points["mean"], yerr=points["standard_error"], ms=5, lw=1,
                label=_name(str(backbone), str(method)), **_point(weights, backbone, method),
            )  # fmt: skip
        axis.set(title=_wrapped(dataset), xlabel="CVAT weight", ylabel="NLL", xscale="log")
    legend_below(figure, axes)
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
        style = {"color": _cycle(_COLOURS, taken.columns, backbone), "edgecolor": "white", "lw": 0.5}
        hatch, label = _cycle(_HATCHES, taken.columns, backbone), _backbone(str(backbone))
        axes[0][0].bar(place, taken[backbone].to_numpy()[mine] / 60, width, label=label, hatch=hatch, **style)
    many = len(taken) > 7
    turned: dict[str, Any] = {"rotation": 40, "ha": "right"} if many else {}
    axes[0][0].set_xticks(np.arange(len(taken)), list(map(_plain_text, taken.index)), **turned)
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


def legend_below(figure: Figure, axes: Iterable[Any]) -> None:
    """One legend below all panels, of what any of them shows, in as many columns as there is room for."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    marked = any(ORACLE in label for label in handles)
    entry = _HANDLE_INCHES + _LETTER_INCHES * max(map(len, handles))
    figure.set_figwidth(max(figure.get_figwidth(), entry + 0.3))
    n_columns = min(len(handles), max(1, int(figure.get_figwidth() / entry)))
    # its room is its own, and not the panels'
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(handles) // n_columns) + marked))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=n_columns,
        fontsize="small",
        title=f"{ORACLE} an oracle chose its weight" if marked else None,
        title_fontsize="small",
    )


def _line(methods: Iterable[Any], method: object) -> dict[str, str]:
    """Colour and marker of a method, the same in every figure."""
    names = list(dict.fromkeys([*METHODS, *methods]))
    return {"color": _cycle(_COLOURS, names, method), "marker": _cycle(_MARKERS, names, method)}


def _point(frame: pd.DataFrame, backbone: object, method: object) -> dict[str, str]:
    """Of a backbone and a method: colour and filling tell the backbone, the marker the method."""
    backbones = list(dict.fromkeys(frame["backbone"]))
    style = {"color": _cycle(_COLOURS, backbones, backbone), "fillstyle": _cycle(_FILLS, backbones, backbone)}
    return style | {"marker": _line(frame["method"], method)["marker"]}


def _mark(points: pd.DataFrame) -> str:
    """The mark of numbers that an oracle had a part in."""
    return ORACLE if points["oracle"].any() else ""


def _wrapped(dataset: object) -> str:
    """A data set's name in lines that fit over a panel."""
    return "\n".join(textwrap.wrap(_plain_text(dataset).replace(",", ", "), 26))


def _cycle(values: Sequence[str], names: Any, name: object) -> str:
    return values[list(names).index(name) % len(values)]


def _plain(axis: Any) -> None:
    """Round numbers on a logarithmic axis, however short it is."""
    low, high = sorted(axis.get_view_interval())
    if high > 5 * low:  # evenly spaced ones would crowd at its upper end
        axis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_major_locator(mpl.ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_minor_locator(mpl.ticker.NullLocator())
    axis.set_major_formatter(mpl.ticker.ScalarFormatter())


def _plain_text(name: object) -> str:
    """A name in which matplotlib takes no dollars for a formula."""
    return str(name).replace("$", r"\$")


def _backbone(name: str) -> str:
    return _plain_text(backbone_title(name))


def _method(name: str) -> str:
    return _plain_text(method_title(name))


def _name(backbone: str, method: str) -> str:
    return f"{_backbone(backbone)}, {_method(method)}"
