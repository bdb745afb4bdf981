"""Faults: run files that are damaged or were written by another version of the code."""

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from conftest import ROOT
from nero.plans.config import ConfigError, RunConfig
from nero.plans.listing import describe_plan
from nero.plans.plan import survey
from nero.report.frame import load_curves, load_runs
from nero.report.page.data import pack
from nero.runs.store import VERSION, RunDirectory, Store
from nero.train.run import train
from support.fake_runs import loaded
from support.faulty_places import WORDS, Properties, assert_in_order, contents, is_as_undisturbed, run_of, undisturbed
from support.killed_children import Sweeps

pytestmark = pytest.mark.slow

OWN = ("optim=nero", "task.epochs=4")
Cut = tuple[RunConfig, RunDirectory]


@pytest.fixture(scope="module")
def sweeps() -> Iterator[Sweeps]:
    made = Sweeps()
    yield made
    made.close()


@pytest.fixture
def cut(sweeps: Sweeps, tmp_path: Path) -> Cut:
    """A run that was killed in its third or fourth epoch."""
    config, run = run_of(tmp_path, *OWN)
    assert sweeps.run([[*WORDS, *OWN]], tmp_path, before=330)["killed"]
    assert len(list(run.path.glob("checkpoint-*.pt"))) >= 2
    assert len(run.read_metrics()) >= 2
    return config, run


def checkpoint_files(run: RunDirectory) -> list[Path]:
    """Checkpoint files of a run, newest first."""
    return [run.path / entry["file"] for entry in json.loads((run.path / "checkpoint.json").read_text())]


def flip_bytes(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for place in chance.sample(range(len(data)), 3):
        data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("damaged", [1, 2])
def test_corrupted_checkpoint_falls_back_to_previous_one_or_restart(
    cut: Cut, record_property: Properties, capfd: pytest.CaptureFixture[str], damaged: int, seed: int
) -> None:
    record_property("fault", "flipped bits in the newest checkpoint, or in both")
    config, run = cut
    files = checkpoint_files(run)
    for path in files[:damaged]:
        flip_bytes(path, random.Random(seed))
    undisturbed(*OWN)
    capfd.readouterr()
    assert train(config)["status"] == "done"
    said = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    instead = f"resuming from {files[1].name}" if damaged == 1 else "starting over"
    assert said == [f"{run.run_id}  {path.name} is damaged; {instead}" for path in files[:damaged]]
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    assert_in_order(run)
    assert is_as_undisturbed(run, *OWN)


def truncate_line(text: bytes, place: int) -> bytes:
    """Drop the second half of one line."""
    lines = text.splitlines(keepends=True)
    lines[place] = lines[place][: len(lines[place]) // 2] + b"\n"
    return b"".join(lines)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "the last line cut": lambda text: text[:-25],
    "the first line cut": lambda text: truncate_line(text, 0),
    "the second line cut": lambda text: truncate_line(text, 1),
    "a line missing": lambda text: b"".join(text.splitlines(keepends=True)[1:]),
    "another digit": lambda text: text.replace(b'"train/loss": 2', b'"train/loss": 3').replace(
        b'"train/loss": 1', b'"train/loss": 2'
    ),
    "another key": lambda text: text.replace(b'"epoch"', b'"epoci"', 1),
    "no number": lambda text: text.replace(b'"epoch": 1', b'"epoch": "'),
    "another epoch": lambda text: text.replace(b'"epoch": 1', b'"epoch": 3'),
    "zeros": lambda text: b"\0" * len(text),
    "empty": lambda text: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_log_before_checkpoint_is_regenerated(
    cut: Cut, record_property: Properties, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    record_property("fault", "a log cut in the middle of a line, or otherwise damaged")
    config, run = cut
    log = run.path / "metrics.jsonl"
    before = log.read_bytes()
    log.write_bytes(DAMAGES[damage](before))
    assert log.read_bytes() != before
    undisturbed(*OWN)
    capfd.readouterr()
    assert train(config)["status"] == "done"
    said = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    newest = "metrics.jsonl is damaged before checkpoint-epoch"
    assert said
    assert all(line.startswith(f"{run.run_id}  {newest}") for line in said)
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    assert_in_order(run)
    assert is_as_undisturbed(run, *OWN)


def test_truncated_line_after_checkpoint_resumes_without_damage_warning(
    cut: Cut, record_property: Properties, capfd: pytest.CaptureFixture[str]
) -> None:
    record_property("fault", "a kill in the middle of the line after the checkpoint")
    config, run = cut
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"epoch": 4, "tra')
    assert train(config)["status"] == "done"
    assert "damaged" not in capfd.readouterr().err
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    assert is_as_undisturbed(run, *OWN)


# files of another version


def assert_refused(config: RunConfig, run: RunDirectory, reason: str) -> None:
    """Assert that training is refused in one line that names the directory, and that no file changes."""
    before = contents(run)
    with pytest.raises(ConfigError, match=reason) as error:
        train(config)
    assert str(run.path) in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(run) == before
    assert not run.is_held()


@pytest.mark.parametrize("version", [0, VERSION + 1, None])
def test_run_of_other_store_version_is_refused_and_unchanged(
    cut: Cut, record_property: Properties, version: int | None
) -> None:
    record_property("fault", "a run directory of another version of the store")
    record_property("repetitions", 1)
    config, run = cut
    path = run.path / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "version": version}))
    assert_refused(config, run, f"its summary.json is of version {version}, and this code writes version {VERSION}")
    path.write_text(json.dumps(summary))
    assert train(config)["status"] == "done"


