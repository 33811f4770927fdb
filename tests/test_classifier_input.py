"""Logs and options that the estimator cannot work with: one line that says which, where, and what to do."""

import re
import warnings

import numpy as np
import pandas as pd
import polars
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline

from cst_lightning import CounterfactualClassifier, InputError
from cst_lightning.encoding import FeatureEncoder
from datamodules.logged import LoggedDataModule
from tests.classifiers import QUICK, make_log
from tests.parts import MOST_SURE, Halved


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
        (bad(propensity=lambda a: np.full(120, 1.2)), "taken is 1.2 in rows 0, 1, 2, 3, 4 and 115 more .from 0.:"),
        (
            bad(propensity=lambda a: np.array([0, 2, 0, *[0.5] * 117])),
            r"propensity of the action taken is 0, 2 in rows 0, 1, 2 \(from 0\): allowed is above 0, at most 1",
        ),
        (bad(outcome=lambda r: np.full(len(r), None)), "outcome is missing in every row: at least two different"),
        (bad(X=lambda x: x.rename(columns={"age": 3})), "column names are text and others, such as 3"),
        (
            bad(propensity=lambda a: np.full((120, 3), 0.5)),
            r"propensity is no distribution in rows 0, 1, .* and 115 more",
        ),
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
        ({"selection": 0.5}, "unknown selection '0.5'"),
        ({"selection": MOST_SURE}, "selection is the rule 'most_sure' itself: give its path, as in selection="),
        ({"selection": "tests.parts.ALL_SEEING"}, "it is an oracle"),
        ({"selection": "tests.parts.Plain"}, "'tests.parts.Plain' is no Rule"),
        ({"selection": "tests.parts.Nothing"}, "'tests.parts.Nothing' cannot be imported"),
        ({"n_models": 6}, "n_models=6: allowed are 1 to 5"),
        ({"n_models": "abc"}, "n_models='abc': allowed are 1 to 5"),
        ({"hidden": "a"}, "hidden='a': allowed is int"),
        ({"batch_size": "x"}, "batch_size='x': allowed is int"),
        ({"cvat_weights": 0.1}, "cvat_weights=0.1: allowed is a list of numbers"),
        ({"categorical": 5}, "categorical=5: allowed is a list of columns"),
        ({"categorical": None}, "categorical=None: allowed is a list of columns"),
        ({"device": "tpu"}, "device='tpu'"),
        ({"missing": "drop"}, "missing='drop'"),
        ({"categorical": ["town"]}, "categorical column 'town' is not there"),
        ({"method": Halved}, "class Halved itself: give its path, as in method='my_package.Halved'"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "s_logistic", "hidden": 64}, "hidden=64 does nothing: s_logistic is no network; leave it out"),
        ({"base": GaussianNB(), "learning_rate": 9.0}, "learning_rate=9.0 does nothing: GaussianNB is no network"),
        ({"backbone": "constant", "patience": 3}, "patience=3 does nothing: constant is no network"),
        ({"cvat_weights": [1]}, r"cvat_weights=\[1\] does nothing: method=pl_soft has no CVAT"),
        ({"method": "backbone", "rounds": 1}, "rounds=1 does nothing: method=backbone has no self-training"),
        ({"propensity_floor": 0.1}, "propensity_floor=0.1 does nothing: neither the backbone nor the selection"),
    ],
)
def test_an_option_that_does_nothing_is_an_error_before_any_work(options, message):
    x, action, outcome = make_log()
    model = clone(CounterfactualClassifier(missing="impute", random_state=0, **options))
    with pytest.raises(InputError, match=f"^{message}"):
        model.fit(x, action, outcome)
    assert not hasattr(model, "encoder_")
    name = message.partition("=")[0]
    model.set_params(**{name: CounterfactualClassifier().get_params()[name]}).check_options()


