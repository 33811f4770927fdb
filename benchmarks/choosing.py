"""How good is choosing without an oracle? ``python -m benchmarks.choosing``: the regret of each selection rule.

For each data set and seed, every candidate of ``CounterfactualClassifier`` (the backbone, PL and PL + CVAT with each
weight, hard and soft) is trained as that estimator trains it, once; each rule then chooses on the rows held out, and
the test set says what the choice cost. All seeds and folds of a data set train in one stack. A data set that is done is
not trained again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.files import OutputError, write_text
from benchmarks.grid import parse_seeds
from benchmarks.job import quiet
from cst_lightning import interrupting
from cst_lightning.candidates import AUTO, N_FOLDS, ambiguity, folds, simplest
from cst_lightning.catalogue import backbones
from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.disk import check_writable
from cst_lightning.distributions import probs
from cst_lightning.encoding import FeatureEncoder
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.fitting import LogDataModule, fit
from cst_lightning.protocols import MATCHED
from cst_lightning.selection import RULES, get_rule, scores
from cst_lightning.self_training import self_train
from cst_lightning.stacked import StackedModule
from cst_lightning.texts import printable
from datamodules.catalogue import DataSpec

#: what ``selection`` chooses among, by the estimator's ``method``
METHODS = ("pl", "pl_cvat", "pl_soft", "pl_soft_cvat")
_VERSION = 2  # of what a file holds: scores of each fold, and what averaging saves
_HONEST = [name for name, rule in RULES.items() if not rule.oracle]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of regrets; bad input ends with a line and exit status 2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choosing", description=__doc__, allow_abbrev=False)
    parser.add_argument("--datasets", nargs="+", default=["D1", "D2", "D3", "D4", "D5", "scene", "yeast"])
    parser.add_argument("--backbone", default="dm")
    parser.add_argument("--seeds", nargs="+", default=["0..19"])
    parser.add_argument("--data-dir", default=None, help="folder of Scene and Yeast")
    parser.add_argument("--out", type=Path, default=Path("results/choosing"))
    parser.add_argument("--max-epochs", type=int, default=2000)
    parser.add_argument(
        "--cvat-weights", type=float, nargs="*", default=MATCHED.cvat_weights, help="none: without CVAT"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    quiet()
    try:
        print(choosing(options))
    except (InputError, OutputError) as error:
        parser.error(printable(str(error)))


def choosing(options: argparse.Namespace) -> str:
    """Train what is not there yet, write ``regrets.csv`` and ``regrets.md``; the latter's text."""
    check_writable(options.out, "--out")
    seeds = parse_seeds(options.seeds)
    backbones().get(options.backbone)
    common = {"backbone": options.backbone, "seeds": list(seeds), "max_epochs": options.max_epochs}
    common |= {"cvat_weights": list(options.cvat_weights), "version": _VERSION}
    files = {name: options.out / f"{name}.json" for name in options.datasets}
    todo = [name for name, file in files.items() if _asked(file) != {"dataset": name, **common}]
    for name in todo:  # all before any training
        DataSpec.parse(name).make(seeds[:1], MATCHED, options.data_dir).setup()
    for name in todo:
        print(f"{name}: training", flush=True)
        tried = try_candidates(
            name, options.backbone, seeds, options.data_dir, options.max_epochs, options.cvat_weights
        )
        write_text(files[name], json.dumps({"asked": {"dataset": name, **common}, "tried": tried}, indent=1))
    table = regrets(options.out)
    write_text(options.out / "regrets.csv", table.to_csv(index=False))
    text = as_markdown(table)
    write_text(options.out / "regrets.md", text)
    return text


def _asked(file: Path) -> Any:
    """What a data set's file was asked for; None where there is none."""
    return json.loads(file.read_text())["asked"] if file.exists() else None


def try_candidates(
    name: str,
    backbone: str,
    seeds: Sequence[int],
    data_dir: str | None,
    max_epochs: int,
    cvat_weights: Sequence[float],
) -> list[dict[str, Any]]:
    """One row a candidate and seed: method and weight, each fold's score by each rule, and its NLL on the test set."""
    classifier = CounterfactualClassifier(max_epochs=max_epochs)
    module = DataSpec.parse(name).make(seeds, MATCHED.replace(holdout=0.0, stopping="fixed"), data_dir)
    train, held_out, test = _folded(module.train, module.test, seeds)
    data, protocol = LogDataModule(train, held_out), classifier.protocol(module.train.n_rows)
    part = backbones().get(backbone)
    every = range(len(seeds) * N_FOLDS)
    fitter = partial(fit, barebones=True)
    stack = part(train.shape, every, protocol, part.default_grid(protocol))
    fitter(stack, data)
    modules, names, weights = [stack], ["backbone"], [0.0]
    for plain, labels in (("pl", "hard"), ("pl_soft", "soft")):
        grid = [0.0, *cvat_weights]
        relabelled = protocol.replace(labels=labels)
        modules.append(self_train(stack, data, cvat_weights=grid, fitter=fitter, protocol=relabelled))
        names += [plain if weight == 0 else f"{plain}_cvat" for weight in grid]
        weights += grid
    score = {rule: _by_fold(scores(get_rule(rule), modules, train, held_out, None)) for rule in _HONEST}
    saved = np.concatenate([ambiguity(one, held_out, N_FOLDS) for one in modules], 1)
    nll = np.concatenate([_test_nll(module, test) for module in modules], 1)
    return [
        {"seed": seed, "method": name, "weight": weight, "nll": float(nll[place, variant])}
        | {rule: value[place, :, variant].tolist() for rule, value in score.items()}
        | {"ambiguity": float(saved[place, variant])}
        for place, seed in enumerate(seeds)
        for variant, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]


