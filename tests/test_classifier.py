"""The scikit-learn estimator, as a person with a log uses it."""

import warnings

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cst_lightning import CounterfactualClassifier, InputError
from cst_lightning.columns import Roles
from cst_lightning.diagnosis import diagnose
from tests.classifiers import QUICK, make_log


@pytest.fixture(scope="module")
def fitted():
    x, action, outcome = make_log()
    return CounterfactualClassifier(**QUICK).fit(x, action, outcome), x, action, outcome


def test_it_predicts_every_action_in_the_labels_given(fitted):
    model, x, action, outcome = fitted
    p = model.predict_proba(x)
    assert p.shape == (120, 3, 2)
    assert np.allclose(p.sum(-1), 1)
    assert model.actions_.tolist() == ["high", "low", "mid"]
    assert model.classes_.tolist() == ["left", "one"]
    predicted = model.predict(x)
    assert (predicted == np.where(p[..., 1] > p[..., 0], "one", "left")).all()
    places = [model.actions_.tolist().index(a) for a in action], [model.classes_.tolist().index(r) for r in outcome]
    assert model.score(x, action, outcome) == pytest.approx(np.log(p[np.arange(120), *places]).mean())
    assert [c.method for c in model.candidates_] == ["backbone", "pl_soft"]


def test_the_same_random_state_gives_the_same_model(fitted):
    model, x, action, outcome = fitted
    assert np.array_equal(clone(model).fit(x, action, outcome).predict_proba(x), model.predict_proba(x))
    other = clone(model).set_params(random_state=1).fit(x, action, outcome)
    assert not np.allclose(other.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(["b", "a", "c"], str), ([True, False, True], bool), ([2.5, 10.0, 7.0], float), ([30, -4, 7], int)],
)
def test_labels_of_any_kind_come_back_as_they_were_given(labels, kind):
    x, action, _ = make_log()
    places = pd.factorize(action)[0]
    action = np.array(labels)[places]
    outcome = np.array(labels)[(places + np.arange(120)) % 3]
    model = CounterfactualClassifier(method="backbone", **QUICK).fit(x, action, outcome)
    assert sorted(set(labels)) == model.actions_.tolist() == model.classes_.tolist()
    predicted = model.predict(x).ravel().tolist()
    assert all(isinstance(value, kind) for value in predicted)
    value = dict.fromkeys(set(labels), 1.0)
    assert set(model.recommend(x, value=value).tolist()) <= set(labels)


def test_every_kind_of_frame_gives_the_same_model():
    x, action, outcome = make_log()
    numbers = x[["age", "visits"]]
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK)
    want = clone(model).fit(numbers, action, outcome).predict_proba(numbers)
    array = numbers.to_numpy(float)
    for given in (polars.from_pandas(numbers), pa.Table.from_pandas(numbers), array, torch.tensor(array),
                  scipy.sparse.csr_matrix(array), array.tolist()):  # fmt: skip
        again = clone(model).fit(given, action, outcome)
        assert np.array_equal(again.predict_proba(given), want), type(given)
    assert again.n_features_in_ == 2
    for y in (list(outcome), pd.Series(outcome), polars.Series(outcome), pa.array(outcome)):
        assert np.array_equal(clone(model).fit(array, action, y).predict_proba(array), want)


