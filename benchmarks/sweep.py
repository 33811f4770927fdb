"""The command line: ``python -m benchmarks.sweep`` runs a grid of cells and writes records and tables.

A command loads what it needs and no more: ``status`` loads no torch, so that a sweep can be watched at no cost.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser

from benchmarks.files import OutputError, is_address, refuse_links
from benchmarks.texts import redact
from cst_lightning import interrupting
from cst_lightning.errors import InputError
from cst_lightning.option_errors import explain, unknown_option
from cst_lightning.texts import PrintableStream, printable

_ABOUT = {
    "status": "Tell how a sweep stands.",
    "sync": "Upload to W&B what its server lacks.",
    "verify": "Say of every file among the records whether it is one; the exit status is 1 if a file is not.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 if a cell failed, 2 for bad input, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    return _guarded(_command(arguments), arguments)


def _command(arguments: Sequence[str]) -> Callable[[], int]:
    """What the arguments ask for, with its imports done."""
    name = arguments[0] if arguments else ""
    if name == "status":
        from benchmarks.status import show_status

        def status() -> int:
            print(show_status(_folder(arguments)))
            return 0

        return status
    if name == "sync":
        from benchmarks.wandb_sync import sync

        return lambda: sync(_folder(arguments))
    if name == "verify":
        from benchmarks.remote import here
        from benchmarks.upkeep import verify

        return lambda: verify(*here(_argument(arguments)))
    if name == "merge":
        from benchmarks.upkeep import merge

        return lambda: merge(arguments[1:])
    from benchmarks.run import sweep

    return lambda: sweep(arguments)


def _guarded(command: Callable[[], int], arguments: Sequence[str]) -> int:
    """Its exit status; what is wrong with the input, or the output, is told in a line."""
    try:
        return command()
    except (ArgumentError, UnicodeDecodeError) as error:
        said = unknown_option(error, _known_options(arguments)) or explain(error, dashes=True)
        print(f"error: {printable(said)}; see --help", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped before any work.", file=sys.stderr)
        return interrupting.INTERRUPTED
    except BrokenPipeError:  # whoever reads, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InputError, OutputError) as error:
        print(f"error: {printable(redact(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception:  # of a part of one's own, in the checks before any work
        print(redact(traceback.format_exc()), file=PrintableStream(sys.stderr))
        return 1


def _known_options(arguments: Sequence[str]) -> list[str]:
    if arguments[:1] == ["merge"]:
        return ["out"]
    from benchmarks.options import known_options

    return known_options()


def _argument(arguments: Sequence[str]) -> str:
    """The one argument of a command that looks after what a sweep wrote; ``--help`` says what that is, and ends."""
    parser = ArgumentParser(prog=f"python -m benchmarks.sweep {arguments[0]}", description=_ABOUT[arguments[0]])
    parser.add_argument("folder", type=str, help="that a sweep wrote, or for verify its address")
    if set(arguments[1:]) & {"-h", "--help"}:
        parser.parse_args(["--help"])
    if len(arguments) != 2:
        raise InputError(f"{arguments[0]} wants one folder that a sweep wrote: {arguments[0]} DIR")
    return arguments[1]


def _folder(arguments: Sequence[str]) -> Path:
    text = _argument(arguments)
    if is_address(text):
        from benchmarks.remote import Remote

        raise InputError(f"{arguments[0]} is of a sweep on this machine: name {Remote(text).folder}, where it works")
    return refuse_links(Path(text))


if __name__ == "__main__":
    # imports come first: in their midst an exception, as Ctrl-C is one, can turn into another
    sys.exit(interrupting.run(partial(_guarded, _command(sys.argv[1:]), sys.argv[1:])))
