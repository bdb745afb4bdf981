"""Tests of the benchmark of complete runs on embedded data."""

from pathlib import Path

import pytest

from conftest import SMALL_PONG, bench_module, exit_status
from nero.plans.config import RunConfig
from nero.runs.store import Store

SMALL = ["data=embedded", "task.train_examples=40", "task.batch_size=20", "machine=cpu"]
PONG = ["--task", "pong_ppo", "data=embedded", *SMALL_PONG]


@pytest.mark.slow
def test_every_task_variant_and_optimiser_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    words = [
        "--optim",
        "nero",
        "sgd",
        *SMALL,
        "--epochs",
        "4",
        "--variant",
        "task.depth=2",
        "task.depth=3 precision=bf16",
    ]
    assert bench_module("tasks").main([*words, "--out", str(out)]) == 0
    lines = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| mnist_mlp100")]
    shared = ", ".join(SMALL[:-1])
    assert [line[1:3] for line in lines] == [
        ["nero", f"{shared}, task.depth=2"],
        ["sgd", f"{shared}, task.depth=2"],
        ["nero", f"{shared}, task.depth=3, precision=bf16"],
        ["sgd", f"{shared}, task.depth=3, precision=bf16"],
    ]
    for line in lines:
        low, high = map(float, line[4].split(" - "))
        assert 0 < low <= float(line[3]) <= high
        assert line[5] == "2"
    assert out.read_text().strip() in capsys.readouterr().out


def test_start_time_is_reported_for_each_successive_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optim", "sgd", *SMALL, "task.depth=2", "--epochs", "4", "--runs", "3"]
    assert bench_module("tasks").main(words) == 0
    [line] = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| mnist")]
    assert line[5] == "6", "two timed epochs of each run"
    assert len(starts := [float(start) for start in line[6].split(", ")]) == 3
    assert all(0 <= start < 60 for start in starts)


def test_start_time_is_run_time_beyond_usual_epochs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]

    def logged(config: RunConfig) -> dict[str, str]:
        run = Store(config.cfg.store).run(config.task_name, config.run_id)
        run.path.mkdir(parents=True)
        clock[0] += 5  # time to build networks and data
        for epoch, seconds in enumerate((30, 4, 2, 2, 2), start=1):
            run.append_metrics({"epoch": epoch, "seconds": seconds})
            clock[0] += seconds
        return {"status": "done"}

    monkeypatch.setattr("nero.train.run.train", logged)
    bench = bench_module("tasks")
    monkeypatch.setattr(bench.time, "monotonic", lambda: clock[0])
    assert bench.main(["--optim", "sgd", *SMALL]) == 0
    assert " | 35.0 | " in capsys.readouterr().out, "5 to build, 28 and 2 more than an epoch takes"


def test_multi_epoch_log_lines_are_timed_per_epoch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [(1, 1, 500), (3, 2, 800), (6, 3, 6), (9, 3, 15), (10, 1, 3)]  # the first two lines contain untimed epochs

    def logged(config: RunConfig) -> dict[str, str]:
        run = Store(config.cfg.store).run(config.task_name, config.run_id)
        run.path.mkdir(parents=True)
        for epoch, epochs, seconds in lines:
            run.append_metrics({"epoch": epoch, "epochs": epochs, "seconds": seconds})
        return {"status": "done"}

    monkeypatch.setattr("nero.train.run.train", logged)
    assert bench_module("tasks").main([*PONG, "--optim", "sgd", "--epochs", "10"]) == 0
    assert " | 3.000 | 2.000 - 5.000 | " in capsys.readouterr().out


def test_epoch_with_additional_metrics_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def logged(config: RunConfig) -> dict[str, str]:
        run = Store(config.cfg.store).run(config.task_name, config.run_id)
        run.path.mkdir(parents=True)
        for epoch, seconds in enumerate((9, 8, 2, 3, 1, 7), start=1):
            run.append_metrics({"epoch": epoch, "seconds": seconds, **({"val/fid": 3.0} if epoch == 6 else {})})
        return {"status": "done"}

    monkeypatch.setattr("nero.train.run.train", logged)
    assert bench_module("tasks").main(["--task", "cifar10_cgan", "--optim", "sgd", *SMALL]) == 0
    assert " | 2.000 | 1.000 - 3.000 | 3 | " in capsys.readouterr().out


