"""scikit-learn's learners as backbones, and DM's controls."""

import copy
import pickle
import sys
import warnings
from typing import ClassVar

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import SelectFromModel, SelectKBest, f_classif
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV, StratifiedKFold
from sklearn.model_selection._search import BaseSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.grid import make_jobs
from cst_lightning import CounterfactualClassifier, Feedback, InputError, fit, self_train, threads
from cst_lightning.backbones.constant import Constant
from cst_lightning.backbones.held_out_dm import EarlyDM, ScaledDM
from cst_lightning.backbones.slow_dm import SlowDM
from cst_lightning.catalogue import backbones
from cst_lightning.estimators import EstimatorBackbone
from tests.classifiers import make_log
from tests.conftest import LEARNERS, TinyDataModule, make_data, tiny_protocol, train


class Bayes(EstimatorBackbone):
    """A learner of one's own."""

    name = "bayes"

    def make_estimator(self, seed):
        return GaussianNB()


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("m", [2, 3])
def test_a_learner_trains_alone_and_on_its_pseudo_labels(name, m):
    protocol = tiny_protocol("matched")
    data = make_data([3, 8], protocol, n=90, m=m)
    stack, again = train(name, protocol, data), train(name, protocol, data)
    p = stack(data.test.x)
    assert p.shape == (2, 90, 3, m)
    assert torch.allclose(p.sum(-1), torch.ones(2, 90, 3))
    assert torch.equal(p, again(data.test.x))
    alone = train(name, protocol, make_data([8], protocol, n=90, m=m))
    assert torch.equal(stack.logits(data.test.x)[1], alone.logits(data.test.x[1:])[0])
    rounds = []
    student = self_train(stack, data, on_round=lambda _, done: rounds.append(done), audit=data.train_outcomes)
    assert type(student) is type(stack)
    assert student.stage == 2
    assert len(rounds) == 2
    assert rounds[0].inconsistency is None
    assert rounds[1].teacher_error == rounds[0].student_error
    assert torch.isfinite(student.logits(data.test.x)).all()


def most_threads():
    return max(library["num_threads"] for library in threadpool_info())


class CountingThreads(GaussianNB):
    """Notes how many threads OpenMP and BLAS would give it."""

    seen: ClassVar = []

    def fit(self, x, y, sample_weight=None):
        self.seen.append(most_threads())
        return super().fit(x, y, sample_weight)

    def predict_proba(self, x):
        self.seen.append(most_threads())
        return super().predict_proba(x)


@pytest.mark.parametrize(("many", "n_threads"), [(1000, 1), (10, 3)])
def test_small_logs_are_fitted_and_predicted_by_one_thread(many, n_threads, monkeypatch):
    monkeypatch.setattr(threads, "_MANY_ROWS", many)
    monkeypatch.setattr(CountingThreads, "seen", [])
    x, action, outcome = make_log()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)  # which sets OpenMP's where both use the same library
        with threadpool_limits(3):
            CounterfactualClassifier(base=CountingThreads(), n_models=1, random_state=0).fit(x, action, outcome)
            assert most_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert len(CountingThreads.seen) > 4
    assert set(CountingThreads.seen) == {n_threads}


def test_the_constant_is_the_observed_shares_with_one_more_of_each():
    x = torch.zeros(1, 6, 2)
    log = Feedback(x, [[0, 0, 0, 0, 1, 1]], [[1, 1, 0, 1, 0, -1]], 2)
    model = Constant(log.shape)
    fit(model, log)
    assert model(x)[0, 0, :, 1].tolist() == pytest.approx([4 / 6, 1 / 3])


def test_an_s_learner_is_scikit_learn_on_context_and_action():
    protocol = tiny_protocol("matched")
    data = TinyDataModule([1], n=120)

    class Plain(EstimatorBackbone):
        def make_estimator(self, seed):
            return LogisticRegression()

    model = Plain(data.shape, [1], protocol)
    fit(model, data)
    log = data.train
    x = np.column_stack([log.x[0].numpy().astype(float), log.action[0].numpy()])
    expected = LogisticRegression().fit(x, log.outcome[0].numpy())
    action = log.action[0, :, None]
    own = model(log.x)[0, :, :, 1].gather(1, action)[:, 0]
    assert np.allclose(own, expected.predict_proba(x)[:, 1], atol=1e-6)


def test_soft_labels_are_weights_and_a_student_of_them_is_its_teacher():
    protocol = tiny_protocol("matched", labels="soft", rounds=1)
    data = TinyDataModule([0], n=200)
    teacher = Constant(data.shape, [0], protocol)
    fit(teacher, data)
    student = self_train(teacher, data)
    assert torch.allclose(teacher(data.test.x), student(data.test.x), atol=0.02)
    hard = self_train(teacher, data, protocol=protocol.replace(labels="hard"))
    assert not torch.allclose(teacher(data.test.x), hard(data.test.x), atol=0.1)


