"""The direct method at HSIC's learning rate and epochs: what HSIC's setting gives without HSIC."""

from __future__ import annotations

from typing_extensions import override

from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.protocols import Protocol


class SlowDM(DirectMethod):
    """DM with ``learning_rate_hsic`` and ``max_epochs_hsic``: the control that shows what HSIC itself adds."""

    name = "dm_slow"
    protocol_fields = ("hidden", "learning_rate_hsic", "max_epochs_hsic")

    @override
    @classmethod
    def rate(cls, protocol: Protocol) -> float:
        return protocol.learning_rate_hsic

    @override
    @classmethod
    def epochs(cls, protocol: Protocol) -> int:
        return protocol.max_epochs_hsic