@pytest.mark.parametrize(
    "options",
    [
        {"backbone": "udm", "propensity_floor": 0.1, "max_epochs": 3},
        {"selection": "ipw_nll", "propensity_floor": 0.1},
        {"base": GaussianNB(), "selection": "dr_nll", "propensity_floor": 0.1, "rounds": 1, "n_models": 2},
        {"method": "pl_cvat", "cvat_weights": [1], "rounds": 1},
        {"method": "tests.parts.Halved", "cvat_weights": np.array([1.0])},
        {"backbone": "s_logistic", "cvat_weights": [0.01, 0.1, 1.0, 10.0], "hidden": np.int64(32)},  # as by default
    ],
)
def test_an_option_that_does_something_is_none(options):
    CounterfactualClassifier(**options).check_options()


@pytest.mark.parametrize("role", ["action", "outcome"])
def test_labels_that_hardly_come_twice_are_an_error_as_numbers_and_a_warning_as_text(role):
    x, action, outcome = make_log()
    given = {"action": action, "outcome": outcome}
    model = CounterfactualClassifier("t_logistic", method="backbone", random_state=0)
    for numbers in (np.arange(120), np.arange(120) / 7, list(range(120))):
        with pytest.raises(InputError, match=f"{role} holds 120 different numbers in 120 rows, so it is continuous or"):
            model.fit(x, **given | {role: numbers})
    names = np.array([f"c{row}" for row in range(120)])
    with pytest.warns(UserWarning, match=f"{role} holds 120 different texts in 120 rows: each is a class of its own"):
        model.fit(x, **given | {role: names})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(x, **given | {role: np.arange(120) % 60})
    assert not any("different" in str(warning.message) for warning in told)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (np.arange(120) * 2, True),  # a counter
        (np.cumsum(np.random.default_rng(0).integers(1, 9, 120)), True),  # an identifier
        (np.arange(120) // 2, False),
        (np.arange(120) / 7, False),
        (np.arange(120)[::-1], False),
    ],
)
def test_a_column_that_counts_the_rows_is_a_warning(column, told):
    x, action, outcome = make_log()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        CounterfactualClassifier("s_logistic", "backbone", random_state=0).fit(x.assign(number=column), action, outcome)
    assert [str(warning.message).partition(",")[0] for warning in said] == [
        "column 'number' grows from each row to the next"
    ] * told


def test_two_spellings_of_a_category_are_a_warning():
    x = pd.DataFrame({"town": ["Bern", "bern", "Zug", "Chur"] * 5})
    with pytest.warns(UserWarning, match="column 'town' holds categories that differ only in .* 'Bern' and 'bern':"):
        FeatureEncoder().fit(x)


def test_two_spellings_of_a_label_are_a_warning():
    x, action, outcome = make_log()
    outcome = np.where(np.arange(120) == 7, "Left", outcome)
    said = "outcome holds labels that differ only in blanks or upper and lower case, 'Left' and 'left': each is a class"
    with pytest.warns(UserWarning, match=said):
        CounterfactualClassifier("s_logistic", method="backbone", random_state=0).fit(x, action, outcome)


@pytest.mark.parametrize("kind", [pd.DataFrame, polars.DataFrame])
def test_all_columns_with_gaps_are_named_in_one_line(kind):
    columns = {"age": [1.0] * 20, "visits": [*range(20)], "town": ["Bern", "Zug"] * 10, "member": [True, False] * 10}
    gaps = {name: [None if row in (3, 4)[: 1 + (name == "town")] else v for row, v in enumerate(values)]
            for name, values in columns.items() if name != "visits"}  # fmt: skip
    message = (
        "column 'age' is missing (NaN) in row 3 (from 0), and so are 'town' in 2 rows, 'member' in 1 row: fill them, "
        "drop these rows, or train with missing='impute'"
    )
    for encoder, fit in ((FeatureEncoder(), True), (FeatureEncoder().fit(kind(columns)), False)):
        with pytest.raises(InputError, match=re.escape(message)):
            (encoder.fit if fit else encoder.transform)(kind(columns | gaps))


