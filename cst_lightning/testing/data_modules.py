"""What the project promises of a data module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from cst_lightning.backbones.direct_method import DirectMethod
from cst_lightning.errors import InputError
from cst_lightning.feedback import Feedback, PotentialOutcomes, Shape
from cst_lightning.fitting import quiet_trainer
from cst_lightning.testing.logs import demand, tiny_protocol


def check_data_module(make: Callable[..., Any]) -> None:
    """Check what makes a data module, its class or a function, called as ``make(seeds=[...])``.

    It has ``seeds``, ``shape``, ``train``, ``validation`` and ``test``; the same seed draws the same data in whatever
    list of seeds, and another seed other data; it draws once; the potential outcomes of the training rows, where it
    knows them, agree with the log; a Trainer fits and tests a direct method on it.

    Raises:
        AssertionError: one of these does not hold.
        InputError: ``make`` cannot be called.
    """
    if not callable(make):
        raise InputError(f"check_data_module({make!r}): allowed is a class or a function that makes a data module")
    data = make(seeds=[1, 0])
    name = type(data).__name__
    demand(isinstance(data, pl.LightningDataModule), f"{name} is no LightningDataModule")
    demand(list(data.seeds) == [1, 0], f"{name}: seeds are {data.seeds}, asked for were [1, 0]")
    records = _records(data, name)
    demand(records.keys() >= {"train", "test"}, f"{name}: train or test is missing")
    demand(records["train"] is data.train, f"{name} draws its data anew when it is asked again")
    for record, value in _tensors(records).items():
        parts = [(seed, _tensors(_records(make(seeds=[seed]), name))[record]) for seed in data.seeds]
        for place, (seed, part) in enumerate(parts):
            same = len(part) == 1 and torch.equal(part[0], value[place])
            demand(same, f"{name}: {record} of seed {seed} is another alone than beside seed {data.seeds[1 - place]}")
    x, outcome = data.train.x, data.train.outcome
    differ = not (torch.equal(x[0], x[1]) and torch.equal(outcome[0], outcome[1]))
    demand(differ, f"{name}: seeds 0 and 1 draw the same training rows, so they are no replicates")
    _check_shapes(data, records, name)
    module = DirectMethod(data.shape, data.seeds, tiny_protocol(batch_size=min(16, data.train.n_rows)))
    with quiet_trainer(1) as trainer:
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
    demand(module.test_metrics["nll"].isfinite().all(), f"{name}: the NLL of a direct method on it is not finite")


def _records(data: Any, name: str) -> dict[str, Feedback | PotentialOutcomes]:
    """What the data module hands out, by attribute; what there is none of is left out."""
    kinds: dict[str, type[Feedback | PotentialOutcomes]] = dict.fromkeys(("train", "validation"), Feedback)
    kinds |= dict.fromkeys(("test", "train_outcomes", "oracle_validation"), PotentialOutcomes)
    found = {}
    for attribute, kind in kinds.items():
        value = getattr(data, attribute, None)
        if value is not None:
            demand(
                isinstance(value, kind), f"{name}: {attribute} is a {type(value).__name__}, allowed is {kind.__name__}"
            )
            found[attribute] = value
    return found


def _tensors(records: dict[str, Feedback | PotentialOutcomes]) -> dict[str, Tensor]:
    return {
        f"{attribute}.{field.name}": value
        for attribute, record in records.items()
        for field in dataclasses.fields(record)
        if isinstance(value := getattr(record, field.name), Tensor)
    }


def _check_shapes(data: Any, records: dict[str, Feedback | PotentialOutcomes], name: str) -> None:
    for attribute, record in records.items():
        own = Shape(record.x.shape[-1], record.n_actions, record.n_outcomes)
        demand(own == data.shape, f"{name}: {attribute} has {own}, shape says {data.shape}")
    truth = records.get("train_outcomes")
    if isinstance(truth, PotentialOutcomes):
        log = data.train
        seen = truth.outcomes.gather(-1, log.action[..., None])[..., 0]
        agree = torch.equal(truth.x, log.x) and (log.outcome.lt(0) | seen.eq(log.outcome)).all()
        demand(agree, f"{name}: train_outcomes are not those of the training rows")
