"""What a run's records say: against the paper, method against method, theory measured, and overlap; as data frames."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import product, zip_longest
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.entries import ORACLE, Entry, Place, backbone_title, main_datasets
from benchmarks.statistics import holm, paired_difference, summarise
from benchmarks.store import Record
from cst_lightning.catalogue import method_title
from cst_lightning.errors import InputError
from cst_lightning.protocols import RELEASED
from datamodules.base import data_seed
from datamodules.catalogue import DataSpec, data_modules
from datamodules.pricing import PricingDataModule

#: pairs of methods that are compared on each data set and backbone: the first less the second
METHOD_PAIRS = (
    ("pl", "backbone"),
    ("pl_cvat", "pl"),
    ("pl_cvat", "backbone"),
    ("pl_soft", "backbone"),
    ("pl_soft", "pl"),
    ("pl_soft_cvat", "pl_soft"),
    ("pl_soft_cvat", "backbone"),
)
#: pairs of backbones that are compared, each alone
BACKBONE_PAIRS = (
    ("hsic", "dm"),
    ("udm", "dm"),
    ("hsic", "dm_slow"),
    ("dm_slow", "dm"),
    ("dm_early", "dm"),
    ("s_boosting", "dm"),
    ("s_logistic", "dm"),
    ("t_logistic", "dm"),
)
#: what Theorem 1 asks of the share of wrong pseudo-labels of every action and class
MOST_WRONG = 0.2
_MOST_NUMBERS = 2**28  # that are drawn again for ``mu``: 2 GiB


def compare_with_paper(entries: Sequence[Entry]) -> pd.DataFrame:
    """Every number that the paper has too: ours, theirs, and their distance ``z`` in combined standard errors."""
    rows = []
    for entry in entries:
        z = entry.z
        if entry.ours is None or entry.paper is None or z is None:
            continue
        paper, paper_error = entry.paper
        rows.append(
            {
                "settings": entry.place.settings,
                "dataset": entry.place.dataset,
                "backbone": entry.place.backbone,
                "method": entry.place.method,
                "metric": entry.metric,
                "n": entry.ours.n,
                "ours": entry.ours.mean,
                "ours_se": entry.ours.standard_error,
                "paper": paper,
                "paper_se": paper_error,
                "z": z,
                "oracle": entry.oracle,
            }
        )
    return pd.DataFrame(rows)


def differences(entries: Sequence[Entry]) -> pd.DataFrame:
    """Pairs of methods and of backbones, paired by seed; p values of one metric adjusted together (Holm).

    ``oracle`` says whether either side's weight was chosen by an oracle.
    """
    at = {(e.place.settings, e.place.dataset, e.place.backbone, e.place.method): e for e in entries}
    settings_and_data = dict.fromkeys((e.place.settings, e.place.dataset) for e in entries)
    backbones = list(dict.fromkeys(e.place.backbone for e in entries))
    pairs = [((b, first), (b, second)) for b in backbones for first, second in METHOD_PAIRS]
    pairs += [((first, "backbone"), (second, "backbone")) for first, second in BACKBONE_PAIRS]
    rows, seen = [], set()
    for settings, dataset in settings_and_data:
        for one, other in pairs:
            first, second = at.get((settings, dataset, *one)), at.get((settings, dataset, *other))
            difference = paired_difference(first.values, second.values) if first and second else None
            if first is None or second is None or difference is None or (first.key, second.key) in seen:
                continue
            seen.add((first.key, second.key))  # a record that stands under several settings is one comparison
            rows.append(
                {
                    "settings": settings,
                    "dataset": dataset,
                    "metric": first.metric,
                    "first": _name(*one),
                    "second": _name(*other),
                    "difference": difference.mean,
                    "standard_error": difference.standard_error,
                    "low": difference.low,
                    "high": difference.high,
                    "p": difference.p,
                    "n": difference.n,
                    "asked": len(first.place.seeds),
                    "oracle": first.oracle or second.oracle,
                }
            )
    frame = pd.DataFrame(rows)
    if len(frame):
        frame["p_holm"] = holm(list(frame["p"]))
    return frame


def run_differences(first: Sequence[Entry], second: Sequence[Entry]) -> pd.DataFrame:
    """The cells that two runs both have: the second less the first, paired by seed; p values adjusted together (Holm).

    Their settings may differ: that is what is compared. Where a run has a cell under several, they must match.
    """
    several = any(len({e.place.settings for e in entries}) > 1 for entries in (first, second))

    def key(entry: Entry) -> tuple[str, ...]:
        place = entry.place
        settings = (place.settings,) if several else ()
        return place.dataset, place.backbone, place.method, entry.metric, *settings

    at = {key(entry): entry for entry in first}
    rows = []
    for entry in second:
        other = at.get(key(entry))
        difference = paired_difference(entry.values, other.values) if other is not None else None
        if other is not None and difference is not None:
            names = {"dataset": entry.place.dataset, "backbone": entry.place.backbone, "method": entry.place.method}
            both = sorted(set(entry.values) & set(other.values))
            sides = [summarise([one.values[seed] for seed in both], len(both)) for one in (other, entry)]
            values = dict(zip(("first", "second"), sides, strict=True)) | {"difference": difference}
            oracles = {"first_oracle": other.oracle, "second_oracle": entry.oracle}
            rows.append(names | {"metric": entry.metric} | oracles | values)
    frame = pd.DataFrame(rows)
    if len(frame):
        frame["p_holm"] = holm([difference.p for difference in frame["difference"]])
    return frame


def losses(entries: Sequence[Entry]) -> pd.DataFrame:
    """Mean loss, a row a data set and a column a method; data sets that are variants of another are left out.

    So is a cell that lost a seed: its mean is over other data than its neighbours'.

    A method whose weights an oracle chose on some data set is marked.
    """
    marked = {(e.place.backbone, e.place.method) for e in entries if e.oracle}

    def name(place: Place) -> str:
        own = (place.backbone, place.method)
        return _name(*own) + (ORACLE if own in marked else "")

    shown = main_datasets(e.place.dataset for e in entries)
    rows = [
        {"dataset": e.place.dataset, "method": name(e.place), "loss": e.ours.mean}
        for e in entries
        if e.ours is not None and e.ours.n == e.ours.asked and e.place.dataset in shown
    ]
    if not rows:
        return pd.DataFrame()
    return pd.DataFrame(rows).pivot(index="dataset", columns="method", values="loss")


def nll_and_hamming(nll: Sequence[Entry], hamming: Sequence[Entry]) -> pd.DataFrame:
    """Both mean losses of every cell; data sets that are variants of another are left out.

    ``oracle`` marks a method of a backbone whose weight an oracle chose on some data set.
    """
    marked = {(e.place.backbone, e.place.method) for e in nll if e.oracle}
    shown, other = main_datasets(e.place.dataset for e in nll), {cell(e.place): e.ours for e in hamming}
    rows = [
        {
            "dataset": e.place.dataset,
            "backbone": e.place.backbone,
            "method": e.place.method,
            "nll": e.ours.mean,
            "hamming": of_hamming.mean,
            "oracle": (e.place.backbone, e.place.method) in marked,
        }
        for e in nll
        if e.ours is not None and (of_hamming := other[cell(e.place)]) is not None and e.place.dataset in shown
    ]
    return pd.DataFrame(rows)


def rounds(records: Sequence[Record]) -> pd.DataFrame:
    """What Theorem 1 and Proposition 1 speak of, for every seed and round of self-training.

    ``alpha`` is the largest share of wrong pseudo-labels of any action and class against the Bayes classifier (the
    theorem wants it below 0.2), ``alpha_above`` the share of actions and classes where it is not; ``alpha_drawn`` is
    against the outcomes that were drawn. ``inconsistency`` is ``R_B(f)`` of the student and ``mu`` that of the truth,
    both from below; ``bound`` is the theorem's at its most favourable (expansion ``c`` without limit), ``2 mu``: it can
    promise no more. ``student_error`` is what it bounds. The objective is Proposition 1's, without CVAT's term.
    """
    rows = []
    for record in finished(records):
        place = Place.of_record(record)
        for result in record["results"]:
            for number, done in enumerate(result["rounds"], 1):
                if done.get("bayes_error") is None:
                    continue
                protocol = record["protocol"]
                mu = truth_inconsistency(place.dataset, result["seed"], protocol["cvat_eps"], protocol["price_term"])
                rows.append(
                    names(record)
                    | {
                        "seed": result["seed"],
                        "round": number,
                        "alpha": _largest(done["bayes_error"]),
                        "alpha_above": _share_above(done["bayes_error"]),
                        "alpha_drawn": _largest(done["label_error"]),
                        "inconsistency": done.get("inconsistency"),
                        "mu": mu,
                        "bound": None if mu is None else 2 * mu,
                        "teacher_error": done["teacher_error"],
                        "student_error": done["student_error"],
                        "objective_start": done["objective_start"],
                        "objective_end": done["objective_end"],
                        "objective_imputed": done["objective_imputed"],
                        "changed": done["changed"],
                    }
                )
    frame = pd.DataFrame(rows)
    unknown = ("alpha", "alpha_above", "alpha_drawn", "inconsistency", "mu", "bound")  # None, in some runs everywhere
    return frame.astype(dict.fromkeys(unknown, float)) if rows else frame


def label_errors(records: Sequence[Record]) -> pd.DataFrame:
    """Share of wrong pseudo-labels against the Bayes classifier, a row for each round, action and class of it.

    Mean over the ``n`` seeds in which the class is there.
    """
    rows = []
    for record in finished(records):
        found = [[done.get("bayes_error") for done in result["rounds"]] for result in record["results"]]
        for number, of_seeds in enumerate(zip_longest(*found), 1):
            known = [np.array(errors, dtype=float) for errors in of_seeds if errors is not None]
            for action, label in np.ndindex(known[0].shape) if known else ():
                values = [errors[action, label] for errors in known if not np.isnan(errors[action, label])]
                if values:
                    place = {"round": number, "action": action, "label": label}
                    rows.append(names(record) | place | {"error": float(np.mean(values)), "n": len(values)})
    columns = ["settings", "dataset", "backbone", "method", "oracle", "round", "action", "label", "error", "n"]
    return pd.DataFrame(rows, columns=columns)


@cache
def truth_inconsistency(dataset: str, seed: int, eps: float, price_term: str) -> float | None:
    """``mu``: share of the log's (row, action) entries at which ``f*`` changes within ``eps``, from below.

    Tried are steps of ``eps`` up and down each of the first two features, on which the price's effect rests.
    None where the truth is known at the rows alone, or no machine of usual size holds the data.
    """
    if dataset.partition("@")[0] not in data_modules().found:  # a record's class path is not imported
        return None
    try:
        data = DataSpec.parse(dataset).make([seed], RELEASED.replace(price_term=price_term))
    except InputError:  # with an option that is not known here
        return None
    if not isinstance(data, PricingDataModule) or _n_numbers(data) > _MOST_NUMBERS or data_seed(seed) >= 2**32:
        return None  # a record may say what could never have been drawn
    x = data.contexts(seed).astype(np.float32).astype(np.float64)  # as the log has them
    here = data.probabilities(seed, x).argmax(-1)
    changed = np.zeros(here.shape, dtype=bool)
    for feature, step in product((0, 1), (-eps, eps)):
        moved = x.copy()
        moved[:, feature] += step
        changed |= data.probabilities(seed, moved).argmax(-1) != here
    return float(changed.mean())


def _n_numbers(data: PricingDataModule) -> int:
    """Numbers that are drawn with a log: contexts, as many for each term of the demand, and each outcome's share."""
    n_rows = data.n_train + data.n_validation + data.n_test + 2 * 50
    return n_rows * data.n_features + data.n_train * data.n_prices * data.n_outcomes


