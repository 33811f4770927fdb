"""The figure of ``benchmarks.speed``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import save, subplots
from benchmarks.measuring import Measured


def plot_speed(measured: Sequence[Measured], path: Path) -> None:
    """Cost of a replicate-step over R, the plain loop beside it, for D1; and how CVAT's grows with each size."""
    widths = sorted({m.hidden for m in measured if m.shape == "D1"})
    growth = [m for m in measured if "=" in m.shape and m.what == "cvat"]
    n_panels = len(widths) + bool(growth)
    figure, axes = subplots(1, n_panels, 4.7, 4.2)
    for axis, hidden in zip(axes[0], widths, strict=False):
        _plot_stacks(axis, [m for m in measured if (m.shape, m.hidden) == ("D1", hidden)])
        axis.set_title(f"D1, width {hidden} (dotted: plain loop)")
    if growth:
        _plot_growth(axes[0][-1], growth)
    save(figure, path)


def _plot_stacks(axis: Any, measured: Sequence[Measured]) -> None:
    # colour-blind safe colours, and markers besides
    kinds = (("dm", "DM", "#0072b2", "o"), ("hsic", "HSIC", "#cc79a7", "D"), ("pl", "PL", "#009e73", "s"))
    for what, label, colour, marker in (*kinds, ("cvat", "PL + CVAT", "#d55e00", "^")):
        mine = [m for m in measured if m.what == what]
        if mine:
            sizes, costs = [m.R for m in mine], [m.cpu_ms_per_replicate_step for m in mine]
            axis.plot(sizes, costs, label=label, color=colour, marker=marker)
            axis.plot(sizes, [m.loop_cpu_ms for m in mine], ls=":", mfc="none", color=colour, marker=marker)
    axis.set(xscale="log", yscale="log", xlabel="replicates R", ylabel="CPU ms a replicate-step")
    axis.set_xticks([1, 5, 25, 125], ["1", "5", "25", "125"])
    axis.legend(fontsize="small")


def _plot_growth(axis: Any, measured: Sequence[Measured]) -> None:
    names = {"N": ("rows N", "-"), "d": ("features d", "--"), "K": ("actions K", ":"), "h": ("width h", "-.")}
    for letter, (name, style) in names.items():
        for hidden, colour, marker in ((8, "#0072b2", "o"), (128, "#d55e00", "s"), (None, "#000000", "^")):
            mine = [m for m in measured if m.shape[0] == letter and (hidden or m.hidden) == m.hidden]
            if not mine or (hidden is None) != (letter == "h"):
                continue
            label = name if hidden is None else f"{name}, width {hidden}"
            sizes, costs = [int(m.shape[2:]) for m in mine], [m.cpu_ms_per_replicate_step for m in mine]
            axis.plot(sizes, costs, ls=style, color=colour, marker=marker, ms=4, label=label)
    axis.set(xscale="log", yscale="log", xlabel="size", title="PL + CVAT as one size grows (R = 5)")
    axis.legend(fontsize="x-small")
