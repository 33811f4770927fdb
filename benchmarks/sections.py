"""The parts of a report: texts, figures and tables of a run, made from its records."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import analysis, course, course_figures, figures
from benchmarks.entries import (
    ORACLE,
    Entry,
    Place,
    backbone_title,
    main_datasets,
    make_entries,
    shown_metrics,
    title,
)
from benchmarks.files import write_text
from benchmarks.grid import digest
from benchmarks.page import Run, Section, run_names
from benchmarks.statistics import rank_methods
from benchmarks.store import Record
from benchmarks.tables import spread
from benchmarks.texts import last_line, minus
from cst_lightning.catalogue import method_title
from cst_lightning.texts import counted, csv_text

_MOST_SHOWN = 20  # rows of a list in the report that a CSV file holds whole
_FEWEST_IN_BIN = 20  # predictions, for the observed share of them to be drawn
_LONGEST_NAME = 60  # characters of a backbone's in a file's
_MARKED = f"{ORACLE}: an oracle chose the weight."

_OF_ROUNDS = {
    "alpha": "α",
    "alpha_above": "α ≥ 0.2",
    "alpha_drawn": "α (drawn)",
    "teacher_error": "Err(teacher)",
    "student_error": "Err(student)",
    "inconsistency": "R_B(student)",
    "mu": "μ",
    "bound": "bound",
    "changed": "changed",
    "objective_start": "objective: teacher",
    "objective_end": "student",
    "objective_imputed": "student, relabelled",
}

Found = list[tuple[Place, Record | None]]
Entries = dict[str, list[Entry]]  # by metric


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """A frame as CSV, in full precision."""
    texts = {name: frame[name].map(_csv_value) for name in frame.select_dtypes(exclude="number")}
    write_text(path, frame.assign(**texts).to_csv(index=False, lineterminator="\n"))


def _csv_value(value: Any) -> Any:
    return csv_text(value) if isinstance(value, str) else value


def problems(found: Found, unread: Sequence[str], titles: Mapping[str, str]) -> list[Section]:
    """Cells without a number, plainly; ``titles`` are those of settings."""
    rows = []
    for place, record in found:
        name = (titles[place.settings], place.dataset, backbone_title(place.backbone), method_title(place.method))
        if record is None:
            rows.append((*name, "missing", "was asked for and has not been run"))
        elif record["status"] != "finished":
            rows.append((*name, record["status"], last_line(record["error"])))
        else:
            failed = [f"seed {r['seed']} in {r['failed_in']}" for r in record["results"] if r["failed_in"]]
            rows += [(*name, "not finite", ", ".join(failed))] if failed else []
    header = ("settings", "data set", "backbone", "method", "status", "what is known")
    return [Section("Failed and missing", texts=unread, header=header, rows=rows)] if rows or unread else []


def of_settings(records: Sequence[Record], entries: Entries, drawn: Path) -> list[Section]:
    """What is drawn of the cells of one setting, into the folder ``drawn`` of figures."""
    return [
        *_against_paper([entry for of_metric in entries.values() for entry in of_metric], drawn),
        *_losses(entries, drawn),
        *_ranks(entries, drawn),
        *_overlap(records, entries, drawn),
        *_calibration(records, drawn),
        *_curves(records, drawn),
        *_labels(records, drawn),
        *_weights_and_costs(records, drawn),
    ]


def write_frames(records: Sequence[Record], entries: Entries, folder: Path) -> None:
    """``comparison.csv`` with the paper's numbers, and ``overlap.csv``, of all settings, where there is anything."""
    compared = analysis.compare_with_paper([entry for of_metric in entries.values() for entry in of_metric])
    overlaps = [analysis.overlap(records, of_metric) for of_metric in entries.values()]
    for name, frame in (("comparison", compared), ("overlap", pd.concat(overlaps))):
        if len(frame):
            write_frame(folder / f"{name}.csv", frame)


