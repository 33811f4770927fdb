import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cst_lightning import distributions as dist

logit = st.floats(-30, 30)


def two_logits(m):
    return st.tuples(*[st.lists(logit, min_size=m - 1, max_size=m - 1)] * 2)


@settings(deadline=None)
@given(st.sampled_from([2, 3, 5]).flatmap(two_logits))
def test_agrees_with_torch(pair):
    p, q = (torch.tensor(one, dtype=torch.float64) for one in pair)
    full = [torch.distributions.Categorical(logits=torch.cat([torch.zeros(1), one])) for one in (p, q)]
    assert torch.allclose(dist.probs(p), full[0].probs)
    assert torch.allclose(dist.probs(p).sum(), torch.ones((), dtype=torch.float64))
    assert torch.allclose(dist.positive_probs(p), full[0].probs[1:])
    assert torch.allclose(dist.entropy(p), full[0].entropy(), atol=1e-8)
    assert torch.allclose(dist.kl(p, q), torch.distributions.kl_divergence(*full), atol=1e-8)
    for outcome in range(len(p) + 1):
        assert torch.allclose(dist.nll(p, torch.tensor(outcome)), -full[0].log_prob(torch.tensor(outcome)), atol=1e-8)


@pytest.mark.parametrize("n_logits", [1, 2])
@pytest.mark.parametrize("size", [40.0, 1000.0])
def test_saturated_predictions_stay_finite(n_logits, size):
    ones = torch.full((4, n_logits), size)
    p = ones * torch.tensor([1.0, -1, 1, -1])[:, None]
    q = (ones * torch.tensor([1.0, -1, -1, 1])[:, None]).requires_grad_()
    value = dist.kl(p, q)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(q.grad).all()
    assert (value >= 0).all()
    # p is sure of outcomes 1.., q of outcome 0: the divergence is the gap of the logits, less p's entropy
    assert value[2].item() == pytest.approx(size, abs=1)
    assert q.grad[2].sum().item() == pytest.approx(-1.0)


@settings(deadline=None)
@given(logit, logit)
@example(0.0, 1.0)
def test_kl_treats_both_outcomes_alike(p, q):
    value, mirrored = (dist.kl(torch.tensor([s * p]), torch.tensor([s * q])).item() for s in (1, -1))
    assert value == mirrored
    assert value >= -1e-6


def test_ties_go_to_the_lower_outcome():
    assert dist.mode(torch.zeros(1, 1)).item() == 0
    assert dist.mode(torch.tensor([0.0, 0.0])).item() == 0
    assert dist.mode(torch.tensor([0.5, 0.1])).item() == 1
