"""A sweep reports every job: killed jobs, jobs that vanished from the queue, and all others."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hydra.core.utils import JobReturn, JobStatus

from nero.sweep.library_internals import QUERIES_UNTIL_GONE, SECONDS_BETWEEN_QUERIES, SlurmQueue, collect_all_results

needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="needs submitit: the extra `cluster`")
NO_ACCOUNTS = (1, "", "Slurm accounting storage is disabled")
NO_SUCH_JOB = (1, "", "slurm_load_jobs error: Invalid job id specified")
NO_CONTROLLER = (1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")


class Slurm:
    """A fake SLURM with preset answers, which records all queries. Its clock is the attribute `seconds`."""

    def __init__(self, squeue: tuple[int, str, str], sacct: tuple[int, str, str] = NO_ACCOUNTS) -> None:
        self.answers = {"squeue": squeue, "sacct": sacct}
        self.asked: list[Sequence[str]] = []
        self.seconds = 0.0
        self.queue = SlurmQueue(self.answer, lambda: self.seconds)

    def answer(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.asked.append(command)
        return subprocess.CompletedProcess(command, *self.answers[command[0]])

    def poll(self, *jobs: str, times: int = 1) -> list[str]:
        for job in jobs:
            self.queue.register_job(job)
        for _ in range(times):
            self.seconds += SECONDS_BETWEEN_QUERIES
            states = [self.queue.get_state(job) for job in jobs]
        return states


def test_one_squeue_query_covers_whole_array_and_is_rate_limited() -> None:
    slurm = Slurm((0, "12_0|RUNNING\n12_1|PENDING\n", ""))
    slurm.queue.register_job("12")  # submitit registers the array as well as its jobs
    assert slurm.poll("12_0", "12_1") == ["RUNNING", "PENDING"]
    assert [command[-1] for command in slurm.asked] == ["--jobs=12"]
    slurm.seconds += SECONDS_BETWEEN_QUERIES / 2
    assert not slurm.queue.is_done("12_0")
    assert len(slurm.asked) == 1


@pytest.mark.parametrize(
    "state",
    [
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "PREEMPTED",
    ],
)
def test_job_in_non_terminal_state_is_not_done(state: str) -> None:
    slurm = Slurm((0, f"12|{state}\n", ""))
    slurm.poll("12", times=3 * QUERIES_UNTIL_GONE)
    assert not slurm.queue.is_done("12", mode="cache")


@pytest.mark.parametrize("state", ["CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "COMPLETED"])
def test_job_in_terminal_state_is_done(state: str) -> None:
    slurm = Slurm((0, f"12_0|RUNNING\n12_1|{state}\n", ""))
    assert slurm.poll("12_0", "12_1") == ["RUNNING", state]
    assert slurm.queue.is_done("12_1", mode="cache")
    assert slurm.queue.get_info("12_1", mode="cache")["State"] == state


@pytest.mark.parametrize("absent", [NO_SUCH_JOB, (0, "12_7|RUNNING\n", "")], ids=["forgotten", "others are there"])
def test_job_missing_from_several_queries_is_gone(absent: tuple[int, str, str]) -> None:
    slurm = Slurm(absent)
    slurm.poll("12_1", times=QUERIES_UNTIL_GONE - 1)
    assert not slurm.queue.is_done("12_1", mode="cache")
    assert slurm.poll("12_1") == ["GONE"]
    assert slurm.queue.is_done("12_1", mode="cache")


def test_immediate_repeated_queries_count_as_one() -> None:
    slurm = Slurm(NO_SUCH_JOB)
    for _ in range(3 * QUERIES_UNTIL_GONE):
        assert not slurm.queue.is_done("12", mode="force")


def test_unreachable_controller_does_not_mark_job_done() -> None:
    slurm = Slurm(NO_CONTROLLER)
    slurm.poll("12", times=50)
    assert not slurm.queue.is_done("12", mode="cache")
    slurm.answers["squeue"] = NO_SUCH_JOB
    slurm.poll("12", times=QUERIES_UNTIL_GONE - 1)
    slurm.answers["squeue"] = (0, "12|RUNNING\n", "")  # the controller is back, and so is the job
    slurm.poll("12")
    slurm.answers["squeue"] = NO_SUCH_JOB
    slurm.poll("12", times=QUERIES_UNTIL_GONE - 1)
    assert not slurm.queue.is_done("12", mode="cache")


def test_sacct_gives_final_state_of_jobs_missing_from_squeue() -> None:
    slurm = Slurm(NO_SUCH_JOB, (0, "12_0|CANCELLED by 0\n12_1|COMPLETED\n12_2|RUNNING\n", ""))
    jobs = ("12_0", "12_1", "12_2")
    assert slurm.poll(*jobs) == ["CANCELLED", "COMPLETED", "UNKNOWN"]
    # After a node has died, accounting may list its job as running forever.
    assert slurm.poll("12_2", times=QUERIES_UNTIL_GONE) == ["GONE"]


def test_missing_slurm_commands_do_not_mark_job_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not SlurmQueue().is_done("12", mode="force")


def job_return(text: str) -> JobReturn:
    return JobReturn(overrides=[text], status=JobStatus.COMPLETED, _return_value=text)


def killed(overrides: list[str]) -> JobReturn:
    print("so far so good", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return job_return("never")


def broken(overrides: list[str]) -> JobReturn:
    raise ValueError("no such\nluck")


def fine(overrides: list[str]) -> JobReturn:
    return job_return(overrides[0])


@needs_submitit
@pytest.mark.slow
def test_killed_submitit_job_does_not_hide_results_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from submitit import AutoExecutor
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # so that the jobs can import this file
    before = (Job.results, SlurmJob.watcher)
    with collect_all_results():
        executor = AutoExecutor(folder=tmp_path, cluster="local")
        executor.update_parameters(timeout_min=2)
        jobs = [executor.submit(work, [f"seed={n}"]) for n, work in enumerate((killed, broken, fine))]
        for job in jobs:
            job._results_timeout_s = 1
        returns = [job.results()[0] for job in jobs]
    assert [job.status.name for job in returns] == ["FAILED", "FAILED", "COMPLETED"]
    assert [job.overrides for job in returns] == [["seed=0"], ["seed=1"], ["seed=2"]]
    first, second, third = (job._return_value for job in returns)
    assert isinstance(first, RuntimeError)
    assert str(first).startswith(f"job {jobs[0].job_id} ended as ")
    assert str(first).endswith(" and left no result; its last output: so far so good")
    assert str(second) == f"job {jobs[1].job_id} failed: luck"
    assert third == "seed=2"
    assert "\n" not in f"{first}{second}"
    assert (Job.results, SlurmJob.watcher) == before


@needs_submitit
def test_submitit_patches_are_undone_after_exception() -> None:
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    before = (Job.results, SlurmJob.watcher)

    def launch() -> None:
        assert (Job.results, SlurmJob.watcher) != before
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), collect_all_results():
        launch()
    assert (Job.results, SlurmJob.watcher) == before


@pytest.fixture
def ray_plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A stand-in for Hydra's Ray plugin, which gets one result after the other from Ray."""

    def get(run: Any) -> Any:
        if isinstance(run, Exception):
            raise run
        return run

    package, core = ModuleType("hydra_plugins.hydra_ray_launcher"), ModuleType("hydra_plugins.hydra_ray_launcher._core")
    package.__spec__ = core.__spec__ = SimpleNamespace(name="stand-in")  # type: ignore[assignment]
    package._core, core.ray = core, SimpleNamespace(get=get, version="2")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, core.__name__, core)
    return core