def _folded(
    log: Feedback, test: PotentialOutcomes, seeds: Sequence[int]
) -> tuple[Feedback, Feedback, PotentialOutcomes]:
    """The folds of every seed's log as replicates, ``[S * 5, ...]``, standardised as the estimator does it."""
    parts: list[tuple[Feedback, Feedback]] = []
    contexts = []
    for place, seed in enumerate(seeds):
        x = log.x[place].numpy()
        encoder = FeatureEncoder().fit(x)
        own = Feedback(
            torch.from_numpy(encoder.transform(x)), log.action[place], log.outcome[place], log.n_actions, log.n_outcomes
        )
        parts.append(folds(own, N_FOLDS, np.random.RandomState(seed)))
        contexts.append(torch.from_numpy(encoder.transform(test.x[place].numpy())))
    train, held_out = (
        Feedback(
            torch.cat([part.x for part in side]),
            torch.cat([part.action for part in side]),
            torch.cat([part.outcome for part in side]),
            log.n_actions,
            log.n_outcomes,
            allow_unlogged=True,
        )
        for side in zip(*parts, strict=True)
    )
    return train, held_out, PotentialOutcomes(torch.stack(contexts), test.outcomes, test.n_outcomes)


def _by_fold(score: Tensor) -> NDArray[np.float64]:
    """``[S * 5, W]`` to ``[S, 5, W]``."""
    return np.asarray(score.view(-1, N_FOLDS, score.shape[1]))


def chosen_by(among: pd.DataFrame, rule: str) -> int:
    """Of one seed's candidates, from simple to complex, the row that the rule chooses."""
    score = np.array(among["observed_nll" if rule == AUTO else rule].tolist()).T
    place = simplest(score, among["ambiguity"].to_numpy()) if rule == AUTO else score.mean(0).argmin()
    return int(among.index[place])


def _test_nll(module: StackedModule, test: PotentialOutcomes) -> NDArray[np.float64]:
    """NLL of the mean of the folds' predictions, ``[S, W]``."""
    n_seeds, n_rows = test.outcomes.shape[:2]
    total = torch.zeros(n_seeds, module.n_variants, dtype=torch.float64)
    for start in range(0, n_rows, 1000):
        x = test.x[:, start : start + 1000].repeat_interleave(N_FOLDS, 0)
        p = probs(module.logits(x).double())
        p = p.view(n_seeds, N_FOLDS, module.n_variants, *p.shape[1:]).mean(1)
        outcome = test.outcomes[:, None, start : start + 1000, :, None].expand(-1, module.n_variants, -1, -1, -1)
        total -= p.gather(-1, outcome)[..., 0].log().sum((2, 3))
    return np.asarray(total / (n_rows * test.n_actions))


def regrets(folder: Path) -> pd.DataFrame:
    """NLL of the choice less that of the best candidate and of the backbone.

    A row for each data set that ``folder`` holds, ``method`` and rule.
    Means over seeds and standard errors (ddof = 1), paired by seed; ``right`` is the share of best choices.
    """
    rows = []
    for path in sorted(folder.glob("*.json")):
        kept = json.loads(path.read_text())
        if kept["asked"].get("version") != _VERSION:
            print(f"{printable(str(path))} is of another version, and left out: run its data set again")
            continue
        name, tried = path.stem, pd.DataFrame(kept["tried"])
        for method in METHODS:
            if method not in set(tried.method):
                continue
            simpler = {"backbone", method, method.removesuffix("_cvat")}
            among = tried[tried.method.isin(simpler)]
            backbone = among[among.method == "backbone"].set_index("seed").nll
            best = among.groupby("seed").nll.min()
            for rule in (AUTO, *_HONEST, "always"):
                last, by = (among[among.method == method], AUTO) if rule == "always" else (among, rule)
                places = [chosen_by(of_seed, by) for _, of_seed in last.groupby("seed")]
                chosen = last.loc[places].set_index("seed").nll
                rows.append(
                    {
                        "dataset": name, "method": method, "rule": rule, "n": len(chosen), "nll": chosen.mean(),
                        "nll_se": chosen.sem(), "backbone": backbone.mean(), "backbone_se": backbone.sem(),
                        "regret": (chosen - best).mean(), "regret_se": (chosen - best).sem(),
                        "against_backbone": (chosen - backbone).mean(),
                        "against_backbone_se": (chosen - backbone).sem(),
                        "right": (chosen == best).mean(),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def as_markdown(table: pd.DataFrame) -> str:
    """The choice against the backbone alone and against the best candidate, a table for each ``method``."""
    parts = []
    for method, group in table.groupby("method", sort=False):
        for column, title in (
            ("against_backbone", "less that of the backbone alone"),
            ("regret", "less that of the best"),
        ):
            shown = group.assign(
                text=[f"{v:+z.4f} ± {e:.4f}" for v, e in zip(group[column], group[f"{column}_se"], strict=True)]
            ).pivot(index="rule", columns="dataset", values="text")
            shown = shown.loc[list(dict.fromkeys(group.rule)), list(dict.fromkeys(group.dataset))]
            titles = ["rule", *shown.columns]
            lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
            lines += [
                f"| {rule} | {' | '.join(row)} |" for rule, row in zip(shown.index, shown.to_numpy(), strict=True)
            ]
            parts.append(f"### method={method}: NLL of the choice {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
