"""A metric: one value a replicate, over all rows and actions."""

from __future__ import annotations

import torch

from cst_lightning.distributions import probs
from cst_lightning.metrics import NLL


class AbsoluteError(NLL):
    """Mean distance of the predicted distribution to the outcome, from 0 to 1."""

    def update(self, logits: torch.Tensor, outcomes: torch.Tensor) -> None:
        truth = torch.nn.functional.one_hot(outcomes, logits.shape[-1] + 1)
        self._add((probs(logits) - truth).abs().sum(-1) / 2)