def test_columns_at_prediction_are_those_of_training(fitted):
    model, x, _, _ = fitted
    assert model.feature_names_in_.tolist() == ["age", "visits", "city"]
    for wrong, message in [
        (x.rename(columns={"age": "years"}), "years"),
        (x.assign(more=1), "more"),
        (x[["visits", "age", "city"]], "order"),
        (x[["age"]], "visits"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.predict(wrong)
    with pytest.warns(UserWarning, match="'city' holds 'Bonn' in row 3 .from 0., which training had not"):
        model.predict(x.assign(city=["Oslo"] * 3 + ["Bonn"] + ["Rome"] * 116))


def test_the_recommended_action_is_the_most_valuable_of_those_allowed(fitted):
    model, x, _, _ = fitted
    p = model.predict_proba(x)[..., 1]
    value = {"one": 1, "left": 0}
    assert (model.recommend(x, value) == model.actions_[p.argmax(1)]).all()
    assert np.allclose(model.expected_value(x, value), p)
    prices = np.array([[0, 9.0], [0, 1.0], [0, 4.0]])  # high, low, mid
    assert (model.recommend(x, prices) == model.actions_[(p * prices[:, 1]).argmax(1)]).all()
    assert set(model.recommend(x, value, actions=["low"])) == {"low"}
    a_row = [["low"] if row % 2 else ["mid", "high"] for row in range(120)]
    chosen = model.recommend(x, value, actions=a_row)
    assert all(choice in allowed for choice, allowed in zip(chosen, a_row, strict=True))
    mask = np.zeros((120, 3), bool)
    mask[:, 2] = True
    assert set(model.recommend(x, value, actions=mask)) == {"mid"}
    for call, message in [
        ({"value": None}, "outcomes are text"),
        ({"value": {"one": 1}}, "give each of 'left', 'one' a number"),
        ({"value": [1, 2, 3]}, r"value has shape \(3,\)"),
        ({"value": {"one": np.nan, "left": 0}}, "value of outcome 'one' is nan: allowed are a finite number, 'action'"),
        ({"value": {"one": 1, "left": "5,5"}}, "value of outcome 'left' is '5,5': allowed are a finite number"),
        ({"value": {"one": [1, 2, 3], "left": 0}}, r"value of outcome 'one' is \[1, 2, 3\]: allowed"),
        ({"value": {"one": {"low": 1, "mid": 2}, "left": 0}}, "of outcome 'one': action 'high' is missing: give each"),
        ({"value": {"one": {"low": 1, "top": 2}, "left": 0}}, "value of outcome 'one': 'top' is no action: give each"),
        (
            {"value": {"one": {"low": 1, "mid": 2, "high": "9,90"}, "left": 0}},
            "value of outcome 'one' under action 'high' is '9,90': allowed are",
        ),
        ({"value": ["a", "b"]}, "numbers are allowed"),
        (
            {"value": {"one": "action", "left": 0}},
            "worth its action, and the actions are text .*: give a dict of a number for each",
        ),
        ({"value": value, "actions": [None]}, "actions: None was not in training"),
        ({"value": value, "actions": "low"}, "allowed is a list"),
        ({"value": value, "actions": ["lowest"]}, "actions: 'lowest' was not in training"),
        ({"value": value, "actions": [["low"]] * 119 + [[]]}, "actions allows none in row 119"),
    ]:
        with pytest.raises(InputError, match=message):
            model.recommend(x, **call)


def test_numeric_outcomes_are_worth_themselves():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", **QUICK).fit(x, action, np.where(outcome == "one", 5, 0))
    assert np.allclose(model.expected_value(x), 5 * model.predict_proba(x)[..., 1])


@pytest.mark.parametrize("k", [2, 50])
@pytest.mark.parametrize("method", ["pl_soft", "pl_cvat"])
def test_any_number_of_actions_and_outcomes(k, method):
    rng = np.random.default_rng(0)
    n = 400
    x, action, outcome = rng.normal(size=(n, 3)), np.arange(n) % k, rng.integers(3, size=n)
    settings = QUICK | {"n_models": 1, "max_epochs": 2} | ({"cvat_weights": (1.0,)} if method == "pl_cvat" else {})
    model = CounterfactualClassifier(method=method, **settings).fit(x, action, outcome)
    assert model.predict_proba(x).shape == (n, k, 3)
    assert len(model.candidates_) == (2 if method == "pl_soft" else 3)


def test_a_missing_outcome_is_left_out():
    x, action, outcome = make_log()
    outcome = outcome.astype(object)
    outcome[::4] = None
    settings = {"method": "backbone", "n_models": 1, **QUICK}
    p = CounterfactualClassifier(**settings).fit(x, action, outcome).predict_proba(x)
    assert np.isfinite(p).all()
    other = np.where(pd.isna(outcome), np.nan, outcome == "one").astype(float)
    assert np.allclose(p, CounterfactualClassifier(**settings).fit(x, action, other).predict_proba(x))


@pytest.mark.parametrize("learner", [HistGradientBoostingClassifier(max_iter=5), LogisticRegression(), GaussianNB()])
@pytest.mark.parametrize("backbone", ["s_learner", "t_learner"])
def test_any_scikit_learn_classifier_can_be_the_base(learner, backbone, tmp_path):
    x, action, outcome = make_log(m=3)
    model = CounterfactualClassifier(backbone, base=learner, n_models=2, random_state=0).fit(x, action, outcome)
    assert model.predict_proba(x).shape == (120, 3, 3)
    assert [c.method for c in model.candidates_] == ["backbone", "pl_soft"]
    model.save(tmp_path / "model")
    assert np.array_equal(CounterfactualClassifier.load(tmp_path / "model").predict_proba(x), model.predict_proba(x))


def test_a_base_that_cannot_serve_is_an_error():
    x, action, outcome = make_log()
    for settings, message in [
        ({"base": KNeighborsClassifier()}, "takes no sample weights"),
        ({"base": StandardScaler()}, "predict_proba"),
        ({"base": GaussianNB(), "method": "pl_cvat"}, "no gradient for CVAT"),
        ({"base": GaussianNB(), "backbone": "dm"}, "allowed are s_learner and t_learner"),
        ({"backbone": "s_learner"}, "needs base="),
    ]:
        with pytest.raises(InputError, match=message):
            CounterfactualClassifier(**settings).fit(x, action, outcome)
    hard = CounterfactualClassifier(base=KNeighborsClassifier(), method="pl").fit(x, action, outcome)
    assert hard.predict(x).shape == (120, 3)


def test_a_rule_of_ones_own_is_named_by_its_path():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="pl", selection="tests.parts.MOST_SURE", n_models=2, **QUICK)
    model.fit(x, action, outcome)
    assert model.method_ == min(model.candidates_, key=lambda c: c.score).method
    assert all(candidate.score < 0 for candidate in model.candidates_)


def test_selection_none_trains_the_method_as_it_is():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="pl_cvat", selection=None, cvat_weights=(0.1,), **QUICK)
    model.fit(x, action, outcome)
    assert (model.method_, model.cvat_weight_) == ("pl_cvat", 0.1)
    assert [c.score for c in model.candidates_] == [None, None]


