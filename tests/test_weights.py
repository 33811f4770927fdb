"""Rows that count more than others."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.grid import backbones
from cst_lightning import DirectMethod, Feedback, InputError, fit, self_train
from cst_lightning.losses import observed_nll
from cst_lightning.selection import RULES, get_rule, scores
from tests.conftest import close, make_data, state_of, tiny_protocol

WEIGHTED = sorted(name for name in backbones().found if name != "hsic")


def log(n=40, weight=None):
    g = torch.Generator().manual_seed(3)
    x, action = torch.randn(n, 4, generator=g), torch.randint(3, (n,), generator=g)
    action[:3] = torch.arange(3)
    return Feedback(x, action, torch.randint(2, (n,), generator=g), 3, weight=weight)


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_row_of_weight_zero_teaches_nothing(name):
    weight = torch.ones(40)
    weight[20:] = 0
    part = backbones().get(name)
    modules = []
    for flip in (False, True):
        feedback = log(weight=weight)
        if flip:
            feedback.outcome[0, 20:] = 1 - feedback.outcome[0, 20:]
        protocol = tiny_protocol("released", propensity_floor=0.01)
        modules.append(part(feedback.shape, [0], protocol, part.default_grid(protocol)))
        fit(modules[-1], feedback)
    assert torch.equal(*(module.logits(feedback.x) for module in modules))


@pytest.mark.parametrize("cvat_weight", [0.0, 1.0])
def test_compiled_code_and_autograd_weigh_alike(cvat_weight):
    feedback = log(weight=torch.linspace(0, 2, 40))
    protocol = tiny_protocol("written")

    class ByAutograd(DirectMethod):
        compiled = False

    backbone, plain = (part(feedback.shape, [0, 1], protocol) for part in (DirectMethod, ByAutograd))
    for module in (backbone, plain):
        fit(module, feedback)
    assert (backbone.engine, plain.engine) == ("compiled", "autograd")
    assert close(state_of(backbone, 1), state_of(plain, 1))

    def by_autograd(module, data, max_epochs):
        module.compiled = False
        fit(module, data, max_epochs=max_epochs)

    students = [
        self_train(backbone, feedback, cvat_weights=[cvat_weight], rounds=1, fitter=how) for how in (fit, by_autograd)
    ]
    assert [student.engine for student in students] == ["compiled", "autograd"]
    assert close(state_of(students[0], 0), state_of(students[1], 0))


@given(st.floats(1e-3, 1e3))
def test_the_scale_of_the_weights_does_not_matter(scale):
    weight = torch.rand(40, generator=torch.Generator().manual_seed(0)) + 0.01
    assert torch.allclose(log(weight=scale * weight).counted, log(weight=weight).counted, rtol=1e-5)


def test_the_nll_that_stopping_looks_at_is_that_of_repeated_rows():
    counts = torch.arange(40) % 4
    feedback, rows = log(weight=counts), torch.arange(40).repeat_interleave(counts)[None]
    logits = torch.randn(1, 40, 3, 1, generator=torch.Generator().manual_seed(1))
    repeated = observed_nll(logits[:, rows[0]], log().rows(rows))
    assert observed_nll(logits, feedback).item() == pytest.approx(repeated.item(), rel=1e-5)


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if not rule.oracle))
def test_rules_look_at_weights(name):
    data = make_data([0], tiny_protocol("matched"), n=200)
    held_out = data.validation
    weighted = Feedback(
        held_out.x, held_out.action, held_out.outcome, 3, weight=torch.linspace(0, 2, held_out.n_rows)[None]
    )
    module = DirectMethod(data.shape, [0], tiny_protocol("matched"), [0.0])
    plain, other = (scores(get_rule(name), module, data.train, rows, None) for rows in (held_out, weighted))
    assert (plain - other).abs().item() > 1e-5


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([-1.0, *[1.0] * 39], "weight is -1.0 in row 0"),
        ([float("nan"), *[1.0] * 39], "weight is nan in row 0"),
        ([0.0] * 40, "weight is zero in every row"),
        ([1.0], r"weight has shape \(1, 1\): x asks for \(1, 40\)"),
    ],
)
def test_a_weight_that_is_none_is_an_error(weight, message):
    with pytest.raises(InputError, match=message):
        log(weight=torch.tensor(weight))


def test_a_loss_that_takes_no_weights_says_so():
    feedback = log(weight=torch.ones(40))
    module = backbones().get("hsic")(feedback.shape, [0], tiny_protocol())
    with pytest.raises(InputError, match="HSIC takes none"):
        fit(module, feedback)
