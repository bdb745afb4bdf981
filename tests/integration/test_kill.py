"""Tests of runs that are killed by signals: they resume and end with the same metrics."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT, SMALL, script_environment
from nero.plans.config import compose
from nero.runs.store import RunDirectory, Store
from nero.train.run import train
from support.toy import without_times

WORDS = (*SMALL, "task.epochs=8", "optim=adam", "machine.threads=1", "machine.checkpoint_seconds=0")
# Muon multiplies bfloat16 matrices, which is slow on many CPUs: the smallest network.
MUON = ("task=wikitext2_transformer", "task.network.width=8", "task.train_examples=100", "task.batch_size=10")
MUON += (*(word for word in WORDS if not word.startswith(("task.", "optim="))), "task.epochs=8", "optim=muon")


def start(tmp_path: Path, *words: str, base: tuple[str, ...] = WORDS) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *base, *words]
    return subprocess.Popen(command, cwd=ROOT, env=script_environment(tmp_path), stderr=subprocess.PIPE, text=True)


def wait_for_epochs(run: RunDirectory, epochs: int, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 60
    while len(run.read_metrics()) < epochs:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("words", [WORDS, (*WORDS, "optim=schedule_free"), MUON], ids=["adam", "schedule_free", "muon"])
def test_a_run_killed_with_sigkill_resumes_to_bit_identical_metrics(tmp_path: Path, words: tuple[str, ...]) -> None:
    undisturbed = compose([*words, f"store={tmp_path / 'undisturbed'}", "machine.checkpoint_seconds=3600"])
    train(undisturbed)
    expected = Store(tmp_path / "undisturbed").run(undisturbed.task_name, undisturbed.run_id).read_metrics()

    run = Store(tmp_path / "runs").run(undisturbed.task_name, undisturbed.run_id)
    for epochs in (2, 5):
        process = start(tmp_path, base=words)
        wait_for_epochs(run, epochs, process)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        # A partial line, as left by a kill in the middle of a write.
        with (run.path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"epoch": 99, "tra')
        summary = run.read_summary()
        assert summary is not None
        assert summary["status"] == "running"
    assert start(tmp_path, base=words).wait() == 0
    assert without_times(run.read_metrics()) == without_times(expected)
    assert len(run.read_provenance()) == 3
    summary = run.read_summary()
    assert summary is not None
    assert summary["status"] == "done"


@pytest.mark.slow
def test_sigterm_saves_checkpoint_and_exits_cleanly(tmp_path: Path) -> None:
    config = compose(list(WORDS))
    run = Store(tmp_path / "runs").run(config.task_name, config.run_id)
    process = start(tmp_path, "task.epochs=8", "machine.checkpoint_seconds=3600")
    wait_for_epochs(run, 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert run.load_checkpoint() is not None
    assert not run.is_held()
    done = len(run.read_metrics())
    assert done < 8
    assert start(tmp_path).wait() == 0
    assert [record["epoch"] for record in run.read_metrics()] == list(range(1, 9))


@pytest.mark.slow
def test_second_process_error_names_process_holding_the_run(tmp_path: Path) -> None:
    config = compose([*WORDS, "task.epochs=500"])
    run = Store(tmp_path / "runs").run(config.task_name, config.run_id)
    first = start(tmp_path, "task.epochs=500", "machine.checkpoint_seconds=3600")
    try:
        wait_for_epochs(run, 1, first)
        second = start(tmp_path, "task.epochs=500")
        assert second.stderr is not None
        message = second.stderr.read()
        assert second.wait() == 1
        assert f"is being written by process {first.pid} on {os.uname().nodename}" in message
    finally:
        first.kill()
        first.wait()
