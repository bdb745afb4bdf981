"""Tests of the optimiser step benchmark and the state memory table on small inputs. No timing is asserted."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from benchmarks.parameter_sets import PARAMETER_SETS
from torch.optim import SGD, Adam

from conftest import ROOT, bench_module, script_environment
from nero.optim import Nero

TINY = ("--small", "--sets", "pong", "--seconds", "0.001", "--device", "cpu")
COMMITTED_SETS = set(PARAMETER_SETS) - {"billion"}


@pytest.fixture
def bench() -> ModuleType:
    return bench_module("optim")


@pytest.fixture
def memory() -> ModuleType:
    return bench_module("state_memory")


def rows_of(text: str) -> dict[tuple[str, str], list[str]]:
    """The remaining cells of every table row, keyed by its first two."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {(first, second): rest for first, second, *rest in lines}


def is_number(cell: str) -> bool:
    return re.fullmatch(r"\d+\.\d+", cell) is not None


@pytest.mark.slow
def test_benchmark_prints_and_writes_table_with_ratios_and_goals(tmp_path: Path) -> None:
    out = tmp_path / "new" / "steps.md"
    command = [sys.executable, "-m", "benchmarks.optim", *TINY, "--dtype", "bfloat16", "--out", str(out)]
    environment = {**script_environment(tmp_path), "TRITON_INTERPRET": "0"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert out.read_text() == result.stdout
    assert "CPU" in result.stdout
    assert f"torch {torch.__version__}" in result.stdout
    assert "bfloat16" in result.stdout
    assert "only the ratios" in result.stdout
    assert "measure nothing" in result.stdout
    assert "12 tensors" in result.stdout

    rows = rows_of(result.stdout)
    for path in ("foreach", "fused"):
        eager, replayed, *ratios = rows["torch Adam", path]
        assert is_number(eager)
        assert replayed == "-"
        assert [is_number(cell) for cell in ratios] == [True, False, True, False]
    assert rows["copy", "floor"][2] == rows["torch Adam", "fused"][4] == "1.00"
    for optimiser in ("Nero", "LAMB", "Madam"):
        assert is_number(rows[optimiser, "foreach"][0])
        assert is_number(rows[optimiser, "per tensor"][0])
        assert rows[optimiser, "fused"][0] == "-"  # there is no kernel on a CPU
    assert ("Nero default", "torch Adam foreach") not in rows  # a goal on networks that were not measured
    assert "Nero fused" not in {first for first, _ in rows}  # a goal on a GPU
    assert "pong, eager: torch Adam fused: " in result.stderr


def test_failing_row_shows_reason_without_affecting_others(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(params: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
        raise ValueError("no such | path\nand more")

    def absent(params: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
        raise bench.Unavailable("not installed")

    rows = (bench.Row(("broken", "x"), broken), bench.Row(("absent", "x"), absent), bench.Row(("fine", "x"), SGD))
    monkeypatch.setattr(bench, "ROWS", rows)
    bench.main(TINY)
    table = rows_of(capsys.readouterr().out)
    assert table["broken", "x"] == ["ValueError: no such / path"] + ["-"] * 5
    assert table["absent", "x"] == ["not installed"] + ["-"] * 5
    assert is_number(table["fine", "x"][0])


def test_row_options_are_valid_optimiser_arguments(bench: ModuleType) -> None:
    for row in bench.ROWS:
        if row.key[0].startswith("torch"):
            row.make([torch.zeros(2)], lr=0.1, **row.options, **(row.captured or {}))
    assert len({row.key for row in bench.ROWS}) == len(bench.ROWS)
    keys = {row.key for row in bench.ROWS} | {bench.COPY}
    for goal in bench.GOALS:
        assert {goal.row, goal.over} <= keys
        assert set(goal.sets) <= set(bench.SETS[goal.device])


def test_rows_are_chosen_by_name(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.chosen_rows(None) == list(bench.ROWS)
    keys = [row.key for row in bench.chosen_rows(["madam", "SGD foreach"])]
    assert keys == [
        *(("Madam", path) for path in ("fused", "foreach", "per tensor")),
        ("torch SGD", "foreach"),
        bench.FUSED_ADAM,
    ]
    bench.main([*TINY, "--rows", "sgd"])
    names = [first for first, _ in rows_of(capsys.readouterr().out)]
    assert [name for name in names if name in ("copy", "Nero", "LAMB", "torch SGD", "torch Adam")] == [
        "copy", "torch SGD", "torch SGD", "torch Adam",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        bench.main([*TINY, "--rows", "adagrad"])
    assert "no such row" in capsys.readouterr().err


def test_copy_baseline_moves_same_bytes_as_a_step(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(bench.Bench, "_copy_step", lambda self, numbers, *how: lambda: sizes.append(4 * numbers))
    for dtype in (torch.float32, torch.bfloat16):
        bench.Bench(torch.device("cpu"), dtype, 1e-6).copy([(10, 20), (56,)], "eager")
    assert set(sizes) == {6 * 256, 3 * 256}  # bytes read; the same number is written


def test_goals_are_compared_with_their_bounds(bench: ModuleType) -> None:
    cells = {
        ("resnet50", ("Nero", "fused"), "eager"): 1.0,
        ("resnet50", bench.FUSED_ADAM, "eager"): 2.0,
        ("resnet50", bench.COPY, "eager"): 0.4,
        ("resnet50", ("Nero", "fused"), "replayed"): "out of memory",
        ("resnet50", bench.COPY, "replayed"): 0.4,
    }
    gpu = bench.Bench(torch.device("cuda"), torch.float32, 1.0)
    goals = [line.strip("| ").split(" | ") for line in bench.goals(cells, gpu) if "resnet50" in line]
    assert goals[:2] == [
        ["Nero fused", "torch Adam fused", "0.5", "resnet50", "0.500 met", "not measured"],
        ["Nero fused", "copy floor", "1.5", "resnet50", "2.500 not met", "not measured"],
    ]
    assert any(line[:3] == ["LAMB fused", "torch Adam fused", "1.1"] for line in goals)
    half = bench.goals(cells, bench.Bench(torch.device("cuda"), torch.bfloat16, 1.0))
    assert any("| 0.45 | resnet50 | 0.500 not met |" in line for line in half)
    assert not any("| 0.5 |" in line for line in half)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sets", "resnet51"], "resnet51"),
        (["--seconds", "0"], "--seconds must be positive"),
        (["--seconds", "nan"], "--seconds must be positive"),
        (["--dtype", "int8"], "int8"),
        (["--out", str(ROOT)], "is a folder"),
    ],
)
def test_invalid_option_exits_with_message(
    bench: ModuleType, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(words)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_requesting_missing_gpu_exits_with_message(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench.main(["--device", "cuda"])
    assert "torch finds no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
def test_steps_are_also_timed_as_cuda_graph_replays_on_gpu(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.main(["--small", "--sets", "pong", "--seconds", "0.001", "--device", "cuda"])
    rows = rows_of(capsys.readouterr().out)
    for key in [bench.COPY, *(row.key for row in bench.ROWS if row.captured is not None)]:
        assert is_number(rows[key][0]), rows[key]
        assert is_number(rows[key][1]), rows[key]


def test_state_bytes_sums_all_state_tensors(memory: ModuleType) -> None:
    shapes = [(8, 3, 3, 3), (8,), (5, 8), (5,)]
    entries = 8 * 27 + 8 + 40 + 5
    # One number per neuron, or per entry of tensors without neurons; a step and a scale for each of the four tensors.
    assert memory.state_bytes(Nero, shapes) == 4 * (8 + 8 + 5 + 5) + 4 * (4 + 4)
    assert memory.state_bytes(Adam, shapes) == 4 * (2 * entries + 4)
    assert memory.state_bytes(SGD, shapes) == 0


def test_committed_state_memory_table_is_up_to_date(
    memory: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tables" / "state.md"
    memory.main(["--sets", "pong", "mlp5", "--out", str(out)])
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    committed = rows_of((ROOT / "results" / "tables" / "state_memory.md").read_text())
    assert set(committed) >= {(name, f"{len(PARAMETER_SETS[name].shapes()):,}") for name in COMMITTED_SETS}
    for key, cells in rows_of(printed).items():
        assert committed[key] == cells, "run benchmarks/state_memory.py and commit what it writes"


def test_nero_state_is_under_0_2_percent_of_adam_state_on_resnet50() -> None:
    committed = rows_of((ROOT / "results" / "tables" / "state_memory.md").read_text())
    *_, share = committed["resnet50", "161"]
    assert float(share.removesuffix(" %")) < 0.2
