"""Every code block of the README runs."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.options import make_parser
from tests.conftest import TinyDataModule, tiny_protocol

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_one_cell_from_python_takes_ten_lines(capsys):
    # fewer rows and seeds than in the text, which take half a minute
    block = BLOCKS[0].replace("range(5)", "range(2), n_train=160, n_test=600").replace("] * 5", "] * 2")
    exec(compile(block, "README", "exec"), {})
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out[-3:]] == ["DM", "PL", "PL + CVAT"]


def test_a_log_of_ones_own_trains():
    names = {}
    exec(compile(BLOCKS[1], "README", "exec"), names)
    assert names["probabilities"].shape == (3, 500, 3, 2)


@pytest.mark.parametrize(("block", "name", "engine"), [(2, "Recent", "compiled"), (3, "Entropy", "autograd")])
def test_the_backbones_of_the_readme_train(block, name, engine):
    from cst_lightning import fit

    names = {"__name__": "readme"}
    exec(compile(BLOCKS[block], "README", "exec"), names)
    data = TinyDataModule([0, 1])
    module = names[name](data.shape, data.seeds, tiny_protocol())
    fit(module, data)
    assert torch.isfinite(module.training_loss).all()
    assert module.engine == engine


@pytest.mark.parametrize(
    "line", re.findall(r"^    python -m benchmarks\.sweep (.*?)(?:  #.*)?$", README, flags=re.MULTILINE)
)
def test_every_command_of_the_readme_is_accepted(line):
    make_parser().parse_args(line.split())


DATASETS = ("D1", "D2", "D3", "D4", "D5", "scene", "yeast")
ROWS = (
    ("DM", "dm", "backbone"), ("DM + PL", "dm", "pl"), ("DM + PL + CVAT", "dm", "pl_cvat"),
    ("DM + soft PL", "dm", "pl_soft"), ("UDM", "udm", "backbone"), ("HSIC", "hsic", "backbone"),
    ("T-learner, logistic", "t_logistic", "backbone"), ("S-learner, logistic", "s_logistic", "backbone"),
    ("S-learner, boosted trees", "s_boosting", "backbone"),
)  # fmt: skip


def headline():
    """The README's table, from the committed results of the level field."""
    table = pd.read_csv(RESULTS / "matched" / "tables.csv")
    nll = table[(table["metric"] == "nll") & table["dataset"].isin(DATASETS)]
    best = nll.groupby("dataset")["mean"].min()

    def line(name, values):
        return f"| {name} | " + " | ".join(values) + " |"

    def shown(row):
        text = f"{row['mean']:.3f} ± {row['standard_error']:.3f}"
        return f"**{text}**" if row["mean"] == best[row["dataset"]] else text

    lines = [line("", DATASETS), "|---" * (len(DATASETS) + 1) + "|"]
    of_dm = nll[(nll["backbone"] == "dm") & (nll["method"] == "backbone")].set_index("dataset")
    lines.append(line("constant", [f"{of_dm.loc[name, 'constant']:.3f}" for name in DATASETS]))
    for name, backbone, method in ROWS:
        rows = nll[(nll["backbone"] == backbone) & (nll["method"] == method)].set_index("dataset", drop=False)
        lines.append(line(name, [shown(rows.loc[dataset]) for dataset in DATASETS]))
    theirs = nll.dropna(subset=["paper_mean"]).sort_values("paper_mean").drop_duplicates("dataset").set_index("dataset")
    lines.append(line("paper's lowest", [f"{theirs.loc[name, 'paper_mean']:.3f}" for name in DATASETS]))
    floor = [of_dm.loc[name, "floor"] for name in DATASETS]
    lines.append(line("floor", ["" if pd.isna(value) else f"{value:.3f}" for value in floor]))
    return lines


@pytest.mark.parametrize("line", headline())
def test_the_headline_is_that_of_the_committed_results(line):
    assert line in README.splitlines()


def test_the_table_of_options_names_options():
    known = make_parser().format_help()
    for option in re.findall(r"`(--[a-z-]+)", README):
        assert option in known, option
