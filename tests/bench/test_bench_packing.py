"""Tests of the benchmark of concurrent runs on one device."""

from pathlib import Path

import pytest

from conftest import SMALL, bench_module, exit_status
from support.markdown_rows import markdown_rows

TINY = [*SMALL, "task.train_examples=100", "machine.threads=1"]
bench = bench_module("packing")


def rows_of(text: str) -> list[dict[str, str]]:
    head, _, *rows = markdown_rows(text)
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_two_concurrent_runs_are_measured_and_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "packing.md"
    words = ["--jobs", "2", "1", "--mps", "off", "--seconds", "1", "--out", str(out), *TINY]
    assert bench.main(words) == 0
    alone, together = rows_of(out.read_text())
    assert [alone[name] for name in bench.HEAD[:3]] == ["`mnist_mlp100`", "1", "off"]
    assert [together[name] for name in bench.HEAD[:3]] == ["`mnist_mlp100`", "2", "off"]
    of_all, of_one, gain = bench.HEAD[3:]
    assert alone[gain] == "1.00"
    together_rate = float(together[of_all])
    rounding = 0.0006 * (1 + 2 / together_rate**2)  # both are printed with three decimals
    seconds = pytest.approx(2 / together_rate, abs=rounding)
    assert float(together[of_one]) == seconds, "each of two runs has half of the rate"
    assert float(together[gain]) == pytest.approx(float(together[of_all]) / float(alone[of_all]), abs=0.01)
    assert capsys.readouterr().out == out.read_text()


def test_run_beside_runs_of_another_task_reports_rate_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group is measured alone and then beside the other; its row shows the fraction of its rate that it keeps."""
    seen: list[list[list[str]]] = []

    def rates(groups: list[list[list[str]]], seconds: float, patience: float) -> list[list[float]]:
        seen.append([[words[0] for words in group] for group in groups])
        return [[2.0] * len(group) if len(groups) == 1 else [1.5] * len(group) for group in groups]

    monkeypatch.setattr(bench, "_rates", rates)
    out = tmp_path / "packing.md"
    words = ["--jobs", "1", "--beside", "4 pong_ppo task.cores=1", "--out", str(out), *TINY]
    assert bench.main(words) == 0
    mlp, pong = ["task=mnist_mlp100"], ["task=pong_ppo"] * 4
    assert seen == [[pong], [mlp], [mlp, pong]]
    found = [list(row.values()) for row in rows_of(out.read_text())]
    assert found == [
        ["`pong_ppo`", "4", "on", "8.000", "0.500", ""],
        ["`mnist_mlp100`", "1", "off", "2.000", "0.500", "1.00"],
        ["`mnist_mlp100` beside 4 `pong_ppo`", "1", "on", "1.500", "0.667", "0.75 of its rate without"],
        ["4 `pong_ppo` beside `mnist_mlp100`", "4", "on", "6.000", "0.667", "0.75 of its rate without"],
    ]
    assert "Runs that others go beside: 4 pong_ppo task.cores=1." in out.read_text()


def test_task_overrides_are_not_passed_to_runs_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_rates", lambda groups, seconds, patience: [[1.0] * len(group) for group in groups])
    words = ["--task", "cifar10_cgan", "--jobs", "1", "--beside", "2 pong_ppo", "machine=cpu", "task.fid_every=99"]
    assert bench.main(words) == 0
    assert "| 2 `pong_ppo` beside `cifar10_cgan` | 2 | on | 2.000 |" in capsys.readouterr().out


@pytest.mark.slow
def test_concurrent_runs_of_two_tasks_are_measured_together(tmp_path: Path) -> None:
    out = tmp_path / "packing.md"
    beside = "1 mnist_reparam data=embedded task.train_examples=100 task.batch_size=50 machine.threads=1"
    words = ["--jobs", "1", "--beside", beside, "--seconds", "1", "--out", str(out), *TINY]
    assert bench.main(words) == 0
    rows = rows_of(out.read_text())
    assert [row["task"] for row in rows[2:]] == [
        "`mnist_mlp100` beside 1 `mnist_reparam`",
        "1 `mnist_reparam` beside `mnist_mlp100`",
    ]
    assert all(row[bench.HEAD[5]].endswith(" of its rate without") for row in rows[2:])


def test_run_that_fails_to_start_is_reported_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TRAIN", tmp_path / "none.py")
    out = tmp_path / "packing.md"
    assert bench.main(["--jobs", "1", "--out", str(out), *TINY]) == 0
    [row] = rows_of(out.read_text())
    assert row[bench.HEAD[3]] == "not measured: a run ended with status 2"


def test_table_keeps_other_rows_measured_with_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter([2.0, 3.0, 4.0])
    monkeypatch.setattr(
        bench, "_rates", lambda groups, seconds, patience: [[next(rates)] * len(group) for group in groups]
    )
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
        (["--jobs", "0"], "--jobs takes positive integers, not 0"),
        (["--mps", "maybe"], "--mps takes on and off, not maybe"),
        (["--beside", "pong_ppo"], "--beside takes a number of runs, their task and settings"),
        (["--beside", "4 machine=cpu"], "--beside takes a number of runs, their task and settings"),
        (["--out", "/nowhere/at/all.md"], "there is no folder /nowhere/at"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("benchmarks.packing", words) == 2
    assert message in capsys.readouterr().err