def overlap(records: Sequence[Record], entries: Sequence[Entry]) -> pd.DataFrame:
    """Each logging policy of a data set (``o=``, ``unlogged=``): effective sample size beside every method's loss."""
    size = {
        Place.of_record(record).dataset: float(np.mean(record["data"]["effective_sample_size"]))
        for record in finished(records)
        if record["data"].get("effective_sample_size")
    }
    policies = Counter(map(_base, size))
    rows = [
        {
            "settings": entry.place.settings,
            "dataset": entry.place.dataset,
            "effective_sample_size": size[entry.place.dataset],
            "backbone": entry.place.backbone,
            "method": entry.place.method,
            "metric": entry.metric,
            "n": entry.ours.n,
            "mean": entry.ours.mean,
            "standard_error": entry.ours.standard_error,
            "floor": entry.floor.mean if entry.floor else None,
            "constant": entry.constant.mean if entry.constant else None,
            "oracle": entry.oracle,
        }
        for entry in entries
        if entry.ours is not None and entry.place.dataset in size and policies[_base(entry.place.dataset)] > 1
    ]
    frame = pd.DataFrame(rows)
    return frame[frame.groupby(["settings", "backbone"])["dataset"].transform("nunique") > 1] if rows else frame


def calibration(records: Sequence[Record]) -> pd.DataFrame:
    """Reliability of every cell, its seeds pooled: mean prediction and observed share in each bin of predictions."""
    rows = []
    for record in finished(records):
        bins = [result["reliability"] for result in record["results"] if result["reliability"].get("count")]
        if not bins:
            continue
        count = np.array([one["count"] for one in bins])
        n = count.sum(0)
        for number in np.flatnonzero(n):
            sums = {
                of: float(sum(one["count"][number] * one[of][number] for one in bins) / n[number])
                for of in ("predicted", "observed")
            }
            rows.append(names(record) | {"bin": int(number), "count": int(n[number])} | sums)
    return pd.DataFrame(rows)


