"""The direct method."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from cst_lightning.feedback import Feedback
from cst_lightning.losses import Entries, observed_entries
from cst_lightning.stacked import StackedModule


class DirectMethod(StackedModule):
    """DM: maximum likelihood on the observed outcomes alone (``L_src`` of Equation 2)."""

    name = "dm"
    protocol_fields = ("hidden", "learning_rate", "max_epochs")

    @override
    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        return observed_entries(batch)
