"""Models of the estimator, kept and brought back."""

import io
import json
import os
import subprocess
import sys
import zipfile
from functools import reduce

import numpy as np
import pytest
import skops.io
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier

from cst_lightning import CounterfactualClassifier, DirectMethod, InputError
from tests.classifiers import QUICK, make_log
from tests.parts import Halved
from tests.test_fuzz_store import HOW, mutated, places


@pytest.fixture(scope="module")
def fitted():
    x, action, outcome = make_log()
    return CounterfactualClassifier(**QUICK).fit(x, action, outcome), x, action, outcome


class Mine(DirectMethod):
    """A backbone of one's own."""

    name = "mine"


def test_models_come_back_in_a_new_process(tmp_path):
    x, action, outcome = make_log()
    x.to_parquet(tmp_path / "x.parquet")
    every = [QUICK, QUICK | {"method": "pl_cvat"}, QUICK | {"backbone": "hsic"}]
    every += [{"backbone": "s_logistic", "n_models": 1, "random_state": 0}]
    models = [CounterfactualClassifier(**settings, missing="impute") for settings in every]
    for place, model in enumerate(models):
        model.fit(x, action, outcome).save(tmp_path / f"model{place}")
    code = (
        "import numpy as np, pandas as pd; from cst_lightning import CounterfactualClassifier as C; "
        "x = pd.read_parquet('x.parquet'); "
        "[np.save(f'p{i}.npy', C.load(f'model{i}').predict_proba(x)) for i in range(4)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True)
    for place, model in enumerate(models):
        assert np.array_equal(np.load(tmp_path / f"p{place}.npy"), model.predict_proba(x))
        again = CounterfactualClassifier.load(tmp_path / f"model{place}")
        assert again.get_params() == model.get_params() | {"cvat_weights": list(model.cvat_weights), "categorical": []}
        assert (again.candidates_, again.method_) == (model.candidates_, model.method_)


def test_a_class_of_ones_own_is_loaded_only_where_it_is_trusted(tmp_path):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(Mine, method="backbone", **QUICK).fit(x, action, outcome)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"'tests.test_saving.Mine' is of no trusted package"):
        CounterfactualClassifier.load(tmp_path / "model")
    again = CounterfactualClassifier.load(tmp_path / "model", trust=["tests"])
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize("options", [{"method": "tests.parts.Halved"}, {"selection": "tests.parts.MOST_SURE"}])
def test_a_path_that_another_fit_would_import_must_be_trusted_too(options, tmp_path):
    x, action, outcome = make_log()
    settings = {**QUICK, "n_models": 1, "method": "backbone"}
    model = CounterfactualClassifier(**settings).fit(x, action, outcome).set_params(**options)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"'tests.parts.* is of no trusted package"):
        CounterfactualClassifier.load(tmp_path / "model")
    again = CounterfactualClassifier.load(tmp_path / "model", trust=["tests"])
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


def test_a_method_of_ones_own_is_chosen_like_the_others_and_kept(tmp_path):
    x, action, outcome = make_log()
    settings = {**QUICK, "cvat_weights": (0.1, 1.0), "n_models": 1}
    model = CounterfactualClassifier(method="tests.parts.Halved", **settings).fit(x, action, outcome)
    assert [(candidate.method, candidate.cvat_weight) for candidate in model.candidates_] == [
        ("backbone", None), ("tests.parts.Halved", None), ("tests.parts.Halved", 0.1), ("tests.parts.Halved", 1.0),
    ]  # fmt: skip
    model = CounterfactualClassifier(
        method="tests.parts.Halved", selection=None, **settings | {"cvat_weights": (0.1,)}
    ).fit(x, action, outcome)
    assert isinstance(model.module_, Halved)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="no trusted package"):
        CounterfactualClassifier.load(tmp_path / "model")
    again = CounterfactualClassifier.load(tmp_path / "model", trust=["tests"])
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sklearn.utils._testing", "assert_run_python_script_without_output"),
        ("sklearn.datasets", "fetch_openml"),
        ("sklearn.tree", "export_text"),
        ("cst_lightning.__main__", "main"),
        ("os", "system"),
    ],
)
def test_a_learner_calls_no_function_that_its_file_names(module, name, tmp_path):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(base=LogisticRegression(), method="backbone", n_models=1).fit(x, action, outcome)
    model.save(tmp_path / "model")
    assert np.array_equal(CounterfactualClassifier.load(tmp_path / "model").predict_proba(x), model.predict_proba(x))
    marker = tmp_path / "marker"
    calls = json.loads(
        zipfile.ZipFile(io.BytesIO(skops.io.dumps((f"open({str(marker)!r}, 'w')",)))).read("schema.json")
    )
    schema = {"__class__": name, "__module__": module, "__loader__": "ConstructorFromReduceNode", "content": calls}
    with zipfile.ZipFile(tmp_path / "model" / "learners" / "0-0.skops", "w") as file:
        file.writestr("schema.json", json.dumps(schema | {"protocol": 2, "_skops_version": skops.__version__}))
    with pytest.raises(InputError, match=rf"names {module}.{name}, which is not trusted"):
        CounterfactualClassifier.load(tmp_path / "model")
    assert not marker.exists()


