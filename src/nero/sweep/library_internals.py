"""All that sweeps use of other libraries beyond their public interfaces, in one place.

Hydra's launchers gather the results of their jobs one after another and stop at the first job that was cancelled or
killed: the results of the others are lost. Inside `collect_all_results` such a job counts as failed instead. The
launching itself stays with Hydra's plugins. A test compares `WRITTEN_FOR` with the installed versions.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper

# Versions whose internals are used here. With another one, read this file again and adapt it.
WRITTEN_FOR = {
    "hydra-core": "1.3",
    "hydra-joblib-launcher": "1.2",
    "hydra-ray-launcher": "1.2",
    "hydra-submitit-launcher": "1.2",
    "joblib": "1.5",
    "submitit": "1.5",
}
SECONDS_BETWEEN_QUERIES = 5.0
QUERIES_UNTIL_GONE = 3  # one query is not enough: a queue that has just been restarted may not know all of its jobs yet
COMMAND_TIMEOUT = 60
# Final states. In any other state that SLURM reports, the job may still run.
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "GONE")
)
Command = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def register_sweeper(sweeper: type[Sweeper]) -> None:
    """Make a sweeper known to Hydra in this program alone.

    Hydra accepts plugins in the package `hydra_plugins` only, but loads what is installed there in every program.
    """
    name = f"{sweeper.__module__}.{sweeper.__name__}"
    accepts = Plugins.is_in_toplevel_plugins_module
    if accepts(name):
        return
    Plugins.is_in_toplevel_plugins_module = staticmethod(  # type: ignore[method-assign]
        lambda clazz: clazz == name or accepts(clazz)
    )
    Plugins.instance().register(sweeper)


def basic_sweeper(max_batch_size: int | None, params: dict[str, str] | None) -> Any:
    """Hydra's own sweeper. It is not imported earlier, since Hydra executes its module again when it loads plugins."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    return BasicSweeper(max_batch_size, params)


@contextmanager
def collect_all_results(launcher: object = None) -> Iterator[None]:
    """Return a job that failed or vanished as failed instead of raising, so that the others' results are returned too.

    With a `launcher`, what other launchers use is not even imported.
    """
    with ExitStack() as patches:
        for plugin, apply in (("hydra_submitit_launcher", _patch_submitit), ("hydra_ray_launcher", _patch_ray)):
            package = f"hydra_plugins.{plugin}"
            wanted = launcher is None or any(kind.__module__.startswith(package) for kind in type(launcher).__mro__)
            if wanted and find_spec(package) is not None:
                apply(patches)
        yield


def shut_down_workers(launcher: object) -> None:
    """End joblib's worker processes, which otherwise wait minutes for further jobs."""
    if type(launcher).__name__ == "JoblibLauncher":
        from joblib.externals.loky import get_reusable_executor

        get_reusable_executor().shutdown(wait=True)


def _patch_submitit(patches: ExitStack) -> None:
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    results = Job.results

    def results_or_failure(job: Any) -> list[Any]:
        try:
            return results(job)
        except Exception as error:  # whatever it is, it concerns this job alone
            overrides = None
            with suppress(Exception):  # the launcher wrote them to a file, which may be gone
                overrides = list(job.submission().args[0])
            return [_failed(_submitit_failure(job, error), overrides)]

    patches.enter_context(patch.object(Job, "results", results_or_failure))
    patches.enter_context(patch.object(SlurmJob, "watcher", SlurmQueue()))


def _patch_ray(patches: ExitStack) -> None:
    """Only the plugin's reference to Ray is replaced: Ray itself calls `ray.get` for other results."""
    core = import_module("hydra_plugins.hydra_ray_launcher._core")
    ray = core.ray

    def get_or_failure(*args: Any, **options: Any) -> Any:
        try:
            return ray.get(*args, **options)
        except Exception as error:
            return _failed(f"Ray's job failed: {type(error).__name__}: {_last_line(str(error).splitlines())}")

    patches.enter_context(patch.object(core, "ray", SimpleNamespace(**{**vars(ray), "get": get_or_failure})))


def _failed(message: str, overrides: Sequence[str] | None = None) -> JobReturn:
    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=RuntimeError(message))


