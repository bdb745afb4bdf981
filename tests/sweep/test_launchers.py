"""Sweeps with Hydra's launchers: every run is reported, none is lost, and all can be stopped."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import ROOT, SMALL, script_environment
from nero.runs.store import RunDirectory, Store


def launcher(name: str, plugin: str, *words: str) -> object:
    missing = find_spec(f"hydra_plugins.{plugin}") is None
    marks = [pytest.mark.skipif(missing, reason=f"needs Hydra's plugin {plugin}")]
    return pytest.param([f"hydra/launcher={name}", *words], id=name, marks=marks)


JOBLIB = launcher("joblib", "hydra_joblib_launcher", "hydra.launcher.n_jobs=2")
LOCAL = launcher("submitit_local", "hydra_submitit_launcher", "hydra.sweeper.max_batch_size=2")
RAY = launcher(
    "ray",
    "hydra_ray_launcher",
    "+hydra.launcher.ray.init.num_cpus=2",
    "+hydra.launcher.ray.init.include_dashboard=false",
    "+hydra.launcher.ray.remote.max_retries=0",
)
# tests/sweep/test_job_results.py kills a job of submitit. Runs watch the same stop file under every launcher.
IN_PROCESSES = pytest.mark.parametrize("words", [JOBLIB, RAY])
EVERY = pytest.mark.parametrize("words", [pytest.param([], id="basic"), JOBLIB, LOCAL])
EPOCHS = 30


def start(tmp_path: Path, *words: str, **more: str) -> "subprocess.Popen[str]":
    own = {"PYTHONPATH": str(ROOT / "tests"), "RAY_DEDUP_LOGS": "0", "RAY_worker_niceness": "0"}
    env = script_environment(tmp_path) | own | more
    folder = f"hydra.sweep.dir={tmp_path / 'outputs'}"
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--multirun", *SMALL, *words, folder]
    return subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ended(process: "subprocess.Popen[str]", timeout: float = 200) -> tuple[int, str]:
    try:
        out, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said + out


def wait_for_lines(tmp_path: Path, process: "subprocess.Popen[str]") -> list[RunDirectory]:
    """Wait until a run has logged two epochs; returns all such runs."""
    end = time.monotonic() + 150
    while time.monotonic() < end:
        assert process.poll() is None, ended(process)[1]
        if under_way := [run for run in Store(tmp_path / "runs").runs() if len(run.read_metrics()) > 1]:
            return under_way
        time.sleep(0.05)
    process.kill()
    raise AssertionError("no run began")


@pytest.mark.slow
@IN_PROCESSES
def test_killed_or_failed_run_does_not_hide_other_runs(tmp_path: Path, words: list[str]) -> None:
    """Of six runs, two raise and two kill their process; the others finish, and all six are reported."""
    optimizers = "torch.optim.SGD,support.deadly.Deadly,support.deadly.Raising"
    sweep = ["task.depth=3,4", f"optim._target_={optimizers}", "task.epochs=3"]
    status, said = ended(start(tmp_path, "optim=sgd", *sweep, *words))
    assert status == 1, said
    kinds = sorted(summary["status"] for summary in Store(tmp_path / "runs").summaries().values())
    assert kinds == ["done", "done", "failed", "failed", "running", "running"], said
    table = said[said.rindex("run  ") :]
    told = re.findall(r"^mnist\S+ +(\S+)", table, re.MULTILINE)
    assert sorted(told) == ["done", "done", "failed", "failed", "failed", "failed"], said
    assert "4 of 6 runs failed" in said


@pytest.mark.slow
@EVERY
def test_interrupted_sweep_checkpoints_its_runs_and_resumes(tmp_path: Path, words: list[str]) -> None:
    sweep = ["optim=nero,sgd", f"task.epochs={EPOCHS}", "machine.checkpoint_seconds=3600", *words]
    process = start(tmp_path, *sweep)
    wait_for_lines(tmp_path, process)
    process.send_signal(signal.SIGINT)  # only to the sweep, not to the processes it has started
    status, said = ended(process)
    assert status == 0, said
    assert "the same command continues" in said
    stopped = [run for run in Store(tmp_path / "runs").runs() if (run.read_summary() or {}).get("status") == "running"]
    assert stopped, said
    for run in stopped:
        assert run.load_checkpoint() is not None or not run.read_metrics(), "at its very start there is nothing to keep"
        assert not run.is_held()
    assert not list((tmp_path / "outputs").glob("stop-*")), "no file is left that would stop another sweep"
    status, said = ended(start(tmp_path, *sweep))
    assert status == 0, said
    runs = Store(tmp_path / "runs").runs()
    assert len(runs) == 2
    for run in runs:
        assert (run.read_summary() or {}).get("status") == "done"
        assert [record["epoch"] for record in run.read_metrics()] == list(range(1, EPOCHS + 1))
    assert all(len(run.read_provenance()) == 2 for run in stopped), "they went on"


@pytest.mark.slow
@pytest.mark.parametrize("words", [JOBLIB])
def test_time_budget_covers_whole_sweep(tmp_path: Path, words: list[str]) -> None:
    """A stand-in for MPS logs the number of joblib's workers: MPS must start before them and stop after them."""
    sweep = [
        "optim=nero,sgd",
        "seed=0,1",
        "task.epochs=100000",
        "machine.budget_seconds=15",
        "machine.mps=true",
        *words,
    ]
    program, log = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "log"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1" $(pgrep --parent $PPID --full popen_loky | wc -l) >> {log}\n')
    program.chmod(0o755)
    began = time.monotonic()
    status, said = ended(start(tmp_path, *sweep, PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}"))
    assert status == 0, said
    assert time.monotonic() - began < 60, "15 seconds, and the start of Python"
    assert said.count("the time budget is used up") == 4
    assert log.read_text().split() == ["-d", "0", "0"], "started before there was a worker, ended when there was none"
    assert {summary["status"] for summary in Store(tmp_path / "runs").summaries().values()} <= {"running"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ("", ""),
        ("LAUNCHER=basic BUDGET=540", "machine.budget_seconds=540"),
        ("LAUNCHER=joblib JOBS=4 GPUS=2", "hydra/launcher=joblib hydra.launcher.n_jobs=4 machine.gpus=2"),
        (
            "LAUNCHER=submitit_local JOBS=2 TIME=5",
            "hydra/launcher=submitit_local hydra.launcher.timeout_min=5 hydra.launcher.tasks_per_node=1"
            " hydra.sweeper.max_batch_size=2",
        ),
        (
            "LAUNCHER=submitit_slurm JOBS=8 PARTITION=gpu GPUS=4 RANKS=4 TIME=600",
            "hydra/launcher=submitit_slurm hydra.launcher.timeout_min=600 hydra.launcher.gpus_per_node=4"
            " hydra.launcher.tasks_per_node=4 hydra.launcher.array_parallelism=8 hydra.launcher.partition=gpu"
            " hydra.launcher.max_num_timeout=100 'hydra.launcher.setup=[\"export SLURM_KILL_BAD_EXIT=1\"]'",
        ),
        (
            "LAUNCHER=ray JOBS=8 GPUS=0.25",
            "hydra/launcher=ray +hydra.launcher.ray.init.num_cpus=8 +hydra.launcher.ray.remote.num_cpus=1"
            " +hydra.launcher.ray.remote.num_gpus=0.25",
        ),
    ],
)
def test_make_variables_become_launcher_overrides(variables: str, words: str) -> None:
    """Checks the words that `make` prints, not whether Hydra accepts them."""
    made = make_dry(variables)
    assert made.returncode == 0
    [line] = [line for line in made.stdout.splitlines() if "nero sweep" in line]
    assert line.partition("nero sweep ")[2].replace("experiment=table1", "").split() == words.split()
    assert "torch.distributed" not in line


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("LAUNCHER=pbs", "LAUNCHER=pbs: there are basic joblib ray submitit_local submitit_slurm"),
        ("LAUNCHER=joblib PARTITION=gpu", "LAUNCHER=joblib does not take PARTITION, but JOBS GPUS"),
        ("JOBS=4", "LAUNCHER=basic does not take JOBS, but RANKS"),
        ("LAUNCHER=ray RANKS=2", "LAUNCHER=ray does not take RANKS, but JOBS GPUS"),
    ],
)
def test_make_rejects_variables_unsupported_by_launcher(variables: str, message: str) -> None:
    made = make_dry(variables)
    assert made.returncode == 2
    assert message in made.stderr


