import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from cst_lightning import DirectMethod, Feedback, InputError, get_protocol
from cst_lightning.propensity import estimate_propensities, inverse_propensity_weights
from cst_lightning.selection import RULES, best, get_rule, scores
from tests.conftest import TinyDataModule, tiny_protocol


def log(n_actions=3, n=90, seed=0, separable=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1, n, 2))
    action = (np.digitize(x[..., 0], [-0.5, 0.5]) if separable else rng.integers(n_actions, size=(1, n))) % n_actions
    action[0, :n_actions] = range(n_actions)
    return Feedback(x, action, rng.integers(2, size=(1, n)), n_actions)


@given(st.integers(1, 5), st.sampled_from(["multinomial", "one_vs_rest"]), st.integers(0, 20))
def test_estimates_sum_to_one(n_actions, model, seed):
    estimate = estimate_propensities(log(n_actions, seed=seed), model)
    assert torch.allclose(estimate.sum(-1), torch.ones(1, 90), atol=1e-5)
    assert (estimate >= 0).all()


def test_estimates_are_scikit_learns_and_can_be_taken_elsewhere():
    feedback = log()
    x, action = feedback.x[0].numpy(), feedback.action[0].numpy()
    other = torch.randn(1, 7, 2, generator=torch.Generator().manual_seed(0))
    expected = LogisticRegression(max_iter=1000).fit(x, action).predict_proba(other[0].numpy())
    assert np.allclose(estimate_propensities(feedback, at=other)[0], expected, atol=1e-6)


def test_separable_actions_give_bounded_weights_and_say_so():
    feedback = log(n=600, separable=True)
    sharp = torch.nn.functional.one_hot((feedback.action + (torch.arange(600) % 50 == 0)) % 3, 3).float()
    weight, overlap = inverse_propensity_weights(feedback, sharp, 0.01)
    assert weight.max().item() == pytest.approx(100)
    assert overlap.n_clipped == [12]
    assert overlap.largest_weight == pytest.approx([100])
    assert overlap.effective_sample_size[0] == pytest.approx(
        float(weight.sum() ** 2 / (weight**2).sum() / 600), rel=1e-6
    )
    assert torch.isfinite(weight).all()


def test_no_floor_and_no_chance_is_an_error():
    feedback = log()
    impossible = torch.nn.functional.one_hot((feedback.action + 1) % 3, 3).float()
    with pytest.raises(InputError, match="propensity_floor"):
        inverse_propensity_weights(feedback, impossible, 0.0)
    with pytest.raises(InputError, match="propensity_floor=1"):
        inverse_propensity_weights(feedback, impossible, 1)


def test_rules_say_what_they_look_at():
    assert {name for name, rule in RULES.items() if rule.oracle} == {"oracle_hamming", "oracle_nll"}
    with pytest.raises(InputError, match="did you mean observed_nll"):
        get_rule("observed_nl")


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_finds_the_variant_that_predicts_best(name):
    data = TinyDataModule([0, 1], 0.25, n=200)
    module = DirectMethod(data.shape, data.seeds, tiny_protocol("matched"), [0.0, 1.0, 2.0])
    held_out, oracle = data.validation, data.oracle_validation
    rule = get_rule(name)
    rows = oracle if rule.oracle else held_out

    def logits(x):
        truth = torch.randn(6, x.shape[1], 3, 1, generator=torch.Generator().manual_seed(1))
        right = oracle.outcomes if rule.oracle else held_out.outcome[..., None].expand(-1, -1, 3)
        truth[2::3] = (4.0 * right - 2)[..., None][:, : x.shape[1]]
        return truth

    module.logits = logits
    score = scores(rule, module, data.train, None if rule.oracle else rows, rows if rule.oracle else None)
    assert score.shape == (2, 3)
    assert best(score) == [2, 2]


def test_a_failed_replicate_is_never_chosen():
    data = TinyDataModule([0, 1], 0.25)
    module = DirectMethod(data.shape, data.seeds, tiny_protocol("matched"), [0.0, 1.0])
    module.failed_epoch[0] = 3
    score = scores(get_rule("observed_nll"), module, data.train, data.validation, None)
    assert score[0, 0] == torch.inf
    assert best(score)[0] == 1


def test_a_rule_without_its_rows_is_an_error():
    data = TinyDataModule([0, 1])
    module = DirectMethod(data.shape, data.seeds, tiny_protocol())
    with pytest.raises(InputError, match="held-out observed rows"):
        scores(get_rule("observed_nll"), module, data.train, data.validation, data.oracle_validation)
    assert get_protocol("matched").selection == "observed_nll"
