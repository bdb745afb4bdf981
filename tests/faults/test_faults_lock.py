"""Faults: processes that die while they hold a run, on this host or another, and one that is only assumed dead."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nero.runs import lock
from nero.runs.lock import HEARTBEAT, SILENCE, RunBusy
from nero.runs.store import RunDirectory
from nero.runs.tracking import Progress
from nero.train.run import train
from support.faulty_places import Properties, contents, is_as_undisturbed, other_host, run_of

HOLD = """
import pathlib, sys
from nero.runs.store import RunDirectory
with RunDirectory(pathlib.Path(sys.argv[1])).exclusive():
    print("held", flush=True)
    sys.stdin.read()
"""
# On a file system whose kernel locks are local to each host, others see only a holder's record and heartbeat.
BEAT = """
import json, pathlib, sys, threading
from nero.runs import lock
lock.HEARTBEAT = 0.05
path = pathlib.Path(sys.argv[1]) / "lock"
held = lock.Held(path, json.dumps(lock.own_record()).encode())
path.write_bytes(held.record)
print("held", flush=True)
held.beat(threading.Event())
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "runs" / "task" / "task-optim-0.1-s0-00000000")
    directory.path.mkdir(parents=True)
    return directory


class Holder:
    """A process that holds a run."""

    def __init__(self, run: RunDirectory, code: str = HOLD, elsewhere: bool = False) -> None:
        command = [sys.executable, "-c", code, str(run.path)]
        self.process = subprocess.Popen(
            other_host(command) if elsewhere else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL


def age(run: RunDirectory, seconds: float) -> None:
    """Make the lock's last heartbeat older by this many seconds."""
    then = (run.path / "lock").stat().st_mtime - seconds
    os.utime(run.path / "lock", (then, then))


def can_be_taken(run: RunDirectory) -> bool:
    """Whether the run can be locked and released; also asserts that `is_held` agrees."""
    held = run.is_held()
    try:
        with run.exclusive():
            assert run.is_held()
    except RunBusy:
        assert held
        return False
    assert not held
    return True


def test_lock_of_killed_process_is_released_immediately(run: RunDirectory, record_property: Properties) -> None:
    record_property("fault", "a lock whose holder was killed")
    for _ in range(3):
        holder = Holder(run)
        assert not can_be_taken(run)
        holder.kill()
        assert json.loads((run.path / "lock").read_text())["pid"] == holder.process.pid, "nobody has cleaned up"
        assert can_be_taken(run)
        assert (run.path / "lock").read_bytes() == b""
    record_property("repetitions", 3)


def test_lock_of_dead_host_is_taken_over_after_heartbeat_timeout(
    run: RunDirectory, record_property: Properties
) -> None:
    record_property("fault", "a lock whose holder's host died")
    holder = Holder(run, elsewhere=True)
    with pytest.raises(RunBusy, match=f"is being written by process {holder.process.pid} on elsewhere since"):
        run.exclusive().__enter__()
    holder.kill()
    # This host cannot know whether that process is dead.
    with pytest.raises(RunBusy) as busy:
        run.exclusive().__enter__()
    assert str(busy.value).startswith(f"{run.run_id} is being written by process {holder.process.pid} on elsewhere")
    assert str(busy.value).endswith("; it is taken over after 60 s without a heartbeat of that process")
    assert not can_be_taken(run)
    age(run, SILENCE - 10)
    assert not can_be_taken(run)
    age(run, 10)
    assert can_be_taken(run)
    record_property("repetitions", 1)


@pytest.mark.parametrize("jump", [-7200, 7200])
def test_lock_of_other_host_is_respected_while_its_heartbeat_continues(
    run: RunDirectory, record_property: Properties, jump: int
) -> None:
    record_property("fault", "a holder on another host, on a file system that keeps locks to each host")
    holder = Holder(run, BEAT, elsewhere=True)
    assert not can_be_taken(run)
    age(run, -jump)  # into the future or the past: the server's clock may jump
    time.sleep(0.5)
    assert not can_be_taken(run), "it has given a sign of life since"
    holder.kill()
    assert not can_be_taken(run)
    age(run, -jump)
    assert can_be_taken(run)
    record_property("repetitions", 1)


def test_lock_age_is_independent_of_local_clock(
    run: RunDirectory, record_property: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_property("fault", "a host whose clock is wrong by hours")
    Holder(run, elsewhere=True).kill()
    real = time.time
    for wrong in (-7200, 7200):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: real() + wrong)
        assert not can_be_taken(run)
    age(run, 2 * SILENCE)
    assert can_be_taken(run)
    record_property("repetitions", 2)


def test_heartbeat_refreshes_held_lock_and_stops_on_release(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, record_property: Properties
) -> None:
    record_property("fault", "a run that takes longer than a minute")
    assert SILENCE / HEARTBEAT >= 3, "a beat or two may be lost on the way"
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    before = lock.threading.active_count()
    with run.exclusive():
        age(run, 3600)
        old = (run.path / "lock").stat().st_mtime
        end = time.monotonic() + 10
        while (run.path / "lock").stat().st_mtime == old:
            assert time.monotonic() < end
            time.sleep(0.01)
        monkeypatch.setattr(lock, "HEARTBEAT", 3600.0)
        time.sleep(0.1)
        begun = time.monotonic()
    assert time.monotonic() - begun < 60, "released without waiting for the next beat"
    assert lock.threading.active_count() == before
    assert (run.path / "lock").read_bytes() == b""
    record_property("repetitions", 1)


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)", "os._exit(3)"])
def test_heartbeat_thread_does_not_keep_process_alive(run: RunDirectory, record_property: Properties, end: str) -> None:
    record_property("fault", "a process that ends while it holds a run")
    record_property("repetitions", 1)
    code = HOLD.replace("sys.stdin.read()", end).replace("import pathlib", "import os, pathlib")
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], timeout=HEARTBEAT - 1)
    assert done.returncode == 3
    assert can_be_taken(run)


