"""Checks of a store: every kind of damage is reported, and an intact store passes."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT
from nero.plans.config import run_id
from nero.runs.checking import Finding, check_run, check_store
from nero.runs.store import RunDirectory, Store
from support.logged_stores import ADAM, NERO, change_summary, contents, write_unfinished, write_whole

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Damage = Callable[[RunDirectory], object]


def findings(store: Store) -> list[Finding]:
    return [finding for found in check_store(store, run_id) for finding in found]


def problems(store: Store) -> list[str]:
    return [finding.words for finding in findings(store) if finding.is_problem]


def edit_lines(run: RunDirectory, edit: Callable[[list[str]], list[str]]) -> None:
    path = run.path / "metrics.jsonl"
    path.write_text("".join(edit(path.read_text().splitlines(keepends=True))))


def edit_last(run: RunDirectory, **changes: object) -> None:
    edit_lines(run, lambda lines: [*lines[:-1], json.dumps({**json.loads(lines[-1]), **changes}) + "\n"])


def move_to_task(run: RunDirectory, task: str) -> None:
    (run.path.parents[1] / task).mkdir()
    run.path.rename(run.path.parents[1] / task / run.run_id)


def reseed(run: RunDirectory) -> None:
    run.write_config({**run.read_config(), "seed": 7})


def drop_last_line(run: RunDirectory) -> None:
    edit_lines(run, lambda lines: lines[:-1])


DAMAGES: dict[str, tuple[Damage, str]] = {
    "summary that is no JSON": (lambda run: (run.path / "summary.json").write_text("{"), "summary.json cannot be read"),
    "summary that is a list": (lambda run: (run.path / "summary.json").write_text("[]"), "summary.json cannot be read"),
    "summary without a key": (lambda run: change_summary(run, seconds=None), "summary.json cannot be read"),
    "summary of a later version": (lambda run: change_summary(run, version=2), "summary.json is of version 2"),
    "no summary": (lambda run: (run.path / "summary.json").unlink(), "there is no summary.json"),
    "no config": (lambda run: (run.path / "config.yaml").unlink(), "there is no config.yaml"),
    "config that is no YAML": (lambda run: (run.path / "config.yaml").write_text("{"), "config.yaml cannot be read"),
    "config that is of no run": (lambda run: run.write_config({"seed": 0}), "config.yaml is not that of a run"),
    "config of another run": (reseed, "config.yaml is that of mnist_mlp100-nero-0.01-s7-"),
    "summary of another run": (lambda run: change_summary(run, run_id="other"), "summary.json is that of other"),
    "summary of another seed": (lambda run: change_summary(run, seed=3), "has seed 3 and config.yaml 0"),
    "another task's folder": (lambda run: move_to_task(run, "mnist_reparam"), "is a run of mnist_mlp100, under mnist_"),
    "damaged line": (lambda run: edit_lines(run, lambda lines: [lines[0][:9] + "\n", *lines[1:]]), "damaged lines 1"),
    "line without its epoch": (lambda run: edit_last(run, epoch=None), "damaged lines 3"),
    "cut-off line": (lambda run: edit_lines(run, lambda lines: [*lines, '{"epoch": 4']), "its last line was cut off"),
    "missing epoch": (lambda run: edit_lines(run, lambda lines: [lines[0], lines[2]]), "epochs 2 to 2 are missing"),
    "repeated epoch": (lambda run: edit_lines(run, lambda lines: [*lines, lines[2]]), "epoch 3 comes after epoch 3"),
    "fewer lines than epochs": (drop_last_line, "summary.json has 3 epochs done, and metrics.jsonl 2"),
    "no lines": (lambda run: (run.path / "metrics.jsonl").unlink(), "3 epochs done, and metrics.jsonl 0"),
    "another last value": (lambda run: edit_last(run, **{"train/accuracy": 0.5}), "differ in train/accuracy"),
    "a metric that is not logged": (lambda run: edit_last(run, **{"val/loss": 0.5}), "differ in val/loss"),
    "another final value": (lambda run: change_summary(run, final=0.5), "two final values of train/accuracy"),
    "an early end": (lambda run: change_summary(run, epochs=4), "is done after 3 of 4 epochs"),
    "left-over part": (lambda run: (run.path / "summary.json.77.part").write_text("{"), "a write that was cut off"),
    "unreadable index": (lambda run: (run.path / "checkpoint.json").write_text("{}"), "checkpoint.json is damaged"),
}


def damaged_checkpoint(run: RunDirectory) -> None:
    (run.path / "checkpoint-epoch3.pt").write_bytes(b"another state")


def lost_checkpoint(run: RunDirectory) -> None:
    (run.path / "checkpoint-epoch3.pt").unlink()


def changed_log(run: RunDirectory) -> None:
    log = run.path / "metrics.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"seconds": ', b'"seconds": 1'))


def checkpoint_outside_run(run: RunDirectory) -> None:
    (run.path / "checkpoint.json").write_text(json.dumps([{"file": "../elsewhere.pt", "sha256": ""}]))


DAMAGES |= {
    "damaged checkpoint": (damaged_checkpoint, "checkpoint-epoch3.pt is damaged"),
    "lost checkpoint": (lost_checkpoint, "checkpoint-epoch3.pt cannot be read (No such file or directory)"),
    "log changed since": (changed_log, "metrics.jsonl is damaged before checkpoint-epoch3.pt"),
    "checkpoint elsewhere": (checkpoint_outside_run, "checkpoint.json is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_reported_with_path_and_store_is_unchanged(store: Store, damage: str) -> None:
    run, whole = write_whole(store), write_whole(store, ADAM)
    run.save_checkpoint(b"a state", {"epoch": 3})
    assert findings(store) == []
    harm, words = DAMAGES[damage]
    harm(run)
    before = contents(store.root)
    found = [finding for finding in findings(store) if finding.is_problem]
    assert any(words in finding.words for finding in found), found
    assert all(run.run_id in str(finding.path) for finding in found), "the other run is whole"
    assert whole.run_id not in "".join(map(str, found))
    assert contents(store.root) == before, "a check changes nothing"


def test_metrics_lines_covering_several_epochs_are_checked(store: Store) -> None:
    run = write_whole(store, curve=[0.25, 0.5, 0.75], epochs=[10, 20, 24])
    assert problems(store) == ["metrics.jsonl: epochs 1 to 9 are missing"]
    lines = run.read_metrics()
    (run.path / "metrics.jsonl").unlink()
    for line, epochs in zip(lines, (10, 10, 4), strict=True):
        run.append_metrics({**line, "epochs": epochs})
    assert findings(store) == []
    edit_last(run, epochs=5)
    assert problems(store) == ["metrics.jsonl: epochs before 24 are repeated"]


def test_unfinished_run_with_truncated_last_line_is_not_a_problem(store: Store) -> None:
    run = write_unfinished(store)
    assert findings(store) == []
    edit_lines(run, lambda lines: [*lines, '{"epoch": 3, "st'])
    (finding,) = findings(store)
    assert not finding.is_problem, "going on with it makes that line again"
    assert "its last line was cut off" in finding.words


def test_diverged_failed_and_non_finite_runs_pass_check(store: Store) -> None:
    diverged = write_whole(store, lr=0.1, final=None)
    change_summary(diverged, epochs=3, epochs_done=1)
    write_whole(store, seed=2, status="failed")
    not_finite = write_whole(store, seed=3, curve=[0.5, float("nan")], final=float("nan"))
    assert not_finite.read_summary() is not None
    assert findings(store) == []


def test_run_without_its_metric_is_reported_but_not_a_problem(store: Store) -> None:
    run = write_whole(store)
    edit_lines(run, lambda lines: [line.replace("train/accuracy", "train/other") for line in lines])
    change_summary(run, final=None, final_metrics={"train/other": 0.75})
    (finding,) = findings(store)
    assert not finding.is_problem
    assert finding.words.startswith("unmeasured")


def test_locked_run_is_not_checked(store: Store) -> None:
    run = write_whole(store)
    with run.exclusive():
        (run.path / "summary.json.1.part").write_text("{")
        (finding,) = check_run(RunDirectory(run.path), run_id)
        assert not finding.is_problem
        assert "being written" in finding.words
    assert problems(store), "now it is left over"


def test_duplicate_run_id_is_reported_at_both_paths(store: Store) -> None:
    run = write_whole(store)
    other = store.root / "copies" / run.run_id
    other.mkdir(parents=True)
    for name, data in contents(run.path).items():
        (other / name).write_bytes(data)
    twice = [finding for finding in findings(store) if "the same id is also at" in finding.words]
    assert {finding.path for finding in twice} == {run.path, other}


def test_lock_only_directory_is_ignored_but_partial_run_is_reported(store: Store) -> None:
    folder = store.root / "mnist_mlp100" / "never-started"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (store.root / "mnist_mlp100" / "notes.txt").touch()
    assert findings(store) == []
    (folder / "metrics.jsonl").touch()
    assert problems(store) == ["there is no summary.json", "there is no config.yaml"]


def test_committed_store_passes_check() -> None:
    checked = list(check_store(Store(ROOT / "results" / "runs"), run_id))
    assert len(checked) > 100
    assert [finding for found in checked for finding in found] == []


def test_check_command_prints_counts_and_exits_nonzero_on_problems(nero_command: Command, store: Store) -> None:
    run = write_whole(store)
    write_whole(store, NERO, seed=1)
    for words in (["check"], ["--check"]):
        result = nero_command("runs", *words)
        assert (result.returncode, result.stdout) == (0, "2 runs: 2 whole, 0 problems\n")
    change_summary(run, final=0.5)
    (run.path / "checkpoint.json").write_text("{}")
    result = nero_command("runs", "--check", "--store", str(store.root))
    assert result.returncode == 1
    lines = result.stdout.splitlines()
    assert lines[-1] == "2 runs: 1 whole, 2 problems"
    assert [line.startswith(f"{run.path}: ") for line in lines[:-1]] == [True, True]


def test_check_command_fails_if_store_is_missing(nero_command: Command, tmp_path: Path) -> None:
    result = nero_command("runs", "check")
    assert (result.returncode, result.stderr) == (1, f"error: there is no store at {tmp_path / 'runs'}\n")
    (tmp_path / "runs").mkdir()
    result = nero_command("runs", "check")
    assert (result.returncode, result.stdout) == (0, "0 runs: 0 whole, 0 problems\n")
