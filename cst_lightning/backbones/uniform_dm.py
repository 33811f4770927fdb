"""The uniform direct method."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from cst_lightning.engines import overrides
from cst_lightning.feedback import Feedback
from cst_lightning.losses import Entries, observed_entries
from cst_lightning.minibatches import take_rows
from cst_lightning.propensity import Overlap, inverse_propensity_weights, logged_or_estimated
from cst_lightning.protocols import Protocol
from cst_lightning.stacked import StackedModule


class UniformDM(StackedModule):
    """UDM: observed likelihood weighted by ``1 / pi(a | x)``, as if actions had been taken uniformly.

    After Wang et al. (2019), as the paper's appendix adapts it. Propensities are the log's own where
    it has them, else estimated by logistic regression; ``overlap`` says how they were clipped (of a
    log in chunks, those of the last one).
    """

    name = "udm"
    protocol_fields = ("hidden_udm", "learning_rate", "max_epochs_udm", "propensity_model", "propensity_floor")
    overlap: Overlap | None = None

    @override
    @classmethod
    def hidden_units(cls, protocol: Protocol) -> int:
        return protocol.hidden_udm

    @override
    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        return protocol.max_epochs_udm

    @override
    def prepare(self, feedback: Feedback) -> None:
        propensity = logged_or_estimated(feedback, self.protocol.propensity_model)
        self._weight, self.overlap = inverse_propensity_weights(feedback, propensity, self.protocol.propensity_floor)

    @override
    def prepares_by_row(self, log: Feedback) -> bool:
        return log.propensity is not None and not overrides(self, UniformDM, ("prepare",))

    @override
    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        return observed_entries(batch, take_rows(self._weight, rows))