def test_numbers_far_outside_of_training_are_a_warning():
    columns = {"age": np.linspace(20, 90, 40), "visits": np.arange(40) % 5}
    encoder = FeatureEncoder().fit(pd.DataFrame(columns))
    older = encoder.to_dict()
    older["columns"] = [[name, kind, {k: fields[k] for k in ("mean", "scale", "indicator")}]
                        for name, kind, fields in older["columns"]]  # fmt: skip
    new = pd.DataFrame(columns | {"age": [41_000, 20, 160, 161, -51] + [50] * 35})
    message = (
        "column 'age' is 41000 in rows 0, 3, 4 (from 0), far outside of 20 to 90, all that training had: predictions "
        "there are guesses; is a decimal mark lost, or a unit another one?"
    )
    for known, said in (
        (encoder, [message]),
        (FeatureEncoder.from_dict(encoder.to_dict()), [message]),
        (FeatureEncoder.from_dict(older), []),  # which has no range
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            known.transform(new)
        assert [str(warning.message) for warning in told] == said


def told_of(model, *args, **kwargs):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(*args, **kwargs)
    return [str(warning.message) for warning in told]


def test_rare_outcomes_are_one_warning_of_estimator_and_data_module(tmp_path):
    x, action, _ = make_log()
    outcome = np.where(np.arange(120) < 9, np.arange(120), 50 + np.arange(120) % 2)
    few = "9 of 11 outcomes have fewer than 5 rows each (0, 1, 2, 3, 4 and 4 more): what leads to them can hardly be"
    one = "outcome 7 has 1 row: what leads to it can hardly be"
    x.assign(action=action, outcome=outcome).to_parquet(tmp_path / "few.parquet")
    x.assign(action=action, outcome=np.where(outcome == 7, 7, outcome.clip(50))).to_parquet(tmp_path / "one.parquet")
    for name, said in (("few", few), ("one", one)):
        log = pd.read_parquet(tmp_path / f"{name}.parquet")
        model = CounterfactualClassifier("s_logistic", method="backbone", random_state=0)
        rare = [text for text in told_of(model, x, log["action"], log["outcome"]) if "hardly" in text]
        assert len(rare) == 1
        assert rare[0].startswith(said)
        for chunk_rows in (None, 60):
            data = LoggedDataModule(tmp_path / f"{name}.parquet", "action", "outcome", holdout=0, chunk_rows=chunk_rows)
            with pytest.warns(UserWarning, match=re.escape(said)):
                data.setup()


@pytest.mark.parametrize("backbone", ["t_logistic", "constant"])
def test_many_actions_with_too_little_are_one_warning_of_each_kind(backbone):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(backbone, method="backbone", random_state=0)
    said = told_of(model, x, [f"c{row:03}" for row in range(120)], outcome)
    assert len(said) == 2
    assert "action holds 120 different texts" in said[0]
    assert said[1] == (
        "actions 'c000', 'c001', 'c002', 'c003', 'c004' and 115 more have fewer than 5 observed outcomes each: what is "
        "predicted for them rests on these alone, since each action has a model of its own; leave them out"
    )
    said = told_of(model, x, action, np.where(np.isin(action, ["mid", "low"]), "left", outcome))
    assert said == [
        "actions 'low', 'mid' were only ever seen with a single outcome each: they will be predicted so; log them more"
    ]


@pytest.mark.parametrize(
    ("backbone", "few", "alike", "wrong"),
    [
        ("t_logistic", "rests on these alone", "it will be predicted so; log it more", 0),
        ("dm", "rests on these, over layers that are shared", "it will most likely be predicted so, since each", 0),
        ("s_boosting", "comes from other actions", "what is predicted for it leans on other actions, since all", 1),
    ],
)
def test_a_warning_of_a_rare_action_says_what_the_model_does_with_it(backbone, few, alike, wrong):
    rng = np.random.default_rng(0)
    x, action = rng.normal(size=(200, 3)), np.array(["a", "b", "rare", "once"])[rng.integers(2, size=200)]
    action[:6], action[6] = "rare", "once"
    outcome = np.where(action == "rare", "yes", np.where(x[:, 0] > 0.8, "yes", "no"))
    model = CounterfactualClassifier(backbone, "backbone", n_models=1, random_state=0)
    said = told_of(model, x, action, outcome)
    assert any(text.startswith("action 'once' has 1 observed outcomes") and few in text for text in said)
    assert any(
        text.startswith("action 'rare' was only ever seen with outcome 'yes': ") and alike in text for text in said
    )
    predicted = model.predict(x)[:, list(model.actions_).index("rare")]
    assert (predicted != "yes").any() == wrong


def test_an_action_whose_weights_are_all_zero_is_one_without_outcomes():
    x, action, outcome = make_log()
    model = CounterfactualClassifier("t_logistic", "backbone", random_state=0)
    said = told_of(model, x, action, outcome, sample_weight=action != "mid")
    assert said == [
        "action 'mid' has 0 observed outcomes of a weight above 0: what is predicted for it is a guess, since each "
        "action has a model of its own; leave it out"
    ]


def test_warnings_point_at_the_line_of_the_user():
    x, action, outcome = make_log(19)
    model = CounterfactualClassifier(method="backbone", **QUICK)
    wide = pd.DataFrame({"id": [f"c{row}" for row in range(120)], "day": [20240101 + row % 28 for row in range(120)]})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.fit(x, action[:, None], outcome)
        model.fit(x, np.where(np.arange(19) == 5, "once", "low"), outcome)
        make_pipeline(model).fit(x, action, counterfactualclassifier__outcome=outcome)
        model.predict(x.assign(city="Bonn"))
        FeatureEncoder().fit(wide)
    said = " ".join(str(warning.message) for warning in told)
    assert all(words in said for words in ("X has 19 rows", "column-vector", "'Bonn'", "categories", "dates", "'once'"))
    assert {warning.filename for warning in told} == {__file__}


def test_an_action_that_follows_from_the_features_is_a_warning():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    rule, outcome = (x @ rng.normal(size=(4, 3))).argmax(1), rng.integers(2, size=600)
    with pytest.warns(UserWarning, match="the action is a function of the features"):
        CounterfactualClassifier(method="backbone", **QUICK).fit(x, rule, outcome)
    mostly = np.where(rng.random(600) < 0.8, rule, 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        CounterfactualClassifier(method="backbone", **QUICK).fit(x, mostly, outcome)
    assert not any("function of the features" in str(warning.message) for warning in told)


def test_a_single_action_is_a_warning():
    x, action, outcome = make_log()
    with pytest.warns(UserWarning, match="action is 'low' in every row"):
        CounterfactualClassifier(method="backbone", **QUICK).fit(x, np.full(len(action), "low"), outcome)


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (["20240131", "20240229", "19991231"], "20240131"),
        (["20240131", None, "20240229"], "20240131"),
        (["20240131", "20240230", "19991231"], False),  # no day
        (["20240131", "20240131", "20240131"], False),
        (["20240131", "20240229.5", "19991231"], False),
        (["240131", "240229", "991231"], False),
        (["31012024", "1022024"], "31012024"),  # day first, and its zero gone
        (["1312024", "12312023"], "1312024"),  # month first
        (["31022024", "1022024"], False),
        (["31012124", "1022024"], False),
    ],
)
def test_dates_written_as_numbers_are_a_warning(days, told):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        FeatureEncoder(missing="impute").fit(pd.DataFrame({"day": [v and float(v) for v in days]}))
    assert [str(warning.message).partition(":")[0] for warning in said] == [
        f"column 'day' holds dates written as numbers, such as {told}"
    ] * bool(told)


