"""``python -m cst_lightning``: train on a log file, predict, recommend, evaluate, diagnose."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from jsonargparse import ArgumentError, ArgumentParser

from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.commands import COMMANDS
from cst_lightning.errors import InputError

_LONG = 300  # characters of a message


def parser() -> ArgumentParser:
    """A subcommand for each function of ``commands.COMMANDS``; ``fit`` also takes the classifier's options."""
    whole = ArgumentParser(prog="python -m cst_lightning", description=__doc__, exit_on_error=False)
    commands = whole.add_subcommands(required=True)
    for name, function in COMMANDS.items():
        one = ArgumentParser(description=(function.__doc__ or "").partition("\n")[0], exit_on_error=False)
        one.add_argument("--config", action="config", help="options from a YAML file")
        one.add_function_arguments(function, as_group=False, skip={"classifier"})
        if name == "fit":
            one.add_class_arguments(CounterfactualClassifier, as_group=False, skip={"base", "categorical"})
        commands.add_subcommand(name, one, help=one.description)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line and exit status 2."""
    whole = parser()
    try:
        parsed = whole.parse_args(arguments)
    except (ArgumentError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        print(f"error: {said if len(said) < _LONG else said[:_LONG] + ' ...'}; see --help", file=sys.stderr)
        return 2
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
            data = str(options["data"])
            print(f"error: {error}" if data in str(error) else f"error: {data}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
