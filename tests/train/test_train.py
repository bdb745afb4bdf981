"""Tests of a training run from config to summary: statuses, skipping, provenance and machine settings."""

import json
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import ROOT, SMALL, SMALL_PONG
from nero.data.sources import MissingData
from nero.engine.distributed import ALONE, Ranks
from nero.engine.loop import Settings
from nero.plans.config import RunConfig, compose
from nero.plans.schema import ConfigError
from nero.runs.store import RunDirectory, Store
from nero.runs.tracking import Progress
from nero.tasks.base import Machine, Metric
from nero.tasks.classification import Classification
from nero.train.build import build_optimizers, build_task, choose_capture, choose_device, choose_machine, join_ranks
from nero.train.run import _least_used_gpu, train
from support.whole_runs import train_until

PONG = ["task=pong_ppo", "data=embedded", *SMALL_PONG, "task.epochs=6", "task.log_every=2"]


def prepare(tmp_path: Path, small: list[str], *words: str) -> tuple[RunConfig, RunDirectory]:
    config = compose([*small, f"store={tmp_path}", *words])
    return config, Store(tmp_path).run(config.task_name, config.run_id)


def test_run_writes_config_provenance_metrics_and_summary(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small)
    outcome = train(config)
    assert outcome["status"] == "done"
    assert run.read_config() == config.identity
    (start,) = run.read_provenance()
    assert {"commit", "dirty", "versions", "device", "command", "started"} <= set(start)
    assert start["versions"]["torch"] == torch.__version__.split("+")[0]
    records, summary = run.read_metrics(), run.read_summary()
    assert summary is not None
    assert summary["epochs_done"] == len(records) == 2
    assert summary["final"] == records[-1]["train/accuracy"]
    assert summary["final_metrics"]["test/accuracy"] == records[-1]["test/accuracy"]
    assert str(Path.home()) not in "".join(p.read_text() for p in run.path.glob("*.json*"))


def test_finished_run_is_skipped_and_unchanged(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small)
    train(config)
    before = {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()}
    outcome = train(config)
    assert outcome["skipped"]
    assert outcome["status"] == "done"
    assert {path.name: path.stat().st_mtime_ns for path in run.path.iterdir()} == before


def test_checkpoints_are_deleted_only_after_result_is_written(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = prepare(tmp_path, small, "machine.keep_checkpoint=false", "machine.checkpoint_seconds=0")

    def killed(self: RunDirectory) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "drop_checkpoints", killed)
        with pytest.raises(KeyboardInterrupt):
            train(config)
    assert (run.read_summary() or {}).get("status") == "done"
    assert train(config)["skipped"]


def test_diverged_run_is_final(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small, "optim=sgd", "optim.lr=1e30")
    outcome = train(config)
    assert outcome["status"] == "diverged"
    assert outcome["final"] is None
    assert outcome["diverged_at"]["step"] >= 1
    assert train(config)["skipped"]
    assert not list(run.path.glob("checkpoint*"))


