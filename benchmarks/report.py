"""``python -m benchmarks.report RUN...``: every table and figure of a run, again from its records."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from jsonargparse import ArgumentError, ArgumentParser

from benchmarks import analysis, figures
from benchmarks.grid import digest
from benchmarks.options import saved_jobs
from benchmarks.page import Run, Section, render, run_names
from benchmarks.remote import here
from benchmarks.statistics import rank_methods
from benchmarks.store import Record, Store, write_parquet, write_text
from benchmarks.tables import (
    ORACLE,
    TITLES,
    Entry,
    Place,
    backbone_title,
    main_datasets,
    make_entries,
    spread,
    title,
    to_csv,
    to_latex,
    to_markdown,
)
from benchmarks.texts import csv_text, last_line, markdown_text, printable
from cst_lightning.catalogue import method_order, method_title
from cst_lightning.errors import InputError

_MOST_SHOWN = 20  # rows of a list in the report that a CSV file holds whole
_MOST_DRAWN = 3  # backbones with figures of their own

Found = list[tuple[Place, Record | None]]
Entries = dict[str, list[Entry]]  # by metric


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 for bad input."""
    parser = ArgumentParser(prog="python -m benchmarks.report", description=__doc__, exit_on_error=False)
    parser.add_argument("runs", type=str, nargs="+", help="folders or addresses that a sweep wrote")
    parser.add_argument("--out", type=str | None, default=None, help="a page of all of them; report.html for several")
    parser.add_argument("--pdf", action="store_true", help="each figure as PDF too, for a paper")
    parser.add_argument("--trust", type=str, nargs="+", default=[], help="packages that the runs may have imported")
    try:
        options = parser.parse_args(arguments)
        found = [here(run) for run in options.runs]
        folders = [folder.resolve() for folder, _ in found]
        for folder in folders:
            if not Store(folder).read_all():
                raise InputError(f"{folder} holds no records (cells/*.json): name a folder that a sweep wrote")
        with figures.also_as(*(["pdf"] if options.pdf else [])):
            runs = [write_report(Store(folder), options.trust) for folder in folders]
        for folder, (_, away) in zip(folders, found, strict=True):
            print(f"{folder / 'report.html'}; tables, report.md, figures and the frames behind them beside it")
            for path, fault in Store(folder).faults() + away:
                print(f"left out, since it is no record: {printable(str(path))} ({fault})")
        if options.out or len(runs) > 1:
            out = options.out or "report.html"
            write_text(Path(out), render(runs, _run_against_run(runs)))
            print(f"{Path(out).resolve()} has all of it")
    except (ArgumentError, InputError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: a report needs the package {error.name}: pip install 'cst-lightning[report]'", file=sys.stderr)
        return 2
    return 0


def find_places(store: Store, trust: Sequence[str] = ()) -> Found:
    """Every cell that a command asked for in this folder, run or not, and every other record in it.

    Args:
        trust: packages that what stands in the folder may have imported.
    """
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(store.read_all(), key=lambda record: record["provenance"]["finished"]):
        newest[_key(Place.of_record(record))] = record
    found: dict[tuple[str, ...], tuple[Place, Record | None]] = {}
    for job in saved_jobs(store.folder, trust)[0]:
        for cell in job.cells:
            place = Place.of_cell(cell)
            # a record of another version of the code still is what stands here, until it is run again
            found.setdefault(_key(place), (place, store.read(cell) or newest.get(_key(place))))
    placed = {digest(record["identity"]) for _, record in found.values() if record is not None}
    for key, record in sorted(newest.items(), key=lambda item: (*item[0][:4], method_order(item[0][4]))):
        if digest(record["identity"]) not in placed:
            found.setdefault(key, (Place.of_record(record), record))
    if len({place.protocol for place, _ in found.values()}) > 1:  # then its name is a part of the settings
        return [(replace(p, changes={"protocol": p.protocol, **p.changes}), record) for p, record in found.values()]
    return list(found.values())


def _key(place: Place) -> tuple[str, ...]:
    return place.protocol, place.settings, place.dataset, place.backbone, place.method


def write_tables(store: Store, trust: Sequence[str] = ()) -> Found:
    """``records.parquet`` and ``tables.md``, ``.csv``, ``.tex`` of all that a folder holds; what stands in them."""
    folder, found = store.folder, find_places(store, trust)
    write_parquet(folder / "records.parquet", store.read_all())
    entries = [make_entries(found, metric) for metric in TITLES]
    write_text(folder / "tables.md", "\n".join(map(to_markdown, entries)))
    write_text(folder / "tables.csv", to_csv([entry for of_metric in entries for entry in of_metric]))
    write_text(folder / "tables.tex", "\n".join(map(to_latex, entries)))
    return found


def write_report(store: Store, trust: Sequence[str] = ()) -> Run:
    """All of ``write_tables``; ``report.md`` and ``report.html``, their figures, and the frames behind them as CSV."""
    found = write_tables(store, trust)
    folder, records = store.folder, [record for _, record in found if record is not None]
    entries = {metric: make_entries(found, metric) for metric in TITLES}
    every = [entry for of_metric in entries.values() for entry in of_metric]
    unread = [f"`{printable(path.name)}` is no record" for path, _ in store.faults()]
    sections = [
        *_problems(found, [*saved_jobs(folder, trust)[1], *unread]),
        *_against_paper(every, folder),
        *_differences(entries, folder),
        *_ranks(entries, folder),
        *_rounds(records, folder),
        *_overlap(records, entries, folder),
        *_details(records, entries, folder),
    ]
    tables = [to_markdown(of_metric).strip() for of_metric in entries.values()]
    write_text(folder / "report.md", "\n\n".join([f"# {folder.name}", *tables, *map(_markdown, sections)]) + "\n")
    run = Run(folder.resolve(), found, sections)
    write_text(folder / "report.html", render([run]))
    return run


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """A frame as CSV, in full precision."""
    texts = {name: frame[name].map(_csv_value) for name in frame.select_dtypes(exclude="number")}
    write_text(path, frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def _csv_value(value: Any) -> Any:
    return csv_text(value) if isinstance(value, str) else value


def _markdown(section: Section) -> str:
    parts = ["#" * section.level + f" {section.title}", *section.texts]
    if section.figure:
        parts.append(f"![{section.title}](figures/{section.figure})")
    if section.rows:
        rows = [list(map(markdown_text, row)) for row in section.rows]
        lines = [list(map(markdown_text, section.header)), ["---"] * len(section.header), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


# --- the parts ----------------------------------------------------------------------------------------


def _problems(found: Found, unread: Sequence[str]) -> list[Section]:
    """Cells without a number, plainly."""
    rows = []
    for place, record in found:
        name = (place.settings, place.dataset, backbone_title(place.backbone), method_title(place.method))
        if record is None:
            rows.append((*name, "missing", "was asked for and has not been run"))
        elif record["status"] != "finished":
            rows.append((*name, record["status"], last_line(record["error"])))
        else:
            failed = [f"seed {r['seed']} in {r['failed_in']}" for r in record["results"] if r["failed_in"]]
            rows += [(*name, "not finite", ", ".join(failed))] if failed else []
    header = ("settings", "data set", "backbone", "method", "status", "what is known")
    return [Section("Failed and missing", texts=unread, header=header, rows=rows)] if rows or unread else []


def _against_paper(entries: Sequence[Entry], folder: Path) -> list[Section]:
    compared = analysis.compare_with_paper(entries)
    if not len(compared) or len({entry.place.settings for entry in entries}) > 1:
        return []
    write_frame(folder / "comparison.csv", compared)
    figures.plot_comparison(compared, folder / "figures" / "comparison.svg")
    z = compared["z"].abs()
    far = compared[z > 3].sort_values("z", key=abs, ascending=False)
    texts = [
        f"Of {len(compared)} numbers that the paper has too, {int((z <= 2).sum())} lie within 2 and "
        f"{int((z <= 3).sum())} within 3 combined standard errors of the paper's (`comparison.csv`)."
    ]
    if len(far):
        shown = f", and the {_MOST_SHOWN} farthest of them in the table" if len(far) > _MOST_SHOWN else ""
        texts.append(f"{len(far)} {'lies' if len(far) == 1 else 'lie'} beyond 3{shown}.")
    rows = [
        (
            row.dataset,
            backbone_title(row.backbone),
            method_title(row.method),
            title(row.metric),
            f"{row.ours:.4f} ± {row.ours_se:.4f}",
            f"{row.paper:.4f} ± {row.paper_se:.4f}",
            f"{row.z:+.1f}",
        )
        for row in far.head(_MOST_SHOWN).itertuples()
    ]
    header = ("data set", "backbone", "method", "metric", "ours", "paper", "z")
    return [Section("Ours against the paper's", 2, texts, "comparison.svg", header, rows)]


def _differences(entries: Entries, folder: Path) -> list[Section]:
    frames = [analysis.differences(of_metric) for of_metric in entries.values()]
    frame = pd.concat(frames)
    if not len(frame):
        return []
    write_frame(folder / "differences.csv", frame)
    about = (
        "Mean difference ± standard error, paired by seed; * where a paired t test gives p < 0.05 after Holm's "
        f"adjustment over the whole table; {ORACLE} where an oracle chose a weight of either side. Below zero the "
        "first has the lower loss. Intervals and p values: `differences.csv`."
    )
    sections = [Section("Method against method", texts=[about])]
    for metric, of_metric in frame.groupby("metric", sort=False):
        datasets = list(dict.fromkeys(of_metric["dataset"]))
        several = of_metric["settings"].nunique() > 1
        rows = []
        for (settings, first, second), pair in of_metric.groupby(["settings", "first", "second"], sort=False):
            at = {row.dataset: row for row in pair.itertuples()}
            name = f"{first} − {second}" + (f" ({settings})" if several else "")
            rows.append((name, *(_difference(at.get(dataset)) for dataset in datasets)))
        sections.append(Section(f"Differences in {title(str(metric))}", 3, header=("pair", *datasets), rows=rows))
    return sections


def _run_against_run(runs: Sequence[Run]) -> list[Section]:
    """The cells that the first run and another both have."""
    sections = []
    names = run_names(runs)
    entries = [[entry for metric in TITLES for entry in make_entries(run.found, metric)] for run in runs]
    for name, of_run in zip(names[1:], entries[1:], strict=True):
        frame = analysis.run_differences(entries[0], of_run)
        rows = []
        for row in frame.itertuples():
            star, oracle = "*" if row.p_holm < 0.05 else "", ORACLE if row.oracle else ""
            means = (spread(side.mean, side.standard_error) for side in (row.first, row.second))
            difference = f"{row.difference.mean:+.4f} ± {row.difference.standard_error:.4f}{star}{oracle}"
            place = (row.dataset, backbone_title(row.backbone), method_title(row.method), title(row.metric))
            rows.append((*place, *means, difference, str(row.difference.n)))
        about = (
            f"Cells that both runs have: mean ± standard error of each, and of {name} − {names[0]} over the seeds that "
            f"both finished, paired by seed; * where a paired t test gives p < 0.05 after Holm's adjustment over this "
            f"table; {ORACLE} where an oracle chose a weight of either."
        )
        text = about if rows else f"{name} and {names[0]} have no cell with two seeds in common."
        header = ("data set", "backbone", "method", "metric", names[0], name, "difference", "n") if rows else ()
        sections.append(Section(f"{name} against {names[0]}", 2, [text], header=header, rows=rows))
    return sections


def _difference(row: Any) -> str:
    if row is None:
        return ""
    star, oracle = "*" if row.p_holm < 0.05 else "", ORACLE if row.oracle else ""
    lost = f" (n={row.n})" if row.n < row.asked else ""
    return f"{row.difference:+.4f} ± {row.standard_error:.4f}{star}{oracle}{lost}"


def _ranks(entries: Entries, folder: Path) -> list[Section]:
    sections = []
    for metric, of_metric in entries.items():
        if len({entry.place.settings for entry in of_metric}) > 1:
            continue
        losses = analysis.losses(of_metric)
        ranks = rank_methods(losses) if len(losses) else None
        if ranks is None or math.isnan(ranks.friedman_p):
            continue
        figures.plot_ranks(ranks, folder / "figures" / f"ranks_{metric}.svg")
        about = (
            f"Average rank over {len(losses)} data sets of {len(ranks.mean)} methods (1 is the lowest loss); a "
            f"Friedman test of no difference gives p = {ranks.friedman_p:.2g}. A bar joins methods that a Nemenyi "
            f"test does not tell apart at 0.05. {ORACLE}: its weights were chosen by an oracle."
        )
        shown = main_datasets(e.place.dataset for e in of_metric)
        lost = [
            f"{backbone_title(e.place.backbone)}, {method_title(e.place.method)} "
            f"({e.place.dataset}: n={e.ours.n}/{e.ours.asked})"
            for e in of_metric
            if e.ours is not None and e.ours.n < e.ours.asked and e.place.dataset in shown
        ]
        about += f" Left out, since seeds failed: {', '.join(lost)}." if lost else ""
        sections.append(Section(f"Ranks by {title(metric)}", 3, [about], f"ranks_{metric}.svg"))
    return [Section("Ranks over data sets"), *sections] if sections else []


def _rounds(records: Sequence[Record], folder: Path) -> list[Section]:
    frame = analysis.rounds(records)
    if not len(frame):
        return []
    write_frame(folder / "rounds.csv", frame)
    figures.plot_rounds(frame, folder / "figures" / "rounds.svg")
    columns = ["alpha", "alpha_drawn", "teacher_error", "student_error", "inconsistency", "mu", "bound", "changed"]
    columns += ["objective_start", "objective_end", "objective_imputed"]
    means = frame.groupby(["settings", "dataset", "backbone", "method", "round"], sort=False)[columns].mean()
    several = frame["settings"].nunique() > 1
    rows = [
        (
            *((settings,) if several else ()),
            dataset,
            backbone_title(backbone),
            method_title(method),
            str(number),
            *("" if pd.isna(value) else f"{value:.3f}" for value in values),
        )
        for (settings, dataset, backbone, method, number), values in zip(means.index, means.to_numpy(), strict=True)
    ]
    header = [
        *(["settings"] if several else []), "data set", "backbone", "method", "round", "α", "α (drawn)", "Err(teacher)",
        "Err(student)", "R_B(student)", "μ", "bound", "changed", "objective: teacher", "student", "student, relabelled",
    ]  # fmt: skip
    about = (
        "Means over seeds, on the training rows. α: the largest share of wrong pseudo-labels of any action and class, "
        "against the Bayes classifier f* (Theorem 1 asks for less than 0.2) and against the outcomes drawn. Err: "
        "share of entries at which a classifier differs from f*. R_B: share of entries whose prediction changes "
        "under a perturbation of the length that CVAT uses, μ the same of f*; both from below. Bound: Theorem 1's at "
        "its most favourable, 2μ; above 1 it says nothing. Objective: Proposition 1's, a row, without CVAT's term; "
        "fresh weights need not end below their teacher's value."
    )
    return [Section("Pseudo-labels and Theorem 1 by round", 2, [about], "rounds.svg", header, rows)]


def _overlap(records: Sequence[Record], entries: Entries, folder: Path) -> list[Section]:
    frame = pd.concat([analysis.overlap(records, of_metric) for of_metric in entries.values()])
    if not len(frame) or len({entry.place.settings for of_metric in entries.values() for entry in of_metric}) > 1:
        return []
    write_frame(folder / "overlap.csv", frame)
    frame = frame[frame["metric"] == "nll"]
    figures.plot_overlap(frame, folder / "figures" / "overlap.svg")
    datasets = frame.drop_duplicates("dataset").sort_values("effective_sample_size", ascending=False)
    size = ("effective sample size / N", "", *(f"{value:.3f}" for value in datasets["effective_sample_size"]))
    rows = [size]
    for (backbone, method), of_method in frame.groupby(["backbone", "method"], sort=False):
        at = {row.dataset: spread(row.mean, row.standard_error) for row in of_method.itertuples()}
        numbers = (at.get(name, "") for name in datasets["dataset"])
        rows.append((backbone_title(backbone), method_title(method), *numbers))
    about = (
        "NLL under each logging policy. Effective sample size: of the weights 1 / π(a | x) under the true policy, for "
        "the actions that were logged."
    )
    return [Section("Overlap", 2, [about], "overlap.svg", ("backbone", "method", *datasets["dataset"]), rows)]


def _details(records: Sequence[Record], entries: Entries, folder: Path) -> list[Section]:
    """Figures that need no table."""
    drawn = folder / "figures"
    sections = []
    n_settings = len({entry.place.settings for entry in entries["nll"]})
    if n_settings > 1:
        about = (
            f"This folder holds cells of {n_settings} settings. Comparison with the paper, ranks, overlap, losses, "
            "calibration, curves, CVAT weights and costs are drawn for folders of one: give each its own with --out, "
            "and this report several."
        )
        return [Section("Not drawn", 2, [about])]
    if any(entry.ours is not None for entry in entries["nll"]):
        figures.plot_losses(entries, drawn / "losses.svg")
        sections.append(Section("NLL against Hamming loss", figure="losses.svg"))
    for name, frame, plot in (
        ("calibration", analysis.calibration(records), figures.plot_calibration),
        ("curves", analysis.curves(records), figures.plot_curves),
    ):
        shown = list(frame.groupby("backbone", sort=False))[:_MOST_DRAWN] if len(frame) else []
        sections += [Section(_DETAILS[name], texts=[_ABOUT[name]])] if shown else []
        for backbone, values in shown:
            file = f"{name}_{re.sub('[^A-Za-z0-9]+', '-', str(backbone))}.svg"
            plot(values, drawn / file)
            sections.append(Section(f"{_DETAILS[name]} of {backbone_title(str(backbone))}", 3, figure=file))
    for name, frame, draw in (
        ("weights", analysis.weights(records), figures.plot_weights),
        ("costs", analysis.costs(records), figures.plot_costs),
    ):
        if len(frame):
            draw(frame, drawn / f"{name}.svg")
            sections.append(Section(_DETAILS[name], texts=[_ABOUT[name]], figure=f"{name}.svg"))
    return sections


_DETAILS = {
    "calibration": "Calibration",
    "curves": "Learning curves",
    "weights": "Effect of the CVAT weight",
    "costs": "Time and cost",
}
_ABOUT = {
    "calibration": f"Reliability, seeds pooled; the first {_MOST_DRAWN} backbones.",
    "curves": f"Mean ± standard error over the seeds still training; the first {_MOST_DRAWN} backbones with epochs.",
    "weights": "Test NLL of every CVAT weight tried.",
    "costs": "CPU time of each data set and backbone, all methods together.",
}


if __name__ == "__main__":
    sys.exit(main())
