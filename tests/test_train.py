"""``python -m benchmarks.train``: LightningCLI over every backbone and data module."""

import os
import sys

import numpy as np
import pytest
import torch
import yaml

from benchmarks.train import main
from cst_lightning.catalogue import backbones
from tests.parts import Plain

DATA = ["--data", "SyntheticMultiLabelDataModule", "--data.seeds", "[0,3]"]
QUIET = [f"--trainer.{option}=false" for option in ("enable_progress_bar", "enable_model_summary")]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train"])  # LightningCLI warns of pytest's own options
    return tmp_path


@pytest.mark.parametrize("model", ["DirectMethod", "UniformDM"])
def test_fit_test_and_predict_by_the_name_of_a_class(model, here, capsys):
    options = ["--model", model, "--model.protocol", "matched", *DATA, "--data.holdout", "0.2", *QUIET]
    assert main(["fit", *options, "--trainer.max_epochs", "2"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    capsys.readouterr()
    assert main(["test", *options, "--ckpt_path", str(checkpoint)]) == 0
    assert "test_nll" in capsys.readouterr().out
    assert main(["predict", *options, "--ckpt_path", str(checkpoint)]) == 0
    (path,) = here.rglob("predictions.npy")
    predicted = np.load(path)
    assert predicted.shape == (2, 150, 4, 2)
    assert np.allclose(predicted.sum(-1), 1)


def test_a_log_file_is_fitted_and_predicted_and_not_tested(here, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{rng.integers(3)},{rng.integers(2)}" for _ in range(100)]
    (here / "log.csv").write_text("age,price,bought\n" + "\n".join(lines))
    options = ["--model", "DirectMethod", "--model.protocol", "matched", "--data", "LoggedDataModule", *QUIET]
    options += ["--data.path", "log.csv", "--data.action", "price", "--data.outcome", "bought"]
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    assert main(["predict", *options, "--ckpt_path", str(checkpoint)]) == 0
    (path,) = here.rglob("predictions.npy")
    assert np.load(path).shape == (1, 20, 3, 2)
    capsys.readouterr()
    assert main(["test", *options, "--ckpt_path", str(checkpoint)]) == 2
    assert "error: a log holds the outcome of the action taken alone" in capsys.readouterr().err


def test_a_class_path_and_a_config_file(here, capsys):
    options = ["--model", f"tests.parts.{Plain.__name__}", *DATA, "--trainer.max_epochs", "1"]
    with pytest.raises(SystemExit) as done:
        main(["fit", *options, "--print_config"])
    assert done.value.code == 0
    written = capsys.readouterr().out
    assert yaml.safe_load(written)["model"]["class_path"] == "tests.parts.Plain"
    (here / "options.yaml").write_text(written)
    assert main(["fit", "--config", "options.yaml", *QUIET]) == 2
    assert "add --trust tests" in capsys.readouterr().err
    assert main(["fit", "--config", "options.yaml", "--trust", "tests", *QUIET]) == 0
    assert list(here.rglob("epoch=0-*.ckpt"))


@pytest.mark.parametrize("name", sorted({part.__name__ for part in backbones().found.values()}))
def test_every_backbone_is_fitted_tested_and_predicts_by_the_name_of_its_class(name, here, capsys):
    assert main(["fit", "--model", name, *DATA, *QUIET, "--trainer.max_epochs", "1"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    assert main(["test", "--model", name, *DATA, *QUIET, "--ckpt_path", str(checkpoint)]) == 0
    assert "test_nll" in capsys.readouterr().out
    assert main(["predict", "--model", name, *DATA, *QUIET, "--ckpt_path", str(checkpoint)]) == 0
    (path,) = here.rglob("predictions.npy")
    assert np.isfinite(np.load(path)).all()


@pytest.mark.parametrize("command", ["test", "predict"])
def test_a_scikit_learn_learner_without_a_checkpoint_is_one_line(command, capsys):
    assert main([command, "--model", "LogisticSLearner", *DATA, *QUIET]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line == "error: LogisticSLearner is not fitted: fit it, or load a checkpoint (--ckpt_path) of one that was"


def test_the_pricing_data_by_the_name_of_its_class(here):
    sizes = ["--data.n_train", "100", "--data.n_test", "70", "--data.n_validation", "50", "--data.seeds", "[0]"]
    options = ["--model", "DirectMethod", "--data", "PricingDataModule", "--data.demand", "D2", *sizes, *QUIET]
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    for command in ("test", "predict"):
        assert main([command, *options, "--ckpt_path", str(checkpoint)]) == 0


@pytest.mark.skipif(not os.environ.get("CST_DATA_DIR"), reason="needs the published files")
@pytest.mark.parametrize(("data", "labels"), [("SceneDataModule", 6), ("YeastDataModule", 14)])
def test_published_data_by_the_name_of_its_class(data, labels, here):
    place = ["--data.data_dir", os.environ["CST_DATA_DIR"], "--data.seeds", "[0]", "--data.holdout", "0.2"]
    options = ["--model", "DirectMethod", "--data", data, *place, *QUIET]
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    assert main(["predict", *options, "--ckpt_path", str(checkpoint)]) == 0
    (path,) = here.rglob("predictions.npy")
    assert np.load(path).shape[2:] == (labels, 2)


def test_a_data_module_by_class_path(here):
    options = [
        "--data",
        "tests.parts.Coins",
        "--data.seeds",
        "[0,1]",
        "--model",
        "DirectMethod",
        "--trainer.max_epochs",
        "1",
        *QUIET,
    ]
    assert main(["fit", *options]) == 0
    assert list(here.rglob("*.ckpt"))


def test_a_student_without_a_teacher_is_one_line(here, capsys):
    assert main(["fit", "--model", "SelfTraining", *DATA, *QUIET, "--trainer.max_epochs", "1"]) == 2
    assert "SelfTraining has no teacher: call teach(teacher)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            ["MoonsDataModule"],
            "batch_size=64: only 50 logged rows to train on, so allowed is 1..50: take a protocol with smaller",
        ),
        (["MoonsDataModule", "--data.seeds", "[0,0]"], "seeds=[0, 0]: allowed are different"),
        (["MoonsDataModul"], "unknown class for --data 'MoonsDataModul': did you mean MoonsDataModule"),
        (["moons"], "--data moons: its class is MoonsDataModule: name that"),
    ],
)
def test_bad_input_is_one_line(data, message, capsys):
    assert main(["fit", "--model", "DirectMethod", "--data", *data, *QUIET]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "dm"], "--model dm: its class is DirectMethod: name that"),
        (["--model=DirectMthod"], "unknown class for --model 'DirectMthod': did you mean DirectMethod"),
        (["--model", "DirectMethod", "--trainer.max_epochs", "x"], "--trainer.max_epochs=x: allowed is an integer"),
        (["--model", "DirectMethod", "--trainer.nothing", "1"], "nothing"),
    ],
)
def test_what_cannot_be_parsed_is_one_line(options, message, capsys):
    assert main(["fit", *options, *DATA]) == 2
    said = capsys.readouterr()
    (line,) = said.err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert len(line) < 700
    assert not said.out


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Of some backbones, trained on the same data."""
    found = {}
    for name in ("DirectMethod", "UniformDM", "LogisticSLearner", "BoostedSLearner"):
        place = tmp_path_factory.mktemp(name)
        options = ["--model", name, *DATA, *QUIET, "--trainer.default_root_dir", str(place)]
        assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
        (found[name],) = map(str, place.rglob("*.ckpt"))
    return found


@pytest.mark.parametrize(
    ("model", "of", "more", "message"),
    [
        ("BoostedSLearner", "LogisticSLearner", [], "is of a LogisticSLearner, and this is a BoostedSLearner"),
        ("UniformDM", "DirectMethod", [], "is of a DirectMethod, and this is a UniformDM"),
        ("LogisticSLearner", "DirectMethod", [], "is of a DirectMethod, and this is a LogisticSLearner"),
        ("DirectMethod", "DirectMethod", ["--data.seeds", "[5,6]"], "has seeds=[0, 3], and this"),
        (
            "LogisticSLearner",
            "LogisticSLearner",
            ["--data.seeds", "[5,6]"],
            "has seeds=[0, 3], and this",
        ),
        (
            "DirectMethod",
            "DirectMethod",
            ["--model.grid", "[0,1]"],
            "has grid=[[0.0], [0.0]], and this",
        ),
        (
            "DirectMethod",
            "DirectMethod",
            ["--model.protocol", "matched"],
            "has name=written, and this",
        ),
    ],
)
def test_a_checkpoint_of_something_else_is_one_line(model, of, more, message, checkpoints, capsys):
    options = ["--model", model, *DATA, *more, *QUIET, "--ckpt_path", checkpoints[of]]
    capsys.readouterr()
    for command in ("test", "predict"):
        assert main([command, *options]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert message in line


def test_a_checkpoint_of_other_sizes_is_one_line(checkpoints, here, capsys):
    (here / "log.csv").write_text("age,price,bought\n" + "\n".join(f"{n},{n % 3},{n % 2}" for n in range(60)))
    log = ["--data", "LoggedDataModule", "--data.path", "log.csv", "--data.action", "price", "--data.outcome", "bought"]
    options = ["--model", "LogisticSLearner", *log, *QUIET, "--ckpt_path", checkpoints["LogisticSLearner"]]
    assert main(["predict", *options]) == 2
    assert "has shape={'n_features': 12, 'n_actions': 4, 'n_outcomes': 2}, and this Log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"text", "is no checkpoint that can be read"),
        ({"weights": 1}, "is no checkpoint of a Trainer"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_line(content, message, here, capsys):
    if isinstance(content, bytes):
        (here / "a.ckpt").write_bytes(content)
    elif content is not None:
        torch.save(content, here / "a.ckpt")
    assert main(["test", "--model", "DirectMethod", *DATA, *QUIET, "--ckpt_path", "a.ckpt"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line


def test_a_folder_holds_the_options_of_one_fit(checkpoints, here, capsys):
    options = ["--model", "DirectMethod", *DATA, *QUIET, "--trainer.logger", "false", "--trainer.max_epochs", "1"]
    assert main(["fit", *options]) == 0
    checkpoint = ["--ckpt_path", checkpoints["DirectMethod"]]
    assert main(["test", *options, *checkpoint]) == 0
    assert main(["predict", *options, *checkpoint]) == 0
    capsys.readouterr()
    before = (here / "config.yaml").read_text()
    assert main(["fit", *options, "--model.protocol", "matched"]) == 2
    assert "config.yaml is there, of another fit: name another folder" in capsys.readouterr().err
    assert (here / "config.yaml").read_text() == before