def test_a_learner_of_ones_own_and_what_it_cannot_do(tmp_path):
    data = TinyDataModule([0, 1])
    model = Bayes(data.shape, [0, 1])
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.fit(model, data)
    trainer.test(model, data, verbose=False)
    assert set(model.test_metrics) >= {"nll", "hamming"}
    with pytest.raises(InputError, match=r"bayes has no gradient for CVAT; allowed is 0"):
        self_train(model, data, cvat_weights=[0, 1])
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = Bayes.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True)
    assert torch.equal(again(data.test.x), model(data.test.x))
    with pytest.raises(InputError, match="neither a network nor a grid"):
        Bayes(data.shape, [0, 1], grid=(0, 1))
    with pytest.raises(InputError, match="no gradient for CVAT or a student; allowed are backbone, pl, pl_soft"):
        make_jobs("baselines", backbone_names=["s_logistic"], methods=["pl_cvat"])


class Mine(GaussianNB):
    """A classifier of one's own."""


class Own(Bayes):
    """A learner of a classifier of one's own."""

    def make_estimator(self, seed):
        return Mine()


def test_a_checkpoint_of_a_classifier_of_ones_own_needs_its_package_in_trust(tmp_path, monkeypatch):
    data = TinyDataModule([0, 1])
    saver = pl.callbacks.ModelCheckpoint(tmp_path, filename="m")
    model = Own(data.shape, [0, 1])
    fit(model, data, enable_checkpointing=True, callbacks=[saver])
    with pytest.raises(InputError, match=r"checkpoint of Own names tests.test_estimators.Mine, which is not trusted"):
        Own.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    monkeypatch.setattr(Own, "trust", ("tests",))
    again = Own.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    assert torch.equal(again(data.test.x), model(data.test.x))
    monkeypatch.setattr(Own, "per_action", True)
    with pytest.raises(InputError, match="does not hold 3 models for each of 2 seeds"):
        Own.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)


def test_without_skops_a_learner_that_is_to_be_kept_fails_before_it_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    data = TinyDataModule([0, 1])
    model = Bayes(data.shape, [0, 1])
    with pytest.raises(InputError, match=r"pip install 'cst-lightning\[skops\]', or give the Trainer enable_check"):
        fit(model, data, enable_checkpointing=True)
    assert not model.fitted
    fit(model, data)
    assert model.fitted


def test_an_action_with_one_outcome_or_without_rows_has_smoothed_shares():
    x = torch.randn(1, 30, 2, generator=torch.Generator().manual_seed(0))
    action = [[0] * 20 + [1] * 10]
    outcome = [[0, 1] * 10 + [1] * 10]
    log = Feedback(x, action, outcome, 3, allow_unlogged=True)
    for name in ("t_logistic", "constant"):
        part = backbones().get(name)
        model = part(log.shape)
        fit(model, log)
        assert model(x)[0, :, 1, 1].unique().tolist() == pytest.approx([11 / 12])
        assert model(x)[0, :, 2, 1].unique().tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("part", [EarlyDM, ScaledDM])
def test_rows_held_out_are_a_fifth_and_never_trained_on(part):
    protocol = tiny_protocol("written", max_epochs=4)
    data = TinyDataModule([0, 1], n=50)
    module = part(data.shape, [0, 1], protocol)
    fit(module, data)
    held_out = module.held_out
    assert held_out.sum(1).tolist() == [10, 10]
    assert not torch.equal(held_out[0], held_out[1])
    log = data.train
    assert module.entries(log, slice(None)).weight[held_out].sum() == 0
    assert module.entries(log, slice(None)).weight[~held_out].sum() == 80


def test_early_dm_stops_where_its_own_rows_are_best():
    protocol = tiny_protocol("written", max_epochs=400, learning_rate=0.02)
    data = TinyDataModule([0, 1, 2], n=60)
    module = EarlyDM(data.shape, data.seeds, protocol)
    fit(module, data)
    assert (module.stopped_epoch < 400).all()
    kept = module.held_out_nll(module.logits(data.train.x), data.train)
    long = EarlyDM(data.shape, data.seeds, protocol)
    fit(long, data, max_epochs=1)
    assert (kept <= long.held_out_nll(long.logits(data.train.x), data.train)).all()