def test_failed_ray_job_does_not_hide_results_of_others(ray_plugin: Any) -> None:
    ray = ray_plugin.ray
    with collect_all_results():
        runs = [job_return("a"), MemoryError("a worker died\nfor want of memory"), job_return("b")]
        returns = [ray_plugin.ray.get(run) for run in runs]
        assert ray_plugin.ray.version == "2"
    assert [job.status.name for job in returns] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert str(returns[1]._return_value) == "Ray's job failed: MemoryError: for want of memory"
    assert ray_plugin.ray is ray


def test_ray_is_patched_only_for_ray_launchers(ray_plugin: Any) -> None:
    ray = ray_plugin.ray
    with collect_all_results(SimpleNamespace()):
        assert ray_plugin.ray is ray
    launcher = type("RayLauncher", (), {"__module__": "hydra_plugins.hydra_ray_launcher.ray_launcher"})
    own = type("MyLauncher", (launcher,), {"__module__": "mine"})
    with collect_all_results(own()):
        assert ray_plugin.ray is not ray


def test_collect_all_results_does_not_import_submitit_or_ray_if_unneeded() -> None:
    code = (
        "import sys, nero.sweep.library_internals as h\n"
        "with h.collect_all_results(object()): pass\n"
        "print(sorted({'submitit', 'ray'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
