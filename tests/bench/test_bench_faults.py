"""Tests of benchmarks/faults.py: its table of pytest results, including failing tests."""

from pathlib import Path

import pytest

from conftest import bench_module, exit_status
from support.markdown_rows import markdown_rows

FAULTS = """
import pytest

@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_full_disk_costs_nothing(record_property, left):
    record_property("fault", "a full disk")
    record_property("repetitions", 2)
    record_property("lost", 0)
    if left == 2:
        pytest.skip("needs root")

def test_two_at_once_share(record_property):
    record_property("fault", "SIGKILL of two | at once")
    record_property("repetitions", 1)
    record_property("done_twice", {twice})
    assert not {twice}

@pytest.fixture
def disk():
    pytest.skip("no disk here")

def test_of_what_cannot_be_had_here(disk):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("twice", [0, 1])
def test_table_has_one_row_per_test_with_counts_and_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], twice: int
) -> None:
    module = bench_module("faults")
    (tmp_path / "test_faults_made_up.py").write_text(FAULTS.replace("{twice}", str(twice)))
    monkeypatch.setattr(module, "FILES", {"made_up": tmp_path / "test_faults_made_up.py"})
    monkeypatch.setattr(module, "ROOT", tmp_path)
    out = tmp_path / "faults.md"
    monkeypatch.setattr(module.sys, "stderr", (tmp_path / "said").open("w"))
    assert module.main(["--repetitions", "3", "--out", str(out)]) == twice
    text = out.read_text()
    assert text == capsys.readouterr().out
    assert f"5 faults in 0 minutes, 1 of them SIGKILLs: 0 runs lost, {twice} done twice." in text
    assert "; code of " in text
    _, _, full, two, here = markdown_rows(text)
    file = "`test_faults_made_up.py::"
    assert full == [
        "a full disk",
        f"{file}test_a_full_disk_costs_nothing`",
        "4",
        "0",
        "",
        "passed, skipped: needs root",
    ]
    assert two[0] == "SIGKILL of two &#124; at once"
    assert two[2:] == ["1", "", str(twice), "**1 failed**" if twice else "passed"]
    assert here[0] == "of what cannot be had here"
    assert here[2:] == ["", "", "", "skipped: no disk here"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repetitions", "0"], "--repetitions"),
        (["--only", "water"], "invalid choice: 'water'"),
        (["--out", "/nowhere/faults.md"], "there is no folder /nowhere"),
    ],
)
def test_invalid_arguments_are_reported(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert exit_status("benchmarks.faults", words) == 2
    assert said in capsys.readouterr().err
