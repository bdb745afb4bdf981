"""The states of SLURM jobs, from the queue itself.

submitit asks `sacct` only, which knows no job on a cluster without accounting: a job that was killed is then waited for
without end.
"""

import subprocess
import time
from collections.abc import Callable, Sequence

SECONDS_BETWEEN_QUERIES = 5.0
QUERIES_UNTIL_GONE = 3
"""One query is not enough: a queue that has just been restarted may not know all of its jobs yet."""

COMMAND_TIMEOUT = 60
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "GONE")
)
"""Final states. In any other state that SLURM reports, the job may still run."""

Command = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


class SlurmQueue:
    """Takes the place of submitit's watcher: one query for all jobs.

    A job has ended when the queue says so, or when several queries in a row do not list it. A query without an answer,
    as while the controller is restarted, changes nothing.
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