def test_new_categories_are_named_each_by_its_own_rows():
    towns = pd.DataFrame({"town": ["Bern", "Chur"] * 5})
    encoder = FeatureEncoder(missing="impute").fit(towns)
    for new, words in (
        ([None, "Basel", "Bern", None], "no value in rows 0, 3 (from 0) and 'Basel' in row 1 (from 0), which"),
        (["Basel", "Bern", "Basel"], "'Basel' in rows 0, 2 (from 0), which training had not"),
        (
            list("abcda"),
            "'a' in rows 0, 4 (from 0) and 'b' in row 1 (from 0) and 'c' in row 2 (from 0) and 1 values more",
        ),
    ):
        with pytest.warns(UserWarning, match="which training had not") as told:
            encoded = encoder.transform(pd.DataFrame({"town": new}))
        assert str(told[0].message).startswith(f"column 'town' holds {words}")
        assert encoded.sum(1).tolist() == [float(town == "Bern") for town in new]


@pytest.mark.parametrize(
    ("options", "source"),
    [
        (
            {"backbone": "t_logistic", "method": "backbone"},
            "rests on these alone, since each action has a model of its",
        ),
        (
            {"base": GaussianNB(), "backbone": "t_learner", "method": "pl"},
            "rests on these alone, since each action has a model of its own",
        ),
        ({"base": GaussianNB(), "method": "pl"}, "comes from other actions; leave it out"),
        (
            {"method": "backbone", **QUICK},
            "rests on these, over layers that are shared with other actions; leave it out",
        ),
    ],
)
def test_an_action_logged_once_is_warned_of_as_its_model_is(options, source):
    x, action, outcome = make_log()
    action[0] = "gift"
    with pytest.warns(UserWarning, match=f"action 'gift' has 1 observed outcomes: what is predicted for it {source}"):
        CounterfactualClassifier(**{"random_state": 0} | options).fit(x, action, outcome)