@pytest.mark.parametrize(
    "base",
    [
        GaussianNB(),
        MLPClassifier(max_iter=5),
        KNeighborsClassifier(),
        RandomForestClassifier(3),
        HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]),
    ],
)
def test_learners_of_all_kinds_come_back(base, tmp_path):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(base=base, method="backbone", n_models=1).fit(x, action, outcome)
    model.save(tmp_path / "model")
    assert np.array_equal(CounterfactualClassifier.load(tmp_path / "model").predict_proba(x), model.predict_proba(x))


def test_a_folder_that_is_no_model_is_an_error_and_stays(fitted, tmp_path):
    model = fitted[0]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    with pytest.raises(InputError, match="is no model"):
        model.save(tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "kept"
    with pytest.raises(InputError, match=r"precious holds no model: there is no model\.json in it"):
        CounterfactualClassifier.load(tmp_path / "precious")
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")  # again, in its place
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "precious"]
    text = (tmp_path / "model" / "model.json").read_text()
    for damage in ("", "[]", "{}", text[: len(text) // 2], text.replace('"encoder"', '"coder"')):
        (tmp_path / "model" / "model.json").write_text(damage)
        with pytest.raises(InputError):
            CounterfactualClassifier.load(tmp_path / "model")
    strange = json.loads(text)
    strange["module"]["class"] = "subprocess.Popen"
    (tmp_path / "model" / "model.json").write_text(json.dumps(strange))
    with pytest.raises(InputError, match="no trusted package"):
        CounterfactualClassifier.load(tmp_path / "model")
    (tmp_path / "model" / "model.json").write_text(text)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(InputError, match="damaged"):
        CounterfactualClassifier.load(tmp_path / "model")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of numbers far from those of training
def test_whatever_a_model_from_elsewhere_holds_it_is_an_error_or_predicts(fitted, tmp_path):
    model, x = fitted[0], fitted[1]
    model.save(tmp_path / "model")
    file, answers = tmp_path / "model" / "model.json", []
    sound = json.loads(file.read_text())
    text = st.lists(st.tuples(st.sampled_from(list(places(sound))), HOW), min_size=1, max_size=2).map(
        lambda mutations: json.dumps(reduce(lambda content, one: mutated(content, *one), mutations, sound))
    )

    @settings(max_examples=100, phases=[Phase.explicit, Phase.generate])
    @given(text)
    @example("[" * 100_000)
    @example("9" * 5000)
    def law(content):
        file.write_text(content)
        try:
            loaded = CounterfactualClassifier.load(tmp_path / "model")
        except InputError as error:
            answers.append(str(error))
        else:
            answers.append(loaded.predict(x).shape)

    law()
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert 20 < len(refused) < 90
    assert max(len(answer.splitlines()) for answer in refused) == 1


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_a_model_is_for_whoever_the_umask_lets_read(mask, tmp_path):
    x, action, outcome = make_log()
    model = CounterfactualClassifier("s_logistic", "backbone", n_models=1, random_state=0).fit(x, action, outcome)
    before = os.umask(mask)
    try:
        model.save(tmp_path / "model")
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors", ".skops"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o777 & ~mask


def test_what_else_is_in_a_models_folder_outlives_a_new_model(fitted, tmp_path):
    model, *_ = fitted
    model.save(tmp_path / "model")
    (tmp_path / "model" / "predictions.csv").write_text("mine")
    (tmp_path / "model" / "notes").mkdir()
    (tmp_path / "model" / "learners").mkdir()  # of an older model of another kind
    model.save(tmp_path / "model")
    left = {path.name for path in (tmp_path / "model").iterdir()}
    assert left == {"model.json", "model.safetensors", "predictions.csv", "notes"}
    assert (tmp_path / "model" / "predictions.csv").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_category_given_as_a_text_is_kept_as_that_name(tmp_path):
    x, action, outcome = make_log()
    model = CounterfactualClassifier(method="backbone", categorical="visits", **QUICK).fit(x, action, outcome)
    model.save(tmp_path / "m")
    again = CounterfactualClassifier.load(tmp_path / "m")
    assert list(again.categorical) == ["visits"]
    assert np.array_equal(again.fit(x, action, outcome).predict_proba(x), model.predict_proba(x))
