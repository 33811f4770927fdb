import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning import InputError
from datamodules.pricing import PricingDataModule, stepwise1, stepwise2

SMALL = {"n_train": 200, "n_test": 300, "n_validation": 50}


@pytest.fixture(scope="module")
def golden():
    path = os.environ.get("CST_GOLDEN")
    if not path:
        pytest.skip("CST_GOLDEN names no file with the released code's draws")
    return json.loads(Path(path).read_text())


def test_draws_are_the_released_codes(golden):
    for expected in golden:
        data = PricingDataModule(expected["dataset"], [expected["replicate"]], overlap=expected["overlap"])
        outcomes = data.train_outcomes.outcomes[0]
        action = data.train.action[0]
        assert data.train.x[0, 0, :5].tolist() == pytest.approx(expected["x_train_first_row_first_5"], rel=1e-6)
        assert action[:20].tolist() == expected["action_train_first_20"]
        assert action.bincount().tolist() == expected["action_train_counts"]
        assert outcomes.sum(0).tolist() == expected["outcome_train_column_sums"]
        assert outcomes[:5].tolist() == expected["outcome_train_first_5_rows"]
        assert data.train.outcome.sum().item() == expected["outcome_observed_train_sum"]
        validation = data.oracle_validation.outcomes[0].sum(0).tolist()
        assert validation == expected["validation_is_first_500_test_rows_outcome_column_sums"]
        assert data.test.outcomes[0].sum(0).tolist() == expected["outcome_test_rows_500_to_10000_column_sums"]


def test_first_draw_of_d1_without_the_golden_file():
    data = PricingDataModule("D1", [0])
    assert data.train.action[0, :10].tolist() == [1, 4, 3, 1, 0, 2, 1, 2, 0, 3]
    assert data.train.outcome.sum().item() == 326


@given(st.sampled_from([0.0, 0.5, 2.0, 20.0]), st.integers(2, 8))
def test_propensities_sum_to_one_and_sharpen_with_o(overlap, n_prices):
    data = PricingDataModule("D1", [0], overlap=overlap, n_prices=n_prices, **SMALL)
    propensity = torch.from_numpy(data.propensity(np.random.default_rng(0).uniform(size=(50, 50))))
    assert torch.allclose(propensity.sum(1), torch.ones(50, dtype=torch.float64))
    assert propensity.shape == (50, n_prices)


def test_outcomes_follow_the_probabilities():
    data = PricingDataModule("D4", range(3))
    mean = data.test.outcomes.double().mean(1)
    expected = data.test.probabilities[..., 1].mean(1)
    assert torch.allclose(mean, expected, atol=0.02)
    assert torch.allclose(data.test.propensity.sum(-1), torch.ones(3, 9500, dtype=torch.float64))
    assert data.test.floor()["nll"].mean().item() == pytest.approx(0.53, abs=0.03)


def test_text_and_code_differ_in_the_price_term_of_d3_and_d4_alone():
    for demand in PricingDataModule.names:
        text, code = (PricingDataModule(demand, [0], price_term=term, **SMALL) for term in ("text", "code"))
        same = torch.equal(text.test.probabilities, code.test.probabilities)
        assert same == (demand not in ("D3", "D4"))
    text, code = (PricingDataModule("D3", [0], price_term=term, **SMALL) for term in ("text", "code"))
    logit = [torch.logit(data.test.probabilities[0, :, :, 1]) for data in (text, code)]
    steps = [one[:, 0] - one[:, 1] for one in logit]
    assert torch.allclose(steps[1], 2 * steps[0])


def test_steps_are_the_papers():
    assert stepwise1(np.array([0.05, 0.1, 0.29, 0.3, 0.59, 0.6, 1.0])).tolist() == [0.7, 0.5, 0.5, 0.3, 0.3, 0.1, 0.1]
    x, y = np.array([0.05, 0.2, 0.4, 0.9]), np.ones(4)
    assert stepwise2(x, y).tolist() == [0.65, 0.55, 0.45, 0.35]
    assert stepwise2(x, 0.5 * y).tolist() == [0.45, 0.35, 0.25, 0.15]


def test_a_replicate_does_not_depend_on_the_others_and_setup_draws_once():
    together, alone = PricingDataModule("D1", [2, 0], **SMALL), PricingDataModule("D1", [0], **SMALL)
    assert torch.equal(together.train.x[1], alone.train.x[0])
    before = together.train.x
    together.setup("test")
    assert together.train.x is before


