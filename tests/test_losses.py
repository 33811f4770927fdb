import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cst_lightning import losses
from cst_lightning.distributions import kl
from cst_lightning.feedback import Feedback


def seeded(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def four_index_hsic(k, l):  # noqa: E741  # the paper's letters
    n = len(k)
    first = sum(k[i, j] * l[i, j] for i in range(n) for j in range(n)) / n**2
    second = sum(k[i, j] * l[p, q] for i in range(n) for j in range(n) for p in range(n) for q in range(n)) / n**4
    third = sum(k[i, j] * l[i, p] for i in range(n) for j in range(n) for p in range(n)) / n**3
    return first + second - 2 * third


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_hsic_is_the_four_index_sum(kernel):
    x, y = seeded(1, 8, 3), seeded(1, 8, 2, seed=1)

    def gram(sample):
        return sample @ sample.T if kernel == "linear" else torch.exp(-(torch.cdist(sample, sample) ** 2) / 0.25)

    expected = four_index_hsic(gram(x[0]), gram(y[0]))
    assert losses.hsic(x, y, kernel=kernel, bandwidth=0.5).item() == pytest.approx(expected.item(), abs=1e-10)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 100), st.sampled_from(["linear", "rbf"]), st.booleans())
def test_hsic_is_never_negative(n, seed, kernel, normalised):
    value = losses.hsic(
        seeded(1, n, 3, seed=seed), seeded(1, n, 2, seed=seed + 1), kernel=kernel, bandwidth=None, normalised=normalised
    ).item()
    assert value >= -1e-8
    assert not normalised or value <= 1 + 1e-8


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("what", ["one action", "one row", "identical rows"])
def test_hsic_of_a_constant_is_zero_with_a_finite_gradient(what, kernel, normalised):
    n = 1 if what == "one row" else 6
    x = (torch.ones(1, n, 3, dtype=torch.float64) if what == "identical rows" else seeded(1, n, 3)).requires_grad_()
    y = torch.zeros(1, n, 2, dtype=torch.float64)
    y[..., 0] = 1
    value = losses.hsic(x, y, kernel=kernel, bandwidth=None, normalised=normalised)
    value.sum().backward()
    assert value.item() == pytest.approx(0, abs=1e-12)
    assert torch.isfinite(x.grad).all()


def test_normalised_hsic_of_a_sample_with_itself_is_one_at_any_scale():
    x = seeded(1, 10, 3)
    for scale in (1e-2, 1.0, 1e3):
        value = losses.hsic(scale * x, x, kernel="rbf", bandwidth=None, normalised=True)
        assert value.item() == pytest.approx(1, abs=1e-6)


def test_factual_nll_leaves_missing_outcomes_out():
    logits = seeded(1, 4, 3, 1)
    action, outcome = torch.tensor([[0, 1, 2, 0]]), torch.tensor([[1, -1, 0, 1]])
    kept = torch.tensor([0, 2, 3])
    full = losses.factual_nll(logits, action, outcome)
    assert torch.equal(full, losses.factual_nll(logits[:, kept], action[:, kept], outcome[:, kept]))
    assert losses.factual_nll(logits, action, torch.full((1, 4), -1)).item() == 0


def test_factual_nll_reads_the_action_taken():
    logits = torch.tensor([[[[5.0], [-5.0]]]])
    taken = [losses.factual_nll(logits, torch.tensor([[a]]), torch.tensor([[1]])).item() for a in (0, 1)]
    assert taken[0] < 0.01
    assert taken[1] > 4.9


def linear_forward(weight):
    return lambda x: (x @ weight)[..., None]


