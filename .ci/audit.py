"""Look exact versions up in a public list of known vulnerabilities, by pip-audit, and say what is not known too.

    python .ci/audit.py FOLDER-OF-PIP-AUDIT constraints.txt [--unreached-is-told]

pip-audit itself passes over what it could not look up, all of it too, and says that nothing was found. The exit status
here is 0 where every version was looked up and has no known vulnerability, 1 where one has, 2 where pip-audit fails,
and 3 where a version could not be looked up: with ``--unreached-is-told`` that is 0, and the lines alone say so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_FOUND, _FAILED, _UNREACHED = 1, 2, 3
_SIGNS = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "SSLError")  # of a list that is not there
_MOST_NAMED = 10


def main(folder: str, file: str, unreached_is_told: bool) -> int:
    """Run pip-audit and say in a few lines what it found."""
    command = [str(Path(folder, "pip-audit")), "--no-deps", "--disable-pip", "--requirement", file]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True)
    try:
        status = _tell(json.loads(done.stdout)["dependencies"])
    except (ValueError, LookupError, TypeError):  # it ended without an answer
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        status = _UNREACHED if any(sign in done.stderr for sign in _SIGNS) else _FAILED
        print(f"pip-audit failed: {last}" if status == _FAILED else f"NOT AUDITED, no list can be reached: {last}")
    return 0 if status == _UNREACHED and unreached_is_told else status


def _tell(looked_up: list[dict[str, Any]]) -> int:
    """Say what became of each package that pip-audit names; the exit status."""
    found = [one for one in looked_up if one.get("vulns")]
    unknown = [one["name"] for one in looked_up if "vulns" not in one]
    for one in found:
        known = "; ".join(f"{v['id']}, mended in {', '.join(v['fix_versions']) or 'none'}" for v in one["vulns"])
        print(f"VULNERABLE: {one['name']} {one['version']}: {known}")
    if unknown:
        more = len(unknown) - _MOST_NAMED
        named = ", ".join(unknown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        print(f"NOT AUDITED: {len(unknown)} of {len(looked_up)} could not be looked up: {named}")
    print(f"{len(looked_up) - len(unknown)} of {len(looked_up)} looked up; with a known vulnerability: {len(found)}")
    return _FOUND if found else _UNREACHED if unknown or not looked_up else 0


if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--unreached-is-told"]
    sys.exit(main(arguments[0], arguments[1], unreached_is_told=len(arguments) < len(sys.argv) - 1))
