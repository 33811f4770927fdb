"""The whole suite on pricing with three outcomes, and with 2 and 50 prices."""

import math
import re

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks.analysis import truth_inconsistency
from benchmarks.grid import backbones, make_jobs
from benchmarks.job import Settings, run_job
from benchmarks.report import main as report
from benchmarks.store import Store
from benchmarks.sweep import main as sweep
from cst_lightning import DirectMethod, fit, self_train
from cst_lightning.estimators import learner
from cst_lightning.metrics import METRICS, evaluate
from cst_lightning.selection import RULES, scores
from datamodules.pricing import PricingDataModule
from tests.conftest import tiny_protocol
from tests.sweeps import records

SIZES = "n=250,n_test=400,n_validation=60"
QUICK = {
    "hidden": 8, "hidden_cst": 8, "hidden_udm": 8, "max_epochs": 2, "max_epochs_hsic": 2, "max_epochs_udm": 2,
    "max_epochs_cst": [2], "cvat_weights": [0.1, 1.0], "hsic_weights": [0.01, 0.1],
}  # fmt: skip
NAMES = ["dm", "hsic", "udm", "dm_early", "dm_scaled", "dm_slow", "constant", "s_logistic", "t_logistic", "s_boosting"]
METHODS = ["backbone", "pl", "pl_cvat", "pl_soft", "pl_soft_cvat"]


def run(folder, dataset, backbone, methods=METHODS, protocol="matched", **changes):
    """The records of one job of one seed, by method."""
    (job,) = make_jobs(
        "smoke", protocol=protocol, overrides={**QUICK, **changes}, datasets=[dataset], backbone_names=[backbone],
        methods=methods, seeds=["0"],
    )  # fmt: skip
    store = Store(folder)
    run_job(job, store, Settings(device="cpu"), lambda _: None)
    return {cell.method: store.read(cell) for cell in job.cells}


def check(record, n_actions, n_outcomes):
    """Every number is there and can be one."""
    (result,) = record["results"]
    assert result["status"] == "finished"
    values = result["metrics"]
    assert set(values) == set(METRICS)
    assert all(math.isfinite(value) for value in values.values())
    assert values["nll"] > 0
    assert values["excess_nll"] >= 0
    assert 0 <= values["regret"] <= n_outcomes - 1
    assert 0 <= values["hamming"] <= 1
    assert 0 < result["floor"]["nll"] < math.log(n_outcomes)
    assert sum(result["reliability"]["count"]) == 340 * n_actions
    for done in result["rounds"]:
        for name in ("label_error", "bayes_error"):
            assert np.shape(done[name]) == (n_actions, n_outcomes)


@pytest.mark.parametrize("backbone", NAMES)
def test_every_backbone_and_method_learns_three_outcomes(backbone, tmp_path):
    assert set(NAMES) == set(backbones().found)
    has_gradient = backbones().get(backbone).has_gradient
    # scikit-learn's learners search their settings
    methods, changes = (METHODS, {}) if has_gradient else (["backbone", "pl_soft"], {"rounds": 1})
    found = run(
        tmp_path, f"D1@m=3,{SIZES if has_gradient else SIZES.replace('250', '100')}", backbone, methods, **changes
    )
    for method, record in found.items():
        check(record, 5, 3)
        for done in record["results"][0]["rounds"]:
            assert ("inconsistency" in done) == has_gradient, method
    assert list(found) == methods


@pytest.mark.parametrize("backbone", ["dm", "hsic", "udm", "constant"])
@pytest.mark.parametrize("n_prices", [2, 50])
def test_few_and_many_prices(n_prices, backbone, tmp_path):
    sizes = SIZES.replace("250", "1000")  # so that each of 50 prices was set
    methods = ["backbone", "pl_cvat"] if backbones().get(backbone).has_gradient else ["backbone", "pl"]
    for record in run(tmp_path, f"D1@K={n_prices},{sizes}", backbone, methods).values():
        check(record, n_prices, 2)


