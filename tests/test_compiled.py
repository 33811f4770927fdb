"""The compiled code against autograd: the same steps from the same random bits."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cst_lightning import DirectMethod, Feedback, InputError, SelfTraining, UniformDM, fit, kernels
from cst_lightning import compiled as engine
from tests.conftest import TinyDataModule, tiny_protocol


def both(make, log, epochs=1):
    """The module trained by compiled code, and by autograd."""
    trained = []
    for compiled in (True, False):
        module = make()
        module.compiled = compiled
        fit(module, log, max_epochs=epochs)
        assert module.engine == ("compiled" if compiled else "autograd")
        trained.append(module)
    return trained


def assert_same(one, other, tolerance):
    assert torch.allclose(one.training_loss, other.training_loss, rtol=1e-4, atol=1e-6)
    for name, value in one.replicate_state().items():
        assert torch.allclose(value, other.replicate_state()[name], rtol=tolerance, atol=tolerance), name


def student_of(data, protocol, weights):
    teacher = DirectMethod(data.shape, data.seeds, protocol)

    def make():
        student = SelfTraining(data.shape, data.seeds, protocol, weights, stage=1)
        student.teach(teacher)
        return student

    return make


# a perturbation that moves a unit across the kink of its activation makes any two roundings part, so one step
# a comparison; the branches differ by width: in the hidden layer's space (2 h <= d), with BLAS (from 24), or neither
@settings(max_examples=40)
@given(
    st.sampled_from(["written", "released", "matched"]),
    st.sampled_from([(4, 6, 3), (12, 6, 3), (60, 26, 3), (30, 26, 3), (4, 26, 40), (1, 1, 1)]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0.0, 1e-7]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from(["sum", "mean"]),
    st.integers(0, 99),
)
def test_a_step_of_self_training_is_that_of_autograd(name, sizes, dropout, smoothing, iterations, reduction, seed):
    d, hidden, k = sizes
    data = TinyDataModule([seed, 100], n=48, d=d, k=k)
    protocol = tiny_protocol(
        name,
        hidden=hidden,
        hidden_cst=hidden,
        dropout=dropout,
        cvat_smoothing=smoothing,
        cvat_iterations=iterations,
        reduction=reduction,
        batch_size=48,
        stopping="fixed",
        holdout=0.0,
        cvat_eps=0.5,
    )
    assert_same(*both(student_of(data, protocol, [0.0, 0.1, 2.0]), data.train), 1e-4)


def test_labels_of_a_replicate_go_with_weights_of_a_seed():
    data = TinyDataModule([0, 1])
    protocol = tiny_protocol(batch_size=48)
    teacher = DirectMethod(data.shape, data.seeds, protocol, [0.0, 0.0])
    teacher.network.linear[-1].bias.data += torch.randn(4, 3, 1, generator=torch.Generator().manual_seed(0))

    def make():
        student = SelfTraining(data.shape, data.seeds, protocol, [0.0, 0.5], stage=2)
        student.teach(teacher)
        return student

    assert_same(*both(make, data.train), 1e-4)


def test_entries_of_another_shape_are_refused():
    class Short(DirectMethod):
        def entries(self, batch, rows):
            target, weight = super().entries(batch, rows)
            return target[:, :-1], weight

    data = TinyDataModule([0])
    with pytest.raises(InputError, match=r"target has shape \(1, 47, 3, 1\): allowed is \[1, 48, 3, 1\]"):
        fit(Short(data.shape, [0], tiny_protocol()), data)


@pytest.mark.parametrize("part", [DirectMethod, UniformDM])
@pytest.mark.parametrize("name", ["written", "released", "matched"])
def test_epochs_of_a_backbone_are_those_of_autograd(part, name):
    data = TinyDataModule([0, 3], n=50, d=5)  # the last minibatch is smaller, and bits come in odd numbers
    log = data.train
    outcome = log.outcome.clone()
    outcome[:, 7:20] = -1
    log = Feedback(log.x, log.action, outcome, log.n_actions)
    protocol = tiny_protocol(name, stopping="fixed", holdout=0.0, batch_size=15)
    assert_same(*both(lambda: part(data.shape, data.seeds, protocol), log, epochs=3), 1e-4)


def test_minibatches_of_self_training_are_those_of_autograd():
    data = TinyDataModule([0, 1], n=50, d=5)
    # small steps: no unit crosses the kink of its activation in one engine alone
    protocol = tiny_protocol("released", batch_size=15, learning_rate_cst=1e-5, keep_cst="last")
    assert_same(*both(student_of(data, protocol, [0.0, 1.0]), data.train), 1e-5)


def test_a_long_log_goes_through_in_several_calls(monkeypatch):
    data = TinyDataModule([0, 1], n=50)
    make = student_of(data, tiny_protocol("released"), [0.0, 1.0])
    whole = make()
    fit(whole, data.train, max_epochs=2)
    monkeypatch.setattr("cst_lightning.minibatches._RUN_BYTES", 1)
    parts = make()
    fit(parts, data.train, max_epochs=2)
    assert torch.equal(parts.training_loss, whole.training_loss)
    assert_same(whole, parts, 0)


def test_a_replicate_that_is_not_active_stays_as_it_is():
    data = TinyDataModule([0, 1])
    module = DirectMethod(data.shape, data.seeds, tiny_protocol())
    before = [parameter.detach().clone() for parameter in module.network.parameters()]
    optimizer = module.configure_optimizers()
    losses = train_once(module, optimizer, data.train, torch.tensor([False, True]))
    assert losses[0] == 0
    for old, new in zip(before, module.network.parameters(), strict=True):
        assert torch.equal(old[0], new[0])
        assert not torch.equal(old[1], new[1])


def test_a_replicate_that_is_not_finite_is_told_and_harms_no_other():
    data = TinyDataModule([0, 1, 2])
    losses = []
    for spoilt in (False, True):
        module = DirectMethod(data.shape, data.seeds, tiny_protocol())
        if spoilt:
            module.network.linear[0].weight.data[1, 0, 0] = torch.nan
        losses.append(train_once(module, module.configure_optimizers(), data.train, torch.ones(3, dtype=torch.bool)))
    assert losses[1][1].isnan()
    assert torch.equal(losses[0][[0, 2]], losses[1][[0, 2]])


def train_once(module, optimizer, log, active):
    entries = module.entries(log, slice(None))
    bits = torch.zeros(len(log.x), module.network.n_bits(log.n_rows), dtype=torch.int16)
    return engine.train(module.network, optimizer, log.x, entries, bits, [0, 16, log.n_rows], active, mean=True)


class OwnLoss(DirectMethod):
    def batch_loss(self, batch, rows):
        return super().batch_loss(batch, rows) * 2


class OwnEntryLoss(DirectMethod):
    def entry_loss(self, logits, batch, rows):
        return super().entry_loss(logits, batch, rows) * 2


class OwnGradients(DirectMethod):
    def on_before_optimizer_step(self, optimizer):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)


class OwnOptimizer(DirectMethod):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class LastLayerAlone(DirectMethod):
    def configure_optimizers(self):
        return torch.optim.Adam(self.network.linear[-1].parameters(), lr=0.1)


@pytest.mark.parametrize("part", [OwnLoss, OwnEntryLoss, OwnGradients, OwnOptimizer, LastLayerAlone])
def test_what_a_class_overrides_is_never_passed_over(part):
    data = TinyDataModule([0])
    module = part(data.shape, [0], tiny_protocol())
    first = module.network.linear[0].weight.detach().clone()
    fit(module, data, max_epochs=1)
    assert module.engine == "autograd"
    assert torch.equal(first, module.network.linear[0].weight) == (part is LastLayerAlone)


class Counting(pl.Callback):
    def __init__(self):
        self.calls = []

    def on_after_backward(self, trainer, pl_module):
        self.calls.append("after")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.calls.append("step")
        assert all(parameter.grad is not None for parameter in pl_module.parameters())


class CountingDM(DirectMethod):
    def on_before_optimizer_step(self, optimizer):
        self.calls = getattr(self, "calls", 0) + 1


def test_who_watches_gradients_sees_those_of_every_minibatch():
    data = TinyDataModule([0])
    protocol = tiny_protocol(batch_size=16)
    n_batches = -(-data.train.n_rows // 16)
    assert n_batches > 1
    calls, counting, by_lambda = [], Counting(), []
    also = pl.callbacks.LambdaCallback(on_after_backward=partial(lambda calls, *_: calls.append(1), by_lambda))
    module = DirectMethod(data.shape, [0], protocol)
    hook = module.network.linear[0].weight.register_hook(lambda gradient: calls.append(1))
    fit(module, data, max_epochs=2, callbacks=[counting, also])
    assert module.engine == "autograd"
    assert len(calls) == len(by_lambda) == 2 * n_batches
    assert counting.calls == ["after", "step"] * 2 * n_batches
    hook.remove()
    fit(module, data, max_epochs=1)
    assert module.engine == "compiled"
    for callback in (also, counting):
        fit(module, data, max_epochs=1, callbacks=[callback])
        assert module.engine == "autograd"
    own = CountingDM(data.shape, [0], protocol)
    fit(own, data, max_epochs=2)
    assert own.calls == 2 * n_batches


def test_what_the_compiled_code_does_not_know_is_left_to_autograd():
    protocol = tiny_protocol()
    two, three = TinyDataModule([0]), TinyDataModule([0], m=3)
    hooked = DirectMethod(two.shape, [0], protocol)
    hooked.network.register_forward_hook(lambda *_: None)
    own_network = DirectMethod(two.shape, [0], protocol, network=lambda: torch.nn.Linear(4, 3))
    for module, log in [(hooked, two), (own_network, two), (DirectMethod(three.shape, [0], protocol), three)]:
        before = [parameter.detach().clone() for parameter in module.network.parameters()]
        fit(module, log, max_epochs=1)
        assert module.engine == "autograd"
        assert not any(torch.equal(a, b) for a, b in zip(before, module.network.parameters(), strict=True))


def test_a_first_run_and_a_later_one_give_the_same_bits(tmp_path):
    """Code compiled just now and the same code from its cache must round alike."""
    code = (
        "import hashlib\n"
        "from cst_lightning import DirectMethod, SelfTraining, fit\n"
        "from tests.conftest import TinyDataModule, tiny_protocol\n"
        "data, protocol = TinyDataModule([0, 1], n=160, d=16), tiny_protocol('released', hidden=26)\n"
        "teacher = DirectMethod(data.shape, data.seeds, protocol)\n"
        "fit(teacher, data)\n"
        "student = SelfTraining(data.shape, data.seeds, protocol, [0.0, 1.0], stage=1)\n"
        "student.teach(teacher)\n"
        "fit(student, data)\n"
        "values = [*teacher.network.parameters(), *student.network.parameters(), student.training_loss]\n"
        "print(hashlib.sha256(b''.join(v.detach().numpy().tobytes() for v in values)).hexdigest())\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    arguments = {"cwd": Path(__file__).parents[1], "env": environment, "text": True, "check": True}
    first, later = (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, **arguments).stdout for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbi"))
    assert first == later


def test_elementary_functions_are_right_to_single_precision():
    below = np.linspace(-86, 0, 5001, dtype=np.float32)
    assert np.allclose([kernels._exp(x) for x in below], np.exp(below.astype(float)), rtol=5e-7, atol=0)
    share = np.linspace(0, 1, 5001, dtype=np.float32)
    assert np.allclose([kernels._log1p(x) for x in share], np.log1p(share.astype(float)), rtol=3e-7, atol=1e-8)
    wide = np.exp(np.linspace(-17, 17, 5001)).astype(np.float32)
    assert np.allclose([kernels._log(x) for x in wide], np.log(wide.astype(float)), rtol=1e-6, atol=2e-7)
    assert np.isnan(kernels._exp(np.float32(np.nan)))


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_epoch_takes_denormals_for_nothing_and_leaves_the_thread_as_it_was(compiled, flushed):
    data = TinyDataModule([0])
    module = DirectMethod(data.shape, [0], tiny_protocol("written"))
    module.compiled = compiled
    tiny, within = torch.full((1,), 1e-40), []
    module.new_epoch = lambda *_: within.append((tiny * 1).item())
    torch.set_flush_denormal(flushed)
    try:
        fit(module, data, max_epochs=1)
        assert ((tiny * 1).item() == 0) == flushed
    finally:
        torch.set_flush_denormal(False)
    assert within == [0]