def test_make_ignores_launcher_variables_from_environment() -> None:
    without = make_dry("LAUNCHER=submitit_slurm")
    assert without.returncode == 0
    assert "hydra/launcher=submitit_slurm" in without.stdout
    assert make_dry("LAUNCHER=submitit_slurm", TIME="%e", JOBS="16").stdout == without.stdout


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ("", []),
        ("TASK=pong_ppo OPTIM=sgd", ["only.task=pong_ppo", "only.optim=sgd"]),
        ("OPTIM=sgd,adam", ["only.optim=sgd,adam"]),
        ("'OPTIM=sgd  adam' ARGS=seed=3", ["only.optim=sgd,adam", "seed=3"]),
        ("TASK= OPTIM=", []),
    ],
)
def test_make_trains_selected_part_but_reports_whole_experiment(variables: str, words: list[str]) -> None:
    trained, reported = make_dry(variables, TASK="from", OPTIM="the environment").stdout.splitlines()
    assert shlex.split(trained.partition("nero sweep ")[2]) == ["experiment=table1", *words]
    assert "only" not in reported
    # If only a part is trained, other runs may be missing: the report then exits with 1. Status 2 is an error.
    assert reported.endswith("|| test $? -eq 1") == any("only" in word for word in words)


@pytest.mark.parametrize("goal", ["smoke", "theory", "plan", "test"])
def test_make_rejects_task_or_optim_for_non_experiment_targets(goal: str) -> None:
    assert make_dry(f"{goal} OPTIM=sgd").stderr.strip().endswith(f"), not of {goal}.  Stop.")