def test_holdout_splits_the_log_once_and_for_each_replicate():
    whole, split = PricingDataModule("D1", [0, 1], **SMALL), PricingDataModule("D1", [0, 1], 0.2, **SMALL)
    assert whole.validation is None
    assert (split.train.n_rows, split.validation.n_rows) == (160, 40)
    for replicate in range(2):
        rows = torch.cat([split.train.x[replicate], split.validation.x[replicate]])
        assert torch.equal(rows.sort(0).values, whole.train.x[replicate].sort(0).values)
    assert torch.equal(split.train_outcomes.x, split.train.x)
    taken = split.train_outcomes.outcomes.gather(-1, split.train.action[..., None])[..., 0]
    assert torch.equal(taken, split.train.outcome)


def test_an_action_whose_rows_are_all_held_out_is_an_error():
    sizes = {"n_train": 60, "n_prices": 8, "n_test": 200, "n_validation": 50}
    assert PricingDataModule("D1", [48], **sizes).train.n_rows == 60
    with pytest.raises(InputError, match="action 0 was never logged"):
        PricingDataModule("D1", [48], 0.2, **sizes).setup()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"demand": "D6"}, "demand"),
        ({"overlap": -1}, "overlap"),
        ({"n_prices": 1}, "n_prices"),
        ({"n_prices": 51}, "n_prices"),
        ({"n_outcomes": 1}, "n_outcomes"),
        ({"n_train": 0}, "n_train"),
        ({"n_validation": 10_000}, "n_validation"),
        ({"price_term": "both"}, "price_term"),
        ({"holdout": 1.0}, "holdout"),
        ({"seeds": [1, 1]}, "seeds"),
    ],
)
def test_impossible_options_are_refused(changes, name):
    with pytest.raises(InputError, match=name):
        PricingDataModule(**changes)


def test_more_prices_are_possible():
    data = PricingDataModule("D5", [0], n_prices=9, **SMALL)
    assert data.shape.n_actions == 9
    bought = data.test.probabilities[0, :, :, 1].mean(0)
    assert (bought[:-1] > bought[1:]).all()


@pytest.mark.parametrize("demand", PricingDataModule.names)
def test_three_outcomes_are_an_ordered_logit_on_the_same_demand(demand):
    two, three = (PricingDataModule(demand, [0, 2], 0.2, n_outcomes=m, **SMALL) for m in (2, 3))
    assert three.shape.n_outcomes == 3
    assert torch.equal(three.train.x, two.train.x)
    assert torch.equal(three.train.action, two.train.action)
    logit = torch.logit(two.test.probabilities[..., 1])
    many = torch.sigmoid(logit - 2)
    expected = torch.stack([1 - torch.sigmoid(logit), torch.sigmoid(logit) - many, many], -1)
    assert torch.allclose(three.test.probabilities, expected, atol=1e-12)
    x = three.test.x[1].double().numpy()  # single precision: the contexts were drawn in double
    assert np.allclose(three.probabilities(2, x), expected[1], atol=1e-5)


def test_outcomes_of_three_follow_their_probabilities():
    data = PricingDataModule("D3", range(3), n_outcomes=3)
    potential = data.test
    shares = torch.nn.functional.one_hot(potential.outcomes, 3).double().mean(1)
    assert torch.allclose(shares, potential.probabilities.mean(1), atol=0.02)
    # not only on average: where an outcome is likely it is drawn
    one_hot = torch.nn.functional.one_hot(potential.outcomes, 3).double()
    for outcome in range(3):
        p, drawn = potential.probabilities[..., outcome].flatten(), one_hot[..., outcome].flatten()
        for part in p.argsort().tensor_split(8):
            assert drawn[part].mean().item() == pytest.approx(p[part].mean().item(), abs=0.02)
    assert potential.likeliest().unique().tolist() == [0, 1, 2]
    taken = data.train_outcomes.outcomes.gather(-1, data.train.action[..., None])[..., 0]
    assert torch.equal(taken, data.train.outcome)


def test_the_floor_of_three_outcomes_is_the_entropy_of_their_probabilities():
    potential = PricingDataModule("D1", [0], n_outcomes=3, **SMALL).test
    p = potential.probabilities[0].numpy()
    floor = potential.floor()
    assert floor["nll"].item() == pytest.approx(-(p * np.log(p)).sum(-1).mean())
    assert floor["hamming"].item() == pytest.approx(1 - p.max(-1).mean())
