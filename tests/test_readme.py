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


def test_the_table_is_that_of_the_committed_results():
    table = (RESULTS / "quick" / "tables.md").read_text().split("\n\n")[1]
    assert table in README


def test_the_headline_is_that_of_the_committed_results():
    compared = pd.read_csv(RESULTS / "released" / "comparison.csv")
    z = compared["z"].abs()
    assert len(z) == 144
    text = " ".join(README.split())
    assert f"{(z <= 2).sum()} of the paper's 144 numbers come out within 2 combined standard errors" in text
    assert f"and {(z <= 3).sum()} within 3" in text
    table = pd.read_csv(RESULTS / "released" / "tables.csv")
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
