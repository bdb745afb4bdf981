"""docs/promises.md: every promise names an existing test, and every fault test is named by a promise."""

import ast
import re
from pathlib import Path

from conftest import ROOT

PROMISES = (ROOT / "docs" / "promises.md").read_text()
NAMED = re.findall(r"`(tests/(?:\w+/)?test_\w+\.py)::(\w+)`", PROMISES)


def names_of_tests_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_test_referenced_in_promises_exists() -> None:
    assert len(NAMED) > 20
    missing = [f"{file}::{name}" for file, name in NAMED if name not in names_of_tests_in(ROOT / file)]
    assert missing == []


def test_every_fault_test_is_referenced_exactly_once() -> None:
    files = sorted((ROOT / "tests" / "faults").glob("test_faults_*.py"))
    assert len(files) >= 5
    tests = sorted((f"tests/faults/{path.name}", name) for path in files for name in names_of_tests_in(path))
    assert sorted(pair for pair in NAMED if pair[0].startswith("tests/faults/test_faults_")) == tests


def test_every_table_row_has_an_event_and_a_test_reference() -> None:
    lines = [line for line in PROMISES.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    lines = [line for line in lines if line != "| event | behaviour | test |"]
    assert len(lines) >= len({name for _, name in NAMED}) > 20
    for line in lines:
        when, _, tests = (word.strip() for word in line.strip("|").split("|"))
        assert when
        assert re.search(r"`tests/(?:\w+/)?test_\w+\.py::\w+`", tests), line
