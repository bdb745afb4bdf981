"""Faults: a wall clock that jumps back by hours in the middle of a run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT, script_environment
from support.faulty_places import WORDS, Properties, assert_in_order, is_as_undisturbed, run_of

pytestmark = pytest.mark.slow

OWN = ("optim=nero", "task.epochs=12")


@pytest.fixture
def clock(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file with the wall clock's offset, which libfaketime reads, and an environment for processes that use it."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), *Path("/usr/lib/faketime").glob("libfaketime.so.1")]
    if not found:
        pytest.skip("needs libfaketime (apt-get install libfaketime)")
    file = tmp_path / "off by"
    file.write_text("+0\n")
    settings = {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return file, script_environment(tmp_path) | settings


def test_faketime_shifts_wall_clock_but_not_monotonic_clock(
    clock: tuple[Path, dict[str, str]], record_property: Properties
) -> None:
    record_property("fault", "a wall clock that jumps (that it does)")
    record_property("repetitions", 1)
    file, environment = clock
    code = (
        "import pathlib, sys, time\n"
        "before = time.time(), time.monotonic()\n"
        "pathlib.Path(sys.argv[1]).write_text('-6h')\n"
        "while time.monotonic() < before[1] + 0.1: pass\n"  # time.sleep does not work under libfaketime
        "print(time.time() - before[0], time.monotonic() - before[1])"
    )
    command = [sys.executable, "-c", code, str(file)]
    wall, monotonic = map(float, subprocess.check_output(command, env=environment, text=True).split())
    assert -6 * 3600 <= wall < -6 * 3600 + 60
    assert 0.1 <= monotonic < 60


def test_run_is_unaffected_by_wall_clock_jumping_back(
    clock: tuple[Path, dict[str, str]], tmp_path: Path, record_property: Properties
) -> None:
    record_property("fault", "a wall clock that jumps back by six hours in the middle of a run")
    file, environment = clock
    _, run = run_of(tmp_path / "runs", *OWN)
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *WORDS, *OWN]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while len(run.read_metrics()) < 2:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.002)
    file.write_text("-6h\n")
    logged = len(run.read_metrics())
    assert logged < 10, "the jump comes too late to test anything"
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert_in_order(run)
    assert all(0 <= record["seconds"] < 60 for record in run.read_metrics())
    summary = run.read_summary()
    assert summary is not None
    assert 0 < summary["seconds"] < 120
    [start] = run.read_provenance()
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    result = f"{summary['metric']['key']} {summary['final']:.4f}"
    assert (again.returncode, again.stdout) == (
        0,
        f"{run.run_id} is done already: {result}; to train it again, log it elsewhere: store=DIR\n"
        f"logged in {run.path}\n",
    )
    assert run.read_provenance() == [start], "it is not begun again"
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    record_property("done_twice", len(run.read_provenance()) - 1)
    assert is_as_undisturbed(run, *OWN)
    assert os.environ.get("LD_PRELOAD") != environment["LD_PRELOAD"], "this process has the true time"


def test_time_budget_holds_when_wall_clock_jumps_back(
    clock: tuple[Path, dict[str, str]], tmp_path: Path, record_property: Properties
) -> None:
    record_property("fault", "a wall clock that jumps back by six hours in the middle of a sweep with a budget")
    file, environment = clock
    endless = ("optim=nero,sgd", "task.epochs=100000", "machine.budget_seconds=15")
    folder = f"hydra.sweep.dir={tmp_path / 'outputs'}"
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--multirun", *WORDS, *endless, folder]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    time.sleep(10)
    file.write_text("-6h\n")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert time.monotonic() - began < 60, "15 seconds, and the start of Python"
    assert said.count("the time budget is used up") == 2
    record_property("repetitions", 1)
