"""Runs without a checkpoint, such as committed ones: how to train them again, and `--retrain`."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from nero.checkpoints.options import Unusable
from nero.checkpoints.retraining import overrides_of
from nero.cli.trained import generate, sample
from nero.plans.config import compose
from nero.runs.store import RunDirectory, Store
from support.whole_runs import trained

TINY = (
    "task=wikitext2_transformer",
    "data=embedded",
    "task.train_examples=200",
    "task.epochs=2",
    "task.network.width=16",
    "task.network.inner=16",
    "optim=adam",
    "optim.lr=0.01",
    "machine=cpu",
)
COMMITTED = sorted((ROOT / "results" / "runs").glob("*/*/config.yaml"))
Generate = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("logged"), (*TINY, "machine.keep_checkpoint=false"))


@pytest.fixture
def run(logged: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A run without its checkpoint in a store of its own."""
    store = Store(tmp_path / "runs")
    shutil.copytree(logged.path.parent.parent, store.root)
    return store.run(logged.path.parent.name, logged.run_id)


@pytest.fixture
def local(tmp_path: Path, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The same run in the user's own store, where it is trained again."""
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    return Store(tmp_path / "local" / "runs").run(run.path.parent.name, run.run_id)


@pytest.fixture
def write(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> Generate:
    """`nero generate` on the run: its exit status and what it printed."""

    def call(*words: str) -> tuple[int, str, str]:
        store = str(run.path.parent.parent)
        try:
            status = generate([run.run_id, "--store", store, "--device", "cpu", "--words", "5", *words])
        except SystemExit as exit:
            status = int(exit.code or 0)
        streams = capsys.readouterr()
        return status, streams.out, streams.err.strip()

    return call


def test_error_names_the_command_that_trains_the_run(write: Generate, run: RunDirectory, local: RunDirectory) -> None:
    status, _, line = write()
    assert status == 2
    assert re.fullmatch(
        rf"error: {run.run_id} has no checkpoint; to train it again, add --retrain, or: nero train .+", line
    )
    words = shlex.split(line.partition("nero train ")[2])
    assert compose(words).run_id == run.run_id
    assert words[-1] == f"store={local.path.parent.parent}"
    assert not local.path.exists()


def test_retrain_trains_the_run_once(write: Generate, run: RunDirectory, local: RunDirectory) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    status, text, said = write("--retrain", "machine=cpu", "machine.keep_checkpoint=false")
    assert status == 0
    assert f"training {run.run_id} into " in said
    assert len(text.split()) > 2
    again = {path: path.stat().st_mtime_ns for path in local.path.rglob("*")}
    for words in ((), ("--retrain",)):
        status, same, said = write(*words)
        assert (status, same) == (0, text)
        assert "training" not in said
    assert {path: path.stat().st_mtime_ns for path in local.path.rglob("*")} == again
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_retrain_takes_a_store(write: Generate, tmp_path: Path, run: RunDirectory, local: RunDirectory) -> None:
    assert write("--retrain", str(tmp_path / "own"), "machine=cpu")[0] == 0
    assert list(tmp_path.glob(f"own/wikitext2_transformer/{run.run_id}/checkpoint-*.pt"))
    assert not local.path.exists()
    assert write("--store", str(tmp_path / "own"))[0] == 0


def test_interrupted_retraining_is_continued(write: Generate, local: RunDirectory) -> None:
    looks = iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nero.engine.loop.stop_reason", lambda limits: "enough" if next(looks) > 2 else None)
        status, _, said = write("--retrain", "machine=cpu")
    assert status == 2
    assert said.splitlines()[-1] == f"error: {local.run_id} stopped (enough); the same command continues"
    assert local.load_checkpoint() is not None
    assert write()[0] == 2  # not what is half trained
    assert write("--retrain", "machine=cpu")[0] == 0
    assert len(local.read_provenance()) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--retrain", "machine=cpu", "seed=3"], "machine=cpu seed=3: changes the run; only settings outside its id"),
        (["machine=cpu"], "machine=cpu: settings are those of --retrain"),
        (["--retrain", "STORE", "more"], "unknown argument more"),
        (["--retrian"], "unknown option --retrian (did you mean --retrain?)"),
    ],
)
def test_invalid_settings_are_refused(write: Generate, local: RunDirectory, words: list[str], message: str) -> None:
    status, _, said = write(*words)
    assert status == 2
    assert said.startswith(f"error: {message}")
    assert "\n" not in said
    assert not local.path.exists()


def test_run_of_the_local_store_is_found_by_its_id(
    write: Generate, tmp_path: Path, run: RunDirectory, local: RunDirectory
) -> None:
    local.path.parent.parent.mkdir(parents=True)
    shutil.move(run.path, local.path)
    assert f"{run.run_id} has no checkpoint" in write()[2]
    # It is done there, and is never trained over.
    message = f"{run.run_id} is done in {local.path.parent.parent} without a checkpoint; name another --retrain STORE"
    assert write("--retrain", "machine=cpu")[2].splitlines()[-1] == f"error: {message}"
    assert write("--retrain", str(tmp_path / "own"), "machine=cpu")[0] == 0


