"""Ctrl-C in a command: during its imports, and where the command itself does not take it, a line and no traceback."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

INTERRUPTED = 130  # the exit status of what Ctrl-C ended, as a shell has it


def end_at_ctrl_c() -> None:
    """Until ``run``, Ctrl-C ends the process at once: an exception in the midst of an import can turn into another."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background of a script it is ignored
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Interrupted\n")
    os._exit(INTERRUPTED)


def run(main: Callable[[], int | None]) -> int:
    """The exit status of ``main``, whose imports are done: Ctrl-C is an exception again, which it may take."""
    try:
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return main() or 0
    except KeyboardInterrupt:
        print("Interrupted", file=sys.stderr)
        return INTERRUPTED
