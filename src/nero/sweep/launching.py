"""Launching jobs so that each is heard, whatever becomes of it, of the others, or of the launcher.

Hydra's launchers raise where a job's process died, and with that the others' results are gone. What is in the store is
not: it says which runs came to their end, and the rest is launched again.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from nero.plans.config import ConfigError, RunConfig, compose, in_words
from nero.runs.store import Store, is_settled
from nero.sweep.job_results import every_job_heard

Outcome = dict[str, Any]

BREAKDOWNS = 2
"""After so many breakdowns of the launcher in which a run was under way, it is launched alone: then it is the cause."""


@dataclass
class Job:
    """A run that is asked for, by its words; its outcome, once there is one."""

    words: list[str]
    outcome: Outcome | None = None
    breakdowns: int = 0

    @cached_property
    def config(self) -> RunConfig | None:
        """None for words that make no run."""
        try:
            return compose(self.words)
        except ConfigError:
            return None

    @property
    def run_id(self) -> str:
        return self.config.run_id if self.config else in_words(self.words)


class HeardLauncher:
    """Stands before one of Hydra's launchers: returns for each job what became of it, and raises for none."""

    def __init__(self, launcher: Launcher, store: Store, is_stopping: Callable[[], bool]) -> None:
        self.launcher, self.store, self.is_stopping = launcher, store, is_stopping

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        jobs = [Job(list(words)) for words in job_overrides]
        while left := [job for job in jobs if job.outcome is None]:
            together = [job for job in left if job.breakdowns < BREAKDOWNS]
            self._try(together or left[:1], initial_job_idx)
        return [JobReturn(overrides=job.words, status=JobStatus.COMPLETED, _return_value=job.outcome) for job in jobs]

    def close(self) -> None:
        """Have no process stay behind that waits for further jobs, as joblib's do for minutes."""
        if type(self.launcher).__name__ == "JoblibLauncher":
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True)

    def _try(self, jobs: list[Job], first: int) -> None:
        """Launch them; where the launcher broke down, some may be without an outcome then."""
        try:
            with every_job_heard(self.launcher):
                returns = self.launcher.launch([job.words for job in jobs], initial_job_idx=first)
        except Exception as error:
            self._after_breakdown(jobs, error)
            return
        for job, said in zip(jobs, returns, strict=True):
            if said.status == JobStatus.COMPLETED and isinstance(said._return_value, dict):
                job.outcome = said._return_value
            else:
                job.outcome = self._settled(job) or _failed(job, said._return_value)

    def _after_breakdown(self, jobs: list[Job], error: Exception) -> None:
        print(f"the launcher broke down: {_in_one_line(error)}", file=sys.stderr, flush=True)
        got_on = False
        for job in jobs:
            job.outcome = self._settled(job)
            under_way = job.outcome is None and self._has_begun(job)
            job.breakdowns += under_way
            got_on |= under_way or job.outcome is not None
        for job in (job for job in jobs if job.outcome is None):
            if self.is_stopping():
                job.outcome = {"run_id": job.run_id, "status": "interrupted", "message": "the sweep was asked to stop"}
            elif not got_on or len(jobs) == 1:
                job.outcome = _failed(job, error)

    def _settled(self, job: Job) -> Outcome | None:
        summary = self._summary(job)
        return summary if is_settled(summary) else None

    def _has_begun(self, job: Job) -> bool:
        return self._summary(job) is not None

    def _summary(self, job: Job) -> Outcome | None:
        return self.store.run(job.config.task_name, job.run_id).read_summary() if job.config else None


def _failed(job: Job, error: object) -> Outcome:
    return {"run_id": job.run_id, "status": "failed", "message": _in_one_line(error)}


def _in_one_line(error: object) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}" if isinstance(error, BaseException) else said