def test_exception_gives_failed_run_with_traceback_that_can_be_rerun(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = prepare(tmp_path, small)
    with monkeypatch.context() as patch:
        patch.setattr("nero.tasks.classification.Classification.evaluate", lambda self: 1 / 0)
        outcome = train(config)
    assert outcome["status"] == "failed"
    assert outcome["message"] == "ZeroDivisionError: division by zero"
    text = (run.path / "summary.json").read_text()
    assert "ZeroDivisionError" in json.loads(text)["traceback"]
    assert str(ROOT) not in text
    assert train(config)["status"] == "done"
    assert len(run.read_provenance()) == 2


def test_optimiser_that_calls_sys_exit_gives_failed_run(tmp_path: Path, small: list[str]) -> None:
    config = compose([*small, f"store={tmp_path}", "optim=sgd", "optim._target_=support.deadly.Leaving"])
    result = train(config)
    assert (result["status"], result["message"]) == ("failed", "SystemExit: 0")
    assert "deadly.py" in result["traceback"]


@pytest.mark.parametrize("metric", [{"goal": "more"}, {"label": "a" * 300}, {"key": "train/\n"}])
def test_metric_that_no_summary_can_have_fails_run_before_training(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch, metric: dict[str, str]
) -> None:
    config, run = prepare(tmp_path, small)
    monkeypatch.setattr(Metric, "as_dict", lambda self: {**asdict(self), **metric})
    outcome = train(config)
    assert outcome["status"] == "failed"
    assert "metric must be a mapping of key, goal (min or max) and label" in outcome["message"]
    assert run.load_summary()["status"] == "failed"
    assert not run.read_metrics()


def test_run_locked_by_another_process_is_busy(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small)
    with run.exclusive():
        outcome = train(config)
    assert outcome["status"] == "busy"
    assert "is being written by process" in outcome["message"]


def test_expired_deadline_stops_before_anything_is_written(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small, "machine.deadline=1")
    assert train(config)["status"] == "interrupted"
    assert not run.path.exists()


def test_budget_expiring_during_training_leaves_checkpoint(
    tmp_path: Path, small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr("nero.runs.stopping.time", clock)

    class AnHourPasses(Progress):
        def epoch(self, record: Mapping[str, Any]) -> None:
            passed[0] = 3600.0

    config, run = prepare(tmp_path, small, "machine.budget_seconds=600")
    outcome = train(config, AnHourPasses())
    assert outcome["status"] == "interrupted"
    assert outcome["message"] == "the time budget is used up"
    summary = run.read_summary()
    assert summary is not None
    assert (summary["status"], summary["epochs_done"]) == ("running", 1)
    assert run.load_checkpoint() is not None
    passed[0] = 0.0
    assert train(config)["status"] == "done"


def test_missing_data_gives_one_line_error_with_download_command(tmp_path: Path, small: list[str]) -> None:
    config, run = prepare(tmp_path, small, "data=real", f"data_root={tmp_path / 'none'}")
    with pytest.raises(MissingData, match=r"nero data mnist") as error:
        train(config)
    assert "\n" not in str(error.value)
    assert run.read_summary() is None, "a run that never began is not a failed run"


def test_choose_device_and_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match="needs a CUDA GPU"):
        choose_device("cuda")
    assert choose_capture("auto", torch.device("cpu")) is False
    assert choose_capture("auto", torch.device("cuda")) is True
    with pytest.raises(ConfigError, match="capture=true needs"):
        choose_capture(True, torch.device("cpu"))


CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("wanted", "size", "captured"), [("auto", 1, True), ("auto", 4, False), (True, 1, True), (False, 1, False)]
)
def test_capture_auto_is_for_single_process_on_gpu(wanted: bool | str, size: int, captured: bool) -> None:
    assert choose_capture(wanted, CUDA, Ranks(size=size)) is captured


def test_capture_with_several_processes_raises() -> None:
    with pytest.raises(ConfigError, match=r"^machine\.capture=true is for one process"):
        choose_capture(True, CUDA, Ranks(size=2))


def test_too_few_gpus_for_ranks_give_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    machine = compose([]).cfg.machine
    with pytest.raises(ConfigError) as error:
        join_ranks(machine, CUDA)
    assert str(error.value) == "machine: 2 processes on this machine need as many GPUs, and torch sees 1"


