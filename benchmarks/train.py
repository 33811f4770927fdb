"""``python -m benchmarks.train``: one module on one data module, by a Trainer, in the usual form of LightningCLI.

``fit``, ``validate``, ``test`` and ``predict`` take every backbone and data module by the name of its class, and any
other by its class path; one that stands in a configuration file needs ``--trust PACKAGE``. The module's shape and seeds
are those of the data.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from inspect import isabstract
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from typing_extensions import override

from benchmarks.files import replace_file
from benchmarks.job import quiet
from cst_lightning import interrupting
from cst_lightning.catalogue import backbones
from cst_lightning.errors import InputError, unknown_name
from cst_lightning.option_errors import explain
from cst_lightning.stacked import StackedModule
from cst_lightning.texts import printable
from cst_lightning.trust import importing_only, packages_typed, refused, split_trust
from datamodules.catalogue import data_modules

_LONG = 300  # characters of a message
_OF_A_TRAINER = ("best", "last", "hpc")  # checkpoints that it finds itself
_OURS = ("cst_lightning", "datamodules", "benchmarks", "pytorch_lightning", "torch.nn", "torch.optim")


class _Parser(LightningArgumentParser):
    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """One line; of an import that was refused, what to type. A subcommand's parser hands on to the whole one's."""
        if isinstance(ex, InputError):
            raise ex
        said = explain(ex or ValueError(message), dashes=False)
        said = said if len(said) < _LONG else said[:_LONG] + " ..."
        raise refused(message) or InputError(f"{said}; see --help") from ex


class _SaveConfig(SaveConfigCallback):
    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only of a fit: what tests or predicts has the fit's."""
        if stage != "fit":
            return
        path = Path(trainer.log_dir or ".", self.config_filename)
        if path.exists():
            raise InputError(f"{path} is there, of another fit: name another folder (--trainer.default_root_dir)")
        super().setup(trainer, pl_module, stage)


class _CLI(LightningCLI):
    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data", "model.init_args.shape", lambda data: data.shape, apply_on="instantiate")
        parser.link_arguments("data", "model.init_args.seeds", _seeds, apply_on="instantiate")

    @override
    def before_instantiate_classes(self) -> None:
        path = str(self._get(self.config, "ckpt_path", default="") or "")
        if path and path not in _OF_A_TRAINER:
            _check_checkpoint(path)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """For as long as the module's protocol says, unless the options say how long."""
        given = self._get(self.config_init, "trainer")
        if all(given[name] is None for name in ("max_epochs", "max_time")) and given.max_steps == -1:
            kwargs["max_epochs"] = self.model.max_epochs
        return super().instantiate_trainer(**kwargs)

    @override
    def _parse_ckpt_path(self) -> None:
        """A checkpoint's own shape and seeds would come twice: the data have them."""

    def after_predict(self) -> None:
        """Keep what was predicted, which the Trainer hands to nobody."""
        path = Path(self.trainer.log_dir or self.trainer.default_root_dir, "predictions.npy")
        (predicted,) = self.trainer.predict_loop.predictions
        replace_file(path, lambda temporary: _save(temporary, predicted.numpy()))
        print(f"wrote {printable(str(path))}: replicates, rows, actions, outcomes {tuple(predicted.shape)}")


def _check_checkpoint(path: str) -> None:
    """A file of this machine that holds a checkpoint."""
    if "://" in path:
        raise InputError(f"ckpt_path={path}: allowed is a file of this machine")
    if not Path(path).is_file():
        raise InputError(f"ckpt_path={path}: there is no such file")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds; the message of some advises what is unsafe
        raise InputError(f"ckpt_path={path} is no checkpoint that can be read ({type(error).__name__})") from error
    if not isinstance(found, dict) or not {"state_dict", "hyper_parameters"} <= found.keys():
        raise InputError(f"ckpt_path={path} is no checkpoint of a Trainer")


def _check_class(option: str, arguments: Sequence[str], base: type, parts: Mapping[str, type]) -> None:
    """A class that stands there without a path is one that is known."""
    for before, argument in pairwise(["", *arguments]):
        name = argument.removeprefix(f"{option}=") if argument.startswith(f"{option}=") else argument
        if (name == argument and before != option) or not name.isidentifier() or name == "help":
            continue
        if name in {kind.__name__ for kind in _kinds(base)}:
            continue
        if name in parts:
            raise InputError(f"{option} {name}: its class is {parts[name].__name__}: name that")
        known = [kind.__name__ for kind in _kinds(base) if not kind.__name__.startswith("_") and not isabstract(kind)]
        raise unknown_name(f"class for {option}", name, known)


def _kinds(base: type) -> list[type]:
    """``base`` and every class of it that is imported."""
    direct: list[type] = base.__subclasses__()
    return [base, *(kind for one in direct for kind in _kinds(one))]


def _save(path: Path, values: Any) -> None:
    with path.open("wb") as file:  # numpy would add a suffix to a name
        np.save(file, values)


def _seeds(data: Any) -> list[int]:
    """Of the replicates; a log file has one, of the seed that splits its rows."""
    return list(data.seeds) if hasattr(data, "seeds") else [data.seed]


def _reason(error: BaseException | None) -> str | None:
    """What the ``InputError`` says that this is, or was raised from (jsonargparse wraps those of constructors)."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return None if error is None else str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line and exit status 2."""
    torch.set_num_threads(1)
    quiet()
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # a checkpoint executes nothing, whatever Lightning asks for
    try:
        typed, trusted = split_trust(sys.argv[1:] if arguments is None else arguments)
        # importing a class is what makes its name known; of installed packages, too, that offer parts
        parts = [*backbones().found.values(), *data_modules().found.values()]
        offering = [part.__module__.partition(".")[0] for part in parts]
        with importing_only([*_OURS, *offering, *trusted, *packages_typed(typed)]):
            _check_class("--model", typed, StackedModule, backbones().found)
            _check_class("--data", typed, pl.LightningDataModule, data_modules().found)
            warnings.filterwarnings("ignore", message="(?s).*(LightningCLI's args parameter|The dirpath has changed).*")
            _CLI(
                StackedModule,
                pl.LightningDataModule,
                parser_class=_Parser,
                save_config_callback=_SaveConfig,
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=False,  # every replicate draws from its own seed
                trainer_defaults={"accelerator": "cpu", "log_every_n_steps": 1},
                args=typed,
                parser_kwargs={"prog": "python -m benchmarks.train", "description": __doc__},
            )
    except ValueError as error:
        reason = _reason(error)
        if reason is None:
            raise
        print(f"error: {printable(reason)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
