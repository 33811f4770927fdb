"""What holds on a GPU; skipped where there is none."""

import gc
import importlib.util
import threading
import time

import pytest
import pytorch_lightning as pl
import torch

from benchmarks.cutting import cut
from benchmarks.grid import make_jobs
from benchmarks.job import Settings, run_job
from benchmarks.store import Store
from benchmarks.sweep import main
from cst_lightning import HSIC, DirectMethod, SelfTraining, fit
from tests.conftest import TinyDataModule, tiny_protocol
from tests.sweeps import SHORT

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def parts(protocol):
    data = TinyDataModule([0, 1])
    teacher = DirectMethod(data.shape, data.seeds, protocol)
    student = SelfTraining(data.shape, data.seeds, protocol, [0.0, 1.0], stage=1)
    student.teach(teacher)
    return data, [DirectMethod(data.shape, data.seeds, protocol), HSIC(data.shape, data.seeds, protocol), student]


@pytest.mark.parametrize("name", ["written", "released", "matched"])
def test_epochs_on_the_gpu_are_those_of_the_cpu(name):
    protocol = tiny_protocol(name, stopping="fixed", holdout=0.0, batch_size=48)
    trained = []
    for accelerator in ("cpu", "gpu"):
        data, modules = parts(protocol)
        for module in modules:
            fit(module, data, max_epochs=2, accelerator=accelerator)
            if accelerator == "gpu":
                assert module.engine == "graphs"
        trained.append(modules)
    for one, other in zip(*trained, strict=True):
        for value, same in zip(one.network.parameters(), other.network.parameters(), strict=True):
            assert torch.allclose(value, same.cpu(), rtol=1e-3, atol=1e-4)


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