def test_cvat_finds_the_direction_that_moves_the_outcomes():
    # only the first feature matters, and only counterfactual action 1 counts
    weight = torch.zeros(1, 4, 2)
    weight[0, 0] = torch.tensor([9.0, 1.0])
    x = torch.zeros(1, 5, 4)
    forward = linear_forward(weight)
    arguments = {"xi": 1.0, "eps": 1.0, "iterations": 3, "reduction": "mean"}
    counterfactual = torch.tensor([0.0, 1.0]).expand(1, 5, 2)
    start = seeded(1, 5, 4, dtype=torch.float32)
    value = losses.cvat(forward, forward(x), x, start, counterfactual, **arguments)
    ideal = torch.zeros(1, 5, 4)
    ideal[..., 0] = 1
    expected = [kl(forward(x), forward(x + sign * ideal))[..., 1].mean().item() for sign in (1, -1)]
    assert value.item() == pytest.approx(expected[0], rel=1e-3)
    assert expected[0] == pytest.approx(expected[1])


def test_cvat_is_zero_without_counterfactual_actions():
    forward = linear_forward(torch.ones(1, 2, 1))
    x = torch.ones(1, 3, 2)
    value = losses.cvat(
        forward,
        forward(x),
        x,
        torch.ones(1, 3, 2),
        torch.zeros(1, 3, 1),
        xi=1.0,
        eps=1.0,
        iterations=2,
        reduction="mean",
    )
    assert value.item() == 0


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_cvat_gives_parameters_a_gradient_through_the_last_pass_alone(reduction):
    weight = seeded(1, 3, 2, dtype=torch.float32).requires_grad_()
    x = seeded(1, 4, 3, seed=1, dtype=torch.float32)
    calls = []

    def forward(at):
        calls.append(at.requires_grad)
        return linear_forward(weight)(at)

    value = losses.cvat(
        forward,
        forward(x),
        x,
        torch.ones(1, 4, 3),
        torch.ones(1, 4, 2),
        xi=10.0,
        eps=1.0,
        iterations=3,
        reduction=reduction,
    )
    value.sum().backward()
    assert calls == [False, True, True, True, False]
    assert torch.isfinite(weight.grad).all()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_cvat_and_its_gradient_by_brute_force(m, reduction):
    n, d, k, xi, eps = 4, 3, 2, 0.7, 0.9
    weight = seeded(d, k * (m - 1), seed=m).requires_grad_()
    x, start = seeded(1, n, d, seed=1), seeded(1, n, d, seed=2)
    counted = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)

    def forward(at, w=weight):
        return torch.tanh(at @ w).mul(3).unflatten(-1, (k, m - 1))

    value = losses.cvat(
        forward, forward(x), x, start, counted, xi=xi, eps=eps, iterations=2, reduction=reduction
    )  # fmt: skip
    value.sum().backward()

    def categorical(logits):
        return torch.distributions.Categorical(logits=torch.cat([torch.zeros_like(logits[..., :1]), logits], -1))

    @torch.no_grad()
    def divergence(step, w=weight):  # of the clean outcomes under the weights as they are, whatever w
        clean, moved = categorical(forward(x[0])), categorical(forward(x[0] + step, w))
        return (torch.distributions.kl_divergence(clean, moved) * counted[0]).sum(-1)

    direction = start[0] / start[0].norm(dim=-1, keepdim=True)
    for _ in range(2):
        h = 1e-5 * torch.eye(d, dtype=torch.float64)
        slopes = [divergence(xi * (direction + e)) - divergence(xi * (direction - e)) for e in h]
        gradient = torch.stack(slopes, -1)
        direction = gradient / gradient.norm(dim=-1, keepdim=True)
    size = 5 if reduction == "mean" else 1  # entries that count
    assert value.item() == pytest.approx(divergence(eps * direction).sum().item() / size, rel=1e-5)
    for place in range(weight.numel()):
        h = torch.zeros_like(weight).flatten()
        h[place] = 1e-5
        up, down = (divergence(eps * direction, weight + s * h.view_as(weight)).sum() for s in (1, -1))
        assert weight.grad.flatten()[place].item() == pytest.approx(
            (up - down).item() / 2e-5 / size, rel=1e-3, abs=1e-6
        )


