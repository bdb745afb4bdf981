"""Hearing of every job of a sweep, whatever became of it.

A launcher that gathers the results of its jobs one after another stops at the first job that was cancelled or killed,
and what the others did is never heard. Under SLURM a job that died without a word may be waited for without end:
submitit asks `sacct`, which knows of no job where there is no accounting. Inside `every_job_heard` such a job counts
as one that failed, and the queue itself is asked what became of it. The launching stays Hydra's plugins' own.
"""

import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

SECONDS_BETWEEN_LOOKS = 5.0
LOOKS_UNTIL_GONE = 3
"""One look is not enough: a queue that has just been restarted may not know all of its jobs yet."""

ANSWER_SECONDS = 60
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "GONE")
)
"""States after which nothing more is to be expected of a job; whatever else SLURM says, it may still go on."""

Command = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


@contextmanager
def every_job_heard(launcher: object = None) -> Iterator[None]:
    """While it lasts, a job that failed or vanished is returned as failed instead of raised, and the others are heard.

    With a `launcher`, what other launchers use is not even imported.
    """
    with ExitStack() as changes:
        for plugin, listen in (("hydra_submitit_launcher", _to_submitit), ("hydra_ray_launcher", _to_ray)):
            package = f"hydra_plugins.{plugin}"
            wanted = launcher is None or any(kind.__module__.startswith(package) for kind in type(launcher).__mro__)
            if wanted and find_spec(package) is not None:
                listen(changes)
        yield


class Queue:
    """What SLURM's queue says of jobs, in the place of submitit's watcher of accounts: one question for all of them.

    A job is over when the queue says so, or when it is gone from there for several looks. An answer that does not come,
    as while the controller is restarted, says nothing about a job.
    """

    def __init__(self, command: Command | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command or _answer
        self._clock = clock
        self._states: dict[str, str] = {}
        self._missed: dict[str, list[float]] = {}  # when a job was not there, in seconds
        self._looked = float("-inf")

    def register_job(self, job_id: str) -> None:
        self._states.setdefault(job_id, "UNKNOWN")
        if "_" in job_id:
            self._states.pop(job_id.split("_")[0], None)  # the array as a whole: its jobs are asked for one by one

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        return self.get_state(job_id, mode) in ENDED

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        if job_id not in self._states:
            self.register_job(job_id)
        due = mode == "force" or self._clock() - self._looked >= SECONDS_BETWEEN_LOOKS
        if due and mode != "cache":
            self._look()
            self._looked = self._clock()
        return self._states[job_id]

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        return {"JobID": job_id, "State": self.get_state(job_id, mode)}

    def _look(self) -> None:
        going = [job_id for job_id, state in self._states.items() if state not in ENDED]
        queued = self._queued(going) if going else None
        if queued is None:
            return
        for job_id in queued.keys() & set(going):
            self._states[job_id] = queued[job_id]
            self._missed.pop(job_id, None)
        if absent := [job_id for job_id in going if job_id not in queued]:
            self._settle(absent)

    def _queued(self, jobs: Iterable[str]) -> dict[str, str] | None:
        """State by job, of those that the queue knows; None for no answer."""
        options = ("--noheader", "--array", "--states=all", "--format=%i|%T")
        result = self._command(["squeue", *options, f"--jobs={_numbers(jobs)}"])
        if result.returncode == 0:
            return _states(result.stdout)
        return {} if "Invalid job id" in result.stderr else None

    def _settle(self, absent: list[str]) -> None:
        """Jobs that the queue does not know: where there are accounts, these say what became of them."""
        options = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
        result = self._command(["sacct", *options, f"--jobs={_numbers(absent)}"])
        booked = _states(result.stdout) if result.returncode == 0 else {}
        for job_id in absent:
            times = self._missed.setdefault(job_id, [])
            if not times or self._clock() - times[-1] >= SECONDS_BETWEEN_LOOKS:
                times.append(self._clock())
            if booked.get(job_id) in ENDED:
                self._states[job_id] = booked[job_id]
            elif len(times) >= LOOKS_UNTIL_GONE:
                self._states[job_id] = "GONE"


def _answer(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """What a command says; one that is not there or does not come back has failed."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _numbers(jobs: Iterable[str]) -> str:
    """Of jobs and arrays, each once: 12_0 and 12_1 are jobs of the array 12."""
    return ",".join(dict.fromkeys(job_id.split("_")[0] for job_id in jobs))


def _states(text: str) -> dict[str, str]:
    """From lines of `12_3|CANCELLED by 0`."""
    pairs = [line.strip().split("|") for line in text.splitlines() if "|" in line]
    return {pair[0]: (pair[1].split() or ["UNKNOWN"])[0].rstrip("+") for pair in pairs}


def _to_submitit(changes: ExitStack) -> None:
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    results = Job.results

    def heard(job: Any) -> list[Any]:
        try:
            return results(job)
        except Exception as error:  # whatever it is, it is about this job alone
            return [_failed(_end_of_job(job, error), _overrides(job))]

    _set(changes, Job, "results", heard)
    _set(changes, SlurmJob, "watcher", Queue())


def _to_ray(changes: ExitStack) -> None:
    """The plugin's own view of Ray is changed, not Ray, which asks itself for results of other kinds."""
    core = import_module("hydra_plugins.hydra_ray_launcher._core")
    _set(changes, core, "ray", _RayHeard(core.ray))


class _RayHeard:
    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def get(self, *args: Any, **options: Any) -> Any:
        try:
            return self._ray.get(*args, **options)
        except Exception as error:
            return _failed(f"Ray's job failed: {type(error).__name__}: {_last_line(str(error))}")


def _failed(message: str, overrides: Sequence[str] | None = None) -> JobReturn:
    return JobReturn(overrides=overrides, status=JobStatus.FAILED, _return_value=RuntimeError(message))


def _end_of_job(job: Any, error: Exception) -> str:
    """One line: which job, its state, and what it said last, or what SLURM says ended it."""
    if raised := _raised_in_job(error):
        return f"job {job.job_id} failed: {raised}"
    state = job.state
    words = "is gone from the queue" if state == "GONE" else f"ended as {state}"
    said = ""
    with suppress(OSError):
        text = Path(job.paths.stderr).read_text(errors="replace")
        said = _last_line("\n".join(re.findall(r"^(?:srun|slurmstepd): error: .*", text, re.MULTILINE)) or text)
    return f"job {job.job_id} {words} and left no result" + (f"; the last it said: {said}" if said else "")


def _raised_in_job(error: Exception) -> str | None:
    """The last line of a traceback that the job itself has left: it stands between two lines of dashes."""
    from submitit.core.utils import FailedJobError

    lines = str(error).splitlines()
    rules = [number for number, line in enumerate(lines) if line and not line.strip("-")]
    if not isinstance(error, FailedJobError) or len(rules) < 2:
        return None
    return _last_line("\n".join(lines[rules[0] : rules[-1]]))


def _overrides(job: Any) -> list[str] | None:
    """What the job was to run, as the launcher has written it down; None where that cannot be read any more."""
    with suppress(Exception):
        return list(job.submission().args[0])
    return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip("- \t")), "")


def _set(changes: ExitStack, owner: Any, name: str, value: object) -> None:
    """Until the end of `changes`; what was inherited is inherited again."""
    own: Mapping[str, object] = vars(owner)
    if name in own:
        changes.callback(setattr, owner, name, own[name])
    else:
        changes.callback(delattr, owner, name)
    setattr(owner, name, value)