def test_run_directory_with_different_config_is_refused_and_unchanged(cut: Cut, record_property: Properties) -> None:
    record_property("fault", "a run directory whose config is another one's")
    config, run = cut
    path = run.path / "config.yaml"
    own = yaml.safe_load(path.read_text())
    others: list[dict[str, Any]] = [
        {**own, "seed": 7},
        {key: value for key, value in own.items() if key != "precision"},
        {**own, "new_key": None},
        {**own, "task": {**own["task"], "schedule": {**own["task"]["schedule"], "gamma": 0.8}}},
        {"made": yaml.safe_load("2021-02-15")},
    ]
    for other in others:
        path.write_text(yaml.safe_dump(other))
        assert_refused(config, run, "its config.yaml is not that of this run")
    record_property("repetitions", len(others))
    path.write_text(yaml.safe_dump({**own, "seed": float(own["seed"])}))
    assert train(config)["status"] == "done", "1 and 1.0 are alike"
    path.write_text(yaml.safe_dump(others[0]))
    assert_refused(config, run, "its config.yaml")


@pytest.mark.parametrize("text", ["", "{", "[]", "\0\0\0"])
def test_unreadable_config_is_rewritten(cut: Cut, record_property: Properties, text: str) -> None:
    record_property("fault", "a run's config.yaml damaged")
    record_property("repetitions", 1)
    config, run = cut
    (run.path / "config.yaml").write_text(text)
    assert train(config)["status"] == "done"
    assert run.read_config() == config.identity
    assert is_as_undisturbed(run, *OWN)


def remove_steps_done(state: dict[str, Any]) -> None:
    del state["steps_done"]


def rename_network_keys(state: dict[str, Any]) -> None:
    state["networks"]["network"] = {f"old.{key}": value for key, value in state["networks"]["network"].items()}


def add_position_key(state: dict[str, Any]) -> None:
    state["position"]["batches"] = 3


def duplicate_param_groups(state: dict[str, Any]) -> None:
    state["optimizers"]["network"]["param_groups"] *= 2


LAYOUTS = (remove_steps_done, rename_network_keys, add_position_key, duplicate_param_groups)