def _submitit_failure(job: Any, error: Exception) -> str:
    """One line: which job, its state, and the last line of its stderr, or of SLURM's errors there."""
    from submitit.core.utils import FailedJobError

    lines = str(error).splitlines()
    rules = [number for number, line in enumerate(lines) if line and not line.strip("-")]
    if isinstance(error, FailedJobError) and len(rules) > 1:  # the job's own traceback is between two lines of dashes
        return f"job {job.job_id} failed: {_last_line(lines[rules[0] : rules[-1]])}"
    state = job.state
    end = "is gone from the queue" if state == "GONE" else f"ended as {state}"
    last = ""
    with suppress(OSError):
        text = Path(job.paths.stderr).read_text(errors="replace")
        last = _last_line(re.findall(r"^(?:srun|slurmstepd): error: .*", text, re.MULTILINE) or text.splitlines())
    return f"job {job.job_id} {end} and left no result" + (f"; its last output: {last}" if last else "")


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip("- \t")), "")


class SlurmQueue:
    """Takes the place of submitit's watcher: the states of SLURM jobs from the queue itself, one query for all.

    submitit asks `sacct` only, which knows no job on a cluster without accounting: a job that was killed is then waited
    for without end. Here a job has ended when the queue says so, or when several queries in a row do not list it. A
    query without an answer, as while the controller is restarted, changes nothing.
    """

    def __init__(self, command: Command | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command or _run
        self._clock = clock
        self._states: dict[str, str] = {}
        self._missed: dict[str, list[float]] = {}  # when a job was not listed, in seconds
        self._queried = float("-inf")

    def register_job(self, job_id: str) -> None:
        self._states.setdefault(job_id, "UNKNOWN")
        if "_" in job_id:
            self._states.pop(job_id.split("_")[0], None)  # the array as a whole: its jobs are listed one by one

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        return self.get_state(job_id, mode) in ENDED

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        return {"JobID": job_id, "State": self.get_state(job_id, mode)}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        if job_id not in self._states:
            self.register_job(job_id)
        due = mode == "force" or self._clock() - self._queried >= SECONDS_BETWEEN_QUERIES
        if due and mode != "cache":
            self._query([job_id for job_id, state in self._states.items() if state not in ENDED])
            self._queried = self._clock()
        return self._states[job_id]

    def _query(self, active: Sequence[str]) -> None:
        if not active:
            return
        listed, error = self._ask("squeue", "--array", "--states=all", "--format=%i|%T", jobs=active)
        if error and "Invalid job id" not in error:
            return
        for job_id in listed.keys() & set(active):
            self._states[job_id] = listed[job_id]
            self._missed.pop(job_id, None)
        if absent := [job_id for job_id in active if job_id not in listed]:
            # The accounting, if there is one, knows jobs that the queue has forgotten.
            accounted, _ = self._ask("sacct", "--parsable2", "--allocations", "--format=JobID,State", jobs=absent)
            for job_id in absent:
                times = self._missed.setdefault(job_id, [])
                if not times or self._clock() - times[-1] >= SECONDS_BETWEEN_QUERIES:
                    times.append(self._clock())
                if accounted.get(job_id) in ENDED:
                    self._states[job_id] = accounted[job_id]
                elif len(times) >= QUERIES_UNTIL_GONE:
                    self._states[job_id] = "GONE"

    def _ask(self, program: str, *options: str, jobs: Sequence[str]) -> tuple[dict[str, str], str]:
        """State by job, from lines such as `12_3|CANCELLED by 0`, and the error if there is no answer."""
        # Jobs and arrays, each once: 12_0 and 12_1 are jobs of the array 12.
        numbers = ",".join(dict.fromkeys(job_id.split("_")[0] for job_id in jobs))
        result = self._command([program, "--noheader", *options, f"--jobs={numbers}"])
        if result.returncode != 0:
            return {}, result.stderr or "no answer"
        pairs = [line.strip().split("|") for line in result.stdout.splitlines() if "|" in line]
        return {pair[0]: (pair[1].split() or ["UNKNOWN"])[0].rstrip("+") for pair in pairs}, ""


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command; one that does not exist or does not return counts as failed."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=COMMAND_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
