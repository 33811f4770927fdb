"""Every test that docs/reliability.md names is there."""

import ast
import re
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