def test_join_ranks_without_torchrun_gives_single_rank() -> None:
    assert join_ranks(compose([]).cfg.machine, torch.device("cpu")) is ALONE


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Machine(None, "auto", True)),
        (["machine.workers=0", "machine.decode=cpu", "machine.channels_last=false"], Machine(0, "cpu", False)),
        (["machine.workers=12", "machine.decode=gpu"], Machine(12, "gpu", True)),
    ],
)
def test_choose_machine_reads_settings(words: list[str], expected: Machine) -> None:
    assert choose_machine(compose(words).cfg.machine, CUDA) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("machine.device=tpu", "machine.device must be one of auto, cpu, cuda, not 'tpu'"),
        ("machine.capture=yes", "machine.capture must be auto, true or false, not 'yes'"),
        ("machine.capture=null", "machine.capture must be auto, true or false, not None"),
        ("machine.parallel=tensor", "machine.parallel must be one of ddp, fsdp, not 'tensor'"),
        ("machine.parallel=null", "machine.parallel must be one of ddp, fsdp, not None"),
        ("machine.backend=nccl", "machine.backend must be one of auto, gloo, not 'nccl'"),
        ("machine.workers=1.5", "machine.workers must be null or a non-negative integer, not 1.5"),
        ("machine.workers=-2", "machine.workers must be null or a non-negative integer, not -2"),
        ("machine.workers=true", "machine.workers must be null or a non-negative integer, not True"),
        ("machine.workers=many", "machine.workers must be null or a non-negative integer, not 'many'"),
        ("machine.decode=null", "machine.decode must be one of auto, cpu, gpu, not None"),
        ("machine.channels_last=auto", "machine.channels_last must be true or false, not 'auto'"),
        ("machine.gpus=0", "machine.gpus must be null or a positive integer, not 0"),
        ("machine.gpus=1.5", "machine.gpus must be null or a positive integer, not 1.5"),
        ("machine.gpus=true", "machine.gpus must be null or a positive integer, not True"),
        ("machine.gpus=two", "machine.gpus must be null or a positive integer, not 'two'"),
    ],
)
def test_invalid_machine_setting_gives_one_line_error(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        compose([word])


def test_gpu_decoding_without_gpu_raises() -> None:
    with pytest.raises(ConfigError, match=r"^machine\.decode=gpu needs a CUDA GPU$"):
        choose_machine(compose(["machine.decode=gpu"]).cfg.machine, torch.device("cpu"))


@pytest.mark.parametrize(("gpus", "taken"), [(1, [0, 0, 0]), (2, [0, 1, 0]), (None, [0, 1, 2])])
def test_concurrent_runs_are_spread_over_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | None, taken: list[int]
) -> None:
    monkeypatch.setattr("nero.train.run.default_folder", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    config = compose([f"machine.gpus={gpus or 'null'}"])
    with ExitStack() as held:
        found = [held.enter_context(_least_used_gpu(config, Settings(CUDA))) for _ in taken]
        assert [settings.device for settings in found] == [torch.device("cuda", number) for number in taken]
        assert found[0].other_runs() == {"gpu": taken.count(0) - 1, "cpu": 0}
    assert any(tmp_path.glob("gpu*")) is (gpus != 1), "one GPU needs no sharing out"


def test_more_gpus_than_available_gives_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    message = "machine.gpus must be null or at most 3, the number that torch sees, not 4"
    with pytest.raises(ConfigError, match=f"^{message}$"), _least_used_gpu(compose(["machine.gpus=4"]), Settings(CUDA)):
        pass


@pytest.mark.slow
def test_run_is_determined_by_seed(tmp_path: Path, small: list[str]) -> None:
    finals = []
    for store, seed in (("a", 0), ("b", 0), ("c", 1)):
        config, run = prepare(tmp_path / store, small, f"seed={seed}")
        train(config)
        finals.append([record["train/loss"] for record in run.read_metrics()])
    assert finals[0] == finals[1]
    assert finals[0] != finals[2]
    assert all(math.isfinite(x) for x in finals[0])


@pytest.mark.parametrize(
    ("words", "norm"),
    [
        ([], 0.5),
        (["task.clip_norm=0.25"], 0.25),
        (["+optim.clip_norm=0.125"], 0.125),
        (["+optim.clip_norm=2", "task.clip_norm=0.25"], 2.0),
        (["+optim.clip_norm=null"], None),
        (["task.clip_norm=null"], None),
    ],
)
def test_optimiser_clip_norm_overrides_task_clip_norm(tmp_path: Path, words: list[str], norm: float | None) -> None:
    config, _ = prepare(tmp_path, PONG, "optim=sgd", *words)
    task = build_task(config, torch.device("cpu"))
    [optimizer] = build_optimizers(config.cfg.optim, task).values()
    weights = list(task.networks()["network"].parameters())
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    expected = math.sqrt(sum(weight.numel() for weight in weights)) if norm is None else norm
    assert torch.cat([weight.grad.flatten() for weight in weights]).norm().item() == pytest.approx(expected, rel=1e-4)


CGAN = ["task=cifar10_cgan", "data=embedded", "task.train_examples=20"]
CGAN += [f"task.{network}.{key}" for network in ("generator", "discriminator") for key in ("width=8", "rows=10")]


def test_each_network_has_own_optimiser_with_overridable_settings(tmp_path: Path) -> None:
    words = ["optim=adam", "optim.lr=0.003", "+optim.networks.discriminator.betas=[0.9,0.99]"]
    config, _ = prepare(tmp_path, CGAN, *words)
    task = build_task(config, torch.device("cpu"))
    optimizers = build_optimizers(config.cfg.optim, task)
    found = {name: (opt.param_groups[0]["lr"], list(opt.param_groups[0]["betas"])) for name, opt in optimizers.items()}
    assert found == {"generator": (0.003, [0.0, 0.999]), "discriminator": (0.003, [0.9, 0.99])}
    for name, network in task.networks().items():
        assert [id(p) for p in optimizers[name].param_groups[0]["params"]] == [id(p) for p in network.parameters()]
    plain, _ = prepare(tmp_path, CGAN, *words[:2])
    assert plain.run_id != config.run_id


def test_settings_for_unknown_network_raise(tmp_path: Path) -> None:
    config, _ = prepare(tmp_path, CGAN, "+optim.networks.critic.lr=0.1")
    with pytest.raises(ConfigError, match=r"optim\.networks: there is no network 'critic'; there are: generator, dis"):
        train(config)


@pytest.mark.parametrize(
    ("of_task", "of_machine", "during"),
    [(None, "null", None), (3, "null", 3), (3, "2", 2), (None, "2", 2)],
)
@pytest.mark.parametrize("end", ["done", "failed"])
def test_thread_count_comes_from_machine_or_task_and_is_restored(
    tmp_path: Path,
    small: list[str],
    monkeypatch: pytest.MonkeyPatch,
    of_task: int | None,
    of_machine: str,
    during: int | None,
    end: str,
) -> None:
    seen, evaluate = [], Classification.evaluate

    def watched(self: Classification) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        if end == "failed":
            raise RuntimeError
        return evaluate(self)

    before = torch.get_num_threads()
    monkeypatch.setattr(Classification, "evaluate", watched)
    monkeypatch.setattr(Classification, "threads", of_task)
    config, _ = prepare(tmp_path, small, f"machine.threads={of_machine}", "task.epochs=1")
    assert train(config)["status"] == end
    assert seen == [during or before]
    assert torch.get_num_threads() == before


def test_thread_count_is_restored_after_config_error(tmp_path: Path, small: list[str]) -> None:
    before = torch.get_num_threads()
    config, _ = prepare(tmp_path, small, f"machine.threads={before + 1}", "+optim.clip_norm=-1")
    with pytest.raises(ConfigError, match="clip_norm"):
        train(config)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("updates", "done"), [(1, 0), (2, 2), (3, 2), (5, 4)])
