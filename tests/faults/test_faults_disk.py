"""Faults: a full disk and a read-only store, both real, on a small file system that the test mounts."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nero.report.frame import load_curves, load_runs
from nero.runs.store import RunDirectory, Store
from nero.runs.tracking import Progress
from nero.train.run import train
from support.faulty_places import (
    WORDS,
    Properties,
    assert_in_order,
    contents,
    fill,
    is_as_undisturbed,
    mount,
    run_of,
    small_disk,
    undisturbed,
)

OWN = ("optim=nero", "task.epochs=3")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB; a checkpoint takes 2.5 MB."""
    with small_disk(tmp_path / "disk", megabytes=24) as folder:
        yield folder


def append_until_error(run: RunDirectory, record: dict[str, Any]) -> None:
    while True:
        run.append_metrics(record)


def test_full_disk_leaves_no_partial_log_line(disk: Path, record_property: Properties) -> None:
    record_property("fault", "a full disk, in the middle of a line of the log")
    run = RunDirectory(disk / "run")
    run.path.mkdir()
    taken_back = 0
    for times in range(12):
        ballast = fill(disk, left=4096)
        record = {"epoch": 1, "trace": {"x": list(range(30 + times))}}  # so that writes end at different page offsets
        with pytest.raises(OSError, match=r"\[Errno 28\] No space left on device: '.*metrics\.jsonl'"):
            append_until_error(run, record)
        # A full disk accepts a part of the line without an error; that part must be removed again.
        log = (run.path / "metrics.jsonl").read_bytes()
        assert log.endswith(b"}\n")
        lines = [json.loads(line) for line in log.splitlines()]
        assert lines == run.read_metrics()
        assert lines[-1] == record
        taken_back += len(log) % 4096 != 0
        ballast.unlink()
        run.append_metrics({"epoch": 2})
        assert run.read_metrics() == [*lines, {"epoch": 2}]
    record_property("repetitions", taken_back)
    record_property("lost", 0)
    assert taken_back > 6, "the disk has to take a part of a line, else this tests nothing"


class Filling(Progress):
    """Fills the disk when the given epoch is logged, or at the start of the run if the epoch is 0."""

    def __init__(self, disk: Path, epoch: int, left: int) -> None:
        super().__init__()
        self.disk, self.at, self.left = disk, epoch, left
        self.ballast: Path | None = None

    def start(self, run_id: str, path: Path, config: Mapping[str, Any], epochs: int, done: float, metric: str) -> None:
        super().start(run_id, path, config, epochs, done, metric)
        self._fill(0)

    def epoch(self, record: Mapping[str, Any]) -> None:
        super().epoch(record)
        self._fill(record["epoch"])

    def _fill(self, epoch: int) -> None:
        if epoch == self.at:
            self.ballast = fill(self.disk, self.left)


# Seconds between checkpoints (0: after every step), the epoch after which the disk is full, and the bytes left free:
# none, a page, enough for a summary, or enough for one more checkpoint (2.5 MB).
FULL = [(0, epoch, left) for epoch in (0, 1, 3) for left in (0, 4096, 100_000)]
FULL += [(0, 0, 2_600_000), (3600, 0, 0), (3600, 3, 0), (3600, 3, 4096)]


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "epoch", "left"), FULL)
def test_run_resumes_without_loss_after_disk_filled_up(
    disk: Path, record_property: Properties, seconds: int, epoch: int, left: int
) -> None:
    record_property("fault", "a disk that fills up while a run writes a line, a checkpoint, its summary")
    config, run = run_of(disk / "runs", *OWN, f"machine.checkpoint_seconds={seconds}")
    undisturbed(*OWN)
    filling = Filling(disk, epoch, left)
    outcome = train(config, filling)
    assert filling.ballast is not None
    assert outcome["status"] == "failed", outcome
    assert outcome["message"].startswith("OSError: [Errno 28] No space left on device: '")
    assert "\n" not in outcome["message"]
    assert_in_order(run)
    log = (run.path / "metrics.jsonl").read_bytes()
    assert log.splitlines(keepends=True) == [line for line in log.splitlines(keepends=True) if line.endswith(b"}\n")]
    if seconds == 0 and epoch > 0:
        assert run.load_checkpoint() is not None, "what was there before is there still"
    summary = run.read_summary()
    assert summary is not None
    if left >= 100_000:
        assert (summary["status"], summary["traceback"].strip()) == ("failed", outcome["message"])
    filling.ballast.unlink()
    assert train(config)["status"] == "done"
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    assert is_as_undisturbed(run, *OWN)
    assert train(config)["skipped"]


