"""What holds on a GPU; skipped where there is none."""

import pytest
import pytorch_lightning as pl
import torch

from cst_lightning import HSIC, DirectMethod, SelfTraining, fit
from tests.conftest import TinyDataModule, tiny_protocol

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
