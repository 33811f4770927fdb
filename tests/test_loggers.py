"""Lightning's own loggers and callbacks in a plain Trainer, with every backbone and its students."""

import csv

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cst_lightning import self_train
from cst_lightning.catalogue import backbones
from tests.conftest import BACKBONES, TinyDataModule, tiny_protocol

EPOCHS = 2


@pytest.fixture
def train_logged(tmp_path, monkeypatch):
    """Train with everything that Lightning offers, and look at what each part of it left."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")  # the logger sets it, and it is put back

    def train(module, data, max_epochs=EPOCHS):
        folder = tmp_path / f"stage {module.stage}"
        folder.mkdir()
        epochs = EPOCHS if module.has_gradient else 1
        loggers = [
            CSVLogger(folder, name="csv"),
            TensorBoardLogger(folder, name="board"),
            WandbLogger(project="mine", save_dir=folder, offline=True),
        ]
        saver = ModelCheckpoint(folder / "kept", monitor="val_nll")
        trainer = pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=loggers,
            callbacks=[saver, LearningRateMonitor("step"), RichProgressBar()],
            log_every_n_steps=1,
        )
        trainer.fit(module, data)
        trainer.test(module, data, verbose=False)
        loggers[2].experiment.finish()
        with (folder / "csv" / "version_0" / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        losses = [float(row["val_nll"]) for row in rows if row["val_nll"]]
        assert len(losses) == epochs
        board = EventAccumulator(str(folder / "board" / "version_0")).Reload()
        assert [event.value for event in board.Scalars("val_nll")] == pytest.approx(losses)
        (tested,) = board.Scalars("test_nll")
        assert tested.value == pytest.approx(float(module.test_metrics["nll"].mean()))
        assert any(tag.startswith("lr-") for tag in board.Tags()["scalars"])
        assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
        again = type(module).load_from_checkpoint(saver.best_model_path, weights_only=True)
        assert torch.isfinite(again(data.test.x)).all()

    return train


@pytest.mark.parametrize("name", [*BACKBONES, "constant"])  # scikit-learn's learners are one class
def test_every_backbone_and_its_students_with_every_logger_and_callback(name, train_logged):
    data = TinyDataModule([0, 1], holdout=0.25)
    module = backbones().get(name)(data.shape, data.seeds, tiny_protocol("matched"))
    train_logged(module, data)
    weights = [0.0, 1.0] if module.has_gradient else [0.0]
    student = self_train(module, data, cvat_weights=weights, rounds=1, fitter=train_logged)
    assert student.stage == 1
