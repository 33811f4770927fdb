"""``python -m benchmarks.report RUN...``: every table and figure of a run, again from its records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jsonargparse import ArgumentError, ArgumentParser

from benchmarks import analysis, figures
from benchmarks.grid import METHODS
from benchmarks.options import saved_jobs
from benchmarks.statistics import rank_methods
from benchmarks.store import Record, Store, write_parquet, write_text
from benchmarks.tables import (
    ORACLE,
    TITLES,
    Entry,
    Place,
    backbone_title,
    make_entries,
    title,
    to_csv,
    to_latex,
    to_markdown,
)
from cst_lightning.errors import InputError

_MOST_SHOWN = 20  # rows of a list in the report that a CSV file holds whole

Found = list[tuple[Place, Record | None]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 for bad input."""
    parser = ArgumentParser(prog="python -m benchmarks.report", description=__doc__, exit_on_error=False)
    parser.add_argument("runs", type=str, nargs="+", help="folders that a sweep wrote")
    try:
        folders = [Path(run) for run in parser.parse_args(arguments).runs]
        for folder in folders:
            if not any((folder / "cells").glob("*.json")):
                raise InputError(f"{folder} holds no records (cells/*.json): name a folder that a sweep wrote")
        for folder in folders:
            write_report(Store(folder))
            print(f"{folder}: report.md, tables, comparison.csv, differences.csv, rounds.csv and figures/ written")
    except (ArgumentError, InputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: a report needs the package {error.name}: pip install 'cst-lightning[report]'", file=sys.stderr)
        return 2
    return 0


def find_places(store: Store) -> Found:
    """Every cell that a command asked for in this folder, run or not, and every other record in it."""
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(store.read_all(), key=lambda record: record["provenance"]["finished"]):
        newest[_key(Place.of_record(record))] = record
    found: dict[tuple[str, ...], tuple[Place, Record | None]] = {}
    for job in saved_jobs(store.folder):
        for cell in job.cells:
            place = Place.of_cell(cell)
            # a record of another version of the code still is what stands here, until it is run again
            found.setdefault(_key(place), (place, store.read(cell) or newest.get(_key(place))))
    for key, record in newest.items():
        found.setdefault(key, (Place.of_record(record), record))
    return list(found.values())


def _key(place: Place) -> tuple[str, ...]:
    return place.protocol, place.settings, place.dataset, place.backbone, place.method


def write_tables(store: Store) -> Found:
    """``records.parquet`` and ``tables.md``, ``.csv``, ``.tex`` of all that a folder holds; what stands in them."""
    folder, found = store.folder, find_places(store)
    write_parquet(folder / "records.parquet", store.read_all())
    entries = [make_entries(found, metric) for metric in TITLES]
    write_text(folder / "tables.md", "\n".join(map(to_markdown, entries)))
    write_text(folder / "tables.csv", to_csv([entry for of_metric in entries for entry in of_metric]))
    write_text(folder / "tables.tex", "\n".join(map(to_latex, entries)))
    return found


def write_report(store: Store) -> None:
    """All of ``write_tables``, and ``report.md`` with its figures and the frames behind it as CSV."""
    found = write_tables(store)
    folder, records = store.folder, [record for _, record in found if record is not None]
    entries = {metric: make_entries(found, metric) for metric in TITLES}
    every = [entry for of_metric in entries.values() for entry in of_metric]
    parts = [f"# {folder.name}", "\n".join(map(to_markdown, entries.values()))]
    compared = analysis.compare_with_paper(every)
    if len(compared) and len({entry.place.settings for entry in every}) == 1:
        write_frame(folder / "comparison.csv", compared)
        figures.plot_comparison(compared, folder / "figures" / "comparison.svg")
        parts += _against_paper(compared)
    differences = pd.concat([analysis.differences(of_metric) for of_metric in entries.values()])
    if len(differences):
        write_frame(folder / "differences.csv", differences)
        parts += _differences(differences)
    parts += _ranks(entries, folder)
    rounds = analysis.rounds(records)
    if len(rounds):
        write_frame(folder / "rounds.csv", rounds)
        figures.plot_rounds(rounds, folder / "figures" / "rounds.svg")
        parts += _rounds(rounds)
    overlap = analysis.overlap(records, every)
    if len(overlap):
        write_frame(folder / "overlap.csv", overlap)
        figures.plot_overlap(overlap[overlap["metric"] == "nll"], folder / "figures" / "overlap.svg")
        parts += _overlap(overlap[overlap["metric"] == "nll"])
    write_text(folder / "report.md", "\n\n".join(part.strip() for part in parts) + "\n")


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """A frame as CSV, in full precision."""
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


# --- the parts of report.md ---------------------------------------------------------------------------


def _against_paper(compared: pd.DataFrame) -> list[str]:
    z = compared["z"].abs()
    far = compared[z > 3].sort_values("z", key=abs, ascending=False)
    lines = [
        "## Against the paper",
        f"Of {len(compared)} numbers that the paper has too, {int((z <= 2).sum())} lie within 2 and "
        f"{int((z <= 3).sum())} within 3 combined standard errors of the paper's (`comparison.csv`).",
        "![Ours against the paper's numbers](figures/comparison.svg)",
    ]
    if len(far):
        rows = [
            (
                row.dataset,
                backbone_title(row.backbone),
                METHODS[row.method].title,
                title(row.metric),
                f"{row.ours:.4f} ± {row.ours_se:.4f}",
                f"{row.paper:.4f} ± {row.paper_se:.4f}",
                f"{row.z:+.1f}",
            )
            for row in far.head(_MOST_SHOWN).itertuples()
        ]
        lines.append(f"Beyond 3{', the farthest' if len(far) > _MOST_SHOWN else ''}:")
        lines.append(_table(("data set", "backbone", "method", "metric", "ours", "paper", "z"), rows))
    return lines


def _differences(frame: pd.DataFrame) -> list[str]:
    parts = [
        "## Method against method",
        "Mean difference ± standard error, paired by seed; * where a paired t test gives p < 0.05 after Holm's "
        f"adjustment over the whole table; {ORACLE} where an oracle chose a weight of either side. Below zero the "
        "first has the lower loss. Intervals and p values: `differences.csv`.",
    ]
    for metric, of_metric in frame.groupby("metric", sort=False):
        datasets = list(dict.fromkeys(of_metric["dataset"]))
        several = of_metric["settings"].nunique() > 1
        rows = []
        for (settings, first, second), pair in of_metric.groupby(["settings", "first", "second"], sort=False):
            at = {row.dataset: row for row in pair.itertuples()}
            name = f"{first} − {second}" + (f" ({settings})" if several else "")
            rows.append((name, *(_difference(at.get(dataset)) for dataset in datasets)))
        parts += [f"### {title(str(metric))}", _table(("pair", *datasets), rows)]
    return parts


def _difference(row: Any) -> str:
    if row is None:
        return ""
    star, oracle = "*" if row.p_holm < 0.05 else "", ORACLE if row.oracle else ""
    return f"{row.difference:+.4f} ± {row.standard_error:.4f}{star}{oracle}"


def _ranks(entries: dict[str, list[Entry]], folder: Path) -> list[str]:
    parts = []
    for metric, of_metric in entries.items():
        if len({entry.place.settings for entry in of_metric}) > 1:
            continue
        losses = analysis.losses(of_metric)
        ranks = rank_methods(losses) if len(losses) else None
        if ranks is None:
            continue
        figures.plot_ranks(ranks, folder / "figures" / f"ranks_{metric}.svg")
        parts += [
            f"### {title(metric)}",
            f"Average rank over {len(losses)} data sets of {len(ranks.mean)} methods (1 is the lowest loss); a "
            f"Friedman test of no difference gives p = {ranks.friedman_p:.2g}. A bar joins methods that a Nemenyi "
            "test does not tell apart at 0.05.",
            f"![Critical-difference diagram, {title(metric)}](figures/ranks_{metric}.svg)",
        ]
    return ["## Ranks over data sets", *parts] if parts else []


def _rounds(frame: pd.DataFrame) -> list[str]:
    columns = ["alpha", "alpha_drawn", "teacher_error", "student_error", "inconsistency", "mu", "bound", "changed"]
    columns += ["objective_start", "objective_end", "objective_imputed"]
    means = frame.groupby(["settings", "dataset", "backbone", "method", "round"], sort=False)[columns].mean()
    several = frame["settings"].nunique() > 1
    rows = [
        (
            *((settings,) if several else ()),
            dataset,
            backbone_title(backbone),
            METHODS[method].title,
            str(number),
            *("" if pd.isna(value) else f"{value:.3f}" for value in values),
        )
        for (settings, dataset, backbone, method, number), values in zip(means.index, means.to_numpy(), strict=True)
    ]
    header = [
        *(["settings"] if several else []), "data set", "backbone", "method", "round", "α", "α (drawn)", "Err(teacher)",
        "Err(student)", "R_B(student)", "μ", "bound", "changed", "objective: teacher", "student", "student, relabelled",
    ]  # fmt: skip
    return [
        "## Theory, measured",
        "Means over seeds, on the training rows. α: the largest share of wrong pseudo-labels of any action and class, "
        "against the Bayes classifier f* (Theorem 1 asks for less than 0.2) and against the outcomes drawn. Err: "
        "share of entries at which a classifier differs from f*. R_B: share of entries whose prediction changes "
        "under a perturbation of the length that CVAT uses, μ the same of f*; both from below. Bound: Theorem 1's at "
        "its most favourable, 2μ; above 1 it says nothing. Objective: Proposition 1's, a row, without CVAT's term; "
        "fresh weights need not end below their teacher's value.",
        "![Pseudo-label errors, bound and objective by round](figures/rounds.svg)",
        _table(header, rows),
    ]


def _overlap(frame: pd.DataFrame) -> list[str]:
    datasets = frame.drop_duplicates("dataset").sort_values("effective_sample_size", ascending=False)
    rows = []
    for (backbone, method), of_method in frame.groupby(["backbone", "method"], sort=False):
        at = {row.dataset: f"{row.mean:.4f} ± {row.standard_error:.4f}" for row in of_method.itertuples()}
        rows.append(
            (backbone_title(backbone), METHODS[method].title, *(at.get(name, "") for name in datasets["dataset"]))
        )
    size = ("effective sample size / N", "", *(f"{value:.3f}" for value in datasets["effective_sample_size"]))
    return [
        "## Overlap",
        "NLL under each logging policy, from even to near deterministic. Effective sample size: of the weights "
        "1 / π(a | x) under the true policy, for the actions that were logged.",
        "![NLL over the effective sample size](figures/overlap.svg)",
        _table(("backbone", "method", *datasets["dataset"]), [size, *rows]),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
