"""Tests of listing and comparing runs in a terminal: filters, order, columns and messages."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conftest import ROOT
from nero.cli import main as command_line
from nero.cli import runs as cli
from nero.report.tables.run_list import COLUMNS, SHOWN, UnknownColumn, describe_runs, in_order
from nero.runs.logged import UnknownRun, dotted, logged_runs, named, same_value, select, setting
from nero.runs.store import Store
from support.logged_stores import ADAM, NERO, REPARAM, change_summary, logged, write_unfinished, write_whole

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def filled(store: Store) -> Store:
    write_whole(store, NERO, 0.01, 0, 0.9)
    write_whole(store, NERO, 0.1, 1, None)
    write_whole(store, ADAM, 0.01, 0, 0.6)
    write_whole(store, ADAM, 0.01, 1, None, status="failed", data="embedded")
    write_unfinished(store, ADAM, 0.001, 0)
    write_whole(store, REPARAM, 0.01, 0, 0.8)
    return store


def names(runs: Sequence[object]) -> list[str]:
    """Run IDs without their hashes."""
    return [str(getattr(run, "run_id")).rpartition("-")[0] for run in runs]  # noqa: B009


EVERY = [
    "mnist_mlp100-adam-0.001-s0",
    "mnist_mlp100-adam-0.01-s0",
    "mnist_mlp100-adam-0.01-s1",
    "mnist_mlp100-nero-0.01-s0",
    "mnist_mlp100-nero-0.1-s1",
    "mnist_reparam-adam-0.01-s0",
]


@pytest.mark.parametrize(
    ("filters", "places"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"task": ["*_mlp*"]}, [0, 1, 2, 3, 4]),
        ({"task": ["mnist_reparam", "nothing"]}, [5]),
        ({"optim": ["n*", "sgd"]}, [3, 4]),
        ({"lr": [0.1, 1e-3]}, [0, 4]),
        ({"seed": [0]}, [0, 1, 3, 5]),
        ({"status": ["unfinished"]}, [0]),
        ({"status": ["diverged", "failed"]}, [2, 4]),
        ({"status": ["running"]}, []),
        ({"data": ["embedded"]}, [2]),
        ({"settings": [setting("task.sigma=100")]}, [5]),
        ({"settings": [setting("optim.lr=1e-2"), setting("seed=0")]}, [1, 3, 5]),
        ({"settings": [setting("optim.betas=[0.9, 0.999]")]}, [0, 1, 2, 5]),
        ({"optim": ["adam"], "status": ["done"], "seed": [0]}, [1, 5]),
    ],
)
def test_choice_filters_runs(filled: Store, filters: dict[str, list], places: list[int]) -> None:
    found = names(select(logged_runs(filled), **filters))
    assert found == [EVERY[place] for place in places]


def test_setting_is_parsed_as_yaml_and_compared_by_value() -> None:
    assert setting("precision=bf16") == ("precision", "bf16")
    assert setting("a=1e-3") == ("a", 0.001)
    assert setting("a=null") == ("a", None)
    assert setting("a=b=c") == ("a", "b=c")
    for text in ("a", "=1"):
        with pytest.raises(ValueError, match="must be KEY=VALUE"):
            setting(text)
    assert same_value(1, 1.0)
    assert not same_value(1, True)
    assert not same_value([1, 2], [1])
    assert dotted({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_locked_run_is_running_and_unlocked_one_is_unfinished(store: Store) -> None:
    run = write_unfinished(store)
    assert logged(run).status == "unfinished"
    with run.exclusive():
        assert logged(run).status == "running"


def test_run_without_metric_is_unmeasured_and_shows_no_value(store: Store) -> None:
    run = write_whole(store)
    change_summary(run, final=None, final_metrics={"train/loss": 1.0})
    assert logged(run).status == "unmeasured"
    assert describe_runs([logged(run)], ["status", "final"]).splitlines()[1].split() == ["unmeasured", "-"]


def test_run_whose_metric_is_not_finite_is_diverged_as_in_tables(store: Store) -> None:
    run = write_whole(store)
    change_summary(run, final=None, final_metrics={"train/accuracy": None})
    assert logged(run).status == "diverged"
    assert describe_runs([logged(run)], ["status", "final"]).splitlines()[1].split() == ["diverged", "not", "finite"]


def test_describe_runs_has_one_line_per_run(filled: Store) -> None:
    head, *lines = describe_runs(logged_runs(filled)).splitlines()
    assert head.split() == list(SHOWN)
    assert [line.split()[1:] for line in lines] == [
        ["unfinished", "0/3", "train/accuracy", "-", "0:02"],
        ["done", "3/3", "train/accuracy", "0.6000", "0:02"],
        ["failed", "1/1", "train/accuracy", "-", "0:02"],
        ["done", "3/3", "train/accuracy", "0.9000", "0:02"],
        ["diverged", "1/1", "train/accuracy", "-", "0:02"],
        ["done", "3/3", "train/accuracy", "0.8000", "0:02"],
    ]


def test_runs_can_be_shown_and_sorted_by_every_column(filled: Store) -> None:
    runs = logged_runs(filled)
    for name in COLUMNS:
        assert len(describe_runs(in_order(runs, [name]), [name]).splitlines()) == 7
    with pytest.raises(UnknownColumn, match="no column 'finals'; there are: run, task"):
        in_order(runs, ["finals"])


def test_runs_without_value_sort_last_in_both_directions(filled: Store) -> None:
    runs = logged_runs(filled)
    assert [run.summary["final"] for run in in_order(runs, ["final"])] == [0.6, 0.8, 0.9, None, None, None]
    assert [run.summary["final"] for run in in_order(runs, ["final"], backwards=True)][:3] == [0.9, 0.8, 0.6]
    by_both = names(in_order(runs, ["seed", "lr"]))
    assert by_both[0] == EVERY[0]
    assert by_both[-2:] == [EVERY[2], EVERY[4]]


def test_limit_reports_number_of_omitted_runs(filled: Store) -> None:
    runs = logged_runs(filled)
    assert describe_runs(runs, limit=4).splitlines()[-1] == "2 more of 6"
    assert len(describe_runs(runs, limit=6).splitlines()) == 7


@pytest.mark.parametrize("width", [50, 60, 79])
def test_lines_fit_terminal_width_and_shortened_ids_stay_unique(filled: Store, width: int) -> None:
    lines = describe_runs(logged_runs(filled), width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert len({line.split()[0] for line in lines}) == 7
    assert any("…" in line for line in lines)


def test_run_is_found_by_unambiguous_part_of_id(filled: Store) -> None:
    runs = logged_runs(filled)
    for run in runs:
        assert named(runs, run.run_id) is run
        assert named(runs, run.run_id[-8:]) is run
        assert named(runs, f"{run.directory.path}/") is run
    assert named(runs, "mnist_r") is runs[5]
    with pytest.raises(UnknownRun, match=r"'nero' may be any of 2 runs: mnist_mlp100-nero-0.01-s0-\w+, mnist_mlp100-n"):
        named(runs, "nero")
    with pytest.raises(UnknownRun, match="no run is called 'sgd'"):
        named(runs, "sgd")


# command line


def test_list_command_filters_runs_and_fails_if_none_match(nero_command: Command, filled: Store) -> None:
    plain = nero_command("runs")
    assert plain.returncode == 0, plain.stderr
    assert len(plain.stdout.splitlines()) == 7
    some = nero_command("runs", "list", "--optim", "adam,sgd", "--status", "done", "--sort", "final", "--reverse")
    assert names_of(some.stdout) == [EVERY[5], EVERY[1]]
    few = nero_command("runs", "--limit", "2", "--columns", "task,lr")
    assert few.stdout.splitlines() == [
        "task             lr",
        "mnist_mlp100  0.001",
        "mnist_mlp100   0.01",
        "4 more of 6",
    ]
    none = nero_command("runs", "--task", "cifar*")
    assert (none.returncode, none.stderr) == (1, "error: none of 6 runs matches\n")
    unknown = nero_command("runs", "--where", "optim.betta=1")
    assert (unknown.returncode, unknown.stderr) == (1, "error: no run has the setting optim.betta\n")


def names_of(table: str) -> list[str]:
    return [line.split()[0].rpartition("-")[0] for line in table.splitlines()[1:]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "finals"], "error: there is no column 'finals'"),
        (["--columns", "runs"], "error: there is no column 'runs'"),
        (["compare", "sgd"], "error: no run is called 'sgd'"),
        (["compare", "adam"], "error: 'adam' may be any of 4 runs"),
        (["compare", "reparam", "mnist_r"], "is named twice"),
        (["--lr", "fast"], "must be numbers, not 'fast'"),
        (["--status", "finished"], "must be one of running, done"),
        (["--where", "precision"], "must be KEY=VALUE, not 'precision'"),
        (["--limit", "0"], "must be a positive integer, not '0'"),
        (["show"], "unknown COMMAND show; there are: list, compare"),
        (["--tsak", "x"], "unknown option --tsak (did you mean --task?); see nero runs --help"),
    ],
)
def test_invalid_arguments_give_one_line_error(
    filled: Store, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    store = ["--store", str(filled.root)] if words != ["show"] else []
    try:
        status = command_line.main(["runs", *words, *store])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_missing_or_empty_store_gives_one_line_error(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runs", "list", "--store", str(store.root)]
    assert command_line.main(words) == 1
    assert capsys.readouterr().err == f"error: there is no store at {store.root}\n"
    store.root.mkdir()
    assert command_line.main(words) == 1
    assert capsys.readouterr().err == f"error: there are no runs in {store.root}\n"


def test_unreadable_runs_are_named(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = filled.runs()[0].path
    (path / "summary.json").write_text("{")
    assert command_line.main(["runs", "--store", str(filled.root)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"left out: {path}: summary.json cannot be read: it is not JSON (")
    assert said.err.count("\n") == 1
    assert len(said.out.splitlines()) == 6


def test_compare_command_lists_differing_settings_and_results(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    write_whole(store, NERO, 0.01, 0, 0.9, also={"train/loss": [3.0, 2.0, 1.0]})
    write_whole(store, ADAM, 0.01, 1, None)
    first, second = (run.run_id for run in reversed(logged_runs(store)))
    assert command_line.main(["runs", "compare", "nero", "adam", "--store", str(store.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"1  {first}", f"2  {second}"]
    rows = {line.split("  ")[1]: line.split()[-2:] for line in lines[3:] if line.startswith("  ")}
    assert rows["optim_name"] == ["nero", "adam"]
    assert rows["optim.beta"] == ["0.999", "-"]
    assert rows["seed"] == ["0", "1"]
    assert "optim.lr" not in rows, "it is the same"
    assert rows["train/accuracy *"] == ["0.9000", "-"]
    assert rows["status"] == ["done", "diverged"]
    assert rows["time"] == ["0:02", "0:02"]
    assert [line.split() for line in lines if "commit" in line] == [["commit", *["0" * 10] * 2, "with", "changes"]]


def test_compare_command_reports_no_differing_settings(filled: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["runs", "compare", "reparam", "--store", str(filled.root)]) == 0
    assert "no settings differ" in capsys.readouterr().out


def test_nero_command_lists_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--help"]) == 0
    assert "runs" in capsys.readouterr().out
    assert command_line.main([]) == 2
    assert command_line.main(["rnus"]) == 2
    assert "error: unknown command rnus (did you mean runs?)\n" in capsys.readouterr().err


def test_list_command_exits_quietly_on_broken_pipe() -> None:
    words = [sys.executable, "-m", "nero.cli.main", "runs", "--store", str(ROOT / "results" / "runs")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_command_line_does_not_import_pandas_or_torch() -> None:
    code = "import sys, nero.cli.main; print([name for name in ('pandas', 'torch', 'wandb') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(ROOT))
    assert result.stdout.strip() == "[]"


def test_internal_errors_keep_their_traceback(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli, "_all", fail)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["list", "--store", str(store.root)])
