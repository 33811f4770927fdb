"""A method of self-training: pseudo-labeller, filter and consistency are a student's class, which a backbone names."""

from __future__ import annotations

import torch

from cst_lightning import DirectMethod, Feedback, SelfTraining
from cst_lightning.losses import Entries


class Confident(SelfTraining):
    """A filter: pseudo-labels between 0.2 and 0.8 do not count.

    The pseudo-labeller is the protocol's (``labels``: ``hard`` or ``soft``), consistency is CVAT by the grid's weight.
    """

    name = "confident"

    def entries(self, batch: Feedback, rows: slice | torch.Tensor) -> Entries:
        target, weight = super().entries(batch, rows)
        sure = ((target - 0.5).abs() > 0.3).any(-1)
        return Entries(target, weight * sure)


class ConfidentDM(DirectMethod):
    """DM whose students are ``Confident``: ``--backbones my_parts.method.ConfidentDM --override.labels soft``."""

    name = "dm_confident"
    student_class = Confident
