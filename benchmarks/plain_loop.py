"""One model at a time in plain PyTorch: the same training as a person would write it, to measure speed against.

Nothing else uses it. It takes the entries of a log (see ``losses.Entries``) of one replicate, ``[N, K]``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cst_lightning.feedback import Shape
from cst_lightning.networks import SLOPE
from cst_lightning.protocols import Protocol


class PlainNetwork(nn.Module):
    """The outcome network (see ``OutcomeNetwork``) for two outcomes: contexts ``[B, d]`` to logits ``[B, K]``."""

    def __init__(self, shape: Shape, hidden: int, architecture: str, dropout: float) -> None:
        super().__init__()
        d, k = shape.n_features, shape.n_actions

        def block() -> list[nn.Module]:
            return [nn.Dropout(dropout), nn.LeakyReLU(SLOPE)]

        self.embed = nn.Sequential(nn.Linear(d, hidden), *block(), nn.Linear(hidden, hidden))
        if architecture == "written":
            self.head = nn.Sequential(*block(), nn.Linear(hidden, k))
        else:
            middle = [nn.Linear(hidden, hidden), *block(), nn.Linear(hidden, hidden), *block()]
            self.head = nn.Sequential(*middle, nn.Linear(hidden, k), nn.Dropout(dropout))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and embedding."""
        embedding = self.embed(x)
        return self.head(embedding), embedding


def train_epoch(
    model: PlainNetwork,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    target: Tensor,
    weight: Tensor,
    action: Tensor,
    protocol: Protocol,
    *,
    cvat_weight: float = 0.0,
    hsic_weight: float = 0.0,
) -> None:
    """One epoch of minibatches; the mean over entries as the loss."""
    for start in range(0, len(x), protocol.batch_size):
        rows = slice(start, start + protocol.batch_size)
        logits, embedding = model(x[rows])
        w = weight[rows]
        loss = (F.binary_cross_entropy_with_logits(logits, target[rows], reduction="none") * w).sum() / (w != 0).sum()
        if cvat_weight:
            counterfactual = torch.ones_like(w).scatter_(1, action[rows, None], 0)
            loss = loss + cvat_weight * _cvat(model, logits, x[rows], counterfactual, protocol)
        if hsic_weight:
            loss = loss + hsic_weight * _hsic(embedding, F.one_hot(action[rows], w.shape[1]).float())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _cvat(model: PlainNetwork, logits: Tensor, x: Tensor, counterfactual: Tensor, protocol: Protocol) -> Tensor:
    p = torch.sigmoid(logits).detach()
    direction = F.normalize(torch.rand_like(x) - 0.5)
    for _ in range(protocol.cvat_iterations):
        direction.requires_grad_()
        divergence = _kl(p, model(x + protocol.cvat_xi * direction)[0], counterfactual, protocol.cvat_smoothing)
        (gradient,) = torch.autograd.grad(divergence, direction)
        direction = F.normalize(gradient)
    return _kl(p, model(x + protocol.cvat_eps * direction)[0], counterfactual, protocol.cvat_smoothing)


def _kl(p: Tensor, logits: Tensor, counterfactual: Tensor, smoothing: float) -> Tensor:
    if smoothing:
        q = torch.sigmoid(logits)
        one = p * torch.log(p / (q + smoothing) + smoothing)
        zero = (1 - p) * torch.log((1 - p) / (1 - q + smoothing) + smoothing)
        value = one + zero
    else:
        entropy = -torch.special.xlogy(p, p) - torch.special.xlogy(1 - p, 1 - p)
        value = F.binary_cross_entropy_with_logits(logits, p, reduction="none") - entropy
    return (value * counterfactual).sum() / counterfactual.sum()


def _hsic(embedding: Tensor, action: Tensor) -> Tensor:
    n = len(embedding)
    centring = torch.eye(n) - 1 / n
    return torch.trace(embedding @ embedding.T @ centring @ action @ action.T @ centring) / n**2
