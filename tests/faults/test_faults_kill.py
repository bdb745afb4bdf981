"""Faults: SIGKILL at any moment, and concurrent sweeps. No run is lost, done twice, or ends with another result."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, script_environment
from nero.runs.checking import run_directories
from nero.runs.store import RunDirectory, Store, is_settled
from support.faulty_places import (
    EXPERIMENT,
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
EARLIER = b"a file of an earlier report"


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    folder = tmp_path_factory.mktemp("local")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "killed.yaml").write_text(EXPERIMENT)
    made = Sweeps({"NERO_LOCAL": str(folder)})
    yield made
    made.close()


class Watched:
    """Inspects the runs of a plan after every kill, and counts lost and repeated runs."""

    def __init__(self, runs: list[RunDirectory]) -> None:
        self.runs = runs
        self.lost = self.twice = 0
        self.settled: dict[str, object] = {}  # run id -> its files when it was first seen to be settled
        self.reached: Counter[str] = Counter()  # run id -> steps of its newest checkpoint

    @property
    def is_done(self) -> bool:
        return len(self.settled) == len(self.runs)

    def look(self, alone: bool = True) -> None:
        """Inspect all runs; unless `alone`, others may be writing those that are not settled, which are left out."""
        for run in self.runs:
            if not alone and not is_settled(run.read_summary()):
                continue
            assert not run.is_held() or not alone
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


def record(record_property: Properties, fault: str, counts: Mapping[str, int]) -> None:
    for name, value in {"fault": fault, **counts}.items():
        record_property(name, value)


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
    record(record_property, "SIGKILL at a random moment of runs one after another", counts)
    assert (lost, twice, unlike) == (0, 0, 0)
    assert len(phases) >= min(8, kills // 3), f"kills fell into these alone: {phases}"


def test_kill_between_file_operations_loses_no_written_data(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    places: list[tuple[tuple[str, ...], int]] = []
    # The first and last operations, which create or remove directories, lock and summary, and a sample between them.
    wanted, between = repetitions(16), []
    for own in (("optim=nero", "task.epochs=2"), ("optim=sgd", "task.epochs=2")):
        operations = sweeps.run([[*WORDS, *own]], tmp_path / "whole")["operations"]
        assert operations > 100
        at_end = min(wanted // 8, operations // 4)
        places += [(own, before) for before in (*range(at_end), *range(operations - at_end, operations))]
        between += [(own, before) for before in range(at_end, operations - at_end)]
    places += random.Random(1).sample(between, wanted - len(places))
    lost = twice = unlike = 0
    for own, before in places:
        words, store = [[*WORDS, *own]], tmp_path / str(before)
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
    record(record_property, "SIGKILL between two operations on files", counts)
    assert (lost, twice, unlike) == (0, 0, 0)


def kill_sweeps(
    sweeps: Sweeps,
    folder: Path,
    wanted: int,
    *commands: tuple[str, ...],
    victims: tuple[str, ...] = ("all",),
    reach: float = 0.9,
) -> dict[str, int]:
    """Kill sweeps side by side at random moments, and start them again until all runs are done; then a new store.

    Kills fall everywhere: while a sweep starts, in its first run, in its last, and while it ends.

    reach:  the latest kill, as a part of the duration of an undisturbed sweep
    """
    chance, alone = random.Random(0), victims == ("all",)
    kills = plans = lost = twice = unlike = 0

    def sweep(store: Path, after: list[float | None] | None = None, victim: str = "all") -> dict[str, Any]:
        words = [("sweep", *command, f"store={store}", f"hydra.sweep.dir={folder}") for command in commands]
        return sweeps.nero(*words, folder=store, after=after or [None] * len(words), victim=victim)

    sweep(folder / "first")  # a warm-up, for imports at first use
    duration = sweep(folder / "for its duration")["seconds"]
    while kills < wanted:
        store, plans = folder / str(plans), plans + 1
        watched = Watched(plan_of(store))
        while not watched.is_done and kills < wanted:
            after = [chance.uniform(0.0, reach * duration) for _ in commands]
            kills += sweep(store, after, chance.choice(victims))["kills"]
            watched.look(alone)
        # The last kills may have left something to do.
        for _ in range(1 if watched.is_done else 2):
            assert sweep(store)["statuses"] == [0] * len(commands)
            watched.look(alone)
        lost += watched.lost + sum((run.read_summary() or {}).get("status") != "done" for run in watched.runs)
        twice += watched.twice
        unlike += sum(not is_as_undisturbed(run, *own) for run, own in zip(watched.runs, PLAN, strict=True))
    return {"repetitions": kills, "lost": lost + unlike, "done_twice": twice, "plans": plans}


def test_killed_sweep_is_resumed_by_same_command(sweeps: Sweeps, tmp_path: Path, record_property: Properties) -> None:
    counts = kill_sweeps(sweeps, tmp_path, repetitions(4, 0.5), ("killed",))
    record(record_property, "SIGKILL of a whole sweep's process", counts)
    assert counts["lost"] == counts["done_twice"] == 0


def test_concurrent_sweeps_killed_at_random_times_lose_no_run(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    counts = kill_sweeps(sweeps, tmp_path, repetitions(4, 0.5), ("killed",), ("killed",))
    record(record_property, "SIGKILL of two sweeps at once on one store", counts)
    assert counts["lost"] == counts["done_twice"] == 0


def test_killed_sweep_with_joblib_is_resumed_by_same_command(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    command = ("killed", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    # Workers that outlive a killed sweep finish their runs beside the next sweep.
    victims = ("all", "leader", "worker")
    counts = kill_sweeps(sweeps, tmp_path, repetitions(2, 0.1), command, victims=victims)
    record(record_property, "SIGKILL of a sweep with joblib, of its main process or of a worker", counts)
    assert counts["lost"] == counts["done_twice"] == 0


def kill_command(
    sweeps: Sweeps,
    command: tuple[str, ...],
    folder: Path,
    wanted: int,
    reset: Callable[[], None],
    check: Callable[[bool], None],
) -> int:
    """Kill a command again and again: at a random moment, or before a random operation on a file of `folder`.

    Args:
        reset: called for a new start, whenever the command has come to its end
        check: called after each command, with whether it came to its end

    Returns the number of kills.
    """
    chance, kills = random.Random(0), 0
    reset()
    whole = sweeps.nero(command, folder=folder)
    check(True)
    reset()
    while kills < wanted:
        if chance.random() < 0.5:
            answer = sweeps.nero(command, folder=folder, after=[chance.uniform(0.0, whole["seconds"])])
        else:
            answer = sweeps.nero(command, folder=folder, before=chance.randrange(whole["operations"]))
        kills += answer["killed"]
        check(not answer["killed"])
        if not answer["killed"]:
            reset()
    sweeps.nero(command, folder=folder)
    check(True)
    return kills


def test_killed_import_leaves_whole_runs_and_is_completed_by_same_command(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    other, start, here = Store(tmp_path / "other"), tmp_path / "start", Store(tmp_path / "here")
    words = [(f"optim={optim}", f"seed={seed}") for seed in range(4) for optim in ("nero", "sgd")]
    assert not sweeps.run([[*WORDS, *own] for own in words], other.root)["killed"]
    for own, before in zip(words, (100, 150), strict=False):  # two of these runs are here already, unfinished
        assert sweeps.run([[*WORDS, *own]], start, before=before)["killed"]
    for part in start.rglob("*.part"):  # which the next process removes, here the import
        part.unlink()
    there, unfinished = ({run.run_id: contents(run) for run in each.runs()} for each in (other, Store(start)))
    assert (len(there), len(unfinished)) == (8, 2)
    settled: set[str] = set()
    counts = dict.fromkeys(("repetitions", "lost", "done_twice"), 0)

    def reset() -> None:
        settled.clear()
        shutil.rmtree(here.root, ignore_errors=True)
        shutil.copytree(start, here.root)

    def check(is_complete: bool) -> None:
        runs = {run.run_id: run for run in run_directories(here)}
        settled.update(run_id for run_id, run in runs.items() if is_settled(run.read_summary()))
        for run_id in there if is_complete else runs.keys() | settled:
            allowed = [there[run_id], None if run_id in settled else unfinished.get(run_id)]
            counts["lost"] += run_id not in runs or contents(runs[run_id]) not in allowed
        for run_id, files in unfinished.items():
            aside = RunDirectory(here.root / "mnist_mlp100" / ".replaced" / run_id)
            counts["lost"] += all(contents(run) != files for run in (aside, runs.get(run_id, aside)))
            counts["done_twice"] += aside.path.with_name(f"{run_id}.2").exists()
        assert {run.run_id: contents(run) for run in other.runs()} == there

    command = ("runs", "import", str(other.root), "--store", str(here.root), "--replace-unfinished")
    counts["repetitions"] = kill_command(sweeps, command, here.root, repetitions(8, 0.5), reset, check)
    record(record_property, "SIGKILL of an import", counts)
    assert counts["lost"] == counts["done_twice"] == 0


def test_killed_report_leaves_each_file_as_it_was_or_complete(
    sweeps: Sweeps, tmp_path: Path, record_property: Properties
) -> None:
    store, out = Store(tmp_path / "runs"), tmp_path / "out"
    assert not sweeps.run([[*WORDS, *own] for own in PLAN], store.root)["killed"]
    runs = {run.run_id: contents(run) for run in store.runs()}
    written: dict[Path, bytes] = {}
    counts = {"repetitions": 0, "lost": 0}

    def reset() -> None:
        for path in written:
            path.write_bytes(EARLIER)

    def check(is_complete: bool) -> None:
        found = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.suffix != ".part"}
        if not written:
            written.update(found)
        partial = {path for path, data in found.items() if data not in (written[path], EARLIER)}
        left = {path for path, data in found.items() if data == EARLIER} if is_complete else set()
        counts["lost"] += len(partial | left | (written.keys() - found.keys()))
        assert {run.run_id: contents(run) for run in store.runs()} == runs

    command = ("report", "killed", "--page", "--store", str(store.root), "--out", str(out))
    counts["repetitions"] = kill_command(sweeps, command, out, repetitions(4, 0.2), reset, check)
    assert len(written) > 10
    record(record_property, "SIGKILL of a report", counts)
    assert counts["lost"] == 0


SWEEP = ("--multirun", "optim=nero,sgd", "seed=0,1")  # the same runs as PLAN


def start_sweep(tmp_path: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *SWEEP, *WORDS]
    return subprocess.Popen(command, cwd=ROOT, env=script_environment(tmp_path), stderr=subprocess.PIPE, text=True)


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
