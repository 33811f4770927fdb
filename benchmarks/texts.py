"""Names and messages of unknown origin, made safe to show and to keep."""

from __future__ import annotations

import os
import re

_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)  # in the name of an environment variable
_SHORTEST_SECRET = 8  # characters; shorter values, such as "1", stand everywhere
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def printable(text: str) -> str:
    """The text with a ``?`` for what would steer a terminal, break a line or hide: control and format characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def last_line(text: str) -> str:
    """The last line of an error, where Python says what it was."""
    lines = text.strip().splitlines()
    return printable(lines[-1]) if lines else ""


def redact(text: str) -> str:
    """The text without the values of environment variables that hold keys, tokens or passwords."""
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"<{name}>")
    return text


def csv_text(text: str) -> str:
    """A name as a spreadsheet shows it rather than computes it: an apostrophe before what would begin a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def no_markup(text: str) -> str:
    """A text of Markdown in which no name is a tag of HTML; a ``<`` before anything else stays."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", text)


def markdown_text(text: str) -> str:
    """A name as a cell of a Markdown table shows it, and not as markup."""
    return text.replace("<", "&lt;").replace("|", r"\|")
