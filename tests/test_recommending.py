"""Which actions are allowed, and what outcomes are worth, as people write them."""

import numpy as np
import pandas as pd
import polars
import pytest

from cst_lightning import CounterfactualClassifier, InputError
from cst_lightning.encoding import Labels
from cst_lightning.recommending import allowed_actions, worth
from tests.classifiers import QUICK, make_log

EYE = np.eye(3, dtype=bool)
TEXTS, NUMBERS = Labels("action", ("a", "b", "c")), Labels("action", (0, 1, 2))


@pytest.mark.parametrize("known", [TEXTS, NUMBERS])
@pytest.mark.parametrize("given", [EYE, EYE.tolist(), list(EYE), EYE.astype(object), pd.Series(EYE.tolist())])
def test_booleans_by_row_and_action_are_a_mask_however_they_are_held(known, given):
    assert (allowed_actions(given, 3, known) == EYE).all()


def test_zeros_and_ones_are_a_mask_where_they_cannot_be_actions():
    assert (allowed_actions(EYE.astype(int), 3, TEXTS) == EYE).all()
    assert (allowed_actions(EYE.astype(int).tolist(), 3, TEXTS) == EYE).all()
    with pytest.raises(InputError, match=r"actions: 0 stands twice in the list of row 0 \(from 0\): a mask is an arr"):
        allowed_actions(EYE.astype(int).tolist(), 3, NUMBERS)


def test_lists_of_boolean_actions_are_actions():
    known = Labels("action", (False, True))
    assert allowed_actions([[True], [False, True]], 2, known).tolist() == [[False, True], [True, True]]
    assert allowed_actions(np.array([[True, False]]), 1, known).tolist() == [[True, False]]


@pytest.mark.parametrize("make", [pd.DataFrame, polars.DataFrame, lambda columns: pd.DataFrame(columns).astype(int)])
def test_columns_of_a_table_are_matched_by_name(make):
    backwards = {name: EYE[:, place] for place, name in reversed(list(enumerate("abc")))}
    assert (allowed_actions(make(backwards), 3, TEXTS) == EYE).all()
    assert (allowed_actions(pd.DataFrame(EYE[:, ::-1], columns=[2, 1, 0]), 3, NUMBERS) == EYE).all()
    assert (allowed_actions(pd.DataFrame(EYE, columns=["x", "y", "z"]), 3, TEXTS) == EYE).all()  # by place


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([["a"], ["b"]], "actions has 2 list.s. for 3 rows"),
        ([["a"], ["b", "c"]], "actions has 2 list.s. for 3 rows"),
        ([["a"], "b", ["c"]], "actions holds lists and single ones"),
        ([["a"], ["b"], ["d"]], r"actions: 'd' of row 2 \(from 0\) was not in training: allowed are 'a', 'b', 'c'"),
        ([["a"], ["b"], [None]], "actions: None of row 2"),
        ([["a"], [], ["b"]], r"actions allows none in row 1 \(from 0\)"),
        ([True, False, True], "actions: True was not in training"),
        (EYE[:2], r"actions has shape \(2, 3\): booleans of shape \(3, 3\)"),
        (pd.DataFrame(EYE, columns=["a", "b", "d"]), "actions: column 'd' is no action"),
        (pd.DataFrame(EYE[:, :2], columns=["b", "a"]), "actions: action 'c' has no column"),
        (pd.DataFrame(np.full((3, 3), 0.5), columns=list("abc")), "something else than booleans"),
    ],
)
def test_what_allows_nothing_clear_is_an_error(given, message):
    with pytest.raises(InputError, match=message):
        allowed_actions(given, 3, TEXTS)
    with pytest.raises(InputError, match="actions: True was not in training"):
        allowed_actions([True], 3, NUMBERS)


def test_worth_by_name_is_matched_by_name():
    outcomes = Labels("outcome", ("no", "yes"))
    assert worth(pd.Series({"yes": 1.0, "no": 0.0}), (9, 3, 2), TEXTS, outcomes).tolist() == [[0, 1]] * 3
    table = pd.DataFrame({"yes": [3.0, 2.0, 1.0], "no": 0.0}, index=["c", "b", "a"])
    assert worth(table, (9, 3, 2), TEXTS, outcomes).tolist() == [[0, 1], [0, 2], [0, 3]]
    assert worth(table.reset_index(drop=True), (9, 3, 2), TEXTS, outcomes).tolist() == [[0, 3], [0, 2], [0, 1]]
    assert worth(table.T, (9, 3, 2), TEXTS, outcomes).tolist() == [[0, 1], [0, 2], [0, 3]]
    square = pd.DataFrame([[0.0, 0.0], [10.0, 20.0]], index=["no", "yes"], columns=["a", "b"])  # by outcome and action
    two = Labels("action", ("a", "b"))
    for given in (square, square.T, square[["b", "a"]], square.reset_index(drop=True)):
        assert worth(given, (9, 2, 2), two, outcomes).tolist() == [[0, 10], [0, 20]]
    by_action = {"b": 2, "a": np.float64(1), "c": 3.5}
    for given in (by_action, pd.Series(by_action)):
        assert worth({"yes": given, "no": -1}, (9, 3, 2), TEXTS, outcomes).tolist() == [[-1, 1], [-1, 2], [-1, 3.5]]
    numbers = Labels("outcome", (0, 1))
    assert worth(pd.Series([5.0, 1.0], index=range(1, -1, -1)), (9, 3, 2), TEXTS, numbers).tolist() == [[1, 5]] * 3


def test_propensities_by_name_are_matched_by_name():
    x, action, outcome = make_log()
    chance = np.tile([0.5, 0.3, 0.2], (120, 1))  # high, low, mid
    model = CounterfactualClassifier("udm", method="backbone", n_models=1, **QUICK)
    want = model.fit(x, action, outcome, chance).predict_proba(x)
    table = pd.DataFrame(chance[:, [2, 0, 1]], columns=["mid", "high", "low"])
    for given in (table, polars.from_pandas(table), pd.DataFrame(chance, columns=["p1", "p2", "p3"])):
        assert np.array_equal(model.fit(x, action, outcome, given).predict_proba(x), want)
    with pytest.raises(InputError, match="propensity: column 'top' is no action: allowed is one column for each of"):
        model.fit(x, action, outcome, table.rename(columns={"mid": "top"}))
