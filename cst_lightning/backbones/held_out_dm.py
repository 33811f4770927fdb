"""Direct methods that keep a fifth of the observed rows to themselves, whatever the protocol."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from typing_extensions import override

from cst_lightning.feedback import Feedback
from cst_lightning.losses import Entries, observed_entries, observed_nll
from cst_lightning.minibatches import take_rows
from cst_lightning.protocols import MATCHED
from cst_lightning.stacked import StackedModule
from cst_lightning.stopping import ReplicateStopping
from cst_lightning.streams import generator

_SHARE = 0.2
_EXACT = {"xatol": 1e-9}


class _HeldOut(StackedModule):
    """Trains on four fifths of the log's rows; ``held_out``, bool ``[S, N]``, are the others."""

    protocol_fields = ("hidden", "learning_rate", "max_epochs", "holdout")
    held_out: Tensor

    @override
    def prepare(self, feedback: Feedback) -> None:
        n_held_out = round(_SHARE * feedback.n_rows)
        orders = [torch.randperm(feedback.n_rows, generator=generator(seed, "held_out")) for seed in self.seeds]
        held_out = torch.zeros(len(self.seeds), feedback.n_rows, dtype=torch.bool)
        self.held_out = held_out.scatter_(1, torch.stack(orders)[:, :n_held_out], True).to(feedback.x.device)

    @override
    def entries(self, batch: Feedback, rows: slice | Tensor) -> Entries:
        return observed_entries(batch, (~take_rows(self.held_out, rows)).to(batch.x.dtype))

    def held_out_nll(self, logits: Tensor, feedback: Feedback) -> Tensor:
        """NLL of the observed outcomes of the rows held out, ``[R]``, for logits of the whole log."""
        return observed_nll(logits, feedback, self.held_out)


class EarlyDM(_HeldOut):
    """DM stopped early on held-out observed rows, as the ``matched`` protocol does for every method.

    The rows are a fifth of the log, or those that the data hold out where the protocol has a ``holdout``.
    """

    name = "dm_early"

    @override
    def prepare(self, feedback: Feedback) -> None:
        super().prepare(feedback)
        if self._has_rows:
            self.held_out = torch.zeros_like(self.held_out)

    @property
    def _has_rows(self) -> bool:
        return self.protocol.holdout > 0

    @override
    def configure_callbacks(self) -> list[pl.Callback]:
        where: Literal["loader", "module"] = "loader" if self._has_rows else "module"
        return [ReplicateStopping("early", MATCHED.patience, MATCHED.min_improvement, "best", held_out=where)]

    @override
    def training_step(self, feedback: Feedback, batch_idx: int) -> None:
        super().training_step(feedback, batch_idx)
        if not self._has_rows:
            self.validation_nll = self.held_out_nll(self.logits(feedback.x), feedback)


class ScaledDM(_HeldOut):
    """DM whose logits are divided by a temperature that gives the rows held out their least NLL.

    Temperature scaling (Guo et al. 2017), one ``temperature`` a replicate, ``[R]``.
    """

    name = "dm_scaled"
    temperature: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("temperature", torch.ones_like(self.failed_epoch, dtype=torch.float32))

    @override
    def prepare(self, feedback: Feedback) -> None:
        super().prepare(feedback)
        self._log = feedback
        self.temperature.fill_(1)

    @override
    def replicate_state(self) -> dict[str, Tensor]:
        return super().replicate_state() | {"temperature": self.temperature}

    @override
    def calibrate(self, logits: Tensor) -> Tensor:
        return logits / self.temperature[:, None, None, None]

    @override
    @torch.no_grad()
    def on_train_end(self) -> None:
        """With the weights that stay."""
        self.temperature.fill_(1)
        logits = self.logits(self._log.x).double()
        for replicate in range(len(logits)):

            def loss(log_temperature: float, replicate: int = replicate) -> float:
                return float(self.held_out_nll(logits / math.exp(log_temperature), self._log)[replicate])

            if logits[replicate].isfinite().all():
                self.temperature[replicate] = math.exp(
                    minimize_scalar(loss, bounds=(-5, 5), method="bounded", options=_EXACT).x
                )
