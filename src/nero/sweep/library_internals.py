"""All that sweeps use of other libraries beyond their public interfaces, in one place.

Hydra's launchers gather the results of their jobs one after another and stop at the first job that was cancelled or
killed: the results of the others are lost. Inside `collect_all_results` such a job counts as failed instead. The
launching itself stays with Hydra's plugins. A test compares `WRITTEN_FOR` with the installed versions.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper

from nero.sweep.slurm_queue import SlurmQueue

WRITTEN_FOR = {
    "hydra-core": "1.3",
    "hydra-joblib-launcher": "1.2",
    "hydra-ray-launcher": "1.2",
    "hydra-submitit-launcher": "1.2",
    "joblib": "1.5",
    "submitit": "1.5",
}
"""Versions whose internals are used here. With another one, read this file again and adapt it."""


def register_sweeper(sweeper: type[Sweeper]) -> None:
    """Make a sweeper known to Hydra in this program alone.

    Hydra accepts plugins in the package `hydra_plugins` only, but loads what is installed there in every program.
    """
    name = f"{sweeper.__module__}.{sweeper.__name__}"
    accepts = Plugins.is_in_toplevel_plugins_module
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
            return [_failed(_submitit_failure(job, error), _overrides(job))]

    patches.enter_context(patch.object(Job, "results", results_or_failure))
    patches.enter_context(patch.object(SlurmJob, "watcher", SlurmQueue()))


def _patch_ray(patches: ExitStack) -> None:
    """Only the plugin's reference to Ray is replaced: Ray itself calls `ray.get` for other results."""
    core = import_module("hydra_plugins.hydra_ray_launcher._core")
    patches.enter_context(patch.object(core, "ray", _Ray(core.ray)))


class _Ray:
    """Ray, but for `get`."""

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


def _overrides(job: Any) -> list[str] | None:
    """The job's overrides, as the launcher has written them to a file; None if that cannot be read any more."""
    with suppress(Exception):
        return list(job.submission().args[0])
    return None


def _last_line(text: str | Sequence[str]) -> str:
    lines = text.splitlines() if isinstance(text, str) else text
    return next((line.strip() for line in reversed(lines) if line.strip("- \t")), "")
