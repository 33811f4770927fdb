"""The HSIC backbone."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback
from cst_lightning.losses import factual_nll, hsic
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule


class HSIC(StackedModule):
    """Observed likelihood plus ``lambda * HSIC(embedding, action)``, which keeps the two independent.

    After Lopez et al. (2020), as the paper's appendix adapts it; the grid holds ``lambda``.
    """

    name = "hsic"
    protocol_fields = (
        "hidden",
        "learning_rate_hsic",
        "max_epochs_hsic",
        "hsic_weights",
        "hsic_kernel",
        "hsic_bandwidth",
        "hsic_normalised",
    )

    @override
    @classmethod
    def rate(cls, protocol: Protocol) -> float:
        return protocol.learning_rate_hsic

    @override
    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        return protocol.max_epochs_hsic

    @override
    @classmethod
    def default_grid(cls, protocol: Protocol) -> tuple[float, ...]:
        return protocol.hsic_weights

    @override
    def batch_loss(self, batch: Feedback, rows: slice | Tensor) -> Tensor:
        out = self.network(batch.x, self.bits("dropout", batch.n_rows))
        if out.embedding is None:
            raise InputError("backbone hsic needs a network that returns (logits, embedding)")
        protocol = self.protocol
        actions = self.repeat(F.one_hot(batch.action, batch.n_actions).to(out.embedding.dtype))
        dependence = hsic(
            out.embedding,
            actions,
            kernel=protocol.hsic_kernel,
            bandwidth=protocol.hsic_bandwidth,
            normalised=protocol.hsic_normalised,
        )
        factual = factual_nll(out.logits, self.repeat(batch.action), self.repeat(batch.outcome))
        return factual + self.hyperparameter * dependence
