"""Faults: SIGKILL at any moment, and concurrent sweeps. No run is lost, done twice, or ends with another result."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, script_environment
from nero.runs.store import RunDirectory, is_settled
from support.faulty_places import (
    PLAN,
    WORDS,
    Properties,
    assert_in_order,
    contents,
    is_as_undisturbed,
    plan_of,
    repetitions,
    run_of,
)
from support.killed_children import Sweeps

pytestmark = pytest.mark.slow

STEPS = 6
"""Steps of an epoch."""


@pytest.fixture(scope="module")
def sweeps() -> Iterator[Sweeps]:
    made = Sweeps()
    yield made
    made.close()


class Watched:
    """Inspects the runs of a plan after every kill, and counts lost and repeated runs."""

    def __init__(self, runs: list[RunDirectory]) -> None:
        self.runs = runs
        self.lost = self.twice = 0
        self.settled: dict[str, object] = {}  # run id -> its files when it was first seen to be settled
        self.reached: Counter[str] = Counter()  # run id -> steps of its newest checkpoint

    def look(self) -> None:
        for run in self.runs:
            assert not run.is_held()
            epochs = [record["epoch"] for record in run.read_metrics()]
            assert epochs == list(range(1, 1 + len(epochs)))
            _assert_whole(run)
            if (before := self.settled.get(run.run_id)) is not None:
                self.twice += contents(run) != before
            elif is_settled(run.read_summary()):
                self.settled[run.run_id] = contents(run)
            else:
                # There is a checkpoint after every step, so at most the one that ended the last epoch is missing.
                steps = _checkpointed_steps(run)
                self.lost += steps < max(self.reached[run.run_id], STEPS * len(epochs) - 1)
                self.reached[run.run_id] = steps

    @property
    def phase(self) -> str:
        """Progress of the plan: the number of settled runs, and the state of the next one."""
        unsettled = [run for run in self.runs if run.run_id not in self.settled]
        if not unsettled:
            return "all done"
        steps = _checkpointed_steps(unsettled[0])
        begun = "begun" if unsettled[0].path.exists() else "to begin"
        return f"{len(self.settled)} done, next {f'after step {steps}' if steps else begun}"


def _assert_whole(run: RunDirectory) -> None:
    """Assert that every file of the run can be read, and that files with a checksum match it."""
    for name, read in (("summary.json", json.loads), ("checkpoint.json", json.loads), ("config.yaml", yaml.safe_load)):
        if (run.path / name).exists():
            assert read((run.path / name).read_text()), f"{name} is half-written"
    run.resumable_checkpoint(pytest.fail)


def _checkpointed_steps(run: RunDirectory) -> int:
    try:
        position = json.loads((run.path / "checkpoint.json").read_text())[0]["position"]
    except FileNotFoundError:
        return 0
    return int(STEPS * position["epoch"] + position["step"])


def test_runs_killed_at_random_times_end_identical_to_undisturbed_runs(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    wanted, kills, plans = repetitions(24), 0, 0
    chance = random.Random(0)
    lost = twice = unlike = 0
    phases: set[str] = set()
    words = [[*WORDS, *own] for own in PLAN]
    sweeps.run(words, tmp_path / "first")  # a warm-up, for imports at first use
    duration = sweeps.run(words, tmp_path / "for its duration")["seconds"]
    while kills < wanted:
        store = tmp_path / str(plans)
        runs = plan_of(store)
        watched = Watched(runs)
        while True:
            # Kills fall everywhere in the plan: into its first run, its last run, and all between.
            answer = sweeps.run(words, store, after=chance.uniform(0.0, 0.5 * duration))
            watched.look()
            if not answer["killed"]:
                break
            kills += 1
            phases.add(watched.phase)
        plans += 1
        lost += watched.lost + sum((run.read_summary() or {}).get("status") != "done" for run in runs)
        twice += watched.twice
        unlike += sum(not is_as_undisturbed(run, *own) for run, own in zip(runs, PLAN, strict=True))
        for run in runs:
            assert_in_order(run)
    counts = {"repetitions": kills, "lost": lost, "done_twice": twice, "plans": plans, "phases": len(phases)}
    for name, value in {"fault": "SIGKILL at a random moment of a sweep", **counts}.items():
        record_property(name, value)
    assert (lost, twice, unlike) == (0, 0, 0)
    assert len(phases) >= min(8, kills // 3), f"kills fell into these alone: {phases}"


def test_kill_between_file_operations_loses_no_written_data(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    own = ("optim=nero", "task.epochs=2")

    words = [[*WORDS, *own]]
    operations = sweeps.run(words, tmp_path / "whole")["operations"]
    assert operations > 100
    # The first and last operations, which create or remove directories, lock and summary, and a sample between them.
    wanted = repetitions(16)
    ends = [*range(wanted // 4), *range(operations - wanted // 4, operations)]
    between = random.Random(1).sample(range(wanted // 4, operations - wanted // 4), wanted - len(ends))
    lost = twice = unlike = 0
    for before in [*ends, *between]:
        store = tmp_path / str(before)
        config, run = run_of(store, *own)
        assert sweeps.run(words, store, before=before)["killed"]
        watched = Watched([run])
        watched.look()
        assert not sweeps.run(words, store)["killed"]
        watched.look()
        lost += watched.lost + ((run.read_summary() or {}).get("status") != "done")
        twice += watched.twice
        unlike += not is_as_undisturbed(run, *own)
        assert_in_order(run)
        assert run.read_config() == config.identity
    counts = {"repetitions": wanted, "lost": lost, "done_twice": twice}
    for name, value in {"fault": "SIGKILL between two operations on files", **counts}.items():
        record_property(name, value)
    assert (lost, twice, unlike) == (0, 0, 0)


SWEEP = ("--multirun", "optim=nero,sgd", "seed=0,1")  # the same runs as PLAN


def start_sweep(tmp_path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *SWEEP, *WORDS]
    return subprocess.Popen(command, cwd=ROOT, env=script_environment(tmp_path), stderr=subprocess.PIPE, text=True)


def test_killed_sweep_is_resumed_by_same_command(tmp_path: Path, record_property: Properties) -> None:
    runs = plan_of(tmp_path / "runs")
    watched = Watched(runs)
    # Each sweep is killed shortly after it has started a run: the first run, then the third.
    for waited, pause in ((runs[0], 0.3), (runs[2], 0.05)):
        process = start_sweep(tmp_path)
        end = time.monotonic() + 120
        while not (waited.path / "provenance.jsonl").exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.005)
        time.sleep(pause)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        watched.look()
    last = start_sweep(tmp_path)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said
    watched.look()
    lost = watched.lost + sum((run.read_summary() or {}).get("status") != "done" for run in runs)
    for name, value in {
        "fault": "SIGKILL of a whole sweep's process",
        "repetitions": 2,
        "lost": lost,
        "done_twice": watched.twice,
    }.items():
        record_property(name, value)
    assert (lost, watched.twice) == (0, 0)
    assert all(is_as_undisturbed(run, *own) for run, own in zip(runs, PLAN, strict=True))


def test_concurrent_sweeps_run_each_run_exactly_once(tmp_path: Path, record_property: Properties) -> None:
    runs = plan_of(tmp_path / "runs")
    sweeps = [start_sweep(tmp_path) for _ in range(2)]
    said = [sweep.communicate(timeout=240)[1] for sweep in sweeps]
    starts = [len(run.read_provenance()) for run in runs]
    lost = sum((run.read_summary() or {}).get("status") != "done" for run in runs)
    for name, value in {
        "fault": "two sweeps at once on one store",
        "repetitions": 1,
        "lost": lost,
        "done_twice": sum(count - 1 for count in starts),
    }.items():
        record_property(name, value)
    assert [sweep.returncode for sweep in sweeps] == [0, 0], said
    assert (starts, lost) == ([1] * 4, 0)
    assert all(is_as_undisturbed(run, *own) for run, own in zip(runs, PLAN, strict=True))
