"""How training went, from a run's records: its curves, what each weight was worth, and what it cost; as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from benchmarks.analysis import cell, finished, names
from benchmarks.entries import Place
from benchmarks.statistics import summarise
from benchmarks.store import Record


def curves(records: Sequence[Record]) -> pd.DataFrame:
    """Learning curves: mean and standard error over the seeds still in training, by stage, series and epoch.

    ``last`` is the last epoch that any seed trained in the stage; what a record keeps of the curve may end before it.
    """
    rows = []
    for record in finished(records):
        for number, curve in enumerate(record.get("curves", [])):
            stage = "backbone" if record["identity"]["method"] == "backbone" else f"round {number + 1}"
            last = max(_trained(result, number) for result in record["results"])
            for series in ("training_loss", "validation_nll"):
                for place, epoch in enumerate(curve["epoch"] if curve[series] else []):
                    values = [
                        seed[place]
                        for seed, result in zip(curve[series], record["results"], strict=True)
                        if seed[place] is not None and epoch <= _trained(result, number)
                    ]
                    summary = summarise(values, len(record["results"]))
                    if summary is not None:
                        point = {"mean": summary.mean, "standard_error": summary.standard_error, "n": summary.n}
                        at = {"stage": stage, "series": series, "epoch": epoch, "last": last}
                        rows.append(names(record) | at | point)
    return pd.DataFrame(rows)


def weights(records: Sequence[Record]) -> pd.DataFrame:
    """Test NLL of every CVAT weight tried in one setting, whichever was chosen: mean and standard error over seeds.

    At weight 0 stands the same method without CVAT, where it was run.
    """
    every = {cell(Place.of_record(record)): record["results"] for record in finished(records)}
    rows = []
    for (dataset, backbone, method), results in every.items():
        by_weight = [{float(w): of["nll"] for w, of in result["by_weight"].items()} for result in results]
        if not any(by_weight) or not any(result["cvat_weight"] for result in results):
            continue
        if method.endswith("_cvat") and not any(0.0 in of_seed for of_seed in by_weight):
            plain = every.get((dataset, backbone, method.removesuffix("_cvat")), ())
            by_weight += [{0.0: result["metrics"].get("nll")} for result in plain]
        for weight in sorted({weight for of_seed in by_weight for weight in of_seed}):
            summary = summarise([of_seed[weight] for of_seed in by_weight if weight in of_seed], len(results))
            if summary is not None:
                # no oracle had a part in it: no weight is left out
                of_cell = {"dataset": dataset, "backbone": backbone, "method": method, "oracle": False}
                point = {"mean": summary.mean, "standard_error": summary.standard_error, "n": summary.n}
                rows.append({**of_cell, "weight": weight, **point})
    return pd.DataFrame(rows)


def costs(records: Sequence[Record]) -> pd.DataFrame:
    """What each cell took, from the start of its job, which trains its methods one after the other."""
    rows = []
    for record in records:
        provenance = record["provenance"]
        if "cpu_seconds" in provenance:
            taken = {name: provenance.get(name) for name in ("seconds", "cpu_seconds", "peak_mib")}
            rows.append(names(record) | taken)
    return pd.DataFrame(rows)


def _trained(result: dict[str, Any], number: int) -> int:
    """Epochs that a seed trained: its backbone's, or those of its round ``number`` (from 0)."""
    rounds = result["rounds"]  # a part of a round that trains by itself has a curve of its own
    return int(rounds[number]["stopped_epoch"] if number < len(rounds) else result["epochs"])
