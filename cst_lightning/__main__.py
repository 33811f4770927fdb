"""``python -m cst_lightning``: train on a log file, predict, recommend, evaluate, diagnose."""

from __future__ import annotations

import sys

from cst_lightning.interrupting import INTERRUPTED, end_at_ctrl_c, run

if __name__ == "__main__":  # before the imports, which take seconds
    end_at_ctrl_c()

import inspect
import json
import re
import shlex
import warnings
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from typing import Any

from jsonargparse import ArgumentError, ArgumentParser

from cst_lightning.classifier import CounterfactualClassifier
from cst_lightning.commands import COMMANDS
from cst_lightning.errors import InputError
from cst_lightning.option_errors import explain, unknown_option
from cst_lightning.texts import PrintableStream
from cst_lightning.trust import importing_only, not_trusted, packages_typed, refused, split_trust

_OURS = ("cst_lightning",)
_LONG = 300  # characters of a message
_LISTS = ("--features", "--categorical", "--keep", "--propensity", "--trust", "--actions")


def parser() -> ArgumentParser:
    """A subcommand for each function of ``commands.COMMANDS``; ``fit`` also takes the classifier's options."""
    whole = ArgumentParser(prog="python -m cst_lightning", description=__doc__, exit_on_error=False, allow_abbrev=False)
    commands = whole.add_subcommands(required=True)
    for name, function in COMMANDS.items():
        one = ArgumentParser(
            description=(function.__doc__ or "").partition("\n")[0], exit_on_error=False, allow_abbrev=False
        )
        one.add_argument("--config", action="config", help="options from a YAML file")
        one.add_function_arguments(function, as_group=False, skip={"classifier"})
        if name == "fit":
            one.add_class_arguments(CounterfactualClassifier, as_group=False, skip={"base", "categorical"})
        commands.add_subcommand(name, one, help=one.description)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line and exit status 2."""
    with redirect_stdout(PrintableStream(sys.stdout)), redirect_stderr(PrintableStream(sys.stderr)):
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    whole = parser()
    try:
        typed = sys.argv[1:] if arguments is None else list(arguments)
        without, trusted = split_trust(typed)
        packages = {*_OURS, *trusted, *packages_typed(without)}
        with importing_only(packages):
            # a model takes it as an option of its own, and the others have no other use for it
            parsed = whole.parse_args(_with_lists(without if typed[:1] in (["fit"], ["diagnose"]) else typed))
        _check_named(parsed[parsed["subcommand"]].as_dict(), trusted, packages)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (ArgumentError, UnicodeDecodeError) as error:
        said = str(refused(str(error)) or _explained(error, typed))
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
        warnings.showwarning = lambda message, *_, **__: print(f"warning: {_of_a_file(message)}", file=sys.stderr)
        try:
            COMMANDS[name](**options)
        except InputError as error:
            print(f"error: {_of_a_file(error)}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # whoever reads, such as head, has seen enough
            raise
        except OSError as error:  # the disk is full, the share is gone
            where = f"{error.filename}: " if error.filename else ""
            print(f"error: {where}{error.strerror or error}", file=sys.stderr)
            return 1
        except (KeyboardInterrupt, SystemExit):  # Lightning's answer to Ctrl-C is the latter
            print("stopped: nothing was saved", file=sys.stderr)
            return INTERRUPTED
    return 0


def _explained(error: Exception, typed: Sequence[str]) -> str:
    """The error in one line, with the nearest options of the command, and the file where it is not of one typed."""
    known, function = set[str](), COMMANDS.get(typed[0]) if typed else None
    if function is not None:
        known = set(inspect.signature(function).parameters) - {"classifier"}
    if function is COMMANDS["fit"]:
        known |= set(CounterfactualClassifier().get_params()) - {"base"}
    said = unknown_option(error, known) or explain(error, dashes=False)
    files = [one.partition("=")[2] for one in typed if one.startswith("--config=")]
    files += [value for name, value in pairwise(typed) if name == "--config"]
    named = re.search(r"--\w+", said)
    is_typed = named is not None and any(re.match(rf"{named[0]}\b", one) for one in typed)
    nowhere = said.endswith(" is missing")  # in the file as well as on the command line
    return said if is_typed or named is None or nowhere or not files else f"{', '.join(files)}: {said}"


def _check_named(options: dict[str, Any], trusted: Sequence[str], packages: Collection[str]) -> None:
    """Refuse what a file names and nobody typed: packages to trust, and the classes that a fit would import."""
    given = options.get("trust") or []
    for package in [given] if isinstance(given, str) else given:
        if package not in trusted:
            raise InputError(f"trust={package}: packages are trusted on the command line, not in a file")
    for name in ("backbone", "method", "selection"):
        path = str(options.get(name) or "")
        if "." in path and path.partition(".")[0] not in packages:
            raise not_trusted(path)


def _with_lists(arguments: Sequence[str]) -> list[str]:
    """``--keep a b``, and ``--keep a --keep b``, as the list ``--keep ["a", "b"]``."""
    given: dict[str, list[str]] = {}
    rest, taking = list[str](), ""
    for argument in arguments:
        name, is_given, value = argument.partition("=")
        if name in _LISTS:
            taking = name
            given.setdefault(name, []).extend([value] if is_given else [])
        elif taking and not argument.startswith("--"):
            given[taking].append(argument)
        else:
            taking = ""
            rest.append(argument)
    for name, values in given.items():
        is_list = len(values) == 1 and values[0].startswith("[")
        rest += [name, *(values if is_list or not values else [json.dumps(values)])]
    return rest


def _of_a_file(message: object) -> str:
    """A message about an array as one about a file: its rows count from 1, its options begin with dashes."""
    text = str(message).replace("missing='impute'", "--missing impute").replace("give features=...", "give --features")
    text = re.sub(r"pass encoding='([\w-]+)'", r"pass --encoding \1", text)
    text = re.sub(r"kept=\[(['\"])(.*?)\1\]", _keep_option, text)
    return re.sub(r"\brow(s?) ([\d, ]*\d)((?: and \d+ more)?) \(from 0\)", _data_rows, text)


def _keep_option(found: re.Match[str]) -> str:
    return f"--keep {shlex.quote(found[2])}"


def _data_rows(found: re.Match[str]) -> str:
    rows = ", ".join(str(int(row) + 1) for row in found[2].split(", "))
    return f"data row{found[1]} {rows}{found[3]}"


if __name__ == "__main__":
    sys.exit(run(main))
