"""What a checkpoint brings back."""

import json
import subprocess
import sys

import pytest
import pytorch_lightning as pl
import torch

from cst_lightning import DirectMethod, SelfTraining, fit, self_train
from cst_lightning.catalogue import backbones
from tests.conftest import close, make_data, state_of, tiny_protocol, train

VARIANTS = [*backbones().found, "cst"]
REOPEN = """
import sys
from pathlib import Path
from pydoc import locate
import torch
torch.set_num_threads(1)
for line in sys.stdin.read().splitlines():
    name, folder = line.split(" ", 1)
    module = locate(name).load_from_checkpoint(Path(folder, "model.ckpt"), weights_only=True)
    torch.save(module(torch.load(Path(folder, "x.pt"), weights_only=True)), Path(folder, "p.pt"))
"""


@pytest.fixture(scope="module")
def reopened(tmp_path_factory):
    """By variant: what a trained module predicts, and what its checkpoint does that a new process opened."""
    protocol, folder = tiny_protocol("matched"), tmp_path_factory.mktemp("reopened")
    data = make_data([0, 1], protocol)
    lines, found = [], {}
    for variant in VARIANTS:
        module = train("dm" if variant == "cst" else variant, protocol, data)
        if variant == "cst":
            module = self_train(module, data, cvat_weights=[0.0, 1.0])
        (folder / variant).mkdir()
        trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
        trainer.strategy.connect(module)
        trainer.save_checkpoint(folder / variant / "model.ckpt")
        torch.save(data.test.x, folder / variant / "x.pt")
        lines.append(f"{type(module).__module__}.{type(module).__qualname__} {folder / variant}")
        found[variant] = module(data.test.x)
    code = [sys.executable, "-c", REOPEN]
    subprocess.run(code, check=True, capture_output=True, text=True, input="\n".join(lines))
    return {name: (p, torch.load(folder / name / "p.pt", weights_only=True)) for name, p in found.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_reopens_in_a_new_process_with_the_same_predictions(variant, reopened):
    assert torch.equal(*reopened[variant])


@pytest.mark.parametrize("name", ["constant", "t_logistic"])
def test_a_student_of_a_learner_from_a_checkpoint_is_that_of_the_learner(name, tmp_path):
    data = make_data([0, 1], tiny_protocol("matched"))
    module = train(name, tiny_protocol("matched"), data)
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    again = type(module).load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    assert torch.equal(self_train(again, data)(data.test.x), self_train(module, data)(data.test.x))


def test_training_resumed_from_a_checkpoint_gives_the_same_numbers(tmp_path):
    protocol = tiny_protocol("matched", max_epochs=8)

    def run(max_epochs, resume=None):
        data = make_data([0, 1], protocol)
        module = DirectMethod(data.shape, data.seeds, protocol)
        trainer = pl.Trainer(
            max_epochs=max_epochs, logger=False, enable_progress_bar=False, accelerator="cpu", num_sanity_val_steps=0,
            enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[pl.callbacks.ModelCheckpoint(tmp_path, filename=f"{max_epochs}", save_top_k=1)],
        )  # fmt: skip
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        return module

    whole = run(8)
    run(4)
    resumed = run(8, str(tmp_path / "4.ckpt"))
    for name, value in whole.replicate_state().items():
        assert torch.equal(value, resumed.replicate_state()[name])


def test_hyperparameters_are_plain_values(tiny):
    student = SelfTraining(tiny.shape, tiny.seeds, tiny_protocol(), [0.0, 1.0])
    assert json.loads(json.dumps(dict(student.hparams)))["grid"] == [[0.0, 1.0]] * 2


def test_lightnings_checkpoint_predicts_like_the_trained_module(tmp_path):
    protocol = tiny_protocol("matched", max_epochs=60, patience=3, learning_rate=0.02)
    data = make_data([0, 1], protocol)
    module = DirectMethod(data.shape, data.seeds, protocol)
    saver = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    fit(module, data, enable_checkpointing=True, callbacks=[saver])
    again = DirectMethod.load_from_checkpoint(saver.last_model_path, weights_only=True)
    assert torch.equal(again(data.test.x), module(data.test.x))


def test_a_loaded_module_trains_like_a_fresh_one(tmp_path):
    protocol = tiny_protocol("matched")
    data = make_data([0, 1], protocol)
    module = train("dm", protocol, data)
    module.failed_epoch[1] = 2
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    loaded = DirectMethod.load_from_checkpoint(tmp_path / "m.ckpt", weights_only=True)
    for one in (module, loaded):
        fit(one, data)
        assert one.failed_epoch.tolist() == [0, 0]
    assert close(state_of(module, 0), state_of(loaded, 0), 0)
