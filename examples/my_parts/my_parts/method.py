"""A method of self-training: pseudo-labeller, filter and consistency are a student's class."""

from __future__ import annotations

import torch

from cst_lightning import Feedback, SelfTraining
from cst_lightning.losses import Entries


class Confident(SelfTraining):
    """A filter: pseudo-labels between 0.2 and 0.8 do not count.

    The pseudo-labeller is the teacher's probabilities; without CVAT there is no consistency.
    """

    name = "confident"
    soft = True

    def entries(self, batch: Feedback, rows: slice | torch.Tensor) -> Entries:
        target, weight = super().entries(batch, rows)
        sure = ((target - 0.5).abs() > 0.3).any(-1)
        return Entries(target, weight * sure)