@pytest.mark.parametrize("rule", ["observed_nll", "ipw_nll", "dr_nll", "cfcv"])
def test_each_rule_chooses_the_candidate_of_lowest_score(rule):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="pl_cvat", selection=rule, cvat_weights=(1.0,), n_models=2, **QUICK)
    model.fit(x, action, outcome)
    best = min(model.candidates_, key=lambda c: c.score)
    assert (model.method_, model.cvat_weight_) == (best.method, best.cvat_weight)
    assert [(c.method, c.cvat_weight) for c in model.candidates_] == [
        ("backbone", None),
        ("pl", None),
        ("pl_cvat", 1.0),
    ]


def test_propensities_reach_what_weights_by_them():
    x, action, outcome = make_log()
    settings = {"method": "backbone", "n_models": 1, **QUICK}
    even, skewed = np.full(120, 1 / 3), np.linspace(0.05, 1, 120)
    p = [
        CounterfactualClassifier("udm", **settings).fit(x, action, outcome, pi).predict_proba(x)
        for pi in (even, skewed)
    ]
    assert not np.allclose(*p)
    full = np.full((120, 3), 1 / 3)
    assert np.array_equal(
        CounterfactualClassifier("udm", **settings).fit(x, action, outcome, full).predict_proba(x), p[0]
    )


def test_it_searches_a_grid_by_what_was_observed():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK)
    with config_context(enable_metadata_routing=True):
        model = model.set_fit_request(outcome=True).set_score_request(outcome=True)
        search = GridSearchCV(model, {"hidden": [4, 8]}, cv=2, error_score="raise").fit(x, action, outcome=outcome)
    assert search.best_params_["hidden"] in (4, 8)
    assert (search.cv_results_["mean_test_score"] < 0).all()
    pipeline = make_pipeline(StandardScaler(), clone(search.best_estimator_))
    pipeline.fit(x[["age", "visits"]], action, counterfactualclassifier__outcome=outcome)
    assert pipeline.predict_proba(x[["age", "visits"]]).shape == (120, 3, 2)


def test_options_may_be_numpys_numbers_as_a_search_draws_them():
    x, action, outcome = make_log()
    drawn = {"max_epochs": np.int64(2), "hidden": np.int32(4), "batch_size": np.int64(32), "dropout": np.float64(0.1)}
    model = CounterfactualClassifier(method="backbone", n_models=np.int64(1), random_state=0, **drawn)
    assert model.fit(x, action, outcome).predict_proba(x).shape == (120, 3, 2)


@pytest.mark.parametrize("names", [[0, 1], [5, 7]])
def test_columns_that_are_numbered_are_known_by_their_numbers(names):
    x, action, outcome = make_log()
    numbered = x[["age", "visits"]].set_axis(names, axis=1)
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK).fit(numbered, action, outcome)
    want = model.predict_proba(numbered)
    assert np.array_equal(model.predict_proba(numbered.to_numpy()), want)
    with pytest.raises(InputError, match=f"columns are '?{names[1]}'?, '?{names[0]}'? and were .* in training"):
        model.predict_proba(numbered[names[::-1]])


