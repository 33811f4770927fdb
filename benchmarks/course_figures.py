"""Figures of the course of a training: over its epochs, and over the rounds of self-training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd

from benchmarks import figures
from benchmarks.analysis import MOST_WRONG
from benchmarks.entries import main_datasets

_SERIES = {"training_loss": "training loss", "validation_nll": "held-out NLL"}
_POINTS = 10  # of a line in a stage
_BETWEEN_MARKERS = 4  # points
_MOST_NAMED = 5  # stages whose epochs have room below them

Styles = dict[str, dict[str, Any]]  # by data set


def plot_curves(curves: pd.DataFrame, path: Path) -> None:
    """Training loss and, where rows are held out, their NLL, each in panels of its own, over the stages of training."""
    datasets, series = list(dict.fromkeys(curves["dataset"])), [s for s in _SERIES if (curves["series"] == s).any()]
    n_columns = min(len(datasets), 4)
    if n_columns > 2:
        n_rows = len(series) * -(-len(datasets) // n_columns)
        figure, grid = figures.subplots(n_rows, n_columns, 2.6, 2.1)
        places = [(len(series) * (n // n_columns), n % n_columns, 1, 0) for n in range(len(datasets))]
    else:
        figure, grid = figures.subplots(len(datasets), len(series), 4.2, 2.6)
        places = [(n, 0, 0, 1) for n in range(len(datasets))]
    for axis in grid.flat:
        axis.set_visible(False)
    for dataset, (row, column, down, right) in zip(datasets, places, strict=True):
        for number, name in enumerate(series):
            shown = curves[(curves["dataset"] == dataset) & (curves["series"] == name)]
            if len(shown):
                axis = grid[row + number * down][column + number * right]
                axis.set(visible=True, title=figures.wrapped(dataset), ylabel=_SERIES[name])
                _course(axis, shown)
    figures.legend_below(figure, grid.flat)
    figures.save(figure, path)


def _course(axis: Any, curves: pd.DataFrame) -> None:
    """A line a method through its stages, which are as wide as each other, whatever their epochs."""
    longest = {_round(stage): int(n) for stage, n in curves.groupby("stage")["last"].max().items()}
    stages = sorted(longest)
    methods = figures.in_order(curves["method"])
    for number, method in enumerate(methods):
        style = figures.line_style(methods, method)
        for stage, points in curves[curves["method"] == method].groupby("stage", sort=False):
            mean = averaged(points)
            x = stages.index(_round(stage)) + mean["epoch"] / longest[_round(stage)]
            marked = (min(number, len(mean) - 1), _BETWEEN_MARKERS)  # those of two lines beside each other
            label = figures.method_name(method) + figures.mark(curves[curves["method"] == method])
            axis.plot(x, mean["mean"], lw=1.2, ms=4, markevery=marked, label=label, **style)
            low, high = (mean["mean"] + sign * mean["standard_error"].fillna(0) for sign in (-1, 1))
            axis.fill_between(x, low, high, color=style["color"], alpha=0.2, lw=0)
    for boundary in range(1, len(stages)):
        axis.axvline(boundary, color="0.4", lw=0.8)
    named = len(stages) <= _MOST_NAMED
    texts = [f"{stage}\n{longest[stage]}" if named else str(stage) for stage in stages]
    axis.set_xticks(np.arange(len(stages)) + 0.5, texts, fontsize="small")
    axis.tick_params(axis="x", length=0)
    axis.set(xlim=(0, len(stages)), yscale="log", xlabel="round (0: backbone)" + ", epochs" * named)
    figures.round_numbers(axis.yaxis)


def averaged(points: pd.DataFrame) -> pd.DataFrame:
    """The points of a stage as few enough to be told apart, each the average of neighbours."""
    part = np.arange(len(points)) * min(len(points), _POINTS) // len(points)
    return points[["epoch", "mean", "standard_error"]].groupby(part).mean()


def _round(stage: object) -> int:
    return 0 if stage == "backbone" else int(str(stage).split()[-1])


def plot_rounds(rounds: pd.DataFrame, labels: pd.DataFrame, path: Path) -> None:
    """Theorem 1's quantities and Proposition 1's objective by round, of one backbone: a row of panels a method."""
    datasets, methods = main_datasets(rounds["dataset"]), figures.in_order(rounds["method"])
    styles: Styles = {
        # the data set's marker: colour is not the only sign
        name: {"color": colour, "marker": marker, "ms": 4, "lw": 1}
        for name, colour, marker in zip(datasets, cycle(figures.COLOURS), cycle(figures.MARKERS), strict=False)
    }
    rounds, labels = (frame[frame["dataset"].isin(datasets)] for frame in (rounds, labels))
    drawings: list[tuple[Callable[..., str], pd.DataFrame]] = [(_wrong, labels), (_error, rounds)]
    drawings += [(_changes, rounds)] if rounds["inconsistency"].notna().any() else []
    drawings += [(_objective, rounds)]
    figure, grid = figures.subplots(len(methods), len(drawings), 3.0, 2.5)
    for column, (draw, frame) in enumerate(drawings):
        titles = [
            draw(axis, frame[frame["method"] == method], styles)
            for axis, method in zip(grid[:, column], methods, strict=True)
        ]
        grid[0][column].set_title(max(titles, key=len))  # which says what is dotted in any of them
        ends = [axis.get_ylim() for axis in grid[:, column]]
        for axis in grid[:, column]:
            axis.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
            axis.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
    for axis, method in zip(grid[:, 0], methods, strict=True):
        label = figures.method_name(method) + figures.mark(rounds[rounds["method"] == method])
        axis.set_ylabel(f"{figures.wrapped(label)}\n\n{axis.get_ylabel()}")
    for axis in grid[:, -1]:
        figures.round_numbers(axis.yaxis)
    figures.legend_below(figure, grid.flat, marked=bool(rounds["oracle"].any()))
    figures.save(figure, path)


def _wrong(axis: Any, labels: pd.DataFrame, styles: Styles) -> str:
    width = 0.7 / len(styles)
    for place, (dataset, style) in enumerate(styles.items()):
        mine = labels[labels["dataset"] == dataset]
        at = mine["round"] + (place - (len(styles) - 1) / 2) * width
        axis.plot(at, mine["error"], **style | {"ls": "", "ms": 3})
    axis.axhline(MOST_WRONG, ls="--", color="0.4", lw=1)
    axis.set(xlabel="round", ylabel="share", ylim=(0, 1.05))
    return f"wrong labels, a point an action\nand class (dashed: {MOST_WRONG})"


def _error(axis: Any, rounds: pd.DataFrame, styles: Styles) -> str:
    bounds = dict[str, float]()
    for dataset, mine, by_round in _of_datasets(rounds, styles):
        teacher = mine.loc[mine["round"] == 1, "teacher_error"].mean()
        label = figures.plain_text(dataset)
        axis.plot([0, *by_round.index], [teacher, *by_round["student_error"]], label=label, **styles[dataset])
        bounds[dataset] = mine["bound"].mean()
    top = 1.05 * axis.get_ylim()[1]
    within = {dataset: bound for dataset, bound in bounds.items() if bound <= min(top, 1)}
    for dataset, bound in within.items():
        axis.plot([0, rounds["round"].max()], [bound, bound], **_dotted(styles[dataset]))
    axis.set(xlabel="round (0: backbone)", ylabel="Err", ylim=(0, top))
    return "error against f*" + "\n(dotted: bound)" * bool(within)


def _changes(axis: Any, rounds: pd.DataFrame, styles: Styles) -> str:
    known = False
    for dataset, mine, by_round in _of_datasets(rounds[rounds["inconsistency"].notna()], styles):
        axis.plot(by_round.index, by_round["inconsistency"], **styles[dataset])
        if mine["mu"].notna().any():
            known = True
            axis.plot([1, rounds["round"].max()], [mine["mu"].mean()] * 2, **_dotted(styles[dataset]))
    axis.set(xlabel="round", ylabel="R_B", ylim=(0, 1.05 * axis.get_ylim()[1]))
    return "changed within CVAT's\ndistance" + " (dotted: f*'s, μ)" * known


def _objective(axis: Any, rounds: pd.DataFrame, styles: Styles) -> str:
    for dataset, _, by_round in _of_datasets(rounds, styles):
        start = by_round["objective_start"].iloc[0]
        axis.plot([0, *by_round.index], [start, *by_round["objective_imputed"]], **styles[dataset])
    axis.set(xlabel="round (0: backbone)", ylabel="nats", yscale="log")
    return "objective a row,\nafter imputing"


def _of_datasets(rounds: pd.DataFrame, styles: Sequence[str] | Styles) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
    """Of each data set that is there: its rows, and their means by round."""
    frames = [(dataset, rounds[rounds["dataset"] == dataset]) for dataset in styles]
    return [(dataset, mine, mine.groupby("round").mean(numeric_only=True)) for dataset, mine in frames if len(mine)]


def _dotted(style: dict[str, Any]) -> dict[str, Any]:
    return style | {"ls": ":", "ms": 3, "mfc": "none"}
