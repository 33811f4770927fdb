"""What ``evaluate`` says of a model on logged rows: numbers by hand, rare outcomes, more than two."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cst_lightning.candidates import HeldOut
from cst_lightning.encoding import Labels
from cst_lightning.evaluation import beside_constant, calibration, fit_of, value_of_recommendations
from cst_lightning.protocols import MATCHED
from cst_lightning.selection import _doubly_robust
from tests.conftest import TinyDataModule

MODEL = SimpleNamespace(outcome_counts_=None, actions_=np.array(["a", "b"]), classes_=np.array(["no", "yes"]))


def test_calibration_of_predictions_that_are_off_by_a_tenth():
    n = 1000
    taken = np.repeat([0, 1], n)
    seen = np.concatenate([np.arange(n) % 10 < 3, np.arange(n) % 10 < 6]).astype(int)  # shares 0.3 and 0.6
    p = np.zeros((2 * n, 2, 2))
    p[:, 0, 1], p[:, 1, 1] = 0.4, 0.6  # of action a a tenth too high
    p[..., 0] = 1 - p[..., 1]
    text = calibration(p, taken, seen, MODEL)
    numbers = {line.split()[0]: line.split() for line in text.splitlines() if line.split()[:1] in (["a"], ["b"])}
    assert "0.4000" in numbers["a"]
    assert "0.3000" in numbers["a"]
    assert "0.1000" in numbers["a"]
    assert "0.0000" in numbers["b"]
    nll = -np.mean(np.log(p[np.arange(2 * n), taken, seen]))
    assert f"NLL of 2000 observed outcomes: {nll:.4f}" in fit_of(p, taken, seen, MODEL)


@pytest.mark.parametrize(
    ("nll", "said"),
    [
        (0.75, "worse than the constant: the features may tell nothing of the outcome, or the rows are too few"),
        (0.71, "no clear gain: the features may tell nothing of the outcome, or the rows are too few"),
        (0.66, "no clear gain: the features may tell nothing of the outcome, or the rows are too few"),
        (0.60, None),
    ],
)
def test_a_model_is_called_worse_than_a_constant_where_it_is(nll, said):
    verdict = beside_constant(HeldOut(nll, constant=0.7, error=0.03)).split("\n")[3:]
    assert verdict == ([] if said is None else [f"  {said}"])


def test_a_rare_outcome_that_is_never_predicted_is_not_called_calibrated():
    n = 5000
    seen = (np.arange(n) % 500 == 0).astype(int)  # 0.2 %
    p = np.zeros((n, 2, 2))
    p[..., 0] = 1
    text = calibration(p, np.zeros(n, int), seen, MODEL)
    assert "0.0020" in text
    p[..., 1], p[..., 0] = 0.002, 0.998
    assert "0.0020" in calibration(p, np.zeros(n, int), seen, MODEL)


def test_of_three_outcomes_each_has_a_row():
    model = SimpleNamespace(outcome_counts_=None, actions_=np.array(["a"]), classes_=np.array(["x", "y", "z"]))
    p = np.tile([0.2, 0.3, 0.5], (100, 1, 1))
    seen = np.array([0] * 20 + [1] * 30 + [2] * 50)
    text = calibration(p, np.zeros(100, int), seen, model)
    rows = [line.split()[:2] for line in text.splitlines() if line.split()[:1] == ["a"]]
    assert rows == [["a", "x"], ["a", "y"], ["a", "z"]]


@pytest.mark.parametrize("m", [2, 3])
def test_the_nuisance_model_of_a_rule_never_sees_the_outcomes_that_it_is_used_on(m):
    data = TinyDataModule([0], m=m, holdout=0.3)
    rows = data.validation
    flipped = type(rows)(rows.x, rows.action, (rows.outcome + 1) % m, rows.n_actions, m, propensity=rows.propensity)
    logits = torch.zeros(1, rows.n_rows, rows.n_actions, m - 1)
    one, other = (_doubly_robust(logits, log, data.train, MATCHED) for log in (rows, flipped))
    assert torch.equal(one[~rows.taken], other[~rows.taken])
    assert not torch.equal(one[rows.taken], other[rows.taken])


@pytest.mark.parametrize(
    ("chance", "said"),
    [
        (0.5, []),
        # half of the rows had no choice, and there another action than the recommended one was taken
        (0.0, ["50 % of these rows the recommended action had a chance below 0.01", "weights stand for 50 % of"]),
        # whoever wrote them down took one policy for another
        (0.25, ["the weights stand for 167 % of these rows"]),
    ],
)
def test_values_of_actions_without_a_chance_are_called_doubtful(chance, said):
    n = 1200
    half = np.arange(n) < n // 2
    taken = np.arange(n) % 2
    recommended = 0.5
    if chance == 0:
        taken = np.where(half, 1, taken)
        recommended = np.where(half, 0.0, 0.5)
    elif chance == 0.25:
        taken, recommended = (np.arange(n) % 12 > 4).astype(int), 0.25  # in truth 5 in 12
    propensity = np.stack([np.broadcast_to(recommended, n), 1 - np.broadcast_to(recommended, n)], 1)
    labels = {"action_labels_": Labels("action", ("a", "b")), "outcome_labels_": Labels("outcome", (0, 1))}
    p = np.tile([[0.2, 0.8], [0.7, 0.3]], (n, 1, 1))  # a is recommended everywhere
    text = value_of_recommendations(SimpleNamespace(**labels), p, taken, taken, propensity, None, None, 0.01)
    assert "SNIPS" in text
    doubts = [line for line in text.splitlines() if "doubtful" in line]
    assert len(doubts) == len(said)
    assert all(words in line for words, line in zip(said, doubts, strict=True))
