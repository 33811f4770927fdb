"""A backbone: the direct method, with more trust in actions that were rarely logged."""

from __future__ import annotations

import torch

from cst_lightning import Feedback, StackedModule
from cst_lightning.losses import Entries, observed_entries
from cst_lightning.minibatches import take_rows


class ClippedDM(StackedModule):
    """Each observed row counts by one over the share of its action in the log, three times at most."""

    name = "clipped_dm"
    protocol_fields = ("hidden", "learning_rate", "max_epochs")

    def prepare(self, feedback: Feedback) -> None:
        share = feedback.taken.float().mean(1)
        self.trust = (1 / share.gather(1, feedback.action) / feedback.n_actions).clamp(max=3)

    def entries(self, batch: Feedback, rows: slice | torch.Tensor) -> Entries:
        return observed_entries(batch, take_rows(self.trust, rows))