def test_a_temperature_is_the_best_on_the_rows_held_out():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 200, 4, generator=g)
    outcome = (torch.rand(2, 200, generator=g) < torch.sigmoid(2 * x[..., 0])).long()
    log = Feedback(x, torch.randint(2, (2, 200), generator=g), outcome, 2)
    module = ScaledDM(log.shape, [0, 1], tiny_protocol("written", max_epochs=150, hidden=32, learning_rate=0.02))
    fit(module, log)
    logits = module.logits(x)
    best = module.held_out_nll(logits, log)
    for factor in (0.8, 1.25):
        assert (module.held_out_nll(logits * factor, log) > best).all()
    assert torch.equal(module.select([0, 0]).logits(x), logits)
    assert (module.temperature > 1.2).all()  # it was trained far into overfitting


def test_slow_dm_takes_hsics_rate_and_epochs():
    protocol = tiny_protocol("released", learning_rate_hsic=0.3, max_epochs_hsic=7)
    assert SlowDM.rate(protocol) == 0.3
    assert SlowDM.epochs(protocol) == 7


WEIGHTED = [
    make_pipeline(StandardScaler(), LogisticRegression()),
    GridSearchCV(LogisticRegression(), {"C": [0.1, 1]}, cv=2),
    RandomizedSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1]}, n_iter=1),
    VotingClassifier([("one", LogisticRegression()), ("other", GaussianNB())], voting="soft"),
    StackingClassifier([("one", LogisticRegression()), ("other", GaussianNB())]),
]


@pytest.mark.parametrize("base", WEIGHTED, ids=lambda base: type(base).__name__)
def test_any_classifier_that_takes_weights_learns_from_soft_labels(base):
    x, action, outcome = make_log(n=120)
    model = CounterfactualClassifier(base=base, method="pl_soft", selection=None, n_models=1, missing="impute")
    assert np.isfinite(model.fit(x, action, outcome).predict_proba(x)).all()


@pytest.mark.parametrize("base", [KNeighborsClassifier(), make_pipeline(StandardScaler(), KNeighborsClassifier())])
def test_a_classifier_that_takes_no_weights_says_so(base):
    x, action, outcome = make_log(n=120)
    settings = {"n_models": 1, "missing": "impute"}
    with pytest.raises(InputError, match=r"takes no sample weights, which soft pseudo-labels need; use method='pl'"):
        CounterfactualClassifier(base=base, **settings).fit(x, action, outcome)
    model = CounterfactualClassifier(base=base, method="backbone", **settings)
    with pytest.raises(InputError, match=r"^KNeighborsClassifier takes no sample weights: leave them out"):
        model.fit(x, action, outcome, sample_weight=np.arange(1, 121))
    assert model.fit(x, action, outcome, sample_weight=np.full(120, 2.0)).predict_proba(x).shape == (120, 3, 2)


def test_what_a_classifier_cannot_be_fitted_to_is_one_line():
    class Picky(GaussianNB):
        def fit(self, x, y, sample_weight=None):
            raise np.linalg.LinAlgError("too\nfew rows")

    x, action, outcome = make_log(n=120)
    model = CounterfactualClassifier(base=Picky(), method="backbone", n_models=1, missing="impute")
    with pytest.raises(
        InputError, match=r"^Picky cannot be fitted to 96 rows, with \d+, \d+ of the outcomes in them: too few"
    ):
        model.fit(x, action, outcome)


@pytest.mark.parametrize("backbone", ["s_learner", "t_learner"])
def test_a_model_of_any_base_is_pickled_and_copied(backbone):
    x, action, outcome = make_log(n=120)
    model = CounterfactualClassifier(backbone, base=LogisticRegression(), n_models=1, missing="impute", random_state=0)
    p = model.fit(x, action, outcome).predict_proba(x)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):  # its own bytes
        assert np.array_equal(again.predict_proba(x), p)
        assert np.array_equal(again.fit(x, action, outcome).predict_proba(x), p)


def test_what_loading_will_refuse_without_trust_is_a_warning_when_it_is_saved(tmp_path):
    x, action, outcome = make_log(n=120)
    base = make_pipeline(SelectKBest(f_classif, k=2), LogisticRegression())
    model = CounterfactualClassifier(base=base, method="backbone", n_models=1, missing="impute")
    with pytest.warns(UserWarning, match=r"f_classif: loading needs trust=\['sklearn'\]"):
        model.fit(x, action, outcome).save(tmp_path / "model")
    again = CounterfactualClassifier.load(tmp_path / "model", trust=["sklearn"])
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


SEARCHES = [
    GridSearchCV(LogisticRegression(), {"C": [0.01, 1]}, cv=2),
    RandomizedSearchCV(LogisticRegression(), {"C": [0.01, 1]}, n_iter=2, cv=2),
    HalvingGridSearchCV(LogisticRegression(), {"C": [0.01, 1]}, cv=2, min_resources=20),
    make_pipeline(StandardScaler(), GridSearchCV(LogisticRegression(), {"C": [0.01, 1]}, cv=2)),
]


