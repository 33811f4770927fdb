"""What holds on a GPU: for ``make gpu``, since other tests see none."""

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from benchmarks.cutting import cut
from benchmarks.grid import backbones, make_jobs
from benchmarks.job import Settings, run_job
from benchmarks.store import Store
from benchmarks.sweep import main
from cst_lightning import (
    HSIC,
    CounterfactualClassifier,
    DirectMethod,
    InputError,
    SelfTraining,
    UniformDM,
    fit,
    self_train,
)
from datamodules.logged import LoggedDataModule
from tests.classifiers import QUICK, make_log
from tests.conftest import TinyDataModule, make_data, tiny_protocol
from tests.sweeps import SHORT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and CST_GPU=1")


def parts(protocol, m=2):
    data = TinyDataModule([0, 1], m=m)
    teacher = DirectMethod(data.shape, data.seeds, protocol)
    student = SelfTraining(data.shape, data.seeds, protocol, [0.0, 1.0], stage=1)
    student.teach(teacher)
    return data, [part(data.shape, data.seeds, protocol) for part in (DirectMethod, HSIC, UniformDM)] + [student]


@pytest.mark.parametrize(("name", "m"), [("written", 2), ("released", 2), ("matched", 2), ("matched", 3)])
def test_epochs_on_the_gpu_are_those_of_the_cpu(name, m):
    protocol = tiny_protocol(name, stopping="fixed", holdout=0.0, batch_size=48)
    trained = []
    for accelerator in ("cpu", "gpu"):
        data, modules = parts(protocol, m)
        for module in modules:
            fit(module, data, max_epochs=2, accelerator=accelerator)
            if accelerator == "gpu":
                assert module.engine == "graphs"
        trained.append(modules)
    for one, other in zip(*trained, strict=True):
        assert_same(one, other)


def assert_same(one, other):
    """The weights are, to the rounding that differs from device to device."""
    for value, same in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.allclose(value.cpu(), same.cpu(), rtol=1e-3, atol=1e-4)


class OwnLoss(DirectMethod):
    """Trained by autograd: a recording would freeze what its loss does."""

    def batch_loss(self, batch, rows):
        return super().batch_loss(batch, rows) + self.network.linear[0].weight.square().flatten(1).sum(1)


def plain_network():
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(6, 3))


@pytest.mark.parametrize(("part", "network"), [(OwnLoss, None), (DirectMethod, plain_network)])
def test_parts_of_ones_own_train_on_the_gpu_as_on_the_cpu(part, network):
    protocol, trained = tiny_protocol("matched", stopping="fixed", holdout=0.0, batch_size=48), []
    for accelerator in ("cpu", "gpu"):
        data = TinyDataModule([0, 1])
        module = part(data.shape, data.seeds, protocol, network=network)
        fit(module, data, max_epochs=3, accelerator=accelerator)
        trained.append(module)
    assert trained[1].engine == "autograd"
    assert_same(*trained)


def test_early_stopping_and_rounds_of_students_on_the_gpu_are_those_of_the_cpu():
    protocol, trained = tiny_protocol("matched", max_epochs=30, patience=3, learning_rate=0.02), []
    for accelerator in ("cpu", "gpu"):
        data = make_data([0, 1, 2], protocol)
        module = DirectMethod(data.shape, data.seeds, protocol)
        with torch.no_grad():
            module.network.linear[0].weight[1] = torch.nan  # a replicate that fails is left out
        fitter = partial(fit, accelerator=accelerator)
        fitter(module, data)
        trained.append((module, self_train(module, data, cvat_weights=[0.0, 1.0], rounds=2, fitter=fitter)))
    (backbone, student), (same, taught) = trained
    assert backbone.failed_epoch.tolist() == same.failed_epoch.tolist() == [0, 1, 0]
    assert 0 < min(backbone.stopped_epoch[[0, 2]]) < 30
    assert backbone.stopped_epoch.tolist() == same.stopped_epoch.tolist()
    for mine, theirs, sound in ((backbone, same, [0, 2]), (student, taught, [0, 1, 4, 5])):
        for value, other in zip(mine.network.parameters(), theirs.network.parameters(), strict=True):
            assert torch.allclose(value[sound], other[sound].cpu(), rtol=1e-2, atol=1e-3)


def test_students_of_a_learner_train_beside_a_gpu():
    data, protocol = TinyDataModule([0, 1]), tiny_protocol("matched")
    predicted = []
    for accelerator in ("cpu", "gpu"):
        part = backbones().get("t_logistic")
        module = part(data.shape, data.seeds, protocol, part.default_grid(protocol))
        fit(module, data, accelerator=accelerator)
        predicted.append(self_train(module, data, fitter=partial(fit, accelerator=accelerator))(data.test.x))
    assert torch.allclose(*predicted)


def test_training_resumed_on_the_gpu_goes_on_and_its_checkpoint_predicts_on_a_cpu(tmp_path):
    protocol = tiny_protocol("matched", max_epochs=8)

    def run(max_epochs, resume=None):
        data = make_data([0, 1], protocol)
        module = DirectMethod(data.shape, data.seeds, protocol)
        saver = pl.callbacks.ModelCheckpoint(tmp_path, filename=f"{max_epochs}", save_top_k=1)
        trainer = pl.Trainer(
            max_epochs=max_epochs, logger=False, enable_progress_bar=False, accelerator="gpu", devices=1,
            num_sanity_val_steps=0, enable_model_summary=False, callbacks=[saver],
        )  # fmt: skip
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        return data, module.cpu()

    data, whole = run(8)
    run(4)
    _, resumed = run(8, str(tmp_path / "4.ckpt"))
    assert_same(whole, resumed)
    opened = DirectMethod.load_from_checkpoint(tmp_path / "8.ckpt", map_location="cpu", weights_only=True)
    assert torch.allclose(opened(data.test.x), whole(data.test.x), atol=1e-6)


