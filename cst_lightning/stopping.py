"""Stopping, best-epoch snapshots and the non-finite guard, each replicate for itself."""

from __future__ import annotations

import math
from typing import Any, Literal, cast
from typing import Protocol as TypingProtocol

import pytorch_lightning as pl
import torch
from torch import Tensor
from typing_extensions import override

from cst_lightning.errors import InputError


class StackedParameters(TypingProtocol):
    """What the callback needs of a module: losses of the epoch and parameters with a leading axis ``R``."""

    active: Tensor
    training_loss: Tensor
    validation_nll: Tensor | None
    failed_epoch: Tensor
    stopped_epoch: Tensor

    def replicate_state(self) -> dict[str, Tensor]:
        """Every trained tensor, with a leading axis ``R``."""
        ...


class ReplicateStopping(pl.Callback):
    """Stops each replicate by a rule of its own and hands back the weights that the rule keeps.

    A replicate that has stopped is marked so (``module.active``): compiled training leaves it out; where
    it goes on in the stack, its snapshot is what stays. A replicate whose loss or validation NLL turns
    non-finite is marked failed (``module.failed_epoch``) and frozen at its last snapshot; its
    neighbours never notice. Training ends when no replicate is left.

    Args:
        rule: ``fixed`` runs all epochs; ``converged`` watches the training loss; ``early`` watches
            the NLL of held-out observed rows.
        patience: epochs without improvement after which a replicate stops.
        min_improvement: relative improvement that counts.
        held_out: where the held-out rows of ``early`` are: with the loader (``val_dataloaders``), or with the
            module, which then sets ``validation_nll`` in every training step.
        keep: ``best`` keeps the epoch of the lowest watched value (for ``fixed``: training loss),
            ``last`` the epoch a replicate stopped at.
    """

    def __init__(
        self,
        rule: Literal["fixed", "converged", "early"],
        patience: int = 50,
        min_improvement: float = 0.0,
        keep: Literal["last", "best"] = "last",
        held_out: Literal["loader", "module"] = "loader",
    ) -> None:
        self.rule, self.patience, self.min_improvement, self.keep = rule, patience, min_improvement, keep
        self._by_validation = rule == "early" and held_out == "loader"
        self._state: dict[str, Tensor] = {}
        self._snapshot: dict[str, Tensor] = {}
        self._last_epoch = 0

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin anew, or go on from a checkpoint's state."""
        module = cast("StackedParameters", pl_module)
        if self._by_validation and not sum(trainer.num_val_batches):
            raise InputError(
                "stopping=early needs held-out observed rows: give the data module a holdout, such as 0.2, or with a "
                "log of your own fit(module, LogDataModule(train, held_out))"
            )
        if self._state:
            self._state = {name: value.to(pl_module.device) for name, value in self._state.items()}
            self._snapshot = {name: value.to(pl_module.device) for name, value in self._snapshot.items()}
            module.active = self._state["active"]
            return
        loss = torch.zeros_like(module.failed_epoch, dtype=torch.float32)
        self._state = {
            "best": torch.full_like(loss, torch.inf),
            "reference": torch.full_like(loss, torch.inf),
            "waited": torch.zeros_like(loss, dtype=torch.int64),
            "active": torch.ones_like(loss, dtype=torch.bool),
        }
        self._snapshot = {name: value.detach().clone() for name, value in module.replicate_state().items()}

    @override
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take in the epoch where it was validated: a checkpoint saved after validation is then up to date."""
        if not trainer.sanity_checking and self._state:
            self._take_in(trainer, cast("StackedParameters", pl_module))

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take in an epoch without validation; early stopping by a loader counts validations only."""
        if self._last_epoch != trainer.current_epoch + 1 and not self._by_validation:
            self._take_in(trainer, cast("StackedParameters", pl_module))

    def _take_in(self, trainer: pl.Trainer, module: StackedParameters) -> None:
        state, epoch = self._state, trainer.current_epoch + 1
        self._last_epoch = epoch
        watched = module.validation_nll if self.rule == "early" else module.training_loss
        assert watched is not None, "on_train_start saw a validation loader"
        active = state["active"]
        finite = torch.isfinite(watched + module.training_loss)
        if not finite.all():
            module.failed_epoch[active & ~finite] = epoch
            active = active & finite
        better = active & (watched < state["best"])
        state["best"] = torch.where(better, watched, state["best"])
        module.stopped_epoch.masked_fill_(active, epoch)
        state["active"] = module.active = active & ~self._have_waited(watched, active)
        # with keep=last a failed replicate goes back to the last epoch at which it was finite
        self._save(module, better if self.keep == "best" else active)
        if not state["active"].any():
            trainer.should_stop = True

    def _have_waited(self, watched: Tensor, active: Tensor) -> Tensor:
        """Which replicates stop now, bool ``[R]``: they have not improved for ``patience`` epochs."""
        state = self._state
        if self.rule == "fixed":
            return torch.zeros_like(active)
        # with infinity, the first reference, any finite value is an improvement
        least_drop = self.min_improvement * state["reference"].abs().nan_to_num(posinf=0)
        counts = active & (watched < state["reference"] - least_drop)
        state["reference"] = torch.where(counts, watched, state["reference"])
        state["waited"] = torch.where(counts, 0, state["waited"] + 1)
        return active & (state["waited"] >= self.patience)

    @property
    def least_epochs_left(self) -> float:
        """Epochs that the training still takes if no replicate improves any more; infinite for the rule ``fixed``."""
        if self.rule == "fixed" or not self._state:
            return math.inf
        waited = self._state["waited"][self._state["active"]]
        return max(0, self.patience - int(waited.min())) if len(waited) else 0

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hand back the weights that the rule keeps."""
        with torch.no_grad():
            for name, value in cast("StackedParameters", pl_module).replicate_state().items():
                value.copy_(self._snapshot[name])
        self._state, self._snapshot, self._last_epoch = {}, {}, 0

    def _save(self, module: StackedParameters, which: Tensor) -> None:
        if not which.any():
            return
        everywhere = bool(which.all())  # the usual case, and a copy is cheaper
        for name, value in module.replicate_state().items():
            mask, place = which.view(-1, *[1] * (value.ndim - 1)), self._snapshot[name]
            place.copy_(value.detach()) if everywhere else torch.where(mask, value.detach(), place, out=place)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state, "snapshot": self._snapshot}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state, self._snapshot = state_dict["state"], state_dict["snapshot"]
