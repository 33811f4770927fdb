"""Every code block of the README runs."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.options import make_parser
from tests.conftest import TinyDataModule, tiny_protocol

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_every_block_is_run_by_a_test_below():
    assert len(BLOCKS) == 5


def test_three_lines_train_on_a_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    log = pd.DataFrame({"age": rng.normal(40, 9, 200), "town": rng.choice(["Bern", "Chur"], 200)})
    log.assign(price=rng.choice([9.5, 14.5], 200), bought=rng.choice(["yes", "no"], 200)).to_csv(
        "sales.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig"
    )
    names = {}
    exec(compile(BLOCKS[0].replace("Classifier()", "Classifier(max_epochs=3)"), "README", "exec"), names)
    assert names["chances"].shape == (200, 2, 2)


def test_one_cell_from_python_takes_ten_lines(capsys):
    # fewer rows and seeds than in the text, which take half a minute
    block = BLOCKS[1].replace("range(5)", "range(2), n_train=160, n_test=600").replace("] * 5", "] * 2")
    exec(compile(block, "README", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out[-3:]] == ["DM", "PL", "PL + CVAT"]


def test_a_log_of_ones_own_trains():
    names = {}
    exec(compile(BLOCKS[2], "README", "exec"), names)
    assert names["probabilities"].shape == (3, 500, 3, 2)


@pytest.mark.parametrize(("block", "name", "engine"), [(3, "Recent", "compiled"), (4, "Entropy", "autograd")])
def test_the_backbones_of_the_readme_train(block, name, engine):
    from cst_lightning import fit

    names = {"__name__": "readme"}
    exec(compile(BLOCKS[block], "README", "exec"), names)
    data = TinyDataModule([0, 1])
    module = names[name](data.shape, data.seeds, tiny_protocol())
    fit(module, data)
    assert torch.isfinite(module.training_loss).all()
    assert module.engine == engine


ROWS = {
    "constant": ("dm", "backbone", "constant"),
    "DM": ("dm", "backbone", "mean"),
    "DM + PL": ("dm", "pl", "mean"),
    "DM + PL + CVAT": ("dm", "pl_cvat", "mean"),
    "DM + soft PL": ("dm", "pl_soft", "mean"),
    "DM + soft PL + CVAT": ("dm", "pl_soft_cvat", "mean"),
    "S-learner, boosted trees": ("s_boosting", "backbone", "mean"),
    "S-learner, logistic": ("s_logistic", "backbone", "mean"),
    "T-learner, logistic": ("t_logistic", "backbone", "mean"),
}


def headline():
    """The README's table from results/matched; the lowest mean of each data set in bold."""
    table = pd.read_csv(RESULTS / "matched" / "tables.csv")
    nll = table[(table["metric"] == "nll") & ~table["dataset"].str.contains("@")]
    datasets = list(dict.fromkeys(nll["dataset"]))
    nll = nll.set_index(["backbone", "method", "dataset"]).sort_index()
    lowest = {name: min(nll.loc[(*row[:2], name), "mean"] for row in ROWS.values()) for name in datasets}
    constant, floor = nll.loc["dm", "backbone"]["constant"], nll.loc["dm", "backbone"]["floor"]

    def line(title, cells, means):
        shares = [(constant[name] - means[name]) / (constant[name] - floor[name]) for name in datasets[:5]]
        return f"| {title} | {' | '.join(cells)} | {100 * np.mean(shares):.0f} % |"

    lines = ["| | " + " | ".join(name.capitalize() for name in datasets) + " | share of the way |"]
    lines.append("|" + " --- |" * (len(datasets) + 2))
    for title, (backbone, method, column) in ROWS.items():
        cells = []
        of_method = nll.loc[backbone, method]
        for name, row in of_method.loc[datasets].iterrows():
            text = f"{row[column]:.3f}" + (f" ± {row['standard_error']:.3f}" if column == "mean" else "")
            cells.append(f"**{text}**" if row[column] == lowest[name] else text)
        lines.append(line(title, cells, of_method[column]))
    for title, method in (("DM", "backbone"), ("DM + PL", "pl"), ("DM + PL + CVAT†", "pl_cvat")):
        paper = nll.loc["dm", method][["paper_mean", "paper_standard_error"]].loc[datasets]
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in paper.to_numpy()]
        lines.append(line(f"paper's {title}", cells, paper["paper_mean"]))
    known = ["" if pd.isna(floor[name]) else f"{floor[name]:.3f}" for name in datasets]
    return "\n".join([*lines, line("floor", known, floor)]) + "\n"


def test_the_table_is_that_of_the_committed_results():
    assert headline() in README


def test_what_is_said_of_the_level_field_is_so():
    table = pd.read_csv(RESULTS / "matched" / "tables.csv")
    means = table[table["metric"] == "nll"].set_index(["dataset", "backbone", "method"])["mean"].unstack().dropna()
    for method in ("pl", "pl_cvat"):  # "hard pseudo-labels make every backbone worse on every data set"
        assert (means[method] > means["backbone"]).all()
    lower = means["pl_soft"] < means["backbone"]
    assert lower.mean() > 0.8  # "on most data sets"


def test_the_headline_is_that_of_the_committed_results():
    compared = pd.read_csv(RESULTS / "released" / "comparison.csv")
    z = compared["z"].abs()
    assert len(z) == 144
    text = " ".join(README.split())
    assert f"{(z <= 2).sum()} of the paper's 144 numbers come out within 2 combined standard errors" in text
    assert f"and {(z <= 3).sum()} within 3" in text
    table = pd.read_csv(RESULTS / "released" / "tables.csv")
    table = table[table["backbone"].isin(["dm", "hsic", "udm"])]
    nll = table[table["metric"] == "nll"].set_index(["dataset", "backbone", "method"])
    means = nll["mean"].unstack()
    assert ((means["pl_cvat"] < means["pl"]) & (means["pl"] < means["backbone"])).sum() == len(means) == 24
    assert (nll["mean"] > nll["constant"]).unstack()["backbone"].all()
    students = nll.drop("backbone", level="method")
    assert f"{(students['mean'] > students['constant']).sum()} of the {len(students)} cells with PL" in text
    assert f"({(students['paper_mean'] > students['constant']).sum()} by the paper's own numbers)" in text


def test_the_table_of_options_names_options():
    known = make_parser().format_help()
    for option in re.findall(r"`(--[a-z-]+)", README):
        assert option in known, option
