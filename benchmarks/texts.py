"""Messages and names of unknown origin, made safe to keep and to show."""

from __future__ import annotations

import json
import netrc
import os
import re
import shlex
from pathlib import Path

from cst_lightning.texts import printable

# in the name of an environment variable
_SECRET = re.compile(
    "KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|PRIVATE|AUTH(?!OR(?!IZ))|COOKIE|DSN|DATABASE_URL|CONN(ECTION)?_?STR"
    "|(^|_)PAT(?![A-Z])",
    re.IGNORECASE,
)
_PATHS = {"PWD", "OLDPWD", "SSH_AUTH_SOCK"}  # variables that such a name has and no secret
_SHORTEST_SECRET = 8  # characters; shorter values, such as "1", stand everywhere
_WORD = r"""[^\s"'\\,;]+"""
# of a header, in whatever quotes: the scheme stays; without one that is known, it may be the secret itself
_OF_HEADER = re.compile(
    r"""(authorization\\*["']?\s*[:=]\s*(?:b?\\*["'])?)"""
    rf"(?:((?:basic|bearer|digest|token|negotiate|ntlm|apikey|aws4-hmac-sha256)\s+){_WORD}|{_WORD}(?:[ \t]+{_WORD})?)"
    r"""((?<==)"[^"]*")?(,\s*[\w-]+=("[^"]*"|[^\s"'\\,;]+))*""",
    re.IGNORECASE,
)
_OF_URL = re.compile(r"(?<=://)[^\s/:@]*:[^\s/@]+(?=@)")


def last_line(text: str) -> str:
    """The last line of an error, where Python says what it was."""
    lines = text.strip().splitlines()
    return printable(lines[-1]) if lines else ""


def first_line(text: str) -> str:
    """The first line of an error of CUDA's, which says what it was: those after it advise."""
    lines = text.strip().splitlines()
    return printable(lines[0]) if lines else ""


def shell_word(path: Path) -> str:
    """A path as a command takes it, whatever stands in its name."""
    return shlex.quote(printable(str(path)))


def redact(text: str) -> str:
    """The text without what should stay secret.

    That is the values of environment variables that hold keys, tokens or passwords, the passwords of the user's
    ``.netrc``, user and password of an address, and what follows ``Authorization:``.
    """
    text = _OF_URL.sub("<user>:<password>", text)
    text = _OF_HEADER.sub(lambda found: f"{found[1]}{found[2] or ''}<credentials>", text)
    # the longest first: one may begin with another
    for name, value in sorted(_secrets(), key=lambda named: -len(named[1])):
        for form in (value, repr(value)[1:-1], json.dumps(value)[1:-1]):
            text = text.replace(form, f"<{name}>")
    return text


def _secrets() -> list[tuple[str, str]]:
    """Each with a name that may be told."""
    found = [(name, value) for name, value in os.environ.items() if _SECRET.search(name) and name not in _PATHS]
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        hosts = {}
    found += [(f"password of {host}", password) for host, (_, _, password) in hosts.items()]
    return [(name, value) for name, value in found if len(value or "") >= _SHORTEST_SECRET]


def minus(text: str) -> str:
    """A number in which no hyphen stands for a minus sign."""
    return re.sub(r"^-(?=\d)", "−", text)


def no_markup(text: str) -> str:
    """A text of Markdown in which no name is a tag of HTML, a link or an image; a ``<`` before anything else stays."""
    return re.sub("<(?=[A-Za-z/!?])", "&lt;", text).replace("](", r"]\(")


def markdown_text(text: str) -> str:
    """A name as a cell of a Markdown table shows it, and not as markup, a link or an image."""
    return text.replace("<", "&lt;").replace("|", r"\|").replace("](", r"]\(")


def said(seconds: float) -> str:
    """A duration in words: ``40 s``, ``12 min``, ``3.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
