"""The pages of the reproduction say what the committed records say."""

import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.entries import paper_results
from benchmarks.sweep import main as sweep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("reproduction.md", "studies.md")]
NUMBER = r"[+-]?\d+\.\d{3} ± \d\.\d{3}"


def said(mean, error):
    return {f"{mean:{sign}.3f} ± {error:.3f}" for sign in ("", "+")}


def between_settings(records):
    """Of every two settings of a cell the difference, paired by seed."""
    wide = records.pivot_table(
        index="seed", columns=["dataset", "backbone", "method", "metric", "overrides"], values="value"
    )
    for _, cell in wide.T.groupby(level=[0, 1, 2, 3]):
        for one, other in product(cell.to_numpy(), repeat=2):
            difference = pd.Series(one - other).dropna()
            yield difference.mean(), difference.sem()


@pytest.fixture(scope="module")
def known():
    numbers = [said(*number) for number in paper_results().values()]
    for path in (ROOT / "results").glob("*/tables.csv"):
        numbers += [said(*row) for row in pd.read_csv(path)[["mean", "standard_error"]].to_numpy()]
    for path in (ROOT / "results").glob("*/differences.csv"):
        numbers += [said(*row) for row in pd.read_csv(path)[["difference", "standard_error"]].to_numpy()]
    numbers += [said(*pair) for pair in between_settings(pd.read_parquet(ROOT / "results/deviations/records.parquet"))]
    return set().union(*numbers)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_number_with_an_error_is_of_a_committed_record(page, known):
    found = re.findall(NUMBER, page.read_text(encoding="utf-8"))
    assert len(found) > 100
    assert sorted(set(found) - known) == []


def test_a_committed_configuration_gives_its_numbers_again(tmp_path):
    """Of each seed: the same on one machine type, and elsewhere within a standard error of the cell."""
    arguments = ["--protocol", "matched", "--datasets", "D2", "--backbones", "dm", "--methods", "backbone", "pl"]
    assert sweep([*arguments, "--seeds", "0", "7", "--wandb", "disabled", "--out", str(tmp_path)]) == 0
    place = ["dataset", "backbone", "method", "seed", "metric"]
    committed = pd.read_parquet(ROOT / "results/matched/records.parquet").set_index(place)["value"]
    again = pd.read_parquet(tmp_path / "records.parquet").set_index(place)["value"]
    for method, metric in product(("backbone", "pl"), ("nll", "hamming")):
        known = committed.loc["D2", "dm", method, :, metric]
        for seed in (0, 7):
            assert abs(again.loc["D2", "dm", method, seed, metric] - known[seed]) < known.sem()
