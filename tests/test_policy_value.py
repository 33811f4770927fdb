"""Estimates of a policy's value against a truth that is known."""

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from cst_lightning import InputError
from cst_lightning.cross_fitting import held_out_probabilities
from cst_lightning.policy_value import doubly_robust, ips, snips

K = 3


def contexts(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, K))


def world(n, seed=0):
    """Contexts, logging policy, target policy and expected rewards of every action, ``[n, K]`` each."""
    x = contexts(n, seed)
    logging = np.exp(0.8 * x)
    target = np.exp(-0.5 * x + [0.5, 0, 0])
    expected = 1 / (1 + np.exp(-x @ np.array([[1, 0.5, 0], [0, 1, -0.5], [-1, 0, 1]]) - [0.3, 0, -0.3]))
    return logging / logging.sum(1, keepdims=True), target / target.sum(1, keepdims=True), expected


def draw(logging, expected, rng):
    """Actions and rewards, ``[n]``."""
    action = (rng.random(len(logging))[:, None] > logging.cumsum(1)).sum(1)
    return action, rng.binomial(1, expected[np.arange(len(action)), action])


def estimators(expected):
    wrong = np.full_like(expected, 0.9)
    return {
        "ips": ips,
        "snips": snips,
        "dr": partial(doubly_robust, expected_reward=expected),
        "dr, wrong model": partial(doubly_robust, expected_reward=wrong),
    }


@pytest.mark.parametrize("name", estimators(np.zeros((1, K))))
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_cover_the_truth_as_often_as_they_say(name, level):
    n, draws, rng = 500, 400, np.random.default_rng(1)
    values, covered = [], 0
    truth = float(np.mean([(t * e).sum(1).mean() for _, t, e in [world(200_000, 99)]]))
    for seed in range(draws):
        logging, target, expected = world(n, seed)
        action, reward = draw(logging, expected, rng)
        found = estimators(expected)[name](target, action, reward, logging, floor=0.0, level=level)
        values.append(found.value)
        covered += found.low <= truth <= found.high
    # unbiased (SNIPS: nearly), within four standard errors of the mean
    assert abs(np.mean(values) - truth) < 4 * np.std(values, ddof=1) / draws**0.5 + 0.001
    low, high = binom.interval(0.999, draws, level)
    assert low <= covered <= high, covered


def test_intervals_cover_with_propensities_that_are_estimated_on_the_log_itself():
    """As ``evaluate`` estimates them; they are wider than they need be then, so that no upper bound holds."""
    draws, rng = 100, np.random.default_rng(1)
    _, target, expected = world(200_000, 99)
    truth = (target * expected).sum(1).mean()
    covered = dict.fromkeys(estimators(expected), 0)
    for seed in range(draws):
        logging, target, expected = world(500, seed)
        action, reward = draw(logging, expected, rng)
        propensity, _ = held_out_probabilities(contexts(500, seed), action, K, 0)
        for name, estimator in estimators(expected).items():
            found = estimator(target, action, reward, propensity)
            covered[name] += found.low <= truth <= found.high
    assert min(covered.values()) >= binom.ppf(0.001, draws, 0.95), covered


def test_standard_errors_are_those_of_repeated_draws():
    n, rng = 1000, np.random.default_rng(2)
    logging, target, expected = world(n)
    for name, estimator in estimators(expected).items():
        found = []
        for seed in range(300):
            logging, target, expected = world(n, seed)
            action, reward = draw(logging, expected, rng)
            estimator = estimators(expected)[name]
            found.append(estimator(target, action, reward, logging))
        spread = np.std([one.value for one in found], ddof=1)
        assert np.mean([one.standard_error for one in found]) == pytest.approx(spread, rel=0.15), name


def test_doubly_robust_needs_one_of_two_to_be_right():
    logging, target, expected = world(40_000)
    action, reward = draw(logging, expected, np.random.default_rng(3))
    truth = (target * expected).sum(1).mean()
    flat, wrong = np.full_like(logging, 1 / K), np.full_like(expected, 0.9)
    both_right = doubly_robust(target, action, reward, logging, expected)
    for found in (
        both_right,
        doubly_robust(target, action, reward, logging, wrong),
        doubly_robust(target, action, reward, flat, expected),
    ):
        assert abs(found.value - truth) < 4 * found.standard_error
    both_wrong = doubly_robust(target, action, reward, flat, wrong)
    assert abs(both_wrong.value - truth) > 10 * both_wrong.standard_error
    assert both_right.standard_error < ips(target, action, reward, logging).standard_error


@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 99))
def test_the_logging_policy_has_the_mean_reward(n, k, seed):
    rng = np.random.default_rng(seed)
    logging = rng.dirichlet(np.ones(k), n).clip(0.05)
    logging /= logging.sum(1, keepdims=True)
    action, reward = rng.integers(k, size=n), rng.normal(size=n)
    for found in (
        ips(logging, action, reward, logging),
        snips(logging, action, reward, logging),
        doubly_robust(logging, action, reward, logging, np.zeros((n, k))),
    ):
        assert found.value == pytest.approx(reward.mean())
        assert found.standard_error == pytest.approx(reward.std(ddof=1) / n**0.5)
        assert found.effective_sample_size == pytest.approx(n)
        assert found.largest_weight == pytest.approx(1)