def _against_paper(entries: Sequence[Entry], drawn: Path) -> list[Section]:
    """Each number that the paper has too beside the paper's."""
    compared = analysis.compare_with_paper(entries)
    if not len(compared):
        return []
    figure = "comparison.svg" if len(compared) > compared["metric"].nunique() else ""  # a single point says nothing
    if figure:
        figures.plot_comparison(compared, drawn / figure)
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
            f"{row.ours:.4f} ± {row.ours_se:.4f}" + ORACLE * row.oracle,
            f"{row.paper:.4f} ± {row.paper_se:.4f}" + ORACLE * (row.method == "pl_cvat"),
            minus(f"{row.z:+z.1f}"),
        )
        for row in far.head(_MOST_SHOWN).itertuples()
    ]
    header = ("data set", "backbone", "method", "metric", "ours", "paper", "z")
    return [Section("Ours against the paper's", 2, texts, figure, header, rows)]


def differences(entries: Entries, folder: Path, titles: Mapping[str, str]) -> list[Section]:
    """Every two methods of a backbone, paired by seed, and ``differences.csv``; ``titles`` are those of settings."""
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
        several = ["settings"] if of_metric["settings"].nunique() > 1 else []
        rows = []
        for (settings, first, second), pair in of_metric.groupby(["settings", "first", "second"], sort=False):
            at = {row.dataset: row for row in pair.itertuples()}
            names = [*(titles[str(settings)] for _ in several), f"{first} − {second}"]
            rows.append((*names, *(_difference(at.get(dataset)) for dataset in datasets)))
        sections.append(
            Section(f"Differences in {title(str(metric))}", 3, header=(*several, "pair", *datasets), rows=rows)
        )
    return sections


