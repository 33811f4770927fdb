"""Steps to be recorded as CUDA graphs: what a recording reads and writes, checked on a CPU without the recording."""

import pytest
import torch

from cst_lightning import HSIC, DirectMethod, SelfTraining, UniformDM, engines, fit
from cst_lightning.graphs import can_record
from cst_lightning.networks import LiftedNetwork
from tests.conftest import TinyDataModule, tiny_protocol


@pytest.mark.parametrize("protocol_name", ["written", "released", "matched"])
@pytest.mark.parametrize("part", [DirectMethod, HSIC, UniformDM, SelfTraining])
def test_recorded_steps_are_those_of_autograd(part, protocol_name, monkeypatch):
    protocol = tiny_protocol(protocol_name, stopping="fixed", holdout=0.0, batch_size=20)
    data = TinyDataModule([0, 1])  # minibatches of 20, 20 and 8 rows
    teacher = DirectMethod(data.shape, data.seeds, protocol)
    trained = []
    for engine in ("autograd", "graphs"):
        monkeypatch.setattr(engines, "choose", lambda module, optimizer, engine=engine: engine)
        grid = [0.0, 1.0] if part is SelfTraining else part.default_grid(protocol)
        module = part(data.shape, data.seeds, protocol, grid, stage=int(part is SelfTraining))
        if part is SelfTraining:
            module.teach(teacher)
        fit(module, data, max_epochs=3)
        assert module.engine == engine
        trained.append(module)
    one, other = trained
    assert torch.equal(one.training_loss, other.training_loss)
    for value, same in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(value, same)


def test_only_what_cannot_hide_a_change_is_recorded():
    data = TinyDataModule([0])

    class Own(DirectMethod):
        def entries(self, batch, rows):
            return super().entries(batch, rows)

    assert can_record(DirectMethod(data.shape))
    assert can_record(SelfTraining(data.shape))
    assert not can_record(Own(data.shape))
    lifted = DirectMethod(data.shape, network=lambda: torch.nn.Linear(4, 3))
    assert isinstance(lifted.network, LiftedNetwork)
    assert not can_record(lifted)
