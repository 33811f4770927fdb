"""The laws of stacked training, for every backbone and for self-training."""

import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_lightning.accelerators import CUDAAccelerator
from torch import nn

from benchmarks.grid import backbones
from cst_lightning import DirectMethod, Feedback, InputError, StackedModule, UniformDM, fit, self_train
from cst_lightning.selection import RULES, scores
from cst_lightning.testing import check_backbone
from tests.conftest import BACKBONES, TinyDataModule, close, make_data, state_of, tiny_protocol, train

PROTOCOLS = ("written", "released", "matched")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("backbone", [*BACKBONES, "constant"])
def test_every_backbone_keeps_what_is_promised(backbone, protocol):
    check_backbone(backbones().get(backbone), protocol)


@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(PROTOCOLS),
    st.lists(st.sampled_from([0.0, 0.1, 1.0, 10.0]), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
def test_students_do_not_depend_on_the_weights_beside_them(protocol_name, weights, shuffle):
    protocol = tiny_protocol(protocol_name, shuffle=shuffle)
    data = make_data([4, 7], protocol)
    backbone = train("dm", protocol, data)
    together = self_train(backbone, data, cvat_weights=weights)
    for variant, weight in enumerate(weights):
        alone = self_train(backbone, data, cvat_weights=[weight])
        for place in range(2):
            assert close(state_of(together, place * len(weights) + variant), state_of(alone, place))


def test_training_goes_on_when_a_replicate_fails_and_stops_when_none_is_left():
    protocol = tiny_protocol(max_epochs=50)
    data = make_data([0, 1], protocol)
    module = DirectMethod(data.shape, data.seeds, protocol)
    with torch.no_grad():
        module.network.linear[0].weight[:] = torch.nan
    fit(module, data)
    assert module.failed_epoch.tolist() == [1, 1]
    assert module.stopped_epoch.tolist() == [0, 0]


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_loss_falls(backbone):
    protocol = tiny_protocol("released", max_epochs=60, max_epochs_hsic=60, max_epochs_udm=60, learning_rate_hsic=1e-3)
    data = make_data([0], protocol)
    part = backbones().get(backbone)
    module = part(data.shape, data.seeds, protocol)
    fit(module, data, max_epochs=1)
    first = module.training_loss.clone()
    fit(module, data)
    assert (module.training_loss < first).all()


class Recorder(pl.Callback):
    """Loss of every epoch, and the weights at its end."""

    def __init__(self):
        self.losses, self.states = [], []

    def on_train_epoch_end(self, trainer, module):
        watched = module.validation_nll if module.validation_nll is not None else module.training_loss
        self.losses.append(watched.clone())
        self.states.append({name: value.detach().clone() for name, value in module.replicate_state().items()})


def test_early_stopping_keeps_the_best_epoch_of_each_replicate():
    protocol = tiny_protocol("matched", max_epochs=200, patience=5, learning_rate=0.02)
    data = make_data([0, 1, 2], protocol, n=60)
    module, seen = DirectMethod(data.shape, data.seeds, protocol), Recorder()
    fit(module, data, callbacks=[seen])
    losses = torch.stack(seen.losses)
    assert len(losses) < 200
    for replicate in range(3):
        stopped = int(module.stopped_epoch[replicate])
        best = int(losses[:stopped, replicate].argmin())
        assert stopped == best + 1 + 5
        kept = state_of(module, replicate)
        assert all(torch.equal(value[replicate], kept[name]) for name, value in seen.states[best].items())


def test_convergence_asks_for_a_relative_improvement_and_keeps_the_last_epoch():
    protocol = tiny_protocol("written", max_epochs=400, patience=3, min_improvement=0.5)
    data = make_data([0, 1], protocol)
    module, seen = DirectMethod(data.shape, data.seeds, protocol), Recorder()
    fit(module, data, callbacks=[seen])
    for replicate in range(2):
        stopped = int(module.stopped_epoch[replicate])
        kept = state_of(module, replicate)
        assert stopped == 4  # the loss does not halve in three epochs after the first
        assert all(torch.equal(value[replicate], kept[name]) for name, value in seen.states[stopped - 1].items())


def test_fewer_rows_than_a_batch_is_an_error():
    protocol = tiny_protocol(batch_size=64)
    with pytest.raises(InputError, match=r"batch_size=64: only 48 logged rows to train on, so allowed is 1\.\.48"):
        train("dm", protocol, make_data([0], protocol))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        z = self.body(x)
        return self.head(z), z


@pytest.mark.parametrize("backbone", sorted({*BACKBONES} - {"dm_early"}))  # which goes back to its best epoch
def test_a_plain_module_with_batch_norm_trains_on_every_row(backbone):
    protocol = tiny_protocol(batch_size=64)
    data = make_data([0, 1], protocol, n=129)
    module = train(backbone, protocol, data, network=Normed)
    assert module.failed_epoch.tolist() == [0, 0]
    counts = [value for name, value in module.replicate_state().items() if "num_batches" in name]
    assert counts[0].tolist() == [6, 6]  # two batches (64 and 65 rows), three epochs
    alone = train(backbone, protocol, make_data([1], protocol, n=129), network=Normed)
    assert close(state_of(module, 1), state_of(alone, 0), 1e-4)


def test_missing_outcomes_leave_the_factual_loss_alone():
    protocol = tiny_protocol()
    data = make_data([0], protocol)
    data.setup()
    log = data.train
    outcome = log.outcome.clone()
    outcome[0, ::3] = -1
    gone = Feedback(log.x, log.action, outcome, log.n_actions)
    module = DirectMethod(data.shape, [0], protocol)
    loader = torch.utils.data.DataLoader([gone], batch_size=None)
    pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    ).fit(module, loader)
    assert torch.isfinite(module.training_loss).all()
    assert gone.n_missing.tolist() == [16]


