"""What averaging the models of a candidate takes from their loss, and that the choice counts it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cst_lightning import CounterfactualClassifier, InputError, candidates
from cst_lightning.candidates import ambiguity, held_out_nll, simplest
from cst_lightning.distributions import probs
from cst_lightning.feedback import Feedback
from tests.classifiers import QUICK, make_log


def models(logits, n_variants):
    """Models with these logits whatever the contexts, ``[S * models * W, N, K, m - 1]``."""
    return SimpleNamespace(n_variants=n_variants, logits=lambda x: logits)


def held_out(n_logs, n_models, n_rows=4, n_actions=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shape = (n_logs * n_models, n_rows)
    return Feedback(
        torch.zeros(*shape, 2),
        torch.randint(n_actions, shape, generator=draw),
        torch.randint(-1, 2, shape, generator=draw),
        n_actions,
        2,
        weight=torch.rand(shape, generator=draw),
        allow_unlogged=True,
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 5), st.integers(1, 3), st.integers(2, 4))
def test_it_is_what_the_average_saves_where_outcomes_follow_the_average(seed, n_logs, n_models, n_variants, m):
    rows = held_out(n_logs, n_models, seed=seed)
    n_rows, n_actions = n_models * 4, 3
    shape = (n_logs * n_models * n_variants, n_rows, n_actions, m - 1)
    logits = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    found = ambiguity(models(logits, n_variants), rows, n_models)
    p = probs(logits.double()).view(n_logs, n_models, n_variants, n_rows, n_actions, m)
    average = p.mean(1, keepdim=True)
    single = -(average * p.log()).sum(-1)  # expected NLL of each
    saved = single.mean(1) + (average * average.log()).sum(-1)[:, 0]
    for log in range(n_logs):
        mine = slice(log * n_models, (log + 1) * n_models)
        action, counted = rows.action[mine].flatten(), rows.counted[mine].flatten()
        here = saved[log, :, torch.arange(n_rows), action]
        wanted = (here * counted).sum(1) / counted.sum()
        assert np.allclose(found[log], wanted.nan_to_num(nan=0), atol=1e-6)
    assert (found >= -1e-12).all()
    assert n_models > 1 or np.allclose(found, 0)


def test_actions_that_nobody_took_count_for_nothing():
    rows = held_out(1, 2, n_actions=2)
    rows = Feedback(rows.x, torch.zeros_like(rows.action), rows.outcome, 2, 2, allow_unlogged=True)
    logits = torch.zeros(2, 8, 2, 1)
    logits[0, :, 1], logits[1, :, 1] = 9, -9  # the models agree on the one action, and on nothing else
    assert ambiguity(models(logits, 1), rows, 2).tolist() == [[0.0]]


def test_a_model_that_failed_does_not_spoil_the_others():
    logits = torch.zeros(2, 8, 3, 1)
    logits[1] = torch.nan
    assert ambiguity(models(logits, 1), held_out(1, 2), 2).tolist() == [[0.0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(2, 4), st.sampled_from([0.1, 1, 10]), st.floats(0, 9))
def test_no_nll_of_rows_held_out_is_below_zero(seed, n_models, m, scale, spread):
    draw = torch.Generator().manual_seed(seed)

    def rows(n):
        size = (n_models, n)
        action, outcome = torch.randint(2, size, generator=draw), torch.randint(m, size, generator=draw)
        weight = (spread * torch.randn(size, generator=draw)).exp()
        return Feedback(torch.zeros(*size, 1), action, outcome, 2, m, weight=weight, allow_unlogged=True)

    train, out = rows(8), rows(2)
    logits = scale * torch.randn(n_models, 2 * n_models, 2, m - 1, generator=draw)  # of every model, of all rows
    own = logits.view(n_models, n_models, 2, 2, m - 1).diagonal().movedim(-1, 0)
    of_these = SimpleNamespace(n_variants=1, logits=lambda x: own if x.shape[1] == 2 and n_models > 1 else logits)
    found = held_out_nll(of_these, train, out)
    assert found.nll >= 0
    assert found.constant >= 0
    single = -probs(own.double()).log()[torch.arange(n_models)[:, None], torch.arange(2), out.action, out.outcome]
    mean = float(((single * out.weight).sum(1) / out.weight.sum(1)).mean())
    saved = float(ambiguity(of_these, out, n_models)[0, 0])
    assert found.nll == pytest.approx(max(mean - saved, 0), abs=1e-6)


def test_the_score_of_a_candidate_is_not_below_zero_and_what_is_below_wins_no_choice(monkeypatch):
    score = torch.tensor([[0.1, 0.2], [0.1, 0.3], [0.1, 0.1]]).double()
    monkeypatch.setattr(candidates, "scores", lambda *_: score)
    monkeypatch.setattr(candidates, "ambiguity", lambda module, *_: np.full((1, module.n_variants), 0.3))
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="pl_soft", n_models=3, **QUICK).fit(x, action, outcome)
    assert [candidate.score for candidate in model.candidates_] == [0, 0]
    assert model.method_ == "backbone"


def test_the_choice_counts_what_averaging_saves_each_candidate():
    x, action, outcome = make_log()
    auto, single = (
        CounterfactualClassifier(method="pl_soft", selection=rule, n_models=3, **QUICK).fit(x, action, outcome)
        for rule in ("auto", "observed_nll")
    )
    saved = [s.score - a.score for a, s in zip(auto.candidates_, single.candidates_, strict=True)]
    assert min(saved) > 0


@pytest.mark.parametrize(("gains", "method"), [([0.01, 0.05, -0.03], "backbone"), ([0.04, 0.05, 0.06], "pl_soft")])
def test_the_estimator_keeps_self_training_only_where_its_gain_is_beyond_the_error(gains, method, monkeypatch):
    lower = torch.tensor([0.5, 0.6, 0.7]) - torch.tensor(gains)
    score = torch.stack([torch.tensor([0.5, 0.6, 0.7]), lower], 1).double()
    monkeypatch.setattr(candidates, "scores", lambda *_: score)
    monkeypatch.setattr(candidates, "ambiguity", lambda module, *_: np.zeros((1, module.n_variants)))
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="pl_soft", n_models=3, **QUICK).fit(x, action, outcome)
    assert min(model.candidates_, key=lambda c: c.score).method == "pl_soft"
    assert model.method_ == method


def test_weights_are_tried_from_small_to_large():
    x, action, outcome = make_log()
    settings = {**QUICK, "cvat_weights": (1.0, 0.1)}
    model = CounterfactualClassifier(method="pl_cvat", n_models=1, **settings).fit(x, action, outcome)
    assert [candidate.cvat_weight for candidate in model.candidates_] == [None, None, 0.1, 1.0]


def test_a_single_model_is_not_averaged():
    x, action, outcome = make_log()
    auto, single = (
        CounterfactualClassifier(selection=rule, n_models=1, **QUICK).fit(x, action, outcome).candidates_
        for rule in ("auto", "observed_nll")
    )
    assert auto == single


@pytest.mark.parametrize(
    ("gains", "saved", "chosen"),
    [
        ([0.10, 0.10, 0.10, 0.11], 0.0, 1),  # sure
        ([0.30, -0.20, 0.10, -0.10], 0.0, 0),  # by chance
        ([-0.10, -0.10, -0.10, -0.09], 0.0, 0),
        ([0.10, 0.10, 0.10, 0.11], 0.15, 0),  # the average of the simple models has it anyway
        ([0.0, 0.0, 0.0, 0.0], 0.0, 0),
        ([0.01], 0.0, 1),  # of one model nothing says how sure it is
        ([-np.inf, 0.1, 0.1, 0.1], 0.0, 0),  # a model diverged
    ],
)
def test_a_gain_is_taken_where_it_is_beyond_its_standard_error(gains, saved, chosen):
    simple = np.linspace(0.5, 0.7, len(gains))
    score = np.stack([simple, simple - gains], 1)
    assert simplest(score, np.array([saved, 0.0])) == chosen


def test_of_equals_the_simplest_is_kept():
    simple = np.array([0.5, 0.6, 0.7])
    score = np.stack([simple + 0.2, simple, simple - [0.3, -0.2, -0.05], simple], 1)
    assert simplest(score, np.zeros(4)) == 1


@pytest.mark.parametrize(
    ("options", "weighs"), [({"backbone": "udm"}, True), ({"selection": "ipw_nll"}, True), ({}, False)]
)
def test_weights_by_propensity_say_how_far_the_log_bears_them(options, weighs, tmp_path):
    x, _, outcome = make_log(200)
    action = np.where(x["age"] > 40, "high", "low")  # never both at one age
    action[x["age"].argmin()] = "high"
    with pytest.warns(UserWarning, match="function of the features"):
        model = CounterfactualClassifier(**QUICK, **options).fit(x, action, outcome)
    for one in (model, CounterfactualClassifier.load(model.save(tmp_path / "m") or tmp_path / "m")):
        if not weighs:
            assert one.overlap_ is None
            continue
        assert one.overlap_.n_clipped == [1]
        assert one.overlap_.largest_weight[0] == pytest.approx(1 / model.propensity_floor)
        assert 0 < one.overlap_.effective_sample_size[0] < 0.5


def test_a_constant_is_as_good_as_itself_on_the_rows_held_out():
    x, action, outcome = make_log(n=200, m=3)
    outcome = np.where(np.arange(200) % 7 == 0, None, outcome)
    weight = np.random.default_rng(0).random(200)
    model = CounterfactualClassifier("constant", "backbone", missing="impute", random_state=0)
    for counted in (None, weight):
        found = model.fit(x, action, outcome, sample_weight=counted).held_out_
        assert found.nll == pytest.approx(found.constant, abs=1e-6)
        assert found.error == pytest.approx(0, abs=1e-6)
    assert model.candidates_[0].score == pytest.approx(found.nll, abs=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_every_model_holds_out_rows_that_count_however_few_do(weighted):
    x, action, outcome = make_log(n=33)
    counted = np.isin(np.arange(33), [1, 2, 5, 9, 17, 32])
    weight = counted.astype(float) if weighted else None
    outcome = outcome if weighted else np.where(counted, outcome, None)
    for seed in range(3):
        model = CounterfactualClassifier("constant", "backbone", missing="impute", random_state=seed)
        found = model.fit(x, action, outcome, sample_weight=weight).held_out_
        assert np.isfinite(found.constant)
        assert model.candidates_[0].score == pytest.approx(found.nll, abs=1e-6)  # no fold of nothing is in the mean


@pytest.mark.parametrize("weighted", [True, False])
def test_fewer_rows_that_count_than_folds_are_refused(weighted):
    x, action, outcome = make_log(n=20)
    counted, said = np.arange(20) < 4, ", with a weight above 0," if weighted else ""
    given = {"sample_weight": counted} if weighted else {}
    with pytest.raises(InputError, match=f"outcome is seen{said} in 4 rows: at least 5 are needed"):
        CounterfactualClassifier(**QUICK).fit(
            x, action, outcome if weighted else np.where(counted, outcome, None), **given
        )


def test_what_the_features_tell_is_seen_on_the_rows_held_out(tmp_path):
    x, action, outcome = make_log(n=600)
    outcome = np.where(x["age"] > 40, "left", "one")
    told = CounterfactualClassifier("s_logistic", "backbone", random_state=0).fit(x, action, outcome)
    found = told.held_out_
    assert found.nll < found.constant / 2
    assert found.constant == pytest.approx(np.log(2), abs=0.03)
    assert 0 < found.error < 0.1
    assert found.nll == pytest.approx(told.candidates_[0].score, abs=1e-6)  # what the choice is made by
    told.save(tmp_path / "model")
    assert CounterfactualClassifier.load(tmp_path / "model").held_out_ == found
