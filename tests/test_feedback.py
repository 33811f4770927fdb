import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cst_lightning import Feedback, InputError, PotentialOutcomes, Shape


def log(**changes):
    given = {"x": torch.zeros(1, 4, 2), "action": [[0, 1, 2, 0]], "outcome": [[0, 1, 0, 1]], "n_actions": 3}
    return Feedback(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action": [[0, 1, 3, 2]]}, "action is 3 in row 2 (from 0), replicate 0: allowed are 0..2"),
        ({"action": [[0, 1, -1, 2]]}, "action is -1 in row 2"),
        ({"action": [[0.0, 1.0, float("nan"), 2.0]]}, "action is missing in row 2"),
        ({"action": [[0, 1, 0.5, 2]]}, "action holds 0.5"),
        ({"action": [[0, 1, 1, 0]]}, "action 2 was never logged"),
        ({"outcome": [[0, 2, 0, 1]]}, "outcome is 2 in row 1"),
        ({"outcome": [[0, 1]]}, "outcome has shape"),
        ({"outcome": [[0, None, 1, 0]]}, "outcome is of type object"),
        ({"action": [["a", "b", "c", "a"]]}, "action is of type"),
        ({"x": torch.zeros(1, 4, 2, dtype=torch.complex64)}, "x is complex"),
        ({"x": torch.tensor([[[0.0, 1], [0, 1], [0, np.nan], [0, 1]]])}, "x holds nan in column 1, row 2"),
        ({"x": torch.tensor([[[0.0, 1], [np.inf, 1], [0, 1], [0, 1]]])}, "x holds inf in column 0, row 1"),
        ({"x": torch.zeros(1, 0, 2)}, "x has shape"),
        (
            {"propensity": [[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]]},
            "propensity of the action taken is 0 in row 3",
        ),
        ({"propensity": [[[1.2, -0.2, 0]] * 4]}, "propensity is no distribution in rows 0, 1, 2, 3 (from 0)"),
        ({"propensity": [[[0.3, 0.3, 0.3]] * 4]}, "propensity is no distribution"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(InputError) as error:
        log(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unlogged_action_can_be_allowed():
    assert log(action=[[0, 1, 1, 0]], allow_unlogged=True).n_rows == 4


def test_missing_outcomes_are_counted_and_floats_accepted():
    feedback = log(outcome=[[0.0, float("nan"), 1.0, -1.0]])
    assert feedback.outcome.tolist() == [[0, -1, 1, -1]]
    assert feedback.n_missing.tolist() == [2]


def test_one_log_needs_no_replicate_axis():
    feedback = Feedback(np.zeros((3, 2)), np.array([0, 1, 0]), np.array([1, 0, 1]), 2)
    assert feedback.shape == Shape(2, 2, 2)
    assert feedback.n_replicates == 1


def test_rows_are_chosen_for_each_replicate():
    x = torch.arange(2 * 3 * 1).reshape(2, 3, 1).float()
    feedback = Feedback(x, [[0, 1, 0], [1, 0, 1]], [[0, 1, 1], [1, 1, 0]], 2)
    chosen = feedback.rows(torch.tensor([[2, 0], [1, 1]]))
    assert chosen.x[..., 0].tolist() == [[2, 0], [4, 4]]
    assert chosen.action.tolist() == [[0, 0], [0, 0]]
    assert feedback.repeat(2).outcome.tolist() == [[0, 1, 1], [0, 1, 1], [1, 1, 0], [1, 1, 0]]
    assert feedback.taken.tolist()[0] == [[True, False], [False, True], [True, False]]


@pytest.mark.parametrize("sizes", [(0, 2, 2), (1, 0, 2), (1, 2, 1)])
def test_shape_refuses_empty_problems(sizes):
    with pytest.raises(InputError):
        Shape(*sizes)


@given(st.floats(0.01, 0.99))
def test_floor_is_entropy_and_error_of_the_truth(p):
    truth = torch.tensor([1 - p, p], dtype=torch.float64).expand(1, 1, 1, 2)
    floor = PotentialOutcomes(torch.zeros(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.int64), 2, truth).floor()
    assert float(floor["nll"]) == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))
    assert float(floor["hamming"]) == pytest.approx(min(p, 1 - p))


def test_floor_is_unknown_without_probabilities():
    assert PotentialOutcomes(torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).floor() == {}
