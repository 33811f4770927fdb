"""Logs and options that the estimator cannot work with: one line that says which, where, and what to do."""

import warnings

import numpy as np
import pandas as pd
import pytest

from cst_lightning import CounterfactualClassifier, InputError
from tests.classifiers import QUICK, make_log


def bad(**changes):
    x, action, outcome = make_log()
    log = {"X": x, "action": action, "outcome": outcome}
    return log | {name: change(log[name.replace("propensity", "action")]) for name, change in changes.items()}


def put(value, row=7):
    def change(column):
        column = np.array(column, dtype=object)
        column[row] = value
        return column

    return change


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (bad(action=put(None)), "action is missing in row 7"),
        (bad(outcome=lambda r: np.full(len(r), "one")), "outcome holds 'one' alone"),
        (bad(outcome=lambda r: r[:-1]), "outcome has 119 rows, X has 120"),
        (bad(action=lambda a: np.column_stack([a, a])), r"action has shape \(120, 2\)"),
        (bad(outcome=lambda r: np.array([1, "1"] * 60, dtype=object)), "differ only by type or spaces: 1 and '1'"),
        (bad(outcome=lambda r: np.array([1, True, 0] * 40, dtype=object)), "holds booleans and numbers"),
        (bad(outcome=put(" one")), "differ only by type or spaces"),
        (bad(outcome=put(3)), "text and numbers"),
        (bad(outcome=put(pd.Timestamp("2020-01-01"))), "a Timestamp"),
        (bad(X=lambda x: x.assign(age=x.age.where(x.index != 5))), "column 'age' is missing .NaN. in row 5"),
        (bad(X=lambda x: x.assign(age=x.age.where(x.index != 5, np.inf))), "column 'age' is infinity in row 5"),
        (bad(X=lambda x: x.assign(age=put("old")(x.age))), "'age' should hold numbers, and holds 'old' in row 7"),
        (bad(X=lambda x: x.assign(age=x.age.astype(str))), "'age' holds numbers as text"),
        (bad(X=lambda x: x.assign(day=pd.Timestamp("2020-01-01"))), "column 'day' is a date"),
        (bad(X=lambda x: x.assign(day="2020-01-02")), "column 'day' holds dates, such as '2020-01-02'"),
        (bad(X=lambda x: x.assign(age="41,1")), "'age' holds numbers as text .'41,1'."),
        (bad(X=lambda x: x.assign(age=1e300 * x.visits)), "too large"),
        (bad(X=lambda x: pd.concat([x, x[["age"]]], axis=1)), "column 'age' is there twice"),
        (bad(X=lambda x: x.assign(none=np.nan)), "'none'"),
        (
            bad(propensity=lambda a: np.where(np.arange(120) == 4, 0, 0.5)),
            "propensity of the action taken is 0 in row 4",
        ),
        (bad(propensity=lambda a: np.full(120, 1.2)), "propensity of the action taken is 1.2 in row 0"),
        (bad(propensity=lambda a: np.full((120, 3), 0.5)), "propensity is no distribution in row 0"),
        (bad(propensity=lambda a: np.full(7, 0.5)), r"propensity has shape \(7,\)"),
    ],
)
def test_bad_logs_are_told_by_column_and_row(log, message):
    with pytest.raises(InputError, match=message):
        CounterfactualClassifier(method="backbone", **QUICK).fit(**log)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "pl_sof"}, "did you mean pl_soft"),
        ({"backbone": "dmm"}, "did you mean dm"),
        ({"selection": "oracle_nll"}, "unknown selection 'oracle_nll'"),
        ({"n_models": 6}, "n_models=6: allowed are 1 to 5"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"categorical": ["town"]}, "categorical column 'town' is not there"),
        ({"hidden": 0}, "hidden=0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"method": "pl_cvat", "selection": None}, "give a single one"),
        ({"method": "pl_cvat", "cvat_weights": (-1.0,)}, "cvat_weights"),
        ({"learning_rate": 1e30, "max_epochs": 50}, "training diverged"),
    ],
)
def test_bad_options_are_told(settings, message):
    x, action, outcome = make_log()
    with pytest.raises(InputError, match=message):
        CounterfactualClassifier(**QUICK | settings).fit(x, action, outcome)


def test_too_few_rows_are_an_error_and_rare_actions_a_warning():
    x, action, outcome = make_log()
    with pytest.raises(InputError, match="n_samples=9"):
        CounterfactualClassifier(**QUICK).fit(x[:9], action[:9], outcome[:9])
    with pytest.warns(UserWarning, match="X has 19 rows: fewer than 20"):
        CounterfactualClassifier(method="backbone", **QUICK).fit(x[:19], action[:19], outcome[:19])
    action, outcome = action.copy(), outcome.copy()
    action[5] = "once"
    outcome[action == "mid"] = "left"
    model = CounterfactualClassifier(method="backbone", **QUICK)
    with pytest.warns(UserWarning, match="action 'once' has 1 observed") as told:
        model.fit(x, action, outcome)
    assert any("'mid' was only ever seen with outcome 'left'" in str(warning.message) for warning in told)
    assert np.isfinite(model.predict_proba(x)).all()


def test_an_action_that_follows_from_the_features_is_a_warning():
    x, _, outcome = make_log()
    rule = np.where(x["age"] + 3 * x["visits"] > (x["age"] + 3 * x["visits"]).median(), "dear", "cheap")
    with pytest.warns(UserWarning, match="the action is a function of the features"):
        CounterfactualClassifier(method="backbone", **QUICK).fit(x, rule, outcome)
    mostly = np.where(np.random.default_rng(0).random(len(x)) < 0.8, rule, "cheap")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        CounterfactualClassifier(method="backbone", **QUICK).fit(x, mostly, outcome)
    assert not any("function of the features" in str(warning.message) for warning in told)
