import pytest
import torch
from torch import nn

from cst_lightning import InputError, Shape
from cst_lightning.networks import LiftedNetwork, OutcomeNetwork
from cst_lightning.streams import Bits

SHAPE = Shape(5, 3, 4)


def make(kind, seeds, n_variants=1, dropout=0.5):
    if kind == "lifted":
        return LiftedNetwork(lambda: Plain(dropout), SHAPE, seeds, n_variants)
    return OutcomeNetwork(SHAPE, seeds, n_variants, hidden=6, dropout=dropout, architecture=kind)


class Plain(nn.Module):
    """What a user may bring: knows nothing of replicates."""

    def __init__(self, dropout=0.5, norm=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7) if norm else nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(7, 9)

    def forward(self, x):
        z = self.body(x)
        return self.head(z).unflatten(-1, (3, 3)), z


KINDS = ("written", "released", "lifted")


@pytest.mark.parametrize("kind", KINDS)
def test_each_replicate_is_its_own_network(kind):
    x = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    both = make(kind, [3, 8], n_variants=2)
    out = both(x)
    assert out.logits.shape == (4, 4, 3, 3)
    assert out.embedding.shape[:2] == (4, 4)
    for place, seed in enumerate([3, 8]):
        alone = make(kind, [seed])(x[place : place + 1])
        for variant in range(2):
            assert torch.allclose(out.logits[2 * place + variant], alone.logits[0], atol=1e-6)
    assert torch.allclose(both(x.repeat_interleave(2, 0)).logits, out.logits, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_belongs_to_the_seed_and_drops_its_share(kind):
    x = torch.randn(1, 64, 5, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1)
    both, alone = make(kind, [3, 8]), make(kind, [8])
    drawn = Bits([3, 8], "dropout").take(both.n_bits(64))
    single = Bits([8], "dropout").take(alone.n_bits(64))
    out = both(x, drawn).logits
    assert torch.allclose(out[1], alone(x[:1], single).logits[0], atol=1e-6)
    assert not torch.allclose(out, both(x).logits)


def test_lifted_dropout_zeroes_the_right_share_with_the_right_scale():
    network = LiftedNetwork(Only, Shape(200, 200), [0])
    out = network(torch.ones(1, 50, 200), Bits([0], "dropout").take(4)).logits
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert (out == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)


class Only(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.ones(1))
        self.drop = nn.Dropout(0.25)

    def forward(self, x):
        return self.drop(x) * self.unused


def test_frozen_parameters_of_a_lifted_network_stay_frozen():
    class Frozen(Plain):
        def __init__(self):
            super().__init__()
            self.body.requires_grad_(False)

    learned = {name: p.requires_grad for name, p in LiftedNetwork(Frozen, SHAPE, [0]).named_parameters()}
    assert learned == {name: "head" in name for name in learned}


def test_layers_follow_the_paper_and_its_code():
    written, released = make("written", [0]), make("released", [0])
    assert written.steps == ("linear", "drop", "act", "linear", "embedding", "drop", "act", "linear")
    assert released.steps[4:] == ("embedding", "linear", "drop", "act", "linear", "drop", "act", "linear", "drop")
    assert len(OutcomeNetwork(SHAPE, [0], hidden=4, depth=6).linear) == 6


def test_initial_weights_are_those_of_torch_linear():
    weight = OutcomeNetwork(Shape(400, 2), [0], hidden=300).linear[0].weight
    reference = nn.Linear(400, 300).weight
    assert weight.abs().max().item() <= 1 / 20
    assert weight.std().item() == pytest.approx(reference.std().item(), rel=0.02)


@pytest.mark.parametrize("changes", [{"hidden": 0}, {"depth": 2}, {"dropout": 1.0}, {"dropout": -0.1}])
def test_impossible_networks_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        OutcomeNetwork(SHAPE, [0], **changes)


def test_lifted_network_of_the_wrong_shape_is_refused():
    with pytest.raises(InputError, match=r"Linear maps \[2, 5\] to \(2, 4\): allowed is \(2, 3, 3\)"):
        LiftedNetwork(lambda: nn.Linear(5, 4), SHAPE, [0])