def test_heartbeat_decides_on_file_system_without_locks(
    run: RunDirectory, record_property: Properties, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_property("fault", "a file system without locks")
    record_property("repetitions", 1)
    Holder(run).kill()

    def without(descriptor: int, operation: int) -> None:
        raise OSError(lock.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", without)
    assert not can_be_taken(run), "this host cannot see either that its process is dead"
    age(run, 2 * SILENCE)
    assert can_be_taken(run)


class TakenOver(Progress):
    """Simulates that another host takes the run over when an epoch is logged, as after missed heartbeats."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.run = run
        self.seen: dict[str, Any] = {}

    def epoch(self, record: Mapping[str, Any]) -> None:
        super().epoch(record)
        other = {"pid": 4321, "host": "elsewhere", "boot": "another", "since": "2021-02-15T00:00:00Z"}
        (self.run.path / "lock").write_text(json.dumps(other))
        self.seen = contents(self.run)


@pytest.mark.slow
def test_process_whose_run_was_taken_over_stops_writing(tmp_path: Path, record_property: Properties) -> None:
    record_property("fault", "a process that was suspended, and its run taken over meanwhile")
    config, run = run_of(tmp_path, "optim=nero")
    progress = TakenOver(run)
    outcome = train(config, progress)
    assert outcome["status"] == "busy"
    assert outcome["message"] == (
        f"{run.run_id} was taken over by process 4321 on elsewhere since 2021-02-15T00:00:00Z"
    )
    assert contents(run) == progress.seen
    assert "elsewhere" in (run.path / "lock").read_text(), "nor takes it the other's record away"
    assert train(config)["status"] == "busy"
    age(run, 2 * SILENCE)
    assert train(config)["status"] == "done"
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, "optim=nero")))
    assert is_as_undisturbed(run, "optim=nero")


def test_lock_of_refused_run_is_not_taken_after_its_removal(tmp_path: Path) -> None:
    """Else two processes could hold two files of one name."""
    run = RunDirectory(tmp_path / "task" / "run")
    with run.exclusive():
        other = os.open(run.path / "lock", os.O_RDWR)
        run.discard()
    assert not run.path.parent.exists()
    with run.exclusive():
        assert run.is_held()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nero.runs.lock.open_regular", lambda path, flags=0: other)
        with pytest.raises(RunBusy, match="was just given up"), run.exclusive():
            pass
    assert not run.is_held()