def finished(records: Sequence[Record]) -> list[Record]:
    """Those with numbers."""
    return [record for record in records if record["status"] == "finished"]


def names(record: Record) -> dict[str, Any]:
    """The columns that say which cell a row is of."""
    place = Place.of_record(record)
    return {"settings": place.settings, "dataset": place.dataset} | {
        "backbone": place.backbone,
        "method": place.method,
        "oracle": record.get("oracle", False),
    }


def cell(place: Place) -> tuple[str, str, str]:
    """Data set, backbone and method."""
    return place.dataset, place.backbone, place.method


def _base(dataset: str) -> str:
    """The data set without the options of its policy."""
    name, _, options = dataset.partition("@")
    return ",".join([name, *(o for o in options.split(",") if o.split("=")[0] not in ("", "o", "unlogged"))])


def _share_above(errors: list[list[float | None]]) -> float | None:
    known = [value >= MOST_WRONG for row in errors for value in row if value is not None]
    return float(np.mean(known)) if known else None


def _largest(errors: list[list[float | None]]) -> float | None:
    known = [value for row in errors for value in row if value is not None]
    return max(known, default=None)


def _name(backbone: str, method: str) -> str:
    return backbone_title(backbone) if method == "backbone" else f"{backbone_title(backbone)} {method_title(method)}"
