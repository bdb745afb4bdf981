"""Two lanes on one GPU machine: CPU-bound and GPU-bound runs in parallel, as two sweeps over one store."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from conftest import ROOT, script_environment
from nero.plans.config import compose, names
from nero.plans.plan import Cell, load_experiment
from nero.runs.store import Store
from nero.sweep import lanes

PONG = Cell("pong_ppo", "nero", (0.01,), 0, ())
VGG = Cell("cifar10_vgg11", "nero", (0.01,), 0, ())
SMOKE = ("experiment=smoke", "only.task=mnist_reparam,pong_ppo")


def test_only_pong_is_cpu_bound() -> None:
    kinds = {task: compose([f"task={task}"]).bound_by for task in names("task")}
    assert kinds.pop("pong_ppo") == "cpu"
    assert set(kinds.values()) == {"gpu"}


def test_run_id_ignores_cores_and_bound_by() -> None:
    usual, other = compose(["task=pong_ppo"]), compose(["task=pong_ppo", "task.cores=2", "task.bound_by=gpu"])
    assert usual.run_id == other.run_id
    assert not {"cores", "bound_by"} & usual.identity["task"].keys()


def test_lanes_partition_the_cells_of_an_experiment() -> None:
    whole = load_experiment("table1")
    parts = [lanes.restrict(whole, lane).cells for lane in ("gpu", "cpu")]
    assert {cell.task for cell in parts[1]} == {"pong_ppo"}
    assert sorted(map(repr, (*parts[0], *parts[1]))) == sorted(map(repr, whole.cells))
    assert lanes.restrict(whole, "cpu").title == f"{whole.title}, CPU lane"
    assert lanes.restrict(whole, "auto") is whole


@pytest.mark.parametrize(("cores", "jobs"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (16, 4), (64, 16)])
def test_number_of_parallel_runs_is_limited_by_cpu_cores(cores: int, jobs: int) -> None:
    assert lanes.jobs_at_a_time([PONG], cores) == jobs


def test_describe_summarises_lanes_in_one_line() -> None:
    said = lanes.describe(140, 28, [PONG], 16)
    assert said.startswith(
        "two lanes: 140 runs one after another on the GPU, and beside them 28 runs of pong_ppo, 4 at a"
    )
    assert "\n" not in said
    assert lanes.describe(0, 28, [PONG], 16).startswith("28 runs of pong_ppo, 4 at a time on 16 CPU cores")


def test_describe_reports_too_few_cores() -> None:
    said = lanes.describe(1, 2, [PONG], 2)
    assert said.endswith("a run of pong_ppo keeps 4 CPU cores busy, and this machine has 2: one at a time")


def machine(lane: str = "auto", device: str = "auto") -> DictConfig:
    return OmegaConf.create({"lane": lane, "device": device})


def launcher(name: str = "BasicLauncher") -> DictConfig:
    return OmegaConf.create({"_target_": f"plugin.{name}"})


def test_lanes_are_enabled_only_with_basic_launcher_and_no_chosen_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert lanes.are_enabled(machine(), launcher())
    assert not lanes.are_enabled(machine("all"), launcher())
    assert not lanes.are_enabled(machine("gpu"), launcher())
    assert not lanes.are_enabled(machine(device="cpu"), launcher())
    assert not lanes.are_enabled(machine(), launcher("JoblibLauncher"))
    monkeypatch.setenv("RANK", "0")
    assert not lanes.are_enabled(machine(), launcher()), "torchrun's processes all sweep alike"


def test_lane_command_is_the_sweep_command_restricted_to_one_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--multirun", "experiment=table1", "hydra/launcher=basic"])
    assert lanes.command("gpu", 4, ["machine.deadline=5"]) == [
        *(sys.executable, "train.py", "--multirun", "experiment=table1"),
        *("machine.lane=gpu", "machine.deadline=5"),
    ]
    assert lanes.command("cpu", 4, [])[4:] == ["machine.lane=cpu", "hydra/launcher=joblib", "hydra.launcher.n_jobs=4"]


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_failing_lane_does_not_stop_the_other(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    late = tmp_path / "late"
    commands = {
        "gpu": python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        "cpu": python(f"import time; time.sleep(1); open({str(late)!r}, 'w')"),
    }
    assert lanes.run_side_by_side(commands) == {"gpu": -signal.SIGKILL, "cpu": 0}
    assert late.exists()
    assert "the gpu lane ended with status -9; the cpu lane continues" in capfd.readouterr().err


STOPPED_AT_ONCE = """
import os, signal, sys, threading
from nero.sweep import lanes
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
print(lanes.run_side_by_side({"gpu": sleeping, "cpu": sleeping}))
"""


def test_lanes_interrupted_before_handlers_are_set_are_not_failures() -> None:
    begun = time.monotonic()
    said = subprocess.run([sys.executable, "-c", STOPPED_AT_ONCE], capture_output=True, text=True, timeout=50)
    assert said.stdout == "{'gpu': 0, 'cpu': 0}\n", said.stderr
    assert time.monotonic() - begun < 40


# complete sweeps, with a pretended GPU


def start(tmp_path: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(ROOT / "tests" / "support" / "pretended_gpu.py"), "--multirun", *SMOKE, *words]
    command.append(f"hydra.sweep.dir={tmp_path / 'outputs'}")
    # A new session, so that signals reach only the sweep.
    return subprocess.Popen(
        command, cwd=ROOT, env=script_environment(tmp_path), stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, said


def tasks_under_way(tmp_path: Path) -> set[str]:
    return {run.path.parent.name for run in Store(tmp_path / "runs").runs() if run.read_metrics()}


def wait_for_both(tmp_path: Path, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 150
    while tasks_under_way(tmp_path) != {"mnist_reparam", "pong_ppo"}:
        assert process.poll() is None, ended(process)[1]
        assert time.monotonic() < end, "a lane never began"
        time.sleep(0.05)


@pytest.mark.slow
def test_both_lanes_finish_after_failed_runs_are_retried(tmp_path: Path) -> None:
    """Failed runs give exit status 1; the command without the invalid setting then completes both lanes."""
    status, said = ended(start(tmp_path, "+optim.clip_norm=-1"))
    assert status == 1, said
    assert "two lanes: 2 runs one after another on the GPU, and beside them 2 runs of pong_ppo" in said
    status, said = ended(start(tmp_path))
    assert status == 0, said
    done = [summary["task"] for summary in Store(tmp_path / "runs").summaries().values() if summary["status"] == "done"]
    assert sorted(done) == ["mnist_reparam", "mnist_reparam", "pong_ppo", "pong_ppo"]
    status, said = ended(start(tmp_path))
    assert status == 0
    assert "two lanes" not in said, "where nothing is pending there is nothing to split"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["signal", "budget", "kill"])
def test_both_lanes_stop_together_with_resumable_checkpoints(tmp_path: Path, how: str) -> None:
    """Stopped by a signal to the sweep's process, by the sweep's time budget, or by a kill of that process."""
    long = ["task.epochs=100000", "machine.checkpoint_seconds=3600"]
    process = start(tmp_path, *long, *(["machine.budget_seconds=25"] if how == "budget" else []))
    wait_for_both(tmp_path, process)
    if how != "budget":
        process.send_signal(signal.SIGINT if how == "signal" else signal.SIGKILL)
    status, said = ended(process)
    assert status == (-signal.SIGKILL if how == "kill" else 0), said
    end = time.monotonic() + 60
    runs = Store(tmp_path / "runs").runs()
    while any(run.is_held() for run in runs):
        assert time.monotonic() < end, "a lane goes on"
        time.sleep(0.1)
    begun = [run for run in runs if run.read_metrics()]
    assert {run.path.parent.name for run in begun} == {"mnist_reparam", "pong_ppo"}
    assert {(run.read_summary() or {}).get("status") for run in begun} == {"running"}
    assert all(run.load_checkpoint() is not None for run in begun)