def last_step(model):
    return last_step(model[-1]) if hasattr(model, "steps") else model


@pytest.mark.parametrize("backbone", ["s_learner", "t_learner"])
@pytest.mark.parametrize("base", SEARCHES, ids=["grid", "random", "halving", "in a pipeline"])
def test_a_search_is_made_on_observed_rows_alone_with_the_folds_asked_for(base, backbone, tmp_path, monkeypatch):
    searched, fit_search = [], BaseSearchCV.fit

    def look(search, x, *args, **kwargs):
        fit_search(search, x, *args, **kwargs)
        searched.append((len(x), search.n_splits_, search.best_params_["C"]))
        return search

    monkeypatch.setattr(BaseSearchCV, "fit", look)
    x, action, outcome = make_log(n=240)
    settings = {"selection": None, "n_models": 1, "missing": "impute", "random_state": 0}
    model = CounterfactualClassifier(backbone, "pl_soft", base=base, **settings).fit(x, action, outcome)
    rows, folds, best = zip(*searched, strict=True)
    assert (len(rows), sum(rows)) == (1 if backbone == "s_learner" else 3, 192)  # a fifth is held out
    assert set(folds) == {2}
    kept = [last_step(own).C for own in model.module_.found()[0]]
    assert kept == list(best)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that loading needs trust
        model.save(tmp_path / "model")
    again = CounterfactualClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize("backbone", ["s_learner", "t_learner"])
def test_a_search_without_folds_of_its_own_gets_stratified_ones(backbone):
    x, action, outcome = make_log(n=240)
    base = GridSearchCV(LogisticRegression(), {"C": [0.01, 1]})
    settings = {"selection": None, "n_models": 1, "missing": "impute", "random_state": 0}
    model = CounterfactualClassifier(backbone, "backbone", base=base, **settings).fit(x, action, outcome)
    for own in model.module_.fitted[0]:
        folds = last_step(own).cv
        assert isinstance(folds, StratifiedKFold)
        assert folds.get_n_splits() == 5
    assert base.cv is None


def grid():
    return GridSearchCV(LogisticRegression(), {"C": [0.01, 1]}, cv=2)


@pytest.mark.parametrize(
    ("base", "outer", "name"),
    [
        (VotingClassifier([("one", grid()), ("other", GaussianNB())], voting="soft"), "VotingClassifier", "one"),
        (StackingClassifier([("one", grid())]), "StackingClassifier", "one"),
        (StackingClassifier([("one", GaussianNB())], grid()), "StackingClassifier", "final_estimator"),
        (CalibratedClassifierCV(grid(), cv=2), "CalibratedClassifierCV", "estimator"),
        (CalibratedClassifierCV(make_pipeline(StandardScaler(), grid())), "CalibratedClassifierCV", "estimator__grid"),
        (make_pipeline(SelectFromModel(grid()), LogisticRegression()), "Pipeline", "selectfrommodel__est"),
        (GridSearchCV(BaggingClassifier(grid()), {"n_estimators": [2]}), "GridSearchCV", "estimator__estimator"),
    ],
)
def test_a_search_whose_settings_cannot_be_handed_on_trains_no_student(base, outer, name):
    said = rf"^{outer} has a GridSearchCV inside \({name}.*\), .*: put it around, as in"
    for method in ("pl", "pl_soft"):
        with pytest.raises(InputError, match=said):
            CounterfactualClassifier(method=method, base=base).check_options()
    CounterfactualClassifier(method="backbone", base=base).check_options()


def test_a_search_inside_is_scikit_learns_own_without_a_student():
    x, action, outcome = make_log(n=240)
    base = VotingClassifier([("one", grid()), ("other", GaussianNB())], voting="soft")
    settings = {"base": base, "n_models": 1, "missing": "impute", "random_state": 0}
    p = CounterfactualClassifier(method="backbone", **settings).fit(x, action, outcome).predict_proba(x)
    assert np.allclose(p.sum(-1), 1)


class Searching(EstimatorBackbone):
    """Of one's own, with a search inside of another classifier."""

    name = "searching"

    def make_estimator(self, seed):
        return VotingClassifier([("one", grid())], voting="soft")


def test_a_backbone_of_ones_own_makes_no_search_on_pseudo_labels():
    x, action, outcome = make_log(n=240)
    with pytest.raises(InputError, match=r"^VotingClassifier has a GridSearchCV inside \(one\)"):
        CounterfactualClassifier(Searching, n_models=1, missing="impute").fit(x, action, outcome)
