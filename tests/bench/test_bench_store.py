"""Tests of benchmarks/store.py with a small store and a small network."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmarks import synthetic_store

from conftest import bench_module, exit_status
from nero.plans.config import compose
from nero.runs.store import Store
from support.fake_runs import ERROR, cells_of, loaded, write_run
from support.markdown_rows import markdown_rows


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = bench_module("store")
    for owner in (module, synthetic_store):
        monkeypatch.setattr(owner, "load_experiment", loaded)
    monkeypatch.setattr(module, "VGG11", lambda: torch.nn.Linear(30, 20))
    return module


@pytest.mark.slow
def test_parts_sum_to_total_and_are_compared_with_logged_runs(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.md"
    words = ["--runs", "40", "--repeats", "1", "--folder", str(tmp_path), "--out", str(out), "--parts", "overhead"]
    assert bench.main(words) == 0
    text = out.read_text()
    assert text in capsys.readouterr().out
    _, _, loading, *parts, total = markdown_rows(text)
    assert loading[0] == "loading a store of 40 runs into the frame"
    assert len(parts) == 5
    for column in (1, 2):
        assert sum(float(part[column]) for part in parts) == pytest.approx(float(total[column]), abs=0.003)
    assert "% of a run of `cifar10_vgg11`" in text
    assert list(tmp_path.iterdir()) == [out], "what was written on the way is gone"


@pytest.mark.slow
def test_commands_and_stores_of_two_sizes_are_measured(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "COMMANDS", {"plan mnist": 0, "trian": 2})
    monkeypatch.setattr(bench, "ON_STORES", ("plan half_logged", "runs list"))
    words = ["--growth", "144", "288", "--repeats", "2", "--folder", str(tmp_path), "--parts", "growth", "commands"]
    assert bench.main(words) == 0
    rows = {row[0]: row[1:] for row in markdown_rows(capsys.readouterr().out)}
    for command in ("plan half_logged", "runs list"):
        assert all(float(cell) > 0 for cell in rows[f"`nero {command}`"])
        assert len(rows[f"`nero {command}`"]) == 5
    for command in ("plan mnist", "trian"):
        warm, cpu, first, _ = map(float, rows[f"`nero {command}`"])
        assert min(warm, cpu, first) > 0
    assert list(tmp_path.iterdir()) == [], "what was written on the way is gone"


def test_written_run_has_complete_log_and_checkpoint(bench: ModuleType, store: Store) -> None:
    config = compose(["task=mnist_mlp100", "optim=nero"])
    run = store.run("mnist_mlp100", config.run_id)
    took = bench._write_run(run, config, lambda: b"a state")
    assert len(took) == 3
    assert all(one.seconds > 0 for one in took.values())
    assert [line["epoch"] for line in run.read_metrics()] == list(range(1, 201))
    assert run.load_checkpoint() == b"a state"
    assert run.read_config() == config.identity
    assert not run.is_held()


def test_median_of_repeats_and_share_of_logged_seconds(bench: ModuleType, store: Store) -> None:
    took = bench.median([bench.Took(3, 1), bench.Took(1, 0.5), bench.Took(2, 0.1)])
    assert (took.seconds, took.cpu) == (2, 0.5)
    assert "no run of `cifar10_vgg11`" in bench._share(store, 1.0)
    cell = cells_of("table1")["cifar10_vgg11 nero"]
    for seed, seconds in enumerate((100.0, 200.0, 400.0)):
        run = write_run(store, cell, 0.01, seed, 0.1, metric=ERROR)
        run.write_summary({**(run.read_summary() or {}), "seconds": seconds})
    text = bench._share(store, 1.0)
    assert "0.50% of a run" in text
    assert "(200 s)" in text
    assert "1.00% of the shortest" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "0"], "must be a positive integer"),
        (["--out", "/nowhere/table.md"], "there is no folder"),
        (["--folder", "/nowhere"], "there is no folder /nowhere"),
    ],
)
def test_invalid_arguments_are_rejected(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("benchmarks.store", words) == 2
    assert said in capsys.readouterr().err