def test_labels_of_a_list_are_what_they_are():
    x, action, outcome = make_log()
    seen = [float("nan"), None, *outcome[2:].tolist()]
    model = CounterfactualClassifier(method="backbone", **QUICK).fit(x, action.tolist(), seen)
    assert model.classes_.tolist() == sorted(set(outcome))
    with pytest.raises(InputError, match="differ only by type or spaces: 1 and '1'"):
        model.fit(x, [1, "1", *[2] * 118], outcome)
    model.fit(x, action, pd.Series([pd.NA, *[0, 1] * 59, 1], dtype="Int64"))
    assert model.classes_.tolist() == [0, 1]
    assert all(isinstance(label, int) for label in model.classes_.tolist())


def test_no_rows_have_no_predictions():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", **QUICK).fit(x, action, outcome)
    assert model.predict_proba(x[:0]).shape == (0, 3, 2)


def test_an_array_without_rows_or_columns_is_told():
    x, action, outcome = make_log()
    numbers = x[["age", "visits"]].to_numpy()
    model = CounterfactualClassifier(method="backbone", **QUICK)
    for nothing, message in ((numbers[:, :0], "0 feature"), (x[[]], "0 feature"), (numbers[:, 0], "Expected 2D array")):
        with pytest.raises(InputError, match=message):
            model.fit(nothing, action, outcome)
    for nothing in (numbers[:0], x[:0]):
        with pytest.raises(InputError, match="n_samples=0"):
            model.fit(nothing, action[:0], outcome[:0])
    model.fit(numbers, action, outcome)
    assert model.predict_proba(numbers[:0]).shape == (0, 3, 2)
    with pytest.raises(InputError, match="X has 0 feature"):
        model.predict_proba(numbers[:, :0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.arange(120.0), r"Expected 2D array, got 1D array instead: X has shape \(120,\). Reshape your data"),
        (np.ones((120, 2, 2)), r"Found array with dim 3: X has shape \(120, 2, 2\)"),
        (np.ones((120, 2)) * 1j, "Complex data not supported: give real numbers"),
        (scipy.sparse.csr_matrix(np.ones((120, 2)) * 1j), "Complex data not supported: give real numbers"),
        ([[1, 2], [3]] * 60, "X holds rows of different lengths"),
        (3, "Expected 2D array, got scalar array instead: X is a int, and no table"),
        (polars.LazyFrame({"a": range(120)}), r"X is a polars LazyFrame, .*: give X.collect\(\)"),
        (np.full((120, 2), b"\xff"), "'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_what_is_no_table_is_told_by_its_shape_in_one_short_line(given, message):
    _, action, outcome = make_log()
    with pytest.raises(InputError, match=message) as error:
        CounterfactualClassifier(method="backbone", **QUICK).fit(given, action, outcome)
    assert len(str(error.value)) < 160
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "held",
    [
        lambda text: text,
        lambda text: text.astype("S"),
        lambda text: text.astype(np.dtypes.StringDType()),
        lambda text: text.tolist(),
        lambda text: text.astype(object),
    ],
)
def test_text_in_an_array_is_a_category_like_that_of_a_frame(held):
    x, action, outcome = make_log()
    text = np.array([x["city"], np.where(x["age"] > 40, "old", "young")]).T
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK)
    table = pd.DataFrame(text, columns=["x0", "x1"])
    want = model.fit(table, action, outcome).predict_proba(table)
    assert np.array_equal(model.fit(held(text), action, outcome).predict_proba(held(text)), want)
    mixed = x[["city", "age"]].to_numpy().tolist()
    assert [type(kind).__name__ for kind in FeatureEncoder().fit(mixed).columns.values()] == ["Category", "Number"]