@given(st.integers(0, 99), st.floats(-5, 5), st.floats(0.1, 3))
def test_laws_of_shift_and_scale(seed, shift, scale):
    rng = np.random.default_rng(seed)
    logging, target, expected = world(30, seed)
    action, reward = draw(logging, expected, rng)
    one, other = (snips(target, action, r, logging) for r in (reward, scale * reward + shift))
    assert other.value == pytest.approx(scale * one.value + shift)  # IPS moves with its weights, SNIPS does not
    assert other.standard_error == pytest.approx(scale * one.standard_error)
    assert ips(target, action, scale * reward, logging).value == pytest.approx(
        scale * ips(target, action, reward, logging).value
    )
    perfect = doubly_robust(target, action, reward, logging, np.repeat(reward[:, None], K, 1))
    assert perfect.value == pytest.approx(reward.mean())


def test_all_ways_to_say_the_same_give_the_same():
    logging, _, expected = world(200)
    action, reward = draw(logging, expected, np.random.default_rng(0))
    chosen = expected.argmax(1)
    of_taken = logging[np.arange(200), action]
    one = ips(np.eye(K)[chosen], action, reward, logging)
    assert ips(chosen, action, reward, logging) == one
    assert ips(chosen, action, reward, of_taken) == one
    assert doubly_robust(chosen, action, reward, of_taken, np.zeros((200, K))) == one


def test_rewards_that_are_missing_are_left_out():
    logging, target, expected = world(300)
    action, reward = draw(logging, expected, np.random.default_rng(0))
    seen = np.arange(300) % 3 > 0
    for name, estimator in {"ips": ips, "snips": snips}.items():
        short = estimator(target[seen], action[seen], reward[seen], logging[seen])
        assert estimator(target, action, np.where(seen, reward, np.nan), logging) == short, name
    assert short.n_rows == 200


def test_propensities_are_clipped_at_the_floor_and_counted():
    action, reward, policy = np.array([0, 0, 1, 1]), np.array([1.0, 0, 1, 0]), np.array([0, 0, 0, 1])
    found = ips(policy, action, reward, [0.001, 0.5, 0.5, 0.0], floor=0.1)
    assert (found.n_clipped, found.floor, found.largest_weight) == (2, 0.1, pytest.approx(10))
    assert found.value == pytest.approx(10 / 4)
    with pytest.raises(InputError, match=r"propensity is 0 in row 3 .from 0.: allowed is above 0 \(or set a floor"):
        ips(policy, action, reward, [0.5, 0.5, 0.5, 0.0], floor=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"floor": 1}, "floor=1"),
        ({"level": 1.5}, "level=1.5"),
        ({"propensity": [0.5, 0.5, 0.5, 1.2]}, r"propensity is 1\.2 in row 3"),
        ({"propensity": [[0.5, 0.6]] * 4}, "propensity is no distribution in rows 0, 1, 2, 3 .from 0."),
        ({"propensity": [0.5] * 3}, r"propensity has shape \(3,\): allowed is \[4\] or \[4, K\]"),
        ({"propensity": [[0.2, 0.3, 0.5]] * 4}, "the number of actions differs: policy 2, propensity 3"),
        ({"policy": [[0.5, 0.4]] * 4}, "policy is no distribution in rows 0, 1, 2, 3 .from 0."),
        ({"action": [0, 1, 2, 0]}, r"action is 2 in row 2 .from 0.: allowed are 0\.\.1"),
        ({"action": ["a"] * 4}, "action holds values that are no numbers"),
        ({"action": [0, 1, 0.5, 0]}, r"action is 0\.5 in row 2"),
        ({"reward": [1, 0, np.inf, 0]}, "reward is inf in row 2"),
        ({"reward": [1, np.nan, np.nan, np.nan]}, "an outcome was seen in fewer than two rows"),
        ({"reward": [[1, 0, 1, 0]]}, r"reward has shape \(1, 4\)"),
    ],
)
def test_what_is_not_allowed_is_named(changes, message):
    arguments = {"policy": [[0.5, 0.5]] * 4, "action": [0, 1, 0, 1], "reward": [1, 0, 0, 1], "propensity": [0.5] * 4}
    with pytest.raises(InputError, match=message):
        ips(**(arguments | changes))


def test_an_action_that_no_row_has_is_warned_of():
    action, reward, policy = np.zeros(40, int), np.ones(40), np.repeat([0, 2], [30, 10])
    for estimate in (ips, snips, partial(doubly_robust, expected_reward=np.ones((40, K)))):
        with pytest.warns(UserWarning, match=r"in 10 of 40 rows the policy takes an action .* has \(2\)") as told:
            estimate(policy, action, reward, np.ones(40))
        assert told[0].filename == __file__
        action[-1] = 2
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            estimate(policy, action, reward, np.ones(40))
        action[-1] = 0


def test_a_policy_that_the_log_never_followed_has_no_value():
    never = [1, 1, 1], [0, 0, 0], [1, 0, 1], [0.5, 0.5, 0.5]
    for estimator in (ips, snips, partial(doubly_robust, expected_reward=np.ones((3, 2)))):
        with pytest.raises(InputError, match="no row with an outcome has an action that the policy takes"):
            estimator(*never)
    with pytest.raises(InputError, match=r"expected_reward has shape \(3,\): allowed is \[3, K\]"):
        doubly_robust(*never, [1, 1, 1])