def test_several_seeds_can_share_one_log():
    protocol = tiny_protocol()
    data = make_data([0], protocol)
    module = DirectMethod(data.shape, [3, 4], protocol)
    fit(module, data)
    assert module(data.test.x).shape == (2, 48, 3, 2)


@pytest.mark.parametrize("seeds", [[], [1, 1], [-1]])
def test_seeds_must_differ(seeds):
    with pytest.raises(InputError, match="seeds"):
        DirectMethod({"n_features": 2, "n_actions": 2}, seeds)


def test_a_log_of_another_shape_is_refused():
    protocol = tiny_protocol()
    with pytest.raises(InputError, match="the log has"):
        fit(DirectMethod({"n_features": 3, "n_actions": 2}, [0, 1], protocol), make_data([0, 1], protocol))


def test_a_barebones_trainer_with_a_limit_of_steps_stops_at_it(tiny):
    module = DirectMethod(tiny.shape, tiny.seeds, tiny_protocol(stopping="fixed", holdout=0.0))
    pl.Trainer(barebones=True, max_steps=2, accelerator="cpu").fit(module, tiny)
    assert module.engine == "compiled"
    assert module.stopped_epoch.tolist() == [2, 2]


def test_lightnings_own_stages_work(tmp_path, tiny):
    module = DirectMethod(tiny.shape, tiny.seeds, tiny_protocol())
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer = pl.Trainer(max_epochs=3, logger=logger, accelerator="cpu", log_every_n_steps=1, enable_progress_bar=False)
    trainer.fit(module, tiny)
    assert trainer.global_step == 3
    tested = trainer.test(module, tiny, verbose=False)[0]
    assert tested["test_nll"] == pytest.approx(module.test_metrics["nll"].mean().item(), rel=1e-5)
    (predicted,) = trainer.predict(module, tiny)
    assert torch.allclose(predicted.sum(-1), torch.ones(2, 48, 3))
    assert "train_loss" in (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()


def test_uniform_dm_reports_overlap():
    protocol = tiny_protocol()
    module = train("udm", protocol, make_data([0, 1], protocol))
    assert isinstance(module, UniformDM)
    assert len(module.overlap.effective_sample_size) == 2
    assert all(0 < size <= 1 for size in module.overlap.effective_sample_size)


class FailsLater(DirectMethod):
    """Replicate 1 turns NaN in its fifth epoch."""

    def batch_loss(self, batch, rows):
        loss = super().batch_loss(batch, rows)
        if self.current_epoch == 4:
            loss = loss + torch.tensor([0.0, torch.nan])
        return loss


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_replicate_that_fails_later_goes_back_to_finite_weights(keep):
    protocol = tiny_protocol(max_epochs=8, stopping="fixed", keep=keep)
    data = make_data([0, 1], protocol)
    module, seen = FailsLater(data.shape, data.seeds, protocol), Recorder()
    fit(module, data, callbacks=[seen])
    assert module.failed_epoch.tolist() == [0, 5]
    assert module.stopped_epoch.tolist() == [8, 4]
    best = 3 if keep == "last" else int(torch.stack(seen.losses)[:4, 1].argmin())
    own = state_of(module, 1)
    assert all(torch.equal(value[1], own[name]) for name, value in seen.states[best].items())


class NoNumber(DirectMethod):
    """The loss of seed 1, where it is there, is no number from the third epoch on."""

    def entries(self, batch, rows):
        entries = super().entries(batch, rows)
        bad = torch.tensor([seed == 1 for seed in self.seeds])[:, None, None] & (self.current_epoch > 1)
        return entries._replace(weight=entries.weight.masked_fill(bad, torch.nan))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rule", ["fixed", "converged", "early"])
def test_a_replicate_whose_loss_is_no_number_changes_nothing_of_the_others(rule, compiled, monkeypatch):
    """Through steps, stopping, the epoch that is kept, self-training and selection."""
    monkeypatch.setattr(StackedModule, "compiled", compiled)
    protocol = tiny_protocol("matched", stopping=rule, patience=3, max_epochs=12, learning_rate=0.02)
    data, found = make_data([0, 1, 2], protocol, n=60), []
    for kind in (DirectMethod, NoNumber):
        module = kind(data.shape, data.seeds, protocol)
        fit(module, data)
        student = self_train(module, data, cvat_weights=[0.0, 1.0])
        found.append((module, student, scores(RULES["observed_nll"], module, data.train, data.validation, None)))
    (sound, taught, score), (spoilt, misled, other) = found
    assert spoilt.engine == ("compiled" if compiled else "autograd")
    assert (sound.failed_epoch.tolist(), spoilt.failed_epoch.tolist()) == ([0, 0, 0], [0, 3, 0])
    assert (other[1], other[[0, 2]].tolist()) == (torch.inf, score[[0, 2]].tolist())
    for one, two, replicates in ((sound, spoilt, (0, 2)), (taught, misled, (0, 1, 4, 5))):
        for replicate in replicates:
            assert one.stopped_epoch[replicate] == two.stopped_epoch[replicate]
            mine, theirs = state_of(one, replicate), state_of(two, replicate)
            assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_loader_of_two_logs_is_refused():
    protocol = tiny_protocol()
    data = make_data([0], protocol)
    loader = torch.utils.data.DataLoader([data.train, data.train], batch_size=None)
    trainer = pl.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    with pytest.raises(InputError, match="the log, or a chunk of it, as its one batch"):
        trainer.fit(DirectMethod(data.shape, [0], protocol), loader)


def test_early_stopping_without_held_out_rows_is_refused_at_once():
    protocol = tiny_protocol("matched")
    data = TinyDataModule([0])
    with pytest.raises(InputError, match="holdout"):
        fit(DirectMethod(data.shape, [0], protocol), data)


@pytest.mark.parametrize("protocol_name", ["written", "released"])
def test_self_training_of_a_lifted_network_leaves_its_teacher_alone(protocol_name):
    protocol = tiny_protocol(protocol_name, batch_size=15, keep_cst="last")
    data = make_data([0], protocol)
    teacher = train("dm", protocol, data, network=Normed)
    before = teacher(data.test.x)
    student = self_train(teacher, data, cvat_weights=[1.0], network=Normed)
    assert torch.equal(teacher(data.test.x), before)
    counts = [value for name, value in student.replicate_state().items() if "num_batches" in name]
    assert counts[0].tolist() == [12]  # four batches, three epochs: CVAT's passes do not count


@pytest.mark.parametrize("grid", [[], [0.1, [0.2]], [[0.1]], ["a"], 3.0])
def test_impossible_grids_are_refused(grid):
    with pytest.raises(InputError, match="grid="):
        DirectMethod({"n_features": 2, "n_actions": 2}, [0, 1], grid=grid)


@pytest.mark.parametrize("shape", [(3,), (2, 5), (3, 2, 4), (1, 2, 5)])
def test_contexts_of_another_shape_are_refused(shape):
    module = DirectMethod({"n_features": 4, "n_actions": 2}, [0, 1])
    with pytest.raises(InputError, match=r"allowed is \[N, 4\]"):
        module(torch.zeros(shape))
    assert module([[0.0] * 4]).shape == (2, 1, 2, 2)


@pytest.mark.parametrize("network", [nn.Linear, nn.Linear(4, 3), lambda: 3])
def test_what_makes_no_network_is_refused(network):
    with pytest.raises(InputError, match="without arguments"):
        DirectMethod({"n_features": 4, "n_actions": 3}, [0], network=network)


def test_a_log_is_enough_to_fit_and_self_train_and_the_network_is_kept():
    protocol = tiny_protocol()
    log = TinyDataModule([0]).train
    module = DirectMethod(log.shape, [0], protocol, network=Normed)
    fit(module, log)
    student = self_train(module, log, cvat_weights=[0.0, 1.0])
    assert type(student.network) is type(module.network)
    assert student(log.x).shape == (2, 48, 3, 2)


def test_a_loss_that_is_not_one_value_a_replicate_is_refused():
    class Mean(DirectMethod):
        def batch_loss(self, batch, rows):
            return super().batch_loss(batch, rows).mean()

    data = TinyDataModule([0, 1])
    with pytest.raises(InputError, match=r"batch_loss of Mean gave \(\): allowed is one value a replicate, \(2,\)"):
        fit(Mean(data.shape, data.seeds, tiny_protocol()), data)
    with pytest.raises(InputError, match=r"seeds=3: allowed is a list, such as \[3\] or range\(3\)"):
        DirectMethod(data.shape, 3)


def test_a_gpu_that_was_not_chosen_is_no_news(tiny, monkeypatch, recwarn):
    monkeypatch.setattr(CUDAAccelerator, "is_available", staticmethod(lambda: True))
    fit(DirectMethod(tiny.shape, tiny.seeds, tiny_protocol(stopping="fixed")), tiny, accelerator="cpu")
    assert [str(warning.message) for warning in recwarn] == []
