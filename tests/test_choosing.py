"""The study of selection rules, and what the docs say of it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.choosing import as_markdown, chosen_by, main, regrets
from cst_lightning.candidates import simplest

RESULTS = Path(__file__).parents[1] / "results" / "choosing"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "choosing.md"


def test_a_rule_chooses_the_candidate_of_its_lowest_score(tmp_path, capsys):
    main(
        ["--datasets", "moons", "--seeds", "0", "1", "--max-epochs", "2", "--cvat-weights", "1", "--out", str(tmp_path)]
    )
    assert "method=pl_soft_cvat" in capsys.readouterr().out
    kept = json.loads((tmp_path / "moons.json").read_text())
    tried = pd.DataFrame(kept["tried"])
    assert list(tried[tried.seed == 0].method) == ["backbone", "pl", "pl_cvat", "pl_soft", "pl_soft_cvat"]
    table = regrets(tmp_path).set_index(["method", "rule"])
    among = tried[tried.method.isin(["backbone", "pl_soft"])]
    chosen = among.loc[among.dr_nll.map(np.mean).groupby(among.seed).idxmin()].nll.mean()
    assert table.loc[("pl_soft", "dr_nll"), "nll"] == pytest.approx(chosen)
    by_auto = [
        two.nll.iloc[simplest(np.array(two.observed_nll.tolist()).T, two.ambiguity.to_numpy())]
        for _, two in among.groupby("seed")
    ]
    assert table.loc[("pl_soft", "auto"), "nll"] == pytest.approx(np.mean(by_auto))
    assert (table.regret >= 0).all()
    before = (tmp_path / "moons.json").stat().st_mtime_ns
    main(
        ["--datasets", "moons", "--seeds", "0", "1", "--max-epochs", "2", "--cvat-weights", "1", "--out", str(tmp_path)]
    )
    assert (tmp_path / "moons.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "D9"], "unknown data set 'D9'"),
        (["--backbone", "dn"], "unknown backbone 'dn': did you mean dm?"),
        (["--seeds", "x"], "seeds: 'x' is neither"),
        (["--datasets", "moons", "scene", "--data-dir", "none"], "scene_train.bz2 is missing"),
        (["--out", "/dev/null/folder"], "output folder /dev/null/folder cannot be written"),
    ],
)
def test_bad_input_is_told_in_a_line_before_any_work(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--datasets", "moons", "--seeds", "0", "--out", str(tmp_path / "new"), *arguments])
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_the_committed_table_is_that_of_the_committed_choices():
    committed = pd.read_csv(RESULTS / "regrets.csv")
    again = regrets(RESULTS)
    for column in ("nll", "backbone_se", "regret", "against_backbone", "against_backbone_se"):
        assert np.allclose(committed[column], again[column], rtol=1e-9)
    assert (committed.n == 20).all()
    for method in ("pl", "pl_soft", "pl_cvat", "pl_soft_cvat"):
        _, against_backbone, _, regret = as_markdown(committed[committed.method == method]).split("\n\n")
        assert against_backbone in PAGE.read_text(), method
        assert regret.strip() in PAGE.read_text(), method


def test_auto_is_nowhere_worse_than_the_backbone_by_more_than_a_standard_error_of_the_nll():
    committed = pd.read_csv(RESULTS / "regrets.csv")
    auto = committed[committed.rule == "auto"]
    assert set(auto.dataset) == {"D1", "D2", "D3", "D4", "D5", "scene", "yeast"}
    assert (auto.against_backbone <= auto.backbone_se).all()
    paired = auto[auto.against_backbone > auto.against_backbone_se]  # which the page says plainly
    assert {*zip(paired.dataset, paired.method, strict=True)} == {("yeast", "pl_soft"), ("yeast", "pl_soft_cvat")}
    cost, error = paired[paired.method == "pl_soft"][["against_backbone", "against_backbone_se"]].to_numpy()[0]
    assert f"**on Yeast it loses {cost:.4f} ± {error:.4f}**" in PAGE.read_text()


def test_the_page_counts_how_often_auto_refuses_hard_labels():
    refused = made = 0
    for path in RESULTS.glob("*.json"):
        tried = pd.DataFrame(json.loads(path.read_text())["tried"])
        among = tried[tried.method.isin(["backbone", "pl", "pl_cvat"])]
        chosen = [chosen_by(of_seed, "auto") for _, of_seed in among.groupby("seed")]
        made, refused = made + len(chosen), refused + sum(tried.method[chosen] == "backbone")
    assert f"with CVAT in {refused} of {made} choices" in PAGE.read_text()