def test_the_estimator_gives_the_same_answers_from_either_device_and_opens_without_a_gpu(tmp_path):
    x, action, outcome = make_log()
    models = [CounterfactualClassifier(device=device, **QUICK).fit(x, action, outcome) for device in ("cpu", "cuda")]
    assert models[0].method_ == models[1].method_
    assert np.allclose(models[0].predict_proba(x), models[1].predict_proba(x), atol=1e-3)
    models[1].save(tmp_path / "model")
    x.to_pickle(tmp_path / "x.pkl")
    code = (
        "import sys, pandas as pd, numpy as np; from cst_lightning import CounterfactualClassifier as C;"
        "np.save(sys.argv[2], C.load(sys.argv[1]).predict_proba(pd.read_pickle(sys.argv[3])))"
    )
    files = [str(tmp_path / name) for name in ("model", "p.npy", "x.pkl")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert np.allclose(np.load(tmp_path / "p.npy"), models[1].predict_proba(x), atol=1e-6)


def test_a_log_in_chunks_is_refused_on_the_gpu_in_a_line(tmp_path):
    x, action, outcome = make_log()
    x.assign(action=action, outcome=outcome).to_parquet(tmp_path / "log.parquet")
    data = LoggedDataModule(tmp_path / "log.parquet", "action", "outcome", holdout=0, chunk_rows=60)
    data.setup()
    module = DirectMethod(data.shape, [0], tiny_protocol("written", stopping="fixed", holdout=0.0))
    with pytest.raises(InputError, match="pass accelerator='cpu'"):
        fit(module, data, accelerator="gpu")


@pytest.fixture(autouse=True)
def waiting_is_allowed_again():
    yield
    torch.cuda.set_sync_debug_mode("default")


class NoWaiting(pl.Callback):
    """Every wait of the host for the device inside a training step is an error."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.current_epoch > 0:  # the first epoch sets things up
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["written", "released", "matched"])
def test_the_minibatches_of_an_epoch_never_wait_for_the_gpu(name):
    data, modules = parts(tiny_protocol(name, stopping="fixed", holdout=0.0))
    for module in modules:
        fit(module, data, max_epochs=3, accelerator="gpu", callbacks=[NoWaiting()])


# --- jobs ---------------------------------------------------------------------------------------------


def nll(record):
    return [result["metrics"]["nll"] for result in record["results"]]


def most_memory(job, folder):
    """Train ``job``; the most bytes that it used of the GPU's, those that PyTorch held for it, and its record."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run_job(job, Store(folder), Settings(device="cuda"), lambda _: None)
    used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return used, held, Store(folder).read(job.cells[0])


def test_a_stack_that_the_gpu_does_not_hold_is_trained_in_smaller_ones_and_the_record_says_so(tmp_path):
    (job,) = make_jobs(
        "smoke", protocol="matched", datasets=["D1@n=2560,n_test=500,n_validation=50"], backbone_names=["dm"],
        methods=["backbone"], seeds=["0..7"],
        overrides={"hidden": 1024, "batch_size": 2048, "max_epochs": 2, "hidden_cst": 8},
    )  # fmt: skip
    of_whole, _, whole = most_memory(job, tmp_path / "whole")
    _, of_half, _ = most_memory(cut(job, 4)[0], tmp_path / "half")
    assert "parts" not in whole["provenance"]
    limit = 1.05 * of_half  # within which a half has all that PyTorch took for it
    assert limit < of_whole  # and which the whole would pass even if PyTorch held nothing in stock
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        *_, found = most_memory(job, tmp_path / "halves")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    made = found["provenance"]
    assert [part["seeds"] for part in made["parts"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert made["failures_before"][0].startswith("OutOfMemoryError: CUDA out of memory")
    assert made["device"] == torch.cuda.get_device_name()
    assert nll(found) == pytest.approx(nll(whole), rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        ["--device", "cuda", "--workers", "2"],
        pytest.param(
            ["--executor", "ray", "--gpus-per-job", "0.5"],
            marks=pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
        ),
    ],
    ids=["local", "ray"],
)
def test_two_jobs_of_a_sweep_share_the_gpu_and_give_the_numbers_of_the_cpu(options, tmp_path, monkeypatch):
    waiting = tmp_path / "waiting"
    waiting.mkdir()
    monkeypatch.setenv("WAITING", str(waiting))
    arguments = ["--datasets", "tests.parts.WaitingCoins", "--backbones", "dm", "hsic", "--methods", "backbone"]
    arguments += ["--seeds", "0..1", *SHORT, "--override.max_epochs_hsic", "2"]
    begun = []

    def go_on():
        end = time.monotonic() + 300
        while len(begun) < 2 and time.monotonic() < end:
            time.sleep(0.05)
            begun[:] = waiting.glob("begun-*")
        (waiting / "go").touch()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert main([*arguments, *options, "--out", str(tmp_path / "gpu")]) == 0
    thread.join()
    assert len(begun) == 2  # at once
    assert main([*arguments, "--device", "cpu", "--workers", "1", "--out", str(tmp_path / "cpu")]) == 0
    found, wanted = (
        {record["identity"]["backbone"]: record for record in Store(tmp_path / name).read_all()}
        for name in ("gpu", "cpu")
    )
    assert found.keys() == wanted.keys() == {"dm", "hsic"}
    for backbone, record in found.items():
        assert record["provenance"]["device"] == torch.cuda.get_device_name()
        assert nll(record) == pytest.approx(nll(wanted[backbone]), rel=1e-3)
