"""Steps to be recorded as CUDA graphs: what a recording reads and writes, checked on a CPU without the recording."""

import pytest
import torch

from cst_lightning import HSIC, DirectMethod, SelfTraining, UniformDM, fit
from cst_lightning.graphs import RecordedSteps, can_record
from cst_lightning.networks import LiftedNetwork
from tests.conftest import TinyDataModule, tiny_protocol


class Autograd:
    """Keeps a module of any kind from compiled code."""

    compiled = False


def kind(part, recorded):
    """``part`` trained by autograd, or with its epochs handed to recorded steps."""

    class Trained(Autograd, part):
        def _autograd_epoch(self, feedback, order, bounds, optimizer):
            if not recorded:
                return super()._autograd_epoch(feedback, order, bounds, optimizer)
            self.engine = "graphs"
            if self.trainer.current_epoch == 0:
                self._recorded = RecordedSteps(self, optimizer.optimizer, feedback)
            return self._recorded_epoch(feedback, order, bounds, optimizer)

    return Trained


@pytest.mark.parametrize("protocol_name", ["written", "released", "matched"])
@pytest.mark.parametrize("part", [DirectMethod, HSIC, UniformDM, SelfTraining])
def test_recorded_steps_are_those_of_autograd(part, protocol_name):
    protocol = tiny_protocol(protocol_name, stopping="fixed", holdout=0.0, batch_size=20)
    data = TinyDataModule([0, 1])  # minibatches of 20, 20 and 8 rows
    teacher = DirectMethod(data.shape, data.seeds, protocol)
    trained = []
    for recorded in (False, True):
        grid = [0.0, 1.0] if part is SelfTraining else part.default_grid(protocol)
        module = kind(part, recorded)(data.shape, data.seeds, protocol, grid, stage=int(part is SelfTraining))
        if part is SelfTraining:
            module.teach(teacher)
        fit(module, data, max_epochs=3)
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