@pytest.mark.parametrize("change", LAYOUTS)
def test_incompatible_checkpoint_is_neither_loaded_nor_overwritten(
    cut: Cut, record_property: Properties, change: Callable[[dict[str, Any]], None]
) -> None:
    record_property("fault", "a checkpoint of another layout")
    config, run = cut
    data = run.load_checkpoint()
    assert data is not None
    state = torch.load(io.BytesIO(data), weights_only=True)
    change(state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    run.save_checkpoint(buffer.getvalue(), {"epoch": 3, "step": 9})
    log, checkpoints = (run.path / "metrics.jsonl").read_bytes(), [path.read_bytes() for path in checkpoint_files(run)]
    for _ in range(2):
        outcome = train(config)
        assert outcome["status"] == "failed"
        assert outcome["message"].startswith("UnusableCheckpoint: ")
        assert "\n" not in outcome["message"]
        assert f"{run.path}/checkpoint-epoch3-step9.pt is a checkpoint of another version" in outcome["message"]
        assert f"move {run.path}/checkpoint.json away to start over" in outcome["message"]
        assert [path.read_bytes() for path in checkpoint_files(run)] == checkpoints
        assert (run.path / "metrics.jsonl").read_bytes() == log
        summary = run.read_summary()
        assert summary is not None
        assert (summary["status"], summary["traceback"].strip()) == ("failed", outcome["message"])
    (run.path / "checkpoint.json").rename(run.path.parent / "checkpoint.json")
    assert train(config)["status"] == "done"
    record_property("repetitions", 1)
    record_property("lost", int(not is_as_undisturbed(run, *OWN)))
    assert is_as_undisturbed(run, *OWN)


FOREIGN: dict[str, dict[str, Any]] = {
    "an older version": {"version": 0},
    "a newer version": {"version": VERSION + 1, "status": {"name": "done"}},
    "an unknown status": {"status": "pondering"},
    "no task": {"task": None},
    "no learning rate": {"lr": None},
    "no metric": {"metric": None},
    "a metric of another kind": {"metric": "test/accuracy"},
    "no final metrics": {"final_metrics": None},
    "a final value in words": {"final": "good"},
    "no epochs": {"epochs_done": 0},
    "no seconds": {"seconds": None},
}


@pytest.mark.parametrize("change", FOREIGN)
def test_plans_and_reports_skip_invalid_summaries(cut: Cut, record_property: Properties, change: str) -> None:
    record_property("fault", "summaries of other versions among those that are planned and reported")
    record_property("repetitions", 1)
    config, run = cut
    train(config)
    store = Store(run.path.parents[1])
    experiment = loaded("mnist")
    cell = experiment.cells[0]
    ours = run.read_summary()
    assert ours is not None
    planned = cell.run(cell.lrs[0], cell.search_seed)
    folder = store.run(planned.task, planned.run_id).path
    folder.mkdir(parents=True)
    foreign = {**ours, "run_id": planned.run_id, "task": planned.task, "optim": planned.optim, **FOREIGN[change]}
    (folder / "summary.json").write_text(json.dumps(foreign))

    summaries = store.summaries()
    assert list(summaries) == [run.run_id]
    states = [survey(cell, summaries) for cell in experiment.cells]
    assert f"pending  {planned.run_id}" in describe_plan(experiment, states, summaries)
    assert list(load_runs(store)["run_id"]) == [run.run_id]
    assert set(load_curves(store)["run_id"]) == {run.run_id}
    assert pack(store, "store")


def test_sweep_refuses_foreign_run_directory_and_runs_the_others(
    tmp_path: Path, record_property: Properties, nero_command: Callable[..., Any]
) -> None:
    record_property("fault", "a sweep that comes upon another version's directory")
    record_property("repetitions", 1)
    _, foreign = run_of(tmp_path / "runs", "optim=nero")
    foreign.path.mkdir(parents=True)
    (foreign.path / "summary.json").write_text('{"version": 99, "state": "fine"}')
    before = contents(foreign)
    swept = nero_command("train", "--multirun", "optim=nero,sgd", *WORDS)
    assert swept.returncode == 1
    assert "Traceback" not in swept.stderr
    [line] = [line for line in swept.stderr.splitlines() if "refused" in line]
    assert f"{foreign.path}: its summary.json is of version 99" in line.replace(f"{ROOT}/", "")
    assert contents(foreign) == before
    _, other = run_of(tmp_path / "runs", "optim=sgd")
    record_property("lost", int(not is_as_undisturbed(other, "optim=sgd")))
    assert is_as_undisturbed(other, "optim=sgd")
