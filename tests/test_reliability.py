"""Every test that docs/reliability.md names is there."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE)
    assert len(named) > 30
    for file, name in named:
        functions = {n.name for n in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(n, ast.FunctionDef)}
        assert name in functions, f"{file}::{name}"


def test_every_promise_has_a_test_and_a_figure():
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 20
    for promise, tests, measured in rows:
        assert "::" in tests, promise
        assert len(measured.strip(" |")) > 5, promise


def test_ci_looks_every_exact_version_up():
    root = TESTS.parent
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    names = {_plain(re.fullmatch(r"([\w.-]+)==[\w.+!]+", line)[1]) for line in lines}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert {_plain(re.match(r"[\w.-]+", one)[0]) for one in asked} <= names
    called = [line.split() for line in (root / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert any({"audit", "AUDIT=--unreached-is-told"} <= set(words) for words in called)
    audit = re.search(r"^audit:\n((?:\t.*\n)+)", (root / "Makefile").read_text(), re.MULTILINE)[1]
    assert ".ci/audit.py .audit/bin constraints.txt $(AUDIT)" in audit
    assert not re.search(r"^\t-|\|\||--ignore-vuln", audit, re.MULTILINE)  # what it finds ends it


SOUND, UNKNOWN = {"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not there"}
FOUND = {"name": "c", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]}
NO_LIST = "requests.exceptions.ConnectionError: no route"


@pytest.mark.parametrize(
    ("answer", "error", "status", "told", "said"),
    [
        ([SOUND], "", 0, 0, "1 of 1 looked up; with a known vulnerability: 0"),
        ([SOUND, FOUND], "", 1, 1, "VULNERABLE: c 2: X-1, mended in 3"),
        ([UNKNOWN, FOUND], "", 1, 1, "VULNERABLE: c 2"),
        ([SOUND, UNKNOWN], "", 3, 0, "NOT AUDITED: 1 of 2 could not be looked up: b"),
        ([UNKNOWN], "", 3, 0, "NOT AUDITED: 1 of 1"),
        ([], "", 3, 0, "0 of 0 looked up"),
        (None, NO_LIST, 3, 0, f"NOT AUDITED, no list can be reached: {NO_LIST}"),
        (None, "ValueError: constraints.txt is torn", 2, 2, "pip-audit failed: ValueError"),
    ],
)
def test_a_version_that_cannot_be_looked_up_does_not_pass_for_a_sound_one(answer, error, status, told, said, tmp_path):
    stub = tmp_path / "pip-audit"
    text = "" if answer is None else json.dumps({"dependencies": answer, "fixes": []})
    stub.write_text(
        f"#!{sys.executable}\nimport sys\nprint({text!r})\nprint({error!r}, file=sys.stderr)\nsys.exit(1)\n"
    )
    stub.chmod(0o755)
    for options, wanted in (([], status), (["--unreached-is-told"], told)):
        command = [sys.executable, str(TESTS.parent / ".ci" / "audit.py"), str(tmp_path), "constraints.txt", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (wanted, "")
        assert said in done.stdout


def _plain(name):
    return re.sub("[-_.]+", "-", name).lower()