@pytest.mark.parametrize("kind", [float, np.float32, object])
def test_minus_zero_is_the_category_zero(kind):
    encoder = FeatureEncoder(categorical=[0]).fit(np.array([[-1.0], [0.0], [-0.0], [1.0]]).astype(kind))
    assert encoder.columns["x0"].values == ("-1", "0", "1")
    assert encoder.transform(np.array([[-0.0], [0.0]]).astype(kind)).tolist() == [[0, 1, 0]] * 2


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(7), "sample_weight has 7 rows, X has 120"),
        (np.ones((120, 1)), r"sample_weight has shape \(120, 1\): one value a row of X is allowed"),
        (3.0, r"sample_weight has shape \(\)"),
        (np.where(np.arange(120) == 4, np.nan, 1), r"sample_weight is nan in row 4 \(from 0\)"),
        (np.where(np.arange(120) == 4, -1, 1), r"sample_weight is -1.0 in row 4 \(from 0\)"),
        (np.zeros(120), "sample_weight is zero in every row"),
        (np.full(120, "much"), "sample_weight is of type"),
    ],
)
def test_weights_of_rows_are_checked(weight, message):
    x, action, outcome = make_log()
    model = CounterfactualClassifier("constant", method="backbone", random_state=0)
    with pytest.raises(InputError, match=f"^{message}"):
        model.fit(x, action, outcome, sample_weight=weight)
    model.fit(x, action, outcome)
    with pytest.raises(InputError, match=f"^{message}"):
        model.score(x, action, outcome, sample_weight=weight)


def test_a_score_by_weights_is_that_of_repeated_rows():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", **QUICK).fit(x, action, outcome)
    twice = np.where(np.arange(120) < 40, 2, 1)
    rows = np.repeat(np.arange(120), twice)
    weighted = model.score(x, action, outcome, sample_weight=twice)
    assert weighted == pytest.approx(model.score(x.iloc[rows], action[rows], outcome[rows]))


def test_numbers_of_numpy_are_numbers():
    x, action, outcome = make_log()
    settings = QUICK | {"hidden": np.int64(8), "dropout": np.float64(0.1), "categorical": np.array(["visits"])}
    CounterfactualClassifier(method="backbone", **settings).fit(x, action, outcome)
    for settings, message in (({"batch_size": 0}, "batch_size=0"), ({"n_models": 2.5}, "n_models=2.5")):
        with pytest.raises(InputError, match=message):
            CounterfactualClassifier(**QUICK | settings).fit(x, action, outcome)


