"""Every code block of the README runs."""

import re
from pathlib import Path

import pytest
import torch

from benchmarks.sweep import make_parser
from tests.conftest import TinyDataModule, tiny_protocol

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
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


def test_the_table_of_options_names_options():
    known = make_parser().format_help()
    for option in re.findall(r"`(--[a-z-]+)", README):
        assert option in known, option