@pytest.mark.parametrize(("n_outcomes", "per_action"), [(2, False), (2, True), (3, True)])
def test_learners_of_many_prices(n_outcomes, per_action):
    sizes = {"n_outcomes": n_outcomes, "n_train": 1000, "n_test": 400, "n_validation": 60}
    data = PricingDataModule("D1", [0], n_prices=50, **sizes)
    model = learner(LogisticRegression(C=0.01), per_action=per_action, soft=True)(
        data.shape, [0], tiny_protocol("matched", labels="soft")
    )
    fit(model, data)
    student = self_train(model, data, rounds=1)
    for trained in (model, student):
        p = trained(data.test.x)
        assert p.shape == (1, 340, 50, n_outcomes)
        assert torch.allclose(p.sum(-1), torch.ones(p.shape[:-1]))
        values = evaluate(trained.logits(data.test.x), data.test)
        assert all(torch.isfinite(value).all() for value in values.values())


def test_the_released_code_without_its_medians_takes_three_outcomes(tmp_path):
    dataset = f"D3@m=3,{SIZES}"
    for record in run(tmp_path, dataset, "udm", protocol="released", drop_median=False).values():
        check(record, 5, 3)


def test_leaving_out_medians_of_three_outcomes_is_an_error_before_any_work(tmp_path, capsys):
    options = ["--datasets", f"D1@{SIZES}", f"D1@m=3,{SIZES}", "--backbones", "dm", "--protocol", "released"]
    assert sweep([*options, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1].endswith("drop_median=True is for two outcomes, and there are 3: add --override.drop_median false")
    assert "m=3" in said[-1]
    assert not (tmp_path / "cells").exists() or not records(tmp_path)


def test_a_sweep_of_three_outcomes_and_its_report(tmp_path):
    options = ["--datasets", f"D1@m=3,{SIZES}", "--backbones", "dm", "--methods", "backbone", "pl_cvat"]
    options += ["--override.max_epochs", "2", "--override.max_epochs_cst", "2", "--seeds", "0..1", "--workers", "2"]
    assert sweep([*options, "--protocol", "matched", "--cvat-weights", "0.1", "--out", str(tmp_path)]) == 0
    assert report([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"\bnan\b", page, re.IGNORECASE)
    header, *rows = (tmp_path / "rounds.csv").read_text().splitlines()
    assert len(rows) == 4
    assert "inconsistency" in header


def test_mu_of_three_outcomes_by_hand():
    spec = f"D1@m=3,{SIZES}"
    data = PricingDataModule("D1", [0], n_outcomes=3, n_train=250, n_test=400, n_validation=60)
    x = data.train.x[0].double().numpy()
    here = data.probabilities(0, x).argmax(-1)
    changed = np.zeros(here.shape, bool)
    for feature in (0, 1):
        for step in (-0.05, 0.05):
            moved = x.copy()
            moved[:, feature] += step
            changed |= data.probabilities(0, moved).argmax(-1) != here
    assert 0 < changed.mean() < 1
    assert truth_inconsistency(spec, 0, 0.05, "code") == pytest.approx(changed.mean())
    two = truth_inconsistency(f"D1@{SIZES}", 0, 0.05, "code")
    assert two != pytest.approx(changed.mean())  # there is a border more


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_tells_the_truth_from_its_reverse(rule):
    data = PricingDataModule("D1", [0], 0.3, n_outcomes=3, n_train=600, n_test=400, n_validation=100)
    module = DirectMethod(data.shape, [0], tiny_protocol("matched"), [0.0, 1.0])
    fit(module, data, max_epochs=1)
    truth = {id(rows.x): rows.probabilities for rows in (data.test, data.oracle_validation)}
    validation = torch.from_numpy(data.probabilities(0, data.validation.x[0].double().numpy()))[None]

    def logits(x):
        p = validation if x is data.validation.x else truth[id(x)]
        both = torch.cat([p.flip(-1), p])
        return (both[..., 1:].log() - both[..., :1].log()).float()

    module.logits = logits
    score = scores(RULES[rule], module, data.train, data.validation, data.oracle_validation)
    assert score.shape == (1, 2)
    assert score[0, 1] < score[0, 0]


def test_the_truth_reaches_the_floor():
    potential = PricingDataModule("D2", range(2), n_outcomes=3, n_train=50, n_test=4000, n_validation=100).test
    p = potential.probabilities
    values = evaluate((p[..., 1:].log() - p[..., :1].log()).float(), potential)
    floor = potential.floor()
    assert torch.allclose(values["excess_nll"], torch.zeros(2, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(values["nll"], floor["nll"], atol=0.02)
    assert torch.allclose(values["hamming"], floor["hamming"], atol=0.02)