def test_run_of_another_task_is_not_trained(
    run: RunDirectory, local: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sample([str(run.path), "--retrain", "machine=cpu"]) == 2
    assert "not of a ConditionalGAN task" in capsys.readouterr().err
    assert not local.path.exists()


def test_diverged_run_is_not_trained(write: Generate, run: RunDirectory, local: RunDirectory) -> None:
    run.write_summary({**(run.read_summary() or {}), "status": "diverged"})
    assert write("--retrain")[2] == f"error: {run.run_id} diverged: it has no checkpoint"
    assert not local.path.exists()


def test_failed_retraining_is_reported(write: Generate, local: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nero.tasks.language_model.LanguageModelling.evaluate", lambda self: 1 / 0)
    status, _, said = write("--retrain", "machine=cpu")
    assert status == 2
    assert "Traceback" in said
    assert said.splitlines()[-1] == f"error: {local.run_id}: ZeroDivisionError: division by zero"


def test_config_that_code_no_longer_has_is_refused_in_one_line(write: Generate, run: RunDirectory) -> None:
    config = run.read_config()
    run.write_config({**config, "task": {**config["task"], "gone": 1}})
    status, _, said = write("--retrain")
    message = "has no checkpoint and cannot be trained again with this code: its settings give another id today"
    assert (status, said) == (2, f"error: {run.run_id} {message}")


def test_run_of_another_class_of_torch_is_trained_again(tmp_path: Path, local: RunDirectory) -> None:
    run = trained(tmp_path, (*TINY, "optim._target_=torch.optim.AdamW", "machine.keep_checkpoint=false"))
    assert generate([str(run.path), "--words", "3", "--retrain", "machine=cpu"]) == 0
    again = Store(local.path.parent.parent).run(run.path.parent.name, run.run_id)
    assert again.read_config()["optim"]["_target_"] == "torch.optim.AdamW"


def test_code_named_by_config_is_executed_only_if_trusted(
    tmp_path: Path, local: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config.yaml may come from elsewhere: not even a command line that would execute its code is suggested."""
    (tmp_path / "retrained.py").write_text("import torch\n\nclass Mine(torch.optim.Adam):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run = trained(tmp_path, (*TINY, "optim._target_=retrained.Mine", "machine.keep_checkpoint=false"))
    with monkeypatch.context() as patch:
        patch.setattr("nero.checkpoints.retraining.train", lambda *given: pytest.fail("trained"))
        for retrain in ([], ["--retrain", "machine=cpu"]):
            assert generate([str(run.path), *retrain]) == 2
            line = capsys.readouterr().err.splitlines()[-1]
            reason = "optim._target_ is retrained.Mine, which is built only with --trust retrained, if that is code of"
            assert line == f"error: {run.run_id}: {reason} your own"
    assert generate([str(run.path), "--words", "3", "--retrain", "machine=cpu", "--trust", "retrained"]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hydra": {"searchpath": ["pkg://elsewhere"]}}, "config.yaml has the key hydra.searchpath"),
        ({"tracking": {"mode": "online"}}, "config.yaml has the key tracking.mode"),
        ({"optim": {"lr": 0.1, "x@tracking": 1}}, "config.yaml has the key 'optim.x@tracking'"),
        ({"task_name": "../../elsewhere/task"}, "there is no task='../../elsewhere/task'"),
        ({"optim_name": "adam seed=1"}, "there is no optim='adam seed=1'"),
        ({"optim_name": ["adam"]}, "there is no optim=['adam']"),
    ],
)
def test_config_cannot_choose_other_files_or_settings(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("nero.checkpoints.retraining.compose", lambda words: pytest.fail("composed"))
    with pytest.raises(Unusable, match=f"cannot be trained again with this code: {re.escape(message)}"):
        overrides_of(run.run_id, run.read_config() | change)


@pytest.mark.parametrize(
    "words",
    [
        ["optim=muon", "seed=4", "precision=bf16"],
        ["optim=adam", "optim.betas=[0.5,0.9]", "+optim.clip_norm=0.25", "+optim.networks.network.lr=0.5"],
        ["optim=adam", "+optim.x=[{a:1,b:'c, \"d\": e'}]", "+optim.y={}", "+optim.z=null"],
        ["task=cifar10_resnet18", "task.augmentation=null", "~task.network.width", "+task.network.k='a b'"],
        ["task=pong_ppo", "task.update_epochs=3"],
    ],
    ids=" ".join,
)
def test_overrides_give_the_same_run(words: list[str]) -> None:
    config = compose(words)
    assert compose(overrides_of(config.run_id, config.identity)).identity == config.identity


def check_overrides(path: Path) -> None:
    words = overrides_of(path.parent.name, RunDirectory(path.parent).read_config())
    assert compose(words).run_id == path.parent.name


@pytest.mark.parametrize("task", sorted({path.parent.parent.name for path in COMMITTED}))
def test_committed_run_of_each_task_can_be_trained_again(task: str) -> None:
    check_overrides(next(path for path in COMMITTED if path.parent.parent.name == task))


@pytest.mark.slow
def test_every_committed_run_can_be_trained_again() -> None:
    for path in COMMITTED:
        check_overrides(path)


def test_overrides_of_unknown_task_are_unusable() -> None:
    identity = {"task_name": "gone", "optim_name": "adam", "optim": {"lr": 1.0}, "seed": 0}
    with pytest.raises(Unusable, match="cannot be trained again with this code: there is no task=gone"):
        overrides_of("gone-adam-1-s0-00000000", identity)
