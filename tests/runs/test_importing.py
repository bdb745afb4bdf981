"""Importing runs of another store: each is copied completely or not at all, and never overwrites another run."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import ROOT
from nero.cli.runs import main
from nero.plans.config import run_id
from nero.runs import importing
from nero.runs.importing import LOCK, Import, ImportOutcome
from nero.runs.lock import RunBusy, exclusive
from nero.runs.logged import logged_runs
from nero.runs.store import RunDirectory, Store
from support.logged_stores import ADAM, NERO, REPARAM, change_summary, contents, logged, write_unfinished, write_whole

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store(tmp_path / "other")


def import_all(store: Store, other: Store, **options: bool) -> dict[str, ImportOutcome]:
    """Import every run of another store; returns the outcomes by run id."""
    found = Import(store, run_id, **options).runs(logged_runs(other))
    return {run.run_id: outcome for run, outcome, _ in found}


def import_single(store: Store, other: Store, **options: bool) -> ImportOutcome:
    (outcome,) = import_all(store, other, **options).values()
    return outcome


def files_of(run: RunDirectory) -> dict[str, bytes]:
    return {name: data for name, data in contents(run.path).items() if name != "lock"}


def at(store: Store, run: RunDirectory) -> RunDirectory:
    """The same run in another store."""
    return store.run(run.path.parent.name, run.run_id)


def test_import_copies_missing_runs_completely(store: Store, other: Store) -> None:
    here = write_whole(store, REPARAM)
    runs = [write_whole(other), write_whole(other, ADAM, final=None), write_unfinished(other, seed=1)]
    runs[0].save_checkpoint(b"the last state", {"epoch": 3})
    (runs[0].path / "pictures").mkdir()
    (runs[0].path / "pictures" / "samples-epoch0001.png").write_bytes(b"a picture")
    before = contents(other.root)
    assert import_all(store, other) == {run.run_id: ImportOutcome.IMPORTED for run in runs}
    for run in runs:
        assert files_of(at(store, run)) == files_of(run)
    assert at(store, runs[2]).load_checkpoint() == b"the state after two epochs"
    assert contents(other.root) == before
    assert {run.run_id for run in store.runs()} == {run.run_id for run in (here, *runs)}
    assert not list(store.root.glob("*/.*")), "nothing is left over"
    assert import_all(store, other) == {run.run_id: ImportOutcome.ALREADY_HERE for run in runs}


def test_import_skips_wandb_files_and_lock(store: Store, other: Store) -> None:
    run = write_whole(other)
    (run.path / "wandb" / "offline-run").mkdir(parents=True)
    (run.path / "wandb" / "latest-run").symlink_to("offline-run")
    (run.path / "wandb-synced.json").write_text("{}")
    assert import_single(store, other) == ImportOutcome.IMPORTED
    assert files_of(at(store, run)).keys() == {"config.yaml", "metrics.jsonl", "provenance.jsonl", "summary.json"}
    assert not (at(store, run).path / "lock").exists()


def test_import_without_checkpoints_does_not_cause_conflict_later(store: Store, other: Store) -> None:
    run = write_whole(other)
    run.save_checkpoint(b"the last state", {"epoch": 3})
    assert import_single(store, other, checkpoints=False) == ImportOutcome.IMPORTED
    assert not list(at(store, run).path.glob("checkpoint*"))
    assert import_single(store, other) == ImportOutcome.ALREADY_HERE


def test_different_content_is_a_conflict_and_both_runs_are_kept(store: Store, other: Store) -> None:
    here, there = write_whole(store, final=0.5), write_whole(other, final=0.75)
    before = contents(store.root), contents(other.root)
    for options in ({}, {"replace_unfinished": True}):
        assert import_single(store, other, **options) == ImportOutcome.CONFLICT
    shutil.rmtree(there.path)
    write_unfinished(other)
    assert import_single(store, other) == ImportOutcome.CONFLICT, "a result is not given for a run that was cut off"
    assert files_of(here) == {Path(name).name: data for name, data in before[0].items() if not name.endswith("lock")}


def test_two_differing_unfinished_runs_are_a_conflict(store: Store, other: Store) -> None:
    write_unfinished(store)
    run = write_unfinished(other)
    run.append_metrics({"epoch": 3, "train/accuracy": 0.75})
    assert import_single(store, other, replace_unfinished=True) == ImportOutcome.CONFLICT


def test_finished_run_replaces_unfinished_run_only_if_requested(store: Store, other: Store) -> None:
    here, there = write_unfinished(store), write_whole(other)
    before = files_of(here)
    assert import_single(store, other) == ImportOutcome.UNFINISHED_HERE
    assert files_of(here) == before
    assert import_single(store, other, replace_unfinished=True) == ImportOutcome.REPLACED
    assert files_of(here) == files_of(there)
    kept = here.path.parent / ".replaced" / here.run_id
    assert files_of(RunDirectory(kept)) == before
    assert [run.path for run in store.runs()] == [here.path], "what was put aside is no run to any reader"
    shutil.rmtree(here.path)
    shutil.copytree(kept, here.path)
    assert import_single(store, other, replace_unfinished=True) == ImportOutcome.REPLACED
    assert files_of(RunDirectory(kept.with_name(f"{here.run_id}.2"))) == before, "of two, both are kept"


def test_failed_run_and_run_without_summary_count_as_unfinished(store: Store, other: Store) -> None:
    here, _ = write_whole(store, status="failed"), write_whole(other)
    assert import_single(store, other, replace_unfinished=True) == ImportOutcome.REPLACED
    (here.path / "summary.json").unlink()
    assert import_single(store, other) == ImportOutcome.UNFINISHED_HERE


def test_lock_only_directory_does_not_block_import(store: Store, other: Store) -> None:
    run = write_whole(other)
    here = at(store, run)
    here.path.mkdir(parents=True)
    (here.path / "lock").touch()
    with here.exclusive():
        assert import_single(store, other) == ImportOutcome.BUSY
    assert import_single(store, other) == ImportOutcome.IMPORTED
    assert files_of(here) == files_of(run)


def test_locked_runs_are_reported_as_busy(store: Store, other: Store) -> None:
    run = write_unfinished(other)
    with run.exclusive():
        assert import_single(store, other) == ImportOutcome.BUSY
    assert store.runs() == []
    here = write_unfinished(store, ADAM)
    shutil.rmtree(run.path)
    write_whole(other, ADAM)
    with here.exclusive():
        assert import_single(store, other, replace_unfinished=True) == ImportOutcome.BUSY


def test_run_modified_during_copy_is_not_imported(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_unfinished(other)
    copy = importing._copy

    def slowly(source: Path, target: Path, checkpoints: bool) -> None:
        copy(source, target, checkpoints)
        run.append_metrics({"epoch": 3})

    monkeypatch.setattr(importing, "_copy", slowly)
    assert import_single(store, other) == ImportOutcome.BUSY
    assert store.runs() == []
    assert not list(store.root.glob("mnist*"))


def test_run_that_fails_check_is_not_imported(store: Store, other: Store) -> None:
    run = write_whole(other)
    change_summary(run, final=0.5)
    ((_, outcome, why),) = Import(store, run_id).runs(logged_runs(other))
    assert outcome == ImportOutcome.PROBLEM
    assert "two final values" in why
    assert import_single(store, other, dry=True) == ImportOutcome.PROBLEM
    change_summary(run, final=0.75)
    (run.path / "more").symlink_to("/etc/passwd")
    assert import_single(store, other) == ImportOutcome.PROBLEM
    assert store.runs() == []


def test_run_id_under_another_task_is_a_conflict(store: Store, other: Store) -> None:
    run = write_whole(other)
    (store.root / "elsewhere" / run.run_id).mkdir(parents=True)
    assert import_single(store, other) == ImportOutcome.CONFLICT


def test_dry_run_reports_same_outcomes_without_writing(store: Store, other: Store) -> None:
    write_whole(other)
    write_whole(other, ADAM)
    write_whole(store, ADAM, final=0.5)
    expected = [ImportOutcome.CONFLICT, ImportOutcome.IMPORTED]
    before = contents(store.root)
    assert list(import_all(store, other, dry=True).values()) == expected
    assert contents(store.root) == before
    assert list(import_all(store, other).values()) == expected


def test_concurrent_imports_are_mutually_exclusive(
    store: Store, other: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_whole(other)
    store.root.mkdir()
    with exclusive(store.root / LOCK):
        with pytest.raises(RunBusy):
            import_all(store, other)
        assert main(["import", str(other.root), "--store", str(store.root)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "is being written by process" in error
    assert error.count("\n") == 1
    assert import_single(store, other) == ImportOutcome.IMPORTED


SLOWLY = """
import sys, time
from nero.plans.config import run_id
from nero.runs import importing
from nero.runs.logged import logged_runs
from nero.runs.store import Store
flush = importing._flush
def slowly(path):
    flush(path)
    print(path, flush=True)
    time.sleep(0.02)
