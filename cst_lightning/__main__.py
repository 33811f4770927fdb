"""``python -m cst_lightning``: train on a log file, predict, recommend, evaluate, diagnose."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from jsonargparse import ArgumentParser

from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.commands import COMMANDS
from cst_lightning.errors import InputError


def parser() -> ArgumentParser:
    """A subcommand for each function of ``commands.COMMANDS``; ``fit`` also takes the classifier's options."""
    whole = ArgumentParser(prog="python -m cst_lightning", description=__doc__)
    commands = whole.add_subcommands(required=True)
    for name, function in COMMANDS.items():
        one = ArgumentParser(description=(function.__doc__ or "").partition("\n")[0])
        one.add_argument("--config", action="config", help="options from a YAML file")
        one.add_function_arguments(function, as_group=False, skip={"classifier"})
        if name == "fit":
            one.add_class_arguments(CounterfactualClassifier, as_group=False, skip={"base", "categorical"})
        commands.add_subcommand(name, one, help=one.description)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line and exit status 2."""
    whole = parser()
    parsed = whole.parse_args(arguments)
    name = parsed["subcommand"]
    options = parsed[name].as_dict()
    options.pop("config", None)
    if name == "fit":
        own = CounterfactualClassifier().get_params()
        settings = {key: options.pop(key) for key in set(own) & set(options) - {"categorical"}}
        options["classifier"] = CounterfactualClassifier(**settings)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
        try:
            COMMANDS[name](**options)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
