"""What the released code does and ``released`` does not: a forward pass for each part of the loss (``deviations``)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from cst_lightning.feedback import Feedback
from cst_lightning.losses import Entries, entry_nll
from cst_lightning.minibatches import take_rows
from cst_lightning.self_training import SelfTraining


class SeparatePasses(SelfTraining):
    """PL with dropout drawn twice a step: once for the factual outcomes, once for the imputed ones."""

    name = "pl_separate_passes"

    @override
    def batch_loss(self, batch: Feedback, rows: slice | Tensor) -> Tensor:
        target, weight = self.entries(batch, rows)
        imputed = (take_rows(self._counterfactual, rows) > 0).repeat_interleave(len(weight) // len(batch.x), 0)
        losses = []
        for part in (weight * ~imputed, weight * imputed):
            logits = self.network(batch.x, self.bits("dropout", batch.n_rows)).logits
            losses.append(entry_nll(logits, Entries(self.for_replicates(target), self.for_replicates(part)), "sum"))
        loss = losses[0] + losses[1]
        if self.reduction == "sum":
            return loss
        return loss / self.for_replicates((weight != 0).sum((1, 2)).clamp(min=1))