def run_against_run(runs: Sequence[Run]) -> list[Section]:
    """The cells that the first run and another both have."""
    sections = []
    names = run_names(runs)
    entries = [[e for metric in shown_metrics(run.found) for e in make_entries(run.found, metric)] for run in runs]
    for name, of_run in zip(names[1:], entries[1:], strict=True):
        frame = analysis.run_differences(entries[0], of_run)
        rows = []
        for row in frame.itertuples():
            star, oracle = "*" if row.p_holm < 0.05 else "", ORACLE * (row.first_oracle or row.second_oracle)
            sides = ((row.first, row.first_oracle), (row.second, row.second_oracle))
            means = (spread(side.mean, side.standard_error) + ORACLE * marked for side, marked in sides)
            difference = minus(f"{row.difference.mean:+z.4f} ± {row.difference.standard_error:.4f}{star}{oracle}")
            place = (row.dataset, backbone_title(row.backbone), method_title(row.method), title(row.metric))
            rows.append((*place, *means, difference, str(row.difference.n)))
        about = (
            f"Cells that both runs have: mean ± standard error of each and of {name} − {names[0]}, paired by seed, all "
            f"over the n seeds that both finished; * where a paired t test gives p < 0.05 after Holm's adjustment over "
            f"this table; {ORACLE} where an oracle chose a weight, of a difference where of either."
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
    return minus(f"{row.difference:+z.4f}") + f" ± {row.standard_error:.4f}{star}{oracle}{lost}"


def _ranks(entries: Entries, drawn: Path) -> list[Section]:
    """Average ranks over data sets, with what a Nemenyi test tells apart."""
    sections = []
    for metric, of_metric in entries.items():
        losses = analysis.losses(of_metric)
        ranks = rank_methods(losses) if len(losses) else None
        if ranks is None or math.isnan(ranks.friedman_p):
            continue
        figures.plot_ranks(ranks, drawn / f"ranks_{metric}.svg")
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


def rounds(found: Found, folder: Path, titles: Mapping[str, str]) -> list[Section]:
    """Theorem 1's quantities and Proposition 1's objective by round, ``rounds.csv`` and ``labels.csv``.

    Args:
        titles: of settings.
    """
    frame, labels = _by_place(found, analysis.rounds), _by_place(found, analysis.label_errors)
    if not len(frame):
        return []
    write_frame(folder / "rounds.csv", frame)
    write_frame(folder / "labels.csv", labels)
    places = ["settings", "dataset", "backbone", "method", "oracle", "round"]
    means = frame.groupby(places, sort=False)[list(_OF_ROUNDS)].mean()
    several = frame["settings"].nunique() > 1
    rows = [
        (
            *((titles[settings],) if several else ()),
            dataset,
            backbone_title(backbone),
            method_title(method) + ORACLE * oracle,
            str(number),
            *("" if pd.isna(value) else minus(f"{value:.3f}") for value in values),
        )
        for (settings, dataset, backbone, method, oracle, number), values in zip(
            means.index, means.to_numpy(), strict=True
        )
    ]
    header = [*(["settings"] if several else []), "data set", "backbone", "method", "round", *_OF_ROUNDS.values()]
    about = (
        "Means over seeds, on the training rows. α: the largest share of wrong pseudo-labels of any action and class, "
        "against the Bayes classifier f* (Theorem 1 asks for less than 0.2; the share of actions and classes above it; "
        "each of them: `labels.csv`) and against the outcomes drawn. Err: "
        "share of entries at which a classifier differs from f*. R_B: share of entries whose prediction changes "
        "under a perturbation of the length that CVAT uses, μ the same of f*; both from below. Bound: Theorem 1's at "
        "its most favourable, 2μ; above 1 it says nothing. Objective: Proposition 1's, a row, without CVAT's term; "
        "fresh weights need not end below their teacher's value. Of every seed: `rounds.csv`."
    )
    about += f" {_MARKED}" if frame["oracle"].any() else ""
    return [Section("Pseudo-labels and Theorem 1 by round", 2, [about], header=header, rows=rows)]


def _by_place(found: Found, make: Callable[[Sequence[Record]], pd.DataFrame]) -> pd.DataFrame:
    """A frame of every record, under the settings of its place: with its protocol, where a folder has several."""
    frames = [make([record]).assign(settings=place.settings) for place, record in found if record is not None]
    return pd.concat([frame for frame in frames if len(frame)] or [pd.DataFrame()], ignore_index=True)


def _overlap(records: Sequence[Record], entries: Entries, drawn: Path) -> list[Section]:
    """NLL by logging policy beside its effective sample size."""
    frame = analysis.overlap(records, entries["nll"])
    if not len(frame):
        return []
    unlogged = frame["dataset"].str.contains("unlogged")
    seen = frame[~unlogged]
    seen = seen[seen.groupby("backbone")["dataset"].transform("nunique") > 1]
    if len(seen):
        figures.plot_overlap(seen, drawn / "overlap.svg")
    datasets = frame.drop_duplicates("dataset").sort_values("effective_sample_size", ascending=False)
    size = ("effective sample size / N", "", *(f"{value:.3f}" for value in datasets["effective_sample_size"]))
    rows = [size]
    for (backbone, method), of_method in frame.groupby(["backbone", "method"], sort=False):
        at = {r.dataset: spread(r.mean, r.standard_error) + ORACLE * r.oracle for r in of_method.itertuples()}
        numbers = (at.get(name, "") for name in datasets["dataset"])
        rows.append((backbone_title(backbone), method_title(method), *numbers))
    about = (
        "NLL under each logging policy. Effective sample size: of the weights 1 / π(a | x) under the true policy, for "
        "the actions that were logged. Of both metrics: `overlap.csv`."
    )
    about += f" {_MARKED}" if frame["oracle"].any() else ""
    if unlogged.any():
        names = ", ".join(dict.fromkeys(frame.loc[unlogged, "dataset"]))
        about += f" The figure is without {names}: of an action without support this size says nothing."
    figure = "overlap.svg" if len(seen) else ""
    return [Section("Overlap", 2, [about], figure, ("backbone", "method", *datasets["dataset"]), rows)]


def _losses(entries: Entries, drawn: Path) -> list[Section]:
    frame = analysis.nll_and_hamming(entries["nll"], entries["hamming"])
    if not len(frame) or frame["dataset"].is_unique:  # a single point says nothing
        return []
    figures.plot_losses(frame, drawn / "losses.svg")
    about = (
        "Test NLL over Hamming loss, means over seeds, a panel a data set: lower and further left is better. The "
        "colour tells the backbone, the shape of its marker the method."
    )
    return [Section("NLL against Hamming loss", texts=[about], figure="losses.svg")]


def _calibration(records: Sequence[Record], drawn: Path) -> list[Section]:
    frame = analysis.calibration(records)
    about = "Reliability, seeds pooled: observed shares over predictions; on the diagonal they agree."
    if len(frame):
        rare = frame["count"] < _FEWEST_IN_BIN
        frame = frame[~rare]
        if rare.any():
            about += (
                f" {counted(int(rare.sum()), 'bin')} of {len(rare)} with fewer than {_FEWEST_IN_BIN} predictions, "
                "where a share is chance, are not drawn."
            )
    parts = []
    for backbone, values in frame.groupby("backbone", sort=False) if len(frame) else ():
        file = _file("calibration", backbone)
        figures.plot_calibration(values, drawn / file)
        text = "A panel a data set and a line a method."
        parts.append(Section(f"Calibration of {backbone_title(str(backbone))}", 3, [text], file))
    return [Section("Calibration", texts=[about]), *parts] if parts else []


def _curves(records: Sequence[Record], drawn: Path) -> list[Section]:
    frame = course.curves(records)
    about = (
        "Mean ± standard error over the seeds still training, of all backbones with epochs. The backbone and the "
        "rounds that start from it stand side by side with a line between them, each as wide as the others; the "
        "number below each is of the epochs of its longest training. A point is the average of neighbouring epochs, "
        "of the at most 60 evenly spaced ones that a record keeps: the first steps of a long training are not seen."
    )
    parts = []
    for backbone, values in frame.groupby("backbone", sort=False) if len(frame) else ():
        if values.groupby(["dataset", "method", "stage"])["epoch"].nunique().max() < 2:
            continue  # one epoch is no course
        file = _file("curves", backbone)
        course_figures.plot_curves(values, drawn / file)
        text = "Loss over epochs: panels of each data set, of training and of held-out rows, and a line a method."
        parts.append(Section(f"Learning curves of {backbone_title(str(backbone))}", 3, [text], file))
    return [Section("Learning curves", texts=[about]), *parts] if parts else []


def _labels(records: Sequence[Record], drawn: Path) -> list[Section]:
    """The figures of what ``rounds`` tabulates."""
    frame, labels = analysis.rounds(records), analysis.label_errors(records)
    about = (
        "Means over seeds, a row of panels a method. A bound above 1, or far above every error, is not drawn. The "
        "table of all, variants of a data set too, with what is meant by each, comes below."
    )
    parts = []
    for backbone, values in frame.groupby("backbone", sort=False) if len(frame) else ():
        file, known = _file("rounds", backbone), values["inconsistency"].notna().any()
        course_figures.plot_rounds(values, labels[labels["backbone"] == backbone], drawn / file)
        changes = "changes within CVAT's distance " if known else ""
        text = f"Wrong labels, error against f*, {changes}and the objective, by round."
        parts.append(Section(f"Rounds of {backbone_title(str(backbone))}", 3, [text], file))
    return [Section("Pseudo-labels by round", texts=[about]), *parts] if parts else []


def _weights_and_costs(records: Sequence[Record], drawn: Path) -> list[Section]:
    sections, weights, costs = [], course.weights(records), course.costs(records)
    if len(weights):
        figures.plot_weights(weights, drawn / "weights.svg")
        about = "Test NLL of every CVAT weight tried; weight 0 is the method without CVAT."
        sections.append(Section("Effect of the CVAT weight", texts=[about], figure="weights.svg"))
    if len(costs.drop_duplicates(["dataset", "backbone"]) if len(costs) else ()) > 1:  # a single bar says nothing
        figures.plot_costs(costs, drawn / "costs.svg")
        about = "CPU time of each data set and backbone, all methods together."
        sections.append(Section("Time and cost", texts=[about], figure="costs.svg"))
    return sections


def _file(kind: str, backbone: object) -> str:
    """Of a figure of a backbone; of no two the same, and no path whatever its name."""
    plain = re.sub("[^A-Za-z0-9_]+", "-", str(backbone))[:_LONGEST_NAME]
    return f"{kind}_{plain}{'' if plain == backbone else '_' + digest({'backbone': backbone})[:6]}.svg"
