"""A Hydra sweeper that launches the pending runs of `experiment=NAME`; without an experiment it sweeps as Hydra does.

`experiment=ONE,OTHER` runs one after the other; `only.task=NAMES` and `only.optim=NAMES` select a part of each.

In both cases the runs go to one store, through any launcher, and the sweep ends with a table. The learning rate of a
repeat is known only when its search is logged, so the plan is made again after every batch. On a GPU machine, the
CPU-bound runs of an experiment go beside the others (`lanes`).
"""

import os
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from nero.plans import plan
from nero.plans.config import deadline_of
from nero.plans.listing import describe_logged, describe_outcomes, describe_plan
from nero.plans.plan import Experiment, PlannedRun
from nero.plans.schema import LANES, ConfigError, MachineSchema, check
from nero.plans.stores import store_of_experiment
from nero.runs.slots import cores
from nero.runs.stopping import Limits, monotonic_at
from nero.runs.store import Outcome, Store, is_settled
from nero.sweep import lanes, mps
from nero.sweep.launching import FaultTolerantLauncher, Result, stop_request
from nero.sweep.library_internals import basic_sweeper

POLL_SECONDS = 1.0  # between two looks at runs that another process is training


class PlanSweeper(Sweeper):
    def __init__(self, max_batch_size: int | None, params: dict[str, str] | None = None) -> None:
        self.max_batch_size = max_batch_size
        self.basic = basic_sweeper(max_batch_size, params)
        self.launched = 0

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.basic.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.cfg = config

    def sweep(self, arguments: list[str]) -> Any:
        machine, launcher = self.cfg.machine, self.cfg.hydra.launcher
        try:
            check(MachineSchema, machine, "machine.")
            if self.max_batch_size is not None and self.max_batch_size < 1:
                allowed = "null or a positive integer"
                raise ConfigError(f"hydra.sweeper.max_batch_size must be {allowed}, not {self.max_batch_size}")
            experiments = _experiments(arguments, self.cfg.experiment)
            deadline = deadline_of(machine)  # one for all runs, however they are launched
            overrides = [] if deadline is None else [f"machine.deadline={_quoted(deadline)}"]
            if commands := self._lane_commands(experiments, overrides):
                with mps.daemon(mps.is_wanted(machine, launcher, side_by_side=True)):
                    statuses = lanes.run_side_by_side(commands)  # each lane prints its own table
                return sys.exit(1) if any(statuses.values()) else []
            lanes.stop_with_parent()
            wanted = mps.is_wanted(machine, launcher)
            with stop_request(Path(self.cfg.hydra.sweep.dir)) as stop_file, mps.daemon(wanted):
                overrides.append(f"machine.stop_file={_quoted(str(stop_file))}")
                wrapped = FaultTolerantLauncher(self.basic.launcher, stop_file.exists)
                with closing(wrapped):
                    self.basic.launcher = wrapped
                    if experiments:
                        parts = [lanes.restrict(experiment, machine.lane) for experiment in experiments]
                        limits = Limits(monotonic_at(deadline), stop_file)
                        results = self._sweep_experiments(parts, overrides, limits)
                    else:
                        returns = self.basic.sweep([*arguments, *overrides])
                        results = [job.return_value for batch in returns for job in batch]
        except ConfigError as error:
            sys.exit(f"error: {error}")
        except HydraException:
            raise
        except OSError as error:
            folder = self.cfg.hydra.sweep.dir
            sys.exit(f"error: {error.filename or folder}: {error.strerror or error} (hydra.sweep.dir is {folder})")
        if results:
            _print(describe_outcomes(results))
        elif missing := [cell.missing_config for each in experiments for cell in each.cells if cell.missing_config]:
            sys.exit(f"error: nothing was trained: {missing[0]}")
        elif not experiments:
            sys.exit(f"error: there is nothing to train: a setting has no values in {' '.join(arguments)}")
        if failed := [result for result in results if result["status"] in (Outcome.FAILED, Outcome.REFUSED)]:
            has_traceback = any(result["status"] == Outcome.FAILED for result in failed)
            hint = "; summary.json in a run's folder has its traceback" if has_traceback else ""
            _print(f"{len(failed)} of {len(results)} runs failed{hint}")
            sys.exit(1)
        if any(result["status"] == Outcome.INTERRUPTED for result in results):
            _print("stopped before the end; the same command continues")
        return results

    def _lane_commands(self, experiments: list[Experiment], overrides: list[str]) -> dict[str, list[str]]:
        """The command of each lane that has pending runs; {} if all runs go one after another in this process."""
        if not experiments or not lanes.are_enabled(self.cfg.machine, self.cfg.hydra.launcher):
            return {}
        cpu_bound = [cell for experiment in experiments for cell in experiment.cells if cell.bound_by == "cpu"]
        if not cpu_bound:
            return {}
        left = dict.fromkeys(LANES, 0)
        for experiment in experiments:
            summaries = store_of_experiment(experiment, self.cfg.store).summaries()
            for state in (plan.survey(cell, summaries) for cell in experiment.cells):
                left[state.cell.bound_by] += len(state.pending) + state.to_follow
        if not left["cpu"] or not lanes.has_gpu():  # asked last, since torch takes seconds to import
            return {}
        _print(lanes.describe(left["gpu"], left["cpu"], cpu_bound, cores()))
        jobs = lanes.jobs_at_a_time(cpu_bound, cores())
        return {lane: lanes.command(lane, jobs, overrides) for lane in LANES if left[lane]}

    def _sweep_experiments(self, experiments: list[Experiment], overrides: list[str], limits: Limits) -> list[Result]:
        stores: dict[Path, Store] = {}
        results: dict[str, Result] = {}
        for experiment in experiments:
            store = store_of_experiment(experiment, self.cfg.store)
            stores[store.root] = store
            if not self._sweep_experiment(experiment, overrides, limits, store, results):
                break
        # Runs that other processes were training may have settled meanwhile.
        busy = [run_id for run_id, result in results.items() if result["status"] == Outcome.BUSY]
        summaries = {run_id: found for each in stores.values() if busy for run_id, found in each.summaries().items()}
        settled = {run_id: summaries[run_id] for run_id in busy if is_settled(summaries.get(run_id))}
        return list((results | {run_id: {**summary, "skipped": True} for run_id, summary in settled.items()}).values())

    def _sweep_experiment(
        self,
        experiment: Experiment,
        overrides: list[str],
        limits: Limits,
        store: Store,
        results: dict[str, Result],
    ) -> bool:
        """Run what is pending, and add to `results`. Returns False if the sweep was stopped."""
        elsewhere: set[str] = set()  # runs that other processes are training
        is_printed = False
        while True:
            summaries = store.summaries()
            states = [plan.survey(cell, summaries) for cell in experiment.cells]
            # A run that failed is launched once per sweep, not for ever; the next sweep tries it again.
            ended = {run_id for run_id, result in results.items() if result["status"] != Outcome.BUSY}
            runs = [run for run in plan.pending(states) if run.run_id not in ended]
            if not is_printed or not runs:
                _print(describe_plan(experiment, states, summaries))
            if not is_printed and not self.cfg.store and (logged := describe_logged(experiment, states)):
                _print(f"  {logged}")
            is_printed = True
            if not runs:
                return True
            free = [run for run in runs if run.run_id not in elsewhere]
            if not free:
                if reason := _wait_for_any(runs, store, limits):
                    _print(f"{reason} while other processes had {len(runs)} runs")
                    return False
                elsewhere = {run.run_id for run in runs if store.run(run.task, run.run_id).is_held()}
                continue  # with those that are free now, if they are still pending
            batch = free[: self.max_batch_size]
            words = [[*run.overrides, f"store={_quoted(str(store.root))}", *overrides] for run in batch]
            returns = self.basic.launcher.launch(words, initial_job_idx=self.launched)
            self.launched += len(batch)
            found = {run.run_id: job.return_value for run, job in zip(batch, returns, strict=True)}
            results |= found
            elsewhere |= {run_id for run_id, result in found.items() if result["status"] == Outcome.BUSY}
            if any(result["status"] == Outcome.INTERRUPTED for result in found.values()):
                return False