def test_cvat_of_saturated_predictions_is_finite():
    weight = torch.full((1, 2, 2), 500.0, requires_grad=True)
    forward = linear_forward(weight)
    x = torch.ones(1, 3, 2)
    value = losses.cvat(
        forward,
        forward(x),
        x,
        torch.ones(1, 3, 2),
        torch.ones(1, 3, 2),
        xi=10.0,
        eps=1.0,
        iterations=3,
        reduction="mean",
    )
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(weight.grad).all()


def test_entry_nll_counts_only_what_counts():
    logits, target = seeded(1, 2, 2, 1), torch.tensor([[[[1.0], [0.0]], [[0.0], [1.0]]]], dtype=torch.float64)
    weight = torch.tensor([[[2.0, 0.0], [1.0, 1.0]]], dtype=torch.float64)
    entries = losses.Entries(target, weight)
    total = losses.entry_nll(logits, entries, "sum")
    assert torch.allclose(losses.entry_nll(logits, entries, "mean"), total / 3)  # by number, not by weight
    changed = target.clone()
    changed[0, 0, 1] = 1 - changed[0, 0, 1]
    assert torch.equal(losses.entry_nll(logits, losses.Entries(changed, weight), "sum"), total)


def test_the_entries_of_observed_outcomes_give_the_factual_nll():
    x, action, outcome = torch.zeros(1, 4, 2), torch.tensor([[0, 2, 1, 1]]), torch.tensor([[1, 0, -1, 2]])
    log = Feedback(x, action, outcome, n_actions=3, n_outcomes=3)
    logits, weight = seeded(1, 4, 3, 2), torch.tensor([[1.0, 2.0, 3.0, 0.5]], dtype=torch.float64)
    for rows in (None, weight):
        value = losses.entry_nll(logits, losses.observed_entries(log, rows), "mean")
        assert torch.allclose(value, losses.factual_nll(logits, action, outcome, rows))


@pytest.mark.parametrize(("n_replicates", "n_rows"), [(1, 4096), (25, 2048)])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_hsic_of_thousands_of_rows_stays_under_a_gigabyte(kernel, n_replicates, n_rows):
    code = (
        "import resource, torch; from cst_lightning.losses import hsic; torch.set_num_threads(1); "
        f"x = torch.randn({n_replicates}, {n_rows}, 128, requires_grad=True); "
        f"y = torch.eye(5)[torch.randint(5, ({n_replicates}, {n_rows}))]; "
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        f"hsic(x, y, kernel={kernel!r}, bandwidth=None, normalised=True).sum().backward(); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    grown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 1e6  # KiB


@pytest.mark.parametrize("normalised", [False, True])
def test_hsic_of_one_replicate_at_a_time_is_that_of_all(normalised, monkeypatch):
    x, y = seeded(5, 16, 3).requires_grad_(), seeded(5, 16, 2, seed=1).requires_grad_()
    upstream = seeded(5, seed=2)
    values, gradients = [], []
    for most in (5 * 16**2, 1):
        monkeypatch.setattr(losses, "_ENTRIES_AT_ONCE", most)
        value = losses.hsic(x, y, kernel="rbf", bandwidth=None, normalised=normalised)
        values.append(value)
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(value @ upstream, (x, y))]))
    assert torch.allclose(*values, rtol=1e-12)
    assert torch.allclose(*gradients, rtol=1e-10)
    with torch.no_grad():
        assert torch.allclose(losses.hsic(x, y, kernel="rbf", bandwidth=None, normalised=normalised), values[0])


def test_smoothed_kl_is_the_released_codes():
    p, q = seeded(50, 1), seeded(50, 1, seed=1)
    a, b, s = torch.sigmoid(p[:, 0]), torch.sigmoid(q[:, 0]), 1e-7
    expected = (1 - a) * torch.log((1 - a) / (1 - b + s) + s) + a * torch.log(a / (b + s) + s)
    assert torch.allclose(kl(p, q, s), expected)
    assert torch.allclose(kl(p, q, s), kl(p, q), atol=1e-4)
    saturated = torch.full((1, 1), -60.0, requires_grad=True)
    kl(torch.full((1, 1), 60.0), saturated, s).sum().backward()
    assert saturated.grad.abs().max().item() < 1e-12