def test_other_columns_at_prediction_are_told_with_what_to_give():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(**QUICK, method="backbone").fit(x, action, outcome)
    for wrong, fault in (
        (x.assign(more=1), "column 'more' was not there in training"),
        (x[["age", "city", "visits"]], "column 'city' stands where training had 'visits'"),
        (x.drop(columns="age"), "column 'age' of the training is missing"),
    ):
        with pytest.raises(InputError) as error:
            model.predict_proba(wrong)
        first = str(error.value).splitlines()[0]
        assert first.startswith(fault)
        assert first.endswith("give the columns of the training in their order, X[list(model.feature_names_in_)]")


@pytest.mark.parametrize(
    ("age", "message"),
    [
        (lambda age: age.astype(object).where(age.index != 3, "old"), "holds 'old' in row 3"),
        (lambda age: age.astype(str), "holds numbers as text"),
        (lambda age: pd.Timestamp("2020-01-01"), "holds '2020-01-01"),
        (lambda age: age.where(age.index != 5), "is missing .NaN. in row 5"),
        (lambda age: age.where(age.index != 5, np.inf), "is infinity in row 5"),
    ],
)
def test_a_column_of_another_kind_at_prediction_is_told_by_column_and_row(age, message):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(**QUICK, method="backbone").fit(x, action, outcome)
    with pytest.raises(InputError, match=f"column 'age' .*{message}|column 'age' {message}"):
        model.predict(x.assign(age=age(x["age"])))


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA])
def test_what_is_missing_in_every_row_at_prediction_is_imputed(gap):
    x, action, outcome = make_log()
    x["age"] = x["age"].where(x.index != 5)
    model = CounterfactualClassifier(**QUICK, method="backbone", missing="impute").fit(x, action, outcome)
    without = x.assign(age=pd.Series([gap] * len(x), dtype=object))
    assert np.array_equal(model.predict_proba(without), model.predict_proba(x.assign(age=np.nan)))
    model = CounterfactualClassifier(**QUICK, method="backbone").fit(x.fillna(40.0), action, outcome)
    with pytest.raises(InputError, match=r"column 'age' is missing \(NaN\) in rows 0, 1, "):
        model.predict_proba(without)


def test_booleans_with_a_missing_one_are_numbers_as_those_without():
    x, action, outcome = make_log()
    member = pd.Series(np.arange(len(x)) % 3 == 0)
    gap = member.astype(object).where(member.index != 5, None)
    model = CounterfactualClassifier(**QUICK, method="backbone", missing="impute")
    for trained in (member, gap):
        model.fit(x.assign(member=trained), action, outcome)
        p = model.predict_proba(x.assign(member=gap))
        assert np.array_equal(p[6:], model.predict_proba(x.assign(member=member))[6:])
        assert np.array_equal(p, model.predict_proba(x.assign(member=gap.astype(float))))
    assert type(model.encoder_.columns["member"]).__name__ == "Number"


def test_labels_that_differ_only_by_type_are_told():
    x, action, _ = make_log()
    for values, message in (
        ([1, 1.0] * 60, "outcome holds labels that differ only by type: 1 and 1.0"),
        ([2, 3, 3.0] * 40, "outcome holds labels that differ only by type: 3 and 3.0"),
    ):
        with pytest.raises(InputError, match=message):
            CounterfactualClassifier(**QUICK).fit(x, action, pd.Series(values, dtype=object))


