"""docs/promises.md: every promise is held by a test that exists, and every test of a fault is a promise."""

import ast
import re
from pathlib import Path

from conftest import ROOT

PROMISES = (ROOT / "docs" / "promises.md").read_text()
NAMED = re.findall(r"`(tests/(?:\w+/)?test_\w+\.py)::(\w+)`", PROMISES)


def faults_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_that_a_promise_names_exists() -> None:
    assert len(NAMED) > 20
    missing = [f"{file}::{name}" for file, name in NAMED if name not in faults_in(ROOT / file)]
    assert missing == []


def test_every_test_of_a_fault_is_named_once() -> None:
    files = sorted((ROOT / "tests" / "faults").glob("test_faults_*.py"))
    assert len(files) >= 5
    tests = sorted((f"tests/faults/{path.name}", name) for path in files for name in faults_in(path))
    assert sorted(pair for pair in NAMED if pair[0].startswith("tests/faults/test_faults_")) == tests


def test_every_line_of_a_table_says_when_what_and_by_which_test() -> None:
    lines = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    lines = [line for line in lines if line != "| event | behaviour | test |"]
    assert len(lines) >= len({name for _, name in NAMED}) > 20
    for line in lines:
        when, _, tests = (word.strip() for word in line.strip("|").split("|"))
        assert when
        assert re.search(r"`tests/(?:\w+/)?test_\w+\.py::\w+`", tests), line
