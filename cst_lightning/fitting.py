"""Fitting a module to a log, without a word of Lightning's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader
from typing_extensions import override

from cst_lightning.feedback import Feedback, PotentialOutcomes
from cst_lightning.stacked import StackedModule

_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}

#: of a loader of one item, of Lightning's own use of torch, and of a device that was chosen
NO_NEWS = (
    ".*does not have many workers.*",
    ".*LeafSpec.*deprecated.*",
    ".*Total length of `list`.*",
    ".*GPU available but not used.*",
)


class LogDataModule(pl.LightningDataModule):
    """A log of one's own, and where there are any, logged rows held out for early stopping, and fully labelled ones."""

    def __init__(
        self, train: Feedback, validation: Feedback | None = None, test: PotentialOutcomes | None = None
    ) -> None:
        super().__init__()
        self.train, self.validation, self.test = train, validation, test

    @override
    def train_dataloader(self) -> DataLoader[Any]:
        return whole(self.train)

    @override
    def val_dataloader(self) -> Any:
        return whole(self.validation) if self.validation is not None else []

    @override
    def test_dataloader(self) -> Any:
        return whole(self.test) if self.test is not None else []

    @override
    def predict_dataloader(self) -> Any:
        return whole(self.test.x) if self.test is not None else []


def whole(record: Any) -> DataLoader[Any]:
    """A loader that hands out ``record`` as its one batch."""
    # batch_size=None hands the one item out as it is; a bare list would be taken for several loaders
    return DataLoader([record], batch_size=None)  # type: ignore[arg-type]  # a list is a dataset, though not by its type


@contextmanager
def quiet_trainer(max_epochs: int, **arguments: Any) -> Iterator[pl.Trainer]:
    """A Trainer on the CPU that keeps, shows and logs nothing, but for what ``arguments`` say otherwise.

    Lightning's lines about devices and products are no news here; its warnings and errors stay.
    """
    logger = logging.getLogger("pytorch_lightning")
    before = logger.level
    logger.setLevel(max(before, logging.WARNING))
    arguments = {"max_epochs": max_epochs, "accelerator": "cpu", "devices": 1} | arguments
    if not arguments.get("barebones"):
        arguments = _QUIET | arguments
    try:
        with warnings.catch_warnings():
            for message in NO_NEWS:
                warnings.filterwarnings("ignore", message=message)
            yield pl.Trainer(**arguments)
    finally:
        logger.setLevel(before)


def fit(
    module: StackedModule, data: pl.LightningDataModule | Feedback, *, max_epochs: int | None = None, **trainer: Any
) -> None:
    """Train ``module`` with a quiet Trainer, for as long as its protocol says.

    Args:
        data: a data module, or a log.
        max_epochs: by default the protocol's.
        trainer: further arguments of ``pytorch_lightning.Trainer``, which win over the quiet defaults.
            ``barebones=True`` is the fastest, where nothing looks at what is logged.
    """
    epochs = module.max_epochs if max_epochs is None else max_epochs
    data = LogDataModule(data) if isinstance(data, Feedback) else data
    with quiet_trainer(epochs, **trainer) as quiet:
        quiet.fit(module, datamodule=data)
    module.trainer = None  # with its optimizer and its data; what was trained is the module's