@pytest.mark.parametrize(
    ("variables", "store", "out"),
    [
        ("FRESH=1", "mine/fresh/runs", "mine/fresh/results"),
        ("FRESH=1 RESULTS=tables", "mine/fresh/runs", "tables"),
        ("RUNS=my/runs", "my/runs", "my/runs_results"),
        ("'RUNS=my runs/' RESULTS=tables", "my runs/", "tables"),
    ],
)
def test_make_reruns_experiment_in_another_store(variables: str, store: str, out: str) -> None:
    trained, reported = make_dry(variables, NERO_LOCAL="mine").stdout.splitlines()
    assert shlex.split(trained)[-2:] == ["experiment=table1", f"store={store}"]
    assert shlex.split(reported)[-5:] == ["table1", "--store", store, "--out", out]


def test_make_rejects_fresh_for_other_targets() -> None:
    assert make_dry("test FRESH=1").stderr.strip().endswith(" theory), not for test.  Stop.")
    assert "FRESH and RUNS" not in make_dry("", FRESH="1", RUNS="x").stderr
    assert "store=" not in make_dry("", FRESH="1", RUNS="x").stdout, "from the environment"


def test_make_compare_passes_its_variables_on() -> None:
    variables = "OPTIM=own.Lion 'TASKS=mnist_mlp100 pong_ppo' 'LR=0.1 1' EMBEDDED=1 LAUNCHER=joblib JOBS=2 ARGS=--plan"
    [line] = make_dry(variables, goal="compare").stdout.splitlines()
    words = "own.Lion --tasks mnist_mlp100 pong_ppo --lr 0.1 1 --embedded hydra/launcher=joblib hydra.launcher.n_jobs=2"
    assert line.partition("nero compare ")[2].split() == [*words.split(), "--plan"]


def make_dry(variables: str, goal: str = "table1", **env: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--dry-run", "--old-file=.venv/.ready", goal, *shlex.split(variables)]
    return subprocess.run(command, cwd=ROOT, env=clean | env, capture_output=True, text=True)
