"""Every test that docs/reliability.md names is there."""

import ast
import re
import tomllib
from pathlib import Path

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
    assert any("audit" in words for words in called)
    audit = re.search(r"^audit:\n((?:\t.*\n)+)", (root / "Makefile").read_text(), re.MULTILINE)[1]
    assert "pip-audit --no-deps --disable-pip --requirement constraints.txt" in audit
    assert not re.search(r"^\t-|\|\||--ignore-vuln", audit, re.MULTILINE)  # what it finds ends it


def _plain(name):
    return re.sub("[-_.]+", "-", name).lower()
