"""Tests of benchmarks/report.py on a small store of synthetic runs."""

import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks import synthetic_store

from conftest import bench_module, exit_status
from nero.plans.config import run_id
from nero.plans.plan import survey
from nero.runs.checking import check_store
from nero.runs.store import Store
from support.fake_runs import loaded
from support.markdown_rows import markdown_rows


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(synthetic_store, "load_experiment", loaded)
    return bench_module("report")


@pytest.mark.slow
def test_report_time_memory_and_page_size_are_measured(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    words = ["--runs", "150", "--epochs", "3", "--report", "every", "--out", str(out)]
    assert bench.main(words) == 0
    text = out.read_text()
    assert text in capsys.readouterr().out
    assert "150 runs, 450 logged epochs" in text
    assert f"{os.cpu_count()} CPU cores" in text
    _, _, [_, seconds, megabytes, page] = markdown_rows(text)
    assert float(seconds) > 0
    assert float(megabytes) > 50, "Python with pandas and matplotlib has more"
    assert float(page) > 0.05


def test_failing_report_command_raises_system_exit(bench: ModuleType) -> None:
    with pytest.raises(SystemExit, match="ended with 3: no page"):
        bench.measure_command([sys.executable, "-c", "import sys; sys.stderr.write('no page'); sys.exit(3)"])
    assert bench.measure_command([sys.executable, "-c", "x = bytearray(200_000_000)"]).megabytes > 200


@pytest.mark.slow
def test_synthetic_store_passes_check_and_completes_its_experiments(bench: ModuleType, tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert synthetic_store.write_store(store, 300, 2) == (300, 600)
    summaries = store.summaries()
    assert len(summaries) == 300
    assert [finding for found in check_store(store, run_id) for finding in found] == []
    states = [survey(cell, summaries) for cell in synthetic_store.experiment_of_runs(300).cells]
    assert all(state.complete for state in states)
    assert {logged for state in states for logged in state.logged} <= summaries.keys()
    assert all(state.leading_lr == sorted(state.cell.lrs)[len(state.cell.lrs) // 2] for state in states)


def test_missing_output_folder_is_reported_before_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("benchmarks.report", ["--out", str(tmp_path / "nowhere" / "table.md")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--runs", "0"], ["--epochs", "-1"], ["--runs", "many"]])
def test_non_positive_numbers_are_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("benchmarks.report", words) == 2
    assert re.search(r"must be a positive integer, not \S+", capsys.readouterr().err)