def test_run_with_single_log_line_reports_no_timed_epochs(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*PONG, "--optim", "sgd", "--epochs", "4"]
    assert bench_module("tasks").main([*words, "--variant", "task.log_every=4", "task.log_every=2"]) == 0
    alone, halves = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| pong")]
    assert alone[3:6] == ["one line of the log holds all epochs", "", "0"]
    assert float(halves[3]) >= 0


def test_failed_run_shows_status_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optim", "sgd", *SMALL, "optim._target_=support.deadly.Leaving", "--epochs", "3"]
    assert bench_module("tasks").main(words) == 0
    said = capsys.readouterr()
    assert "| failed |  | 0 |  |  | " in said.out
    assert "SystemExit" in said.err


def test_diverged_run_shows_status_instead_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optim", "sgd", *SMALL, "task.depth=2", "optim.lr=1e30", "--epochs", "3"]
    assert bench_module("tasks").main(words) == 0
    assert "| diverged |  | 0 |  |  | " in capsys.readouterr().out


def test_interrupted_benchmark_keeps_rows_measured_so_far(tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    words = ["--optim", "sgd", "nero", *SMALL, "task.depth=2", "--epochs", "3", "--out", str(out)]
    assert bench_module("tasks").main([*words, "--variant", "", "machine.budget_seconds=0", "task.depth=9"]) == 1
    lines = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| mnist_mlp100")]
    assert [line[5] for line in lines] == ["1", "1", "0"]
    assert lines[2][3] == "interrupted"


def test_table_keeps_rows_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "table.md"
    words = [*SMALL, "task.depth=2", "--epochs", "3", "--out", str(out)]

    def lines(commit: str, *more: str) -> list[list[str]]:
        monkeypatch.setenv("NERO_COMMIT", commit)
        bench_module("tasks").main([*words, *more])
        table = [line for line in out.read_text().splitlines() if line.startswith("| mnist_mlp100")]
        return [line.strip("| ").split(" | ") for line in table]

    first = lines("a" * 40, "--optim", "nero", "sgd")
    second = lines("b" * 40 + "-dirty", "--optim", "sgd", "adam")
    assert [(line[1], line[8]) for line in second] == [
        ("nero", "a" * 10),
        ("sgd", "b" * 10 + " with changes"),
        ("adam", "b" * 10 + " with changes"),
    ]
    assert first[0] == second[0]

    stopped = ["machine.budget_seconds=0", "--optim", "sgd"]
    third = lines("c" * 40, *stopped)
    assert third[:3] == second  # another setting adds another line
    fourth = lines("d" * 40, *stopped)
    assert fourth == third  # the existing line is kept


def test_table_from_another_machine_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    out.write_text("# Seconds per epoch\n\nAn abacus; training.\n")
    words = ["--optim", "sgd", *SMALL, "--epochs", "3", "--out", str(out)]
    assert bench_module("tasks").main(words) == 2
    assert "An abacus" in capsys.readouterr().err
    assert "An abacus" in out.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "2"], "--epochs must be at least 3"),
        (["--out", "nowhere/table.md"], "--out: there is no folder nowhere"),
        (["--optims", "nero"], "unknown argument"),
        (["--task", "machine=cpu"], "--task is empty"),
        (["--optim", "nero", "optim.lr=0", *SMALL], "optim.lr must be a positive number"),
        (["--optim", "nero", "data_root=/nowhere", "machine=cpu"], "nero data mnist"),
    ],
)
def test_invalid_arguments_are_reported(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("benchmarks.tasks", words) == 2
    assert message in capsys.readouterr().err