def test_a_search_that_hands_no_outcomes_to_score_is_told_how():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK)
    with pytest.raises(InputError, match=r"score needs the outcomes beside .*enable_metadata_routing=True"):
        GridSearchCV(model, {"hidden": [4]}, cv=2, error_score="raise").fit(x, action, outcome=outcome)


def test_ten_thousand_categories_are_hashed_and_diagnosed():
    rng, n = np.random.default_rng(0), 20_000
    x = pd.DataFrame({"id": [f"customer {i % 10_000}" for i in range(n)], "z": rng.normal(size=n)})
    action, outcome = rng.integers(2, size=n), rng.integers(2, size=n)
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK | {"max_epochs": 1})
    with pytest.warns(UserWarning, match="column 'id' has 10000 categories, more than 100: hashed"):
        model.fit(x, action, outcome)
    assert model.module_.shape.n_features == 65
    assert (model.predict(x[:3].assign(id="someone else")) >= 0).all()  # any text has a place
    found = diagnose(x.assign(action=action, outcome=outcome), Roles("action", "outcome"))
    assert found.columns.set_index("column").loc["id", "distinct"] == 10_000
    assert not [finding for finding in found.findings if "alone tells" in finding.title]


def test_rows_of_weight_nothing_teach_nothing():
    x, action, _ = make_log(400)
    counts = np.random.default_rng(1).integers(2, size=len(x))
    old = (x["age"] > 40).to_numpy()
    outcome = np.where(old == (counts == 1), "one", "left")  # rows of weight 0 say the opposite
    options = {"method": "backbone", "n_models": 1, "hidden": 8, "learning_rate": 0.02, "random_state": 0}
    told = CounterfactualClassifier(**options).fit(x, action, outcome, sample_weight=counts)
    assert ((told.predict(x) == "one") == old[:, None]).mean() > 0.9
    untold = CounterfactualClassifier(**options).fit(x, action, outcome)
    assert ((untold.predict(x) == "one") == old[:, None]).mean() < 0.7


def test_a_weighted_score_is_the_weighted_mean_of_log_likelihoods():
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK).fit(x, action, outcome)
    weight = np.arange(len(x), dtype=float)
    p = model.predict_proba(x)
    places = model.action_labels_.index(action), model.outcome_labels_.index(outcome)
    wanted = np.average(np.log(p[np.arange(len(x)), *places]), weights=weight)
    assert model.score(x, action, outcome, sample_weight=weight) == pytest.approx(wanted)
    assert model.score(x, action, outcome) != pytest.approx(wanted)


def test_missing_values_can_be_imputed():
    x, action, outcome = make_log()
    x.loc[::5, "age"] = np.nan
    x["city"] = x["city"].astype(object).where(x.index % 3 > 0)
    model = CounterfactualClassifier(method="backbone", missing="impute", **QUICK).fit(x, action, outcome)
    assert model.module_.shape.n_features == 2 + 1 + 3  # age and whether it is missing, visits, two cities and none
    assert np.isfinite(model.predict_proba(x)).all()
    assert model.encoder_.transform(x)[0, 0] == 0


def test_a_category_written_in_numbers_is_the_same_with_and_without_missing_ones():
    x, action, outcome = make_log()
    codes = x.assign(zip=np.arange(120) % 3 + 8001)
    with_gap = codes.assign(zip=codes.zip.where(codes.index != 3))
    model = CounterfactualClassifier(method="backbone", missing="impute", categorical=["zip"], n_models=1, **QUICK)
    model.fit(with_gap, action, outcome)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = model.predict_proba(codes)
    assert np.array_equal(p[4:], model.predict_proba(with_gap)[4:])
    with pytest.raises(InputError, match="too far from those of training"):
        model.predict(codes.assign(age=1e300))


def test_a_rare_outcome_is_predicted_rarely_but_not_never():
    rng = np.random.default_rng(1)
    x, action = rng.normal(size=(3000, 3)), rng.integers(2, size=3000)
    outcome = (np.arange(3000) % 500 == 0).astype(int)  # 0.2 %
    model = CounterfactualClassifier(method="backbone", n_models=1, **QUICK | {"max_epochs": 30}).fit(
        x, action, outcome
    )
    p = model.predict_proba(x)[..., 1]
    assert p.min() > 0
    assert 0.0002 < p.mean() < 0.02


def test_predicting_before_fitting_is_an_error():
    with pytest.raises(ValueError, match="not fitted"):
        CounterfactualClassifier().predict_proba([[0.0]])
