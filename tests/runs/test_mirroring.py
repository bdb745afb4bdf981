"""Mirroring logged runs to wandb: every value arrives exactly once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nero.runs.logged import logged_runs
from nero.runs.store import RunDirectory, Store
from nero.runs.tracking import SYNCED, WandbMirror, mirror
from support.logged_stores import ADAM, NERO, REPARAM, change_summary, write_unfinished, write_whole
from support.offline_mirror import read_mirror

Command = Callable[..., "subprocess.CompletedProcess[str]"]

pytest.importorskip("wandb", reason="needs the extra `suite`")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Environment variables without a wandb login, and with a home directory for wandb's files."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "WANDB_API_KEY": ""}


def mirrors(run: RunDirectory) -> list[Path]:
    return sorted(run.path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.slow
def test_sync_mirrors_all_metrics_config_and_summary(nero_command: Command, store: Store, home: dict[str, str]) -> None:
    done = write_whole(store, NERO, 0.01, 0, 0.75, curve=[0.25, float("nan"), 0.75])
    diverged = write_whole(store, ADAM, 0.1, 1, None)
    result = nero_command("runs", "sync", "--project", "turning", **home)
    assert result.returncode == 0, result.stderr
    assert "2 of 2 runs mirrored, offline, in the project turning" in result.stdout
    (path,) = mirrors(done)
    found = read_mirror(path)
    assert (found.run_id, found.project) == (done.run_id, "turning")
    assert {key: value for key, value in found.config.items() if key != "_wandb"} == done.read_config()
    for line, arrived in zip(done.read_metrics(), found.history, strict=True):
        numbers = {key: value for key, value in line.items() if isinstance(value, int | float)}
        assert {key: value for key, value in arrived.items() if not key.startswith("_")} == numbers
        assert arrived["_step"] == line["epoch"]
    assert "train/accuracy" not in found.history[1], "it was not finite"
    assert (found.summary["status"], found.summary["final"], found.exit_code) == ("done", 0.75, 0)
    (path,) = mirrors(diverged)
    assert read_mirror(path).summary["status"] == "diverged"


SYNC = """
import sys
from nero.cli.main import main
for words in sys.argv[2:]:
    main(["runs", "sync", "--store", sys.argv[1], *words.split()])
"""


@pytest.mark.slow
def test_second_sync_mirrors_only_new_or_changed_runs(store: Store, home: dict[str, str]) -> None:
    runs = [write_whole(store, NERO), write_whole(store, ADAM)]

    def sync(*each: str) -> list[str]:
        """Run several syncs in one process; returns how many runs each reports as mirrored."""
        command = [sys.executable, "-c", SYNC, str(store.root), *each]
        result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **home}, check=True)
        return [line.partition(" mirrored")[0] for line in result.stdout.splitlines() if "mirrored" in line]

    assert sync("", "") == ["2 of 2 runs", "0 of 2 runs"]
    change_summary(runs[0], seconds=99.0)
    runs.append(write_whole(store, REPARAM))
    assert sync("", "--project another --optim nero", "--again --optim nero", "") == [
        "2 of 3 runs",
        "1 of 1 run",
        "1 of 1 run",
        "0 of 3 runs",
    ]
    assert [bool(mirrors(run)) for run in runs] == [True] * 3


class FakeWandbMirror:
    """A stand-in for the wandb mirror, which records the ids of the runs it is given."""

    def __init__(self, *words: object, **settings: object) -> None:
        self.told: list[str] = []
        self.wandb = type("wandb", (), {"Error": LookupError})

    def start(self, run_id: str, *others: object) -> None:
        self.told.append(run_id)

    def epoch(self, record: object) -> None:
        if record == {"epoch": 99}:
            raise LookupError("no\nnetwork")

    def finish(self, summary: object) -> None: ...


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> FakeWandbMirror:
    there = FakeWandbMirror()
    monkeypatch.setattr("nero.runs.tracking.WandbMirror", lambda *words, **settings: there)
    return there


def test_mirror_skips_unfinished_runs_unless_all_and_always_locked_runs(store: Store, told: FakeWandbMirror) -> None:
    done, cut_off, held = write_whole(store), write_unfinished(store, ADAM), write_unfinished(store, REPARAM)
    with held.exclusive():
        said = [line for line, _ in mirror(logged_runs(store))]
        assert told.told == [done.run_id]
        assert sum("use --all to include it" in line for line in said) == 2
        said = [line for line, _ in mirror(logged_runs(store), every=True)]
        assert sum(line.endswith(": already there") for line in said) == 1
        assert sum(line.endswith(": skipped: a process is writing it") for line in said) == 1
    assert told.told == [done.run_id, cut_off.run_id]


def test_sync_record_is_per_destination_and_redone_if_unreadable(store: Store, told: FakeWandbMirror) -> None:
    run = write_whole(store)
    for destination in ({}, {"mode": "online"}, {"entity": "we"}, {}):
        list(mirror(logged_runs(store), **destination))
    assert len(told.told) == 3
    assert json.loads((run.path / SYNCED).read_text()).keys() == {"offline /nero", "online /nero", "offline we/nero"}
    (run.path / SYNCED).write_text("{")
    list(mirror(logged_runs(store)))
    assert len(told.told) == 4
    (run.path / SYNCED).unlink()
    (run.path / SYNCED).symlink_to(SYNCED)  # cannot be opened, by root neither
    list(mirror(logged_runs(store)))
    assert len(told.told) == 5


def test_wandb_error_is_one_line_and_run_is_not_marked_synced(store: Store, told: FakeWandbMirror) -> None:
    run = write_whole(store)
    run.append_metrics({"epoch": 99})
    with pytest.raises(RuntimeError, match=r"^wandb: no network$"):
        list(mirror(logged_runs(store)))
    assert not (run.path / SYNCED).exists()


def test_wandb_mirror_resumes_live_run_but_not_replay() -> None:
    assert WandbMirror().settings["resume"] == "allow"
    assert WandbMirror(replay=True).settings["resume"] is None


def test_sync_without_wandb_prints_install_hint(store: Store) -> None:
    write_whole(store)
    code = (
        "import sys; sys.modules['wandb'] = None\n"
        "from nero.cli.main import main\n"
        f"sys.exit(main(['runs', 'sync', '--store', {str(store.root)!r}]))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "pip install -e '.[suite]'" in result.stderr
    assert len(result.stderr.splitlines()) == 1