def test_epochs_done_counts_only_logged_epochs(tmp_path: Path, updates: int, done: int) -> None:
    config, run = prepare(tmp_path, PONG)
    train_until(config, updates)
    summary = run.read_summary()
    assert summary is not None
    assert (summary["status"], summary["epochs_done"]) == ("running", done)
    assert train(config)["epochs_done"] == 6
    assert [record["epoch"] for record in run.read_metrics()] == [2, 4, 6]


@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["nero", "sgd", "adam", "lamb", "madam", "lamb_constrained"])
def test_captured_run_matches_cpu_run(tmp_path: Path, small: list[str], optim: str) -> None:
    losses = []
    for machine in ("cpu", "gpu"):
        words = [f"optim={optim}", "optim.lr=0.001", f"machine={machine}", "precision=fp32", "task.epochs=3"]
        config, run = prepare(tmp_path / machine, small, *words)
        assert train(config)["status"] == "done"
        losses.append([record["train/loss"] for record in run.read_metrics()])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)


@pytest.mark.parametrize(
    ("words", "factors"),
    [
        ([], [0.9**0, 0.9**1]),
        (["+optim.schedule=none"], [1.0, 1.0]),
        (["+optim.schedule._target_=nero.engine.schedules.exponential", "+optim.schedule.gamma=0.5"], [1.0, 0.5]),
    ],
)
def test_optimiser_schedule_overrides_task_schedule(tmp_path: Path, words: list[str], factors: list[float]) -> None:
    config, run = prepare(tmp_path, list(SMALL), "optim=sgd", "optim.lr=0.01", "task.epochs=2", *words)
    train(config)
    assert [line["lr"] for line in run.read_metrics()] == pytest.approx([0.01 * factor for factor in factors])


def test_schedule_that_is_no_target_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"optim\.schedule must be none, or a _target_ and its arguments, not 'cosine'"
    ):
        compose(["+optim.schedule=cosine"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optim._target_=torch.optim.Muon", "~optim.momentum"], "optim: Muon only supports 2D parameters whereas"),
        (["optim._target_=builtins.dict", "~optim.momentum", "~optim.weight_decay"], "optim: .*"),
        (["optim._target_=torch.optim.LBFGS", "~optim.momentum", "~optim.weight_decay", "+optim.clip_norm=1"],
         "optim: LBFGS needs a closure: gradients cannot be clipped before"),
    ],
)  # fmt: skip
def test_unsuitable_optimiser_is_refused_in_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    config, _ = prepare(tmp_path, list(SMALL), "optim=sgd", *words)
    with pytest.raises(ConfigError, match=f"^{message}") as error:
        train(config)
    assert "\n" not in str(error.value)


def test_function_with_parameter_model_gets_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def make(model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        seen.append(model)
        return torch.optim.SGD(model.named_parameters(), lr=lr)

    monkeypatch.setattr("support.toy.make_sgd", make, raising=False)
    words = ["optim=sgd", "optim._target_=support.toy.make_sgd", "~optim.momentum", "~optim.weight_decay"]
    config, _ = prepare(tmp_path, list(SMALL), *words)
    task = build_task(config, torch.device("cpu"))
    build_optimizers(config.cfg.optim, task)
    assert seen == [task.network]
