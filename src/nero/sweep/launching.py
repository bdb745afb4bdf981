"""Launch jobs, and stop them: each has a result, whatever happens to it, to the others, or to the launcher.

Hydra's launchers raise if a job's process dies, and the results of the other jobs are lost. The store still has them:
it says which runs are settled, and the rest is launched again.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

from nero.plans.config import ConfigError, RunConfig, compose, identity_overrides
from nero.plans.stores import store_of_run
from nero.runs.store import Outcome, is_settled
from nero.sweep.library_internals import collect_all_results, shut_down_workers

Result = dict[str, Any]  # what `nero.train` returns: a run's summary with an `Outcome` as its `status`
# A run that was under way in this many crashes of the launcher is launched alone: if that crashes, it is the cause.
MAX_CRASHES = 2


@dataclass
class Job:
    """A run to be launched, and its result once there is one."""

    overrides: list[str]
    result: Result | None = None
    crashes: int = 0

    @cached_property
    def config(self) -> RunConfig | None:
        """None for overrides that are not valid."""
        with suppress(ConfigError):
            return compose(self.overrides)
        return None

    def summary(self) -> Result | None:
        config = self.config
        return store_of_run(config).run(config.task_name, config.run_id).read_summary() if config else None

    def end(self, status: Outcome, error: object) -> None:
        """Without a result of the run itself."""
        run_id = self.config.run_id if self.config else identity_overrides(self.overrides)
        self.result = {"run_id": run_id, "status": status, "message": _in_one_line(error)}


class FaultTolerantLauncher:
    """Wraps one of Hydra's launchers: returns a result for each job and never raises for one."""

    def __init__(self, launcher: Launcher, is_stopping: Callable[[], bool]) -> None:
        self.launcher, self.is_stopping = launcher, is_stopping

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        jobs = [Job(list(overrides)) for overrides in job_overrides]
        while left := [job for job in jobs if job.result is None]:
            together = [job for job in left if job.crashes < MAX_CRASHES]
            self._try(together or left[:1], initial_job_idx)
        return [JobReturn(job.overrides, status=JobStatus.COMPLETED, _return_value=job.result) for job in jobs]

    def close(self) -> None:
        shut_down_workers(self.launcher)

    def _try(self, jobs: list[Job], first: int) -> None:
        """Launch these jobs; after a crash of the launcher some may have no result yet."""
        try:
            with collect_all_results(self.launcher):
                returns = self.launcher.launch([job.overrides for job in jobs], initial_job_idx=first)
        except Exception as error:
            self._after_crash(jobs, error)
            return
        for job, returned in zip(jobs, returns, strict=True):
            if returned.status == JobStatus.COMPLETED and isinstance(returned._return_value, dict):
                job.result = returned._return_value
            elif is_settled(summary := job.summary()):
                job.result = summary
            else:
                job.end(Outcome.FAILED, returned._return_value)

    def _after_crash(self, jobs: list[Job], error: Exception) -> None:
        print(f"the launcher crashed: {_in_one_line(error)}", file=sys.stderr, flush=True)
        summaries = [job.summary() for job in jobs]
        progressed = any(summary is not None for summary in summaries)
        for job, summary in zip(jobs, summaries, strict=True):
            job.crashes += summary is not None  # it was under way
            if is_settled(summary):
                job.result = summary
            elif self.is_stopping():
                job.end(Outcome.INTERRUPTED, "the sweep was asked to stop")
            elif not progressed or len(jobs) == 1:
                job.end(Outcome.FAILED, error)


def _in_one_line(error: object) -> str:
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {message}" if isinstance(error, BaseException) else message


@contextmanager
def signal_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT. Only the main thread may: elsewhere this does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT) if is_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_request(folder: Path) -> Iterator[Path]:
    """The file that the sweep's runs look for. It exists once this process was asked to stop.

    A second Ctrl-C ends the sweep at once and leaves the file, for jobs that are queued or still running.
    """
    path = folder.absolute() / f"stop-{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of an earlier process with this id

    def request(number: int, frame: FrameType | None) -> None:
        path.touch()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(f"{signal.Signals(number).name}: runs checkpoint and end; Ctrl-C ends this at once", file=sys.stderr)

    with signal_handler(request):
        yield path
        path.unlink(missing_ok=True)
