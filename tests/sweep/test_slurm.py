"""Sweeps on a real SLURM with one job per run: cancelled, killed, timed-out and forgotten jobs."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra.core.utils import JobStatus

from conftest import ROOT, SMALL, script_environment, script_module
from nero.plans.config import compose
from nero.plans.plan import load_experiment
from nero.runs.store import RunDirectory, Store
from nero.sweep.library_internals import SlurmQueue, collect_all_results
from support.fake_runs import write_run

slurm = script_module("slurm_on_one_machine")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.slurm,
    pytest.mark.skipif(find_spec("submitit") is None, reason="needs submitit: the extra `cluster`"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who alone may start SLURM's daemons"),
    pytest.mark.skipif(
        bool(slurm.missing_tools()), reason="needs SLURM: scripts/slurm_on_one_machine.py install, as root"
    ),
]

TINY = (*SMALL, "task.train_examples=100", "machine.threads=1")
OVER_SLURM = (
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.partition=main",
    "hydra.launcher.timeout_min=5",
    "hydra.launcher.cpus_per_task=1",
)
LONG = 200  # epochs of a run that is interrupted midway
PATIENCE = 240  # seconds to wait for a sweep on a busy machine


class Cluster:
    """A running SLURM and its commands."""

    def __init__(self, folder: Path, forget_seconds: int = 300) -> None:
        self.folder, self.config = folder, slurm.start(folder, forget_seconds)
        self.said = ""

    def say(self, *command: str) -> str:
        """Run a command and return its stdout. Command and output are also printed, unless they repeat the last."""
        env = {**os.environ, "SLURM_CONF": str(self.config)}
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        before, self.said = self.said, f"$ {shlex.join(command)}\n{result.stdout}{result.stderr}"
        print(self.said if self.said != before else "", end="", flush=True)
        return result.stdout

    def jobs(self) -> dict[str, str]:
        """State of every job in the queue, in the order of job ids."""
        lines = self.say("squeue", "--array", "--noheader", "--states=all", "--sort=i", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def task(self, job_id: str) -> int:
        """Process id of a job's training process."""
        names = ("ARRAY_JOB_ID", "ARRAY_TASK_ID") if "_" in job_id else ("JOB_ID",)
        marks = {f"SLURM_{name}={word}".encode() for name, word in zip(names, job_id.split("_"), strict=True)}
        for pid in slurm.processes_of_jobs(self.folder):
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
            if program == os.fsencode(sys.executable) and marks <= set(slurm.environment_of(pid)):
                return int(pid)
        raise AssertionError(f"no process of job {job_id}")


@contextmanager
def started(folder: Path, forget_seconds: int = 300) -> Iterator[Cluster]:
    cluster = Cluster(folder, forget_seconds)
    try:
        cluster.say("sinfo")
        yield cluster
    finally:
        slurm.stop(folder)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("slurm")) as one:
        yield one


