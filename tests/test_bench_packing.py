"""The benchmark of several runs on one device."""

from pathlib import Path

import pytest

from conftest import SMALL, exit_status, script_module
from markdown_rows import markdown_rows

TINY = [*SMALL, "task.train_examples=100", "machine.threads=1"]
bench = script_module("bench_packing")


def rows_of(text: str) -> list[dict[str, str]]:
    head, _, *rows = markdown_rows(text)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_two_runs_side_by_side_are_measured_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packing.md"
    words = ["--jobs", "2", "1", "--mps", "off", "--seconds", "1", "--out", str(out), *TINY]
    assert bench.main(words) == 0
    alone, together = rows_of(out.read_text())
    assert [alone[name] for name in bench.HEAD[:3]] == ["`mnist_mlp100`", "1", "off"]
    assert [together[name] for name in bench.HEAD[:3]] == ["`mnist_mlp100`", "2", "off"]
    of_all, of_one, gain = bench.HEAD[3:]
    assert alone[gain] == "1.00"
    assert float(together[of_all]) * float(together[of_one]) == pytest.approx(2, rel=0.01), "as many epochs as runs"
    assert float(together[gain]) == pytest.approx(float(together[of_all]) / float(alone[of_all]), abs=0.01)
    assert capsys.readouterr().out == out.read_text()


def test_a_run_that_cannot_begin_is_told_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TRAIN", tmp_path / "none.py")
    out = tmp_path / "packing.md"
    assert bench.main(["--jobs", "1", "--out", str(out), *TINY]) == 0
    [row] = rows_of(out.read_text())
    assert row[bench.HEAD[3]] == "not measured: a run ended with status 2"


def test_a_table_keeps_its_other_lines_under_the_same_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([2.0, 3.0, 4.0])
    monkeypatch.setattr(bench, "_rates", lambda words, jobs, seconds, patience: [next(rates)] * jobs)
    out = tmp_path / "packing.md"
    for jobs in ("1", "4", "1"):
        assert bench.main(["--jobs", jobs, "--mps", "off", "--out", str(out), *TINY]) == 0
    found = {row[bench.HEAD[1]]: row[bench.HEAD[3]] for row in rows_of(out.read_text())}
    assert found == {"1": "4.000", "4": "12.000"}
    rates = iter([5.0])
    assert bench.main(["--jobs", "2", "--mps", "off", "--seconds", "9", "--out", str(out), *TINY]) == 0
    assert len(rows_of(out.read_text())) == 1, "measured otherwise: another table"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "0"], "--jobs takes whole numbers from 1, not 0"),
        (["--mps", "maybe"], "--mps takes on and off, not maybe"),
        (["--out", "/nowhere/at/all.md"], "there is no folder /nowhere/at"),
    ],
)
def test_what_makes_no_sense_is_said_at_once(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("bench_packing", words) == 2
    assert message in capsys.readouterr().err