@pytest.mark.slow
def test_sweep_on_full_disk_reports_each_run_and_resumes_once_space_is_free(
    disk: Path, tmp_path: Path, record_property: Properties, nero_command: Callable[..., Any]
) -> None:
    record_property("fault", "a sweep on a disk that is full from the start")
    ballast = fill(disk, left=0)
    words = ("--multirun", "optim=nero,sgd", *WORDS)
    full = nero_command("train", *words, NERO_RUNS=str(disk / "runs"))
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    lines = [line for line in full.stderr.splitlines() if "failed  " in line]
    assert len(lines) == 2
    assert all("OSError: [Errno 28] No space left on device: '" in line for line in lines)
    ballast.unlink()
    again = nero_command("train", *words, NERO_RUNS=str(disk / "runs"))
    assert again.returncode == 0, again.stderr
    runs = [(run_of(disk / "runs", optim)[1], optim) for optim in ("optim=nero", "optim=sgd")]
    record_property("repetitions", 1)
    record_property("lost", sum(not is_as_undisturbed(run, optim) for run, optim in runs))
    record_property("done_twice", sum(len(run.read_provenance()) - 1 for run, _ in runs))
    assert all(is_as_undisturbed(run, optim) for run, optim in runs)


@pytest.fixture
def read_only(disk: Path) -> Iterator[Callable[[bool], None]]:
    def set_to(wanted: bool) -> None:
        done = mount("-o", f"remount,{'ro' if wanted else 'rw'}", str(disk))
        assert done.returncode == 0, done.stderr

    yield set_to
    set_to(False)


@pytest.mark.slow
def test_read_only_store_skips_finished_runs_and_fails_others_cleanly(
    disk: Path, read_only: Callable[[bool], None], record_property: Properties
) -> None:
    record_property("fault", "a store that may only be read")
    store = disk / "runs"
    settled, settled_run = run_of(store, "optim=nero")
    train(settled)
    begun, begun_run = run_of(store, *OWN, "machine.checkpoint_seconds=3600")
    filling = Filling(disk, epoch=1, left=2_000_000)  # makes the run fail midway
    pending, pending_run = run_of(store, "optim=sgd")
    assert train(run_of(store, *OWN)[0], filling)["status"] == "failed"
    assert filling.ballast is not None
    filling.ballast.unlink()
    before = contents(settled_run), contents(begun_run)

    read_only(True)
    with pytest.raises(OSError, match="Read-only file system"):
        (store / "file").write_text("")
    assert train(settled)["skipped"]
    for config in (begun, pending):
        outcome = train(config)
        assert outcome["status"] == "failed"
        assert outcome["message"].startswith("OSError: [Errno 30] Read-only file system: '")
        assert "\n" not in outcome["message"]
        assert outcome["run_id"] == config.run_id
    assert (contents(settled_run), contents(begun_run)) == before
    assert not pending_run.path.exists()
    assert not begun_run.is_held()
    assert list(load_runs(Store(store))["status"]) == ["done", "failed"]
    assert set(load_curves(Store(store))["run_id"]) == {settled.run_id, begun.run_id}

    read_only(False)
    for config in (begun, pending):
        assert train(config)["status"] == "done"
    record_property("repetitions", 2)
    record_property("lost", int(not is_as_undisturbed(begun_run, *OWN)))
    assert is_as_undisturbed(begun_run, *OWN)
    assert is_as_undisturbed(pending_run, "optim=sgd")


@pytest.mark.slow
def test_plan_and_report_work_on_read_only_store(
    disk: Path,
    tmp_path: Path,
    read_only: Callable[[bool], None],
    record_property: Properties,
    nero_command: Callable[..., Any],
) -> None:
    record_property("fault", "a plan and a report of a store that may only be read")
    store = disk / "runs"
    train(run_of(store, "optim=nero")[0])
    read_only(True)
    planned = nero_command("plan", "smoke", "--store", str(store))
    assert (planned.returncode, planned.stderr) == (0, "")
    assert "pending" in planned.stdout
    made = nero_command("report", "smoke", "--store", str(store), "--out", str(tmp_path / "report"))
    assert made.returncode in (0, 1), made.stderr  # 1: some runs are missing
    assert "Traceback" not in made.stderr
    assert list((tmp_path / "report").rglob("*.md"))
    record_property("repetitions", 2)