def _experiments(arguments: list[str], configured: str | None) -> list[Experiment]:
    """The experiments to run; [] for a plain Hydra sweep.

    configured:  the sweep's config.experiment; Hydra leaves arguments with a comma out of that
    """
    names, others = plan.split_names(arguments, ["experiment"])
    named = names.get("experiment") or ([configured] if configured is not None else [])
    if not named and plan.split_names(others, plan.ONLY)[0]:
        raise ConfigError(plan.ONLY_WITHOUT_EXPERIMENT)
    return [plan.load_experiment(name, others) for name in named]


def _wait_for_any(runs: list[PlannedRun], store: Store, limits: Limits) -> str | None:
    """Wait until another process has settled one of these runs, or has died. Returns why to stop waiting, or None."""
    _print(f"waiting for {len(runs)} runs that other processes have, such as {runs[0].run_id}")
    directories = [store.run(run.task, run.run_id) for run in runs]
    while all(run.is_held() and not is_settled(run.read_summary()) for run in directories):
        if reason := limits.reason():
            return reason
        time.sleep(POLL_SECONDS)
    return None


def _quoted(value: str) -> str:
    """As Hydra's command line reads any text: a backslash counts where a quote follows, and only there."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), value)
    return f"'{escaped}'"


def _print(text: str) -> None:
    """Once, where torchrun has started several processes that all sweep alike."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