@pytest.fixture
def sweep(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Function that starts a sweep on SLURM: sweep("seed=0,1"). Jobs that are left after the test are cancelled."""
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> "subprocess.Popen[str]":
        # A separate folder for each sweep, so that it contains no files of an earlier one.
        folder = f"hydra.sweep.dir={tmp_path / f'out{len(begun)}'}"
        command = [str(ROOT / "scripts" / "train.py"), "--multirun", *TINY, *OVER_SLURM, folder, *words]
        print(f"$ python {shlex.join(command)}")
        env = {**script_environment(tmp_path), "SLURM_CONF": str(cluster.config)}
        begun.append(subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
        return begun[-1]

    yield start
    for process in begun:
        if process.poll() is None:
            process.kill()
            process.wait()
    cluster.say("scancel", "--user=root", "--quiet")


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, said = process.communicate(timeout=PATIENCE)
    print(said, end="")
    return process.returncode, said


def statuses(said: str) -> dict[str, str]:
    """Status of each run in a sweep's table, by run id."""
    table = said[said.rindex("run  ") :].splitlines()[1:]
    rows = (re.match(r"(\S+)  +(done|interrupted|failed|refused|busy)\b", line) for line in table)
    return {row[1]: row[2] for row in rows if row}


def run_of(store: Store, *words: str) -> RunDirectory:
    config = compose([*TINY, *words])
    return store.run(config.task_name, config.run_id)


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    late = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < late, f"{what} in {seconds} s"
        time.sleep(0.1)


def epochs(run: RunDirectory) -> list[int]:
    return [record["epoch"] for record in run.read_metrics()]


def wait_for_epochs(run: RunDirectory, number: int, process: "subprocess.Popen[str]") -> None:
    """Wait until a run has logged this many epochs; fails at once if the sweep has ended."""
    wait_until(lambda: len(epochs(run)) >= number or process.poll() is not None, f"{number} epochs")
    assert process.poll() is None, end(process)


def test_temporary_slurm_runs_command_and_leaves_no_processes(tmp_path: Path) -> None:
    stubborn = "sbatch --output=/dev/null --wrap 'srun sh -c \"trap : TERM; while :; do sleep 1; done\"'"
    script = [sys.executable, str(ROOT / "scripts" / "slurm_on_one_machine.py"), "run", str(tmp_path / "slurm")]
    command = f"{stubborn}; srun echo from a job; sleep 1; exit 3"
    result = subprocess.run([*script, "sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    print(result.stdout + result.stderr)
    assert result.returncode == 3
    assert "from a job" in result.stdout
    assert "idle" in result.stderr
    assert not [pid for pid in slurm.all_processes() if slurm.is_own(pid, tmp_path / "slurm") and slurm.is_running(pid)]
    assert not list(slurm.steps(tmp_path / "slurm"))


def log_all_runs_except(optim: str, words: list[str], store: Store) -> None:
    """Log all runs of the experiment `mnist`, except two learning rates of an optimiser and the repeats after them."""
    for cell in load_experiment("mnist", words).cells:
        if (cell.task, cell.optim) == ("mnist_mlp100", optim):
            for lr in (cell.lrs[0], cell.lrs[-1]):
                write_run(store, cell, lr, cell.search_seed, None, data="embedded")  # diverged: not chosen for repeats
            continue
        for lr in cell.lrs:
            write_run(store, cell, lr, cell.search_seed, 0.5 if lr == cell.lrs[0] else 0.1, data="embedded")
        for seed in cell.repeat_seeds:
            write_run(store, cell, cell.lrs[0], seed, 0.5, data="embedded")


def test_second_make_completes_experiment_after_cancelled_job(cluster: Cluster, tmp_path: Path) -> None:
    before = len(cluster.jobs())
    store = Store(tmp_path / "runs")
    words = [word for word in TINY if not word.startswith("machine.")] + [f"task.epochs={LONG}"]
    log_all_runs_except("adam", words, store)
    logged = set(store.summaries())
    further = [*TINY, f"task.epochs={LONG}", "hydra.launcher.cpus_per_task=1", f"hydra.sweep.dir={tmp_path / 'out'}"]
    over_slurm = ["LAUNCHER=submitit_slurm", "PARTITION=main", "JOBS=2", "TIME=5", f"RESULTS={tmp_path / 'results'}"]
    make = [
        "make",
        "--old-file=.venv/.ready",
        "mnist",
        f"PY={sys.executable}",
        *over_slurm,
        f"ARGS={shlex.join(further)}",
    ]
    env = {**script_environment(tmp_path), "SLURM_CONF": str(cluster.config)}

    def start_make() -> "subprocess.Popen[str]":
        print(f"$ {shlex.join(make)}", flush=True)
        return subprocess.Popen(make, cwd=ROOT, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def new() -> list[RunDirectory]:
        return [run for run in store.runs() if run.run_id not in logged]

    process = start_make()
    wait_until(lambda: len(new()) == 2 or process.poll() is not None, "two jobs begin")
    wait_for_epochs(new()[0], 2, process)
    array = list(cluster.jobs())[before].split("_")[0]
    cluster.say("scancel", f"{array}_0")
    _, said = end(process)
    assert sorted(statuses(said).values()) == ["done", "interrupted"]
    assert "the same command continues" in said
    _, said = end(start_make())
    # The report that follows fails, because the paper's tables contain no results on embedded data.
    assert "0 pending" in said
    assert set(statuses(said).values()) == {"done"}
    assert (tmp_path / "results" / "tables" / "figure3.md").exists()
    runs = new()
    assert sorted(summary["seed"] for run in runs if (summary := run.read_summary())) == [0, 0, 1, 2]
    assert all(epochs(run) == list(range(1, LONG + 1)) for run in runs)
    assert sorted(len(run.read_provenance()) for run in runs) == [1, 1, 1, 2], "one of them went on"
    states = list(cluster.jobs().values())[before:]
    assert sorted(states) == ["CANCELLED"] + ["COMPLETED"] * 4


def test_cancelled_and_killed_jobs_do_not_affect_other_runs(
    sweep: Callable[..., "subprocess.Popen[str]"], cluster: Cluster, tmp_path: Path
) -> None:
    store = Store(tmp_path / "runs")
    words = ("task.epochs=40,41,1,2", "machine.checkpoint_seconds=0")
    cancelled, killed, first, last = (run_of(store, f"task.epochs={number}") for number in (40, 41, 1, 2))
    process = sweep(*words)
    wait_for_epochs(cancelled, 3, process)
    array = list(cluster.jobs())[-1].split("_")[0]
    cluster.say("scancel", f"{array}_0")
    wait_for_epochs(killed, 3, process)
    os.kill(cluster.task(f"{array}_1"), signal.SIGKILL)
    code, said = end(process)
    assert code == 1
    assert statuses(said) == {
        cancelled.run_id: "interrupted",
        killed.run_id: "failed",
        first.run_id: "done",
        last.run_id: "done",
    }
    assert re.search(rf"job {array}_1 ended as \w+ and left no result", said)
    assert "1 of 4 runs failed" in said
    assert 3 <= len(epochs(cancelled)) < 40
    code, said = end(sweep(*words))
    assert code == 0
    assert set(statuses(said).values()) == {"done"}
    for run, number in ((cancelled, 40), (killed, 41)):
        assert epochs(run) == list(range(1, number + 1))
        assert len(run.read_provenance()) == 2
    assert len(first.read_provenance()) == 1


def test_slurm_time_limit_signal_checkpoints_and_job_is_requeued_or_resumed(
    sweep: Callable[..., "subprocess.Popen[str]"], cluster: Cluster, tmp_path: Path
) -> None:
    """The job's process is paused, so that its run cannot finish before SLURM's warning, which wakes the process."""
    store = Store(tmp_path / "runs")
    warned = ("task.epochs=20", "hydra.launcher.timeout_min=10", "hydra.launcher.signal_delay_s=150")
    again, once = (run_of(store, "task.epochs=20", f"seed={seed}") for seed in (0, 1))
    before = len(cluster.jobs())
    processes = []
    for seed, timeouts in ((0, 1), (1, 0)):
        processes.append(sweep(*warned, f"seed={seed}", f"hydra.launcher.max_num_timeout={timeouts}"))
        wait_until(lambda: len(cluster.jobs()) == before + len(processes), "submitted")
    jobs = list(cluster.jobs())[before:]
    tasks = []
    for job, run, process in zip(jobs, (again, once), processes, strict=True):
        wait_for_epochs(run, 2, process)
        tasks.append(cluster.task(job))
        os.kill(tasks[-1], signal.SIGSTOP)
        # Ends in one or two minutes: after SLURM's next check, and within the 150 s in which SLURM sends its warning.
        minutes = int(cluster.say("squeue", "--noheader", "--format=%M", f"--jobs={job}").split(":")[-2])
        cluster.say("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes + 2}")
    for job, task in zip(jobs, tasks, strict=True):
        wait_until(lambda task=task: not slurm.is_running(task), "warned", 60)
        cluster.say("scontrol", "update", f"JobId={job}", "TimeLimit=10")  # for when the job is requeued
    (code, said), (other_code, other_said) = (end(process) for process in processes)
    assert "Restarts=1" in cluster.say("scontrol", "show", "job", jobs[0])
    assert "Restarts=0" in cluster.say("scontrol", "show", "job", jobs[1])
    assert code == other_code == 0
    assert statuses(said) == {again.run_id: "done"}
    assert statuses(other_said) == {once.run_id: "interrupted"}
    assert "the same command continues" in other_said
    assert 2 <= len(epochs(once)) < 20
    code, said = end(sweep(*warned, "seed=1"))
    assert statuses(said) == {once.run_id: "done"}
    for run in (again, once):
        assert epochs(run) == list(range(1, 21))
        assert len(run.read_provenance()) == 2


def test_forgotten_job_fails_but_job_survives_controller_restart(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submitit import AutoExecutor

    # Not by the module's name: Hydra reloads its plugins, and that name may now refer to another module.
    monkeypatch.setitem(SlurmQueue.get_state.__globals__, "SECONDS_BETWEEN_QUERIES", 1.0)
    folder = tmp_path_factory.mktemp("forgetful")
    with started(folder, forget_seconds=2) as cluster, collect_all_results():
        monkeypatch.setenv("SLURM_CONF", str(cluster.config))
        executor = AutoExecutor(folder=tmp_path / "jobs", cluster="slurm")
        executor.update_parameters(timeout_min=5, slurm_partition="other")
        lost = executor.submit(signal.raise_signal, signal.SIGKILL)
        kept = executor.submit(
            subprocess.check_output, f"until [ -e '{tmp_path}/go on' ]; do sleep 0.1; done", shell=True
        )
        wait_until(lambda: list(cluster.jobs()) == [kept.job_id], "the queue has forgotten the first")
        lost._results_timeout_s = 1
        [said] = lost.results()
        assert said.status == JobStatus.FAILED
        assert f"job {lost.job_id} is gone from the queue and left no result" in str(said._return_value)
        pid = int((folder / "slurmctld.pid").read_text())
        slurm.end_all([pid], signal.SIGTERM)
        assert not kept.done(force_check=True)
        slurm.start_daemon(folder, "slurmctld", ["-D", "-f", str(cluster.config)])
        wait_until(lambda: cluster.jobs() == {kept.job_id: "RUNNING"}, "the controller is back", 40)
        assert not kept.done(force_check=True)
        (tmp_path / "go on").touch()
        assert kept.results() == [b""]