def test_an_index_that_says_otherwise_than_the_place_is_warned_of():
    x, action, outcome = make_log()
    model = CounterfactualClassifier("constant", n_models=1, missing="impute", random_state=0)
    taken, seen, weight = pd.Series(action), pd.Series(outcome), pd.Series(np.ones(120))
    mixed = x.sample(frac=1, random_state=0).index
    far = "rows are joined by their place"
    for call, said in (
        (lambda: model.fit(x.loc[mixed], taken, seen), f"action and outcome have another index .* row .* {far}"),
        (lambda: model.fit(x, taken[mixed], seen), rf"action has another index than X, first in row 0 .*: {mixed[0]} "),
        (lambda: model.fit(x[1:], taken[:-1], seen[:-1]), r"action and outcome have .* row 0 \(from 0\): 0 beside 1;"),
        (lambda: model.fit(x[:60], taken[60:], seen[:60]), r"action has .* row 0 \(from 0\): 60 beside 0;"),
        (lambda: model.fit(x, taken, seen, sample_weight=weight[mixed]), "sample_weight has another"),
        (lambda: model.fit(x, taken, seen, weight[mixed] / 2), "propensity has another"),
        (lambda: model.fit(x, taken, seen).score(x, taken[mixed], seen), "action has another"),
        (lambda: model.score(x, taken, seen, weight[mixed]), "sample_weight has another"),
        (lambda: model.recommend(x, [0, 1], pd.DataFrame(np.ones((120, 3), bool), index=mixed)), "actions has another"),
        (lambda: model.recommend(x, [0, 1], pd.Series([["low"]] * 120, index=mixed)), "actions has another"),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            call()
        assert len(told) == 1
        assert re.search(said, str(told[0].message)), str(told[0].message)
        assert told[0].filename == __file__


def test_an_index_that_says_nothing_is_none_to_warn_of():
    x, action, outcome = make_log()
    model = CounterfactualClassifier("constant", n_models=1, missing="impute", random_state=0)
    taken, seen = pd.Series(action), pd.Series(outcome)
    part = np.random.default_rng(0).permutation(120)[:80]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(x, taken, seen)
        model.fit(x.iloc[part].reset_index(drop=True), taken[part], seen[part])  # as a transformed table has it
        model.fit(x.iloc[part], taken[part].to_numpy(), seen[part].reset_index(drop=True))
        model.fit(x.set_axis(pd.date_range("2024", periods=120)), taken, seen)
        model.fit(x.set_axis([*"ab"] * 60).set_index("city", append=True, drop=False), taken, seen)
        model.fit(polars.from_pandas(x), taken[::-1], seen[::-1])
        model.recommend(x[5:8], [0, 1], pd.Series(["high", "low", "mid"]))  # allowed in every row


def test_what_cannot_be_done_at_prediction_is_no_advice():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK).fit(x, action, outcome)
    with pytest.raises(InputError, match=r"holds 'old' in row 2 .*: mend it, as training had numbers alone$"):
        model.predict(x.astype({"age": object}).assign(age=[*x["age"][:2], "old", *x["age"][3:]]))


def test_what_is_masked_is_missing():
    _, action, outcome = make_log()
    x = np.ma.masked_array(np.random.default_rng(0).normal(size=(120, 2)), mask=False)
    x[3, 1] = 1e6
    x[3, 1] = np.ma.masked
    model = CounterfactualClassifier("s_logistic", "backbone", random_state=0)
    with pytest.raises(InputError, match=r"column 'x1' is missing \(NaN\) in row 3 \(from 0\)"):
        model.fit(x, action, outcome)
    masked = np.ma.masked_array(outcome, mask=outcome == "one")
    with pytest.raises(InputError, match="outcome holds 'left' alone"):
        model.fit(x.filled(0), action, masked)


def test_half_precision_of_any_kind_is_a_number():
    _, action, outcome = make_log()
    x = torch.randn(120, 2)
    model = CounterfactualClassifier("s_logistic", "backbone", random_state=0)
    for kind in (torch.bfloat16, torch.float16):
        assert model.fit(x.to(kind), action, outcome).predict_proba(x[:3]).shape == (3, 3, 2)