importing._flush = slowly
list(importing.Import(Store(sys.argv[1]), run_id, replace_unfinished=True).runs(logged_runs(Store(sys.argv[2]))))
"""


@pytest.mark.parametrize("after", [1, 3, 6, 8, 11, 14])
def test_killed_import_leaves_no_partial_run_and_can_be_repeated(store: Store, other: Store, after: int) -> None:
    cut_off = write_unfinished(store, REPARAM)
    others = [write_whole(other, name) for name in (NERO, ADAM, REPARAM)]
    others[0].save_checkpoint(b"state" * 1000, {"epoch": 3})
    before = files_of(cut_off)
    words = [sys.executable, "-c", SLOWLY, str(store.root), str(other.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline(), "it came to its end before it was killed"
        os.kill(process.pid, signal.SIGKILL)
    for run in store.runs():
        there = at(other, run)
        assert files_of(run) == (before if run.path == cut_off.path and files_of(run) == before else files_of(there))
    assert set(import_all(store, other, replace_unfinished=True).values()) <= {
        ImportOutcome.IMPORTED,
        ImportOutcome.ALREADY_HERE,
        ImportOutcome.REPLACED,
    }
    assert {run.run_id: files_of(run) for run in store.runs()} == {run.run_id: files_of(run) for run in others}
    assert {path.name for path in store.root.glob("*/.*")} <= {".replaced"}, "what was left over is gone"


def test_import_command_prints_outcomes_and_counts(nero_command: Command, store: Store, other: Store) -> None:
    write_whole(other, NERO)
    write_whole(other, REPARAM)
    write_whole(other, ADAM)
    conflict = write_whole(store, ADAM, final=0.5)
    first = nero_command("runs", "import", str(other.root), "--task", "mnist_reparam", "--dry-run")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == "would be: 1 imported"
    assert len(store.runs()) == 1
    second = nero_command("runs", "import", str(other.root))
    assert second.returncode == 1
    lines = second.stdout.splitlines()
    assert lines[0].startswith(f"{conflict.run_id}: conflict: {conflict.path} and ")
    assert lines[-1] == "2 imported; 1 conflict"
    assert len(store.runs()) == 3
    third = nero_command("runs", "import", str(other.root), "--optim", "nero")
    assert (third.returncode, third.stdout) == (0, "1 already here\n")
    for words, said in [(["/nowhere"], "no store at /nowhere"), ([str(store.root)], "is the store itself")]:
        wrong = nero_command("runs", "import", *words)
        assert wrong.returncode == 2
        assert said in wrong.stderr


def test_importing_committed_runs_is_fast(store: Store) -> None:
    begun = time.monotonic()
    committed = [run for run in logged_runs(Store(ROOT / "results" / "runs")) if run.summary["task"] == "mnist_reparam"]
    found = list(Import(store, run_id).runs(committed))
    assert {outcome for _, outcome, _ in found} == {ImportOutcome.IMPORTED}
    assert time.monotonic() - begun < 20
    assert [logged(run).summary for run in store.runs()] == [run.summary for run in committed]
