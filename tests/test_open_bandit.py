"""Open Bandit Pipeline's dictionary: there and back without loss, and what has no place in it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning import Feedback, InputError
from cst_lightning.open_bandit import from_open_bandit, to_open_bandit

KEYS = {
    "n_rounds", "n_actions", "context", "action", "position", "reward", "expected_reward", "pi_b", "pscore",
    "action_context",
}  # fmt: skip


def log(n=30, d=3, k=4, seed=0, **changes):
    g = torch.Generator().manual_seed(seed)
    propensity = torch.softmax(torch.randn(n, k, generator=g), 1)
    action = torch.randint(k, (n,), generator=g)
    given = {"x": torch.randn(n, d, generator=g), "action": action, "outcome": torch.randint(2, (n,), generator=g)}
    return Feedback(**(given | {"n_actions": k, "propensity": propensity, "allow_unlogged": True} | changes))


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 99), st.booleans())
def test_there_and_back(n, d, k, seed, logged):
    one = log(n, d, k, seed, **({} if logged else {"propensity": None}))
    bandit = to_open_bandit(one)
    other = from_open_bandit(bandit, allow_unlogged=True)
    assert other.shape == one.shape
    for name in ("x", "action", "outcome", "propensity"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine is theirs is None or torch.equal(mine, theirs), name
    again = to_open_bandit(other)
    assert set(again) == set(bandit) == KEYS
    for key, value in bandit.items():
        assert np.array_equal(value, again[key]) if isinstance(value, np.ndarray) else value == again[key], key


def test_the_dictionary_is_as_open_bandit_pipeline_has_it():
    one = log()
    bandit = to_open_bandit(one)
    assert (bandit["n_rounds"], bandit["n_actions"]) == (30, 4)
    assert bandit["context"].shape == (30, 3)
    assert bandit["pi_b"].shape == (30, 4, 1)
    assert bandit["pscore"] == pytest.approx(bandit["pi_b"][np.arange(30), bandit["action"], 0])
    assert bandit["pi_b"].sum(1) == pytest.approx(1)
    assert bandit["action_context"].shape[0] == 4
    assert set(np.unique(bandit["reward"])) == {0, 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcome": torch.tensor([1, -1] * 15)}, "missing in 15 rows, the first of them row 1"),
        ({"outcome": torch.arange(30) % 3, "n_outcomes": 3}, "the log has 3 outcomes: allowed are two"),
        ({"weight": torch.ones(30)}, "the log has weights"),
    ],
)
def test_logs_that_have_no_such_dictionary(changes, message):
    with pytest.raises(InputError, match=message):
        to_open_bandit(log(**changes))
    with pytest.raises(InputError, match="2 replicates"):
        to_open_bandit(log().expand(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": None}, "lacks 'reward'"),
        ({"reward": np.linspace(0, 1, 30)}, r"reward is 0\.0344828 in row 1 .from 0.: allowed are 0 and 1"),
        ({"position": np.arange(30) % 3}, "rows of positions 0, 1, 2: choose those of one"),
        ({"pi_b": np.full((30, 4, 3), 0.25)}, r"pi_b has shape \(30, 4, 3\): allowed is \[N, K, 1\]"),
        ({"action": np.full(30, 7)}, r"action is 7 in row 0 .from 0., replicate 0: allowed are 0\.\.3"),
    ],
)
def test_dictionaries_that_are_no_log(changes, message):
    with pytest.raises(InputError, match=message):
        from_open_bandit(to_open_bandit(log()) | changes)


def test_a_score_of_the_taken_action_alone_is_kept():
    bandit = to_open_bandit(log()) | {"pi_b": None, "position": np.zeros(30)}
    again = to_open_bandit(from_open_bandit(bandit))
    assert again["pscore"] == pytest.approx(bandit["pscore"])
    assert np.allclose(again["pi_b"].sum(1), 1)
    with pytest.raises(InputError, match="propensity of the action taken is 0 in row 3"):
        from_open_bandit(bandit | {"pscore": np.where(np.arange(30) == 3, 0, bandit["pscore"])})
