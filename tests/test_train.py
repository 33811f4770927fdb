"""``python -m benchmarks.train``: LightningCLI over every backbone and data module."""

import os
import sys

import numpy as np
import pytest
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
    ],
)
def test_bad_input_is_one_line(data, message, capsys):
    assert main(["fit", "--model", "DirectMethod", "--data", *data, *QUIET]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert message in line
