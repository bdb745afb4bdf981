"""A Hydra sweeper: with `experiment=NAME` it launches what is pending until nothing is, else it sweeps as Hydra does.

`experiment=ONE,OTHER` runs one after the other; `only.task=NAMES` and `only.optim=NAMES` choose a part of each.

Either way the runs land in one store, go through whatever launcher is set, and end in a table. The learning rate of a
repeat is known only once its search is logged, so the plan is asked again after every batch. On a GPU machine, runs of
an experiment that are bound by the CPU go beside the others (`lanes`).
"""

import os
import re
import sys
import time
from collections import deque
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.plugins import Plugins

from nero.plans.config import LANES, ConfigError
from nero.plans.limits import moment_of
from nero.plans.listing import describe_outcomes, describe_plan
from nero.plans.plan import Experiment, PlannedRun, load_experiment, pending, survey
from nero.plans.selection import NOTHING_TO_CHOOSE_FROM, ONLY, take_names
from nero.runs.slots import cores
from nero.runs.stopping import Limits, monotonic_at
from nero.runs.store import Store, is_settled
from nero.sweep import lanes, mps
from nero.sweep.launching import HeardLauncher, Outcome
from nero.sweep.stop_request import stop_request

LOOK_EVERY = 1.0
"""Seconds between two looks at runs that another process has."""


class PlanSweeper(BasicSweeper):
    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        machine = self.config.machine
        try:
            lanes.check_lane(machine.lane)
            if commands := self._lanes(arguments):
                return self._sweep_lanes(commands)
            lanes.stop_with_parent()
            shared = mps.is_wanted(machine, self.config.hydra.launcher)
            with stop_request(Path(self.config.hydra.sweep.dir)) as stop_file, mps.served(shared):
                outcomes = self._sweep(arguments, stop_file, moment_of(machine))
        except ConfigError as error:
            sys.exit(f"error: {error}")
        if outcomes:
            _say(describe_outcomes(outcomes))
        failed = [outcome for outcome in outcomes if outcome["status"] in ("failed", "refused")]
        if failed:
            _say(f"{len(failed)} of {len(outcomes)} runs failed")
            sys.exit(1)
        if any(outcome["status"] == "interrupted" for outcome in outcomes):
            _say("stopped before the end; the same command goes on from here")
        return outcomes

    def _lanes(self, arguments: list[str]) -> dict[str, list[str]]:
        """The command of each lane that has something to do; {} where all runs go one after another in this process."""
        assert self.config is not None
        machine = self.config.machine
        if not lanes.are_possible(machine, self.config.hydra.launcher):
            return {}
        cells = [cell for experiment in _experiments(arguments, self.config.experiment) for cell in experiment.cells]
        cpu_bound = [cell for cell in cells if cell.bound_by == "cpu"]
        if not cpu_bound:
            return {}
        summaries = Store(self.config.store).summaries()
        left = dict.fromkeys(LANES, 0)
        for state in (survey(cell, summaries) for cell in cells):
            left[state.cell.bound_by] += len(state.pending) + state.to_follow
        if not left["cpu"]:
            return {}
        _say(lanes.describe(left["gpu"], left["cpu"], cpu_bound, cores()))
        moment = moment_of(machine)
        words = [f"machine.deadline={_quoted(moment)}"] if moment is not None else []
        jobs = lanes.jobs_at_a_time(cpu_bound, cores())
        return {lane: lanes.command(lane, jobs, words) for lane in LANES if left[lane]}

    def _sweep_lanes(self, commands: dict[str, list[str]]) -> list[Outcome]:
        """Each lane prints what became of its runs."""
        assert self.config is not None
        with mps.served(mps.is_wanted(self.config.machine, self.config.hydra.launcher, side_by_side=True)):
            statuses = lanes.run_side_by_side(commands)
        if any(statuses.values()):
            sys.exit(1)
        return []

    def _sweep(self, arguments: list[str], stop_file: Path, moment: str | None) -> list[Outcome]:
        """`moment`: a budget for the sweep is one moment for all of its runs, however they are launched."""
        assert self.config is not None
        assert self.launcher is not None
        words = [f"machine.stop_file={_quoted(str(stop_file))}"]
        words += [f"machine.deadline={_quoted(moment)}"] if moment is not None else []
        own = Limits(inf if moment is None else monotonic_at(moment), stop_file)
        with closing(HeardLauncher(self.launcher, Store(self.config.store), stop_file.exists)) as heard:
            self.launcher = heard  # type: ignore[assignment]
            lane = self.config.machine.lane
            experiments = [lanes.of_lane(each, lane) for each in _experiments(arguments, self.config.experiment)]
            if not experiments:
                returns = super().sweep([*arguments, *words])
                return [job.return_value for batch in returns for job in batch]
            return self._sweep_experiments(experiments, words, own)

    def _sweep_experiments(self, experiments: list[Experiment], words: list[str], limits: Limits) -> list[Outcome]:
        assert self.config is not None
        assert self.launcher is not None
        store = Store(self.config.store)
        outcomes: dict[str, Outcome] = {}
        elsewhere: set[str] = set()  # runs in the hands of other processes
        launched = 0
        left = deque(experiments)
        told = None  # the experiment whose plan was shown
        while left:
            experiment = left[0]
            summaries = store.summaries()
            states = [survey(cell, summaries) for cell in experiment.cells]
            # A run that failed is asked for once per sweep, not for ever; the next sweep tries it again.
            runs = [run for run in pending(states) if not _has_ended(outcomes.get(run.run_id))]
            if experiment is not told or not runs:
                _say(describe_plan(experiment, states, summaries))
            told = experiment
            if not runs:
                left.popleft()
                continue
            free = [run for run in runs if run.run_id not in elsewhere]
            if not free:
                if reason := _wait_for_one_of(runs, store, limits):
                    _say(f"{reason} while other processes had {len(runs)} runs")
                    return _brought_up(outcomes, store)
                elsewhere = {run.run_id for run in runs if store.run(run.task, run.run_id).is_held()}
                continue  # those that are free now, if they are still pending
            batch = free[: self.max_batch_size]
            returns = self.launcher.launch([[*run.overrides, *words] for run in batch], initial_job_idx=launched)
            launched += len(batch)
            found = dict(zip((run.run_id for run in batch), (job.return_value for job in returns), strict=True))
            outcomes |= found
            elsewhere |= {run_id for run_id, outcome in found.items() if outcome["status"] == "busy"}
            if any(outcome["status"] == "interrupted" for outcome in found.values()):
                return _brought_up(outcomes, store)
        return _brought_up(outcomes, store)


def _experiments(arguments: list[str], configured: str | None) -> list[Experiment]:
    """Those that are to be run; [] for a sweep of Hydra's own kind.

    configured:  what the sweep's config says; Hydra leaves words with a comma out of that
    """
    names, extra = take_names(arguments, ["experiment"])
    named = names.get("experiment") or ([configured] if configured is not None else [])
    if not named and take_names(extra, ONLY)[0]:
        raise ConfigError(NOTHING_TO_CHOOSE_FROM)
    return [load_experiment(name, extra) for name in named]


def _brought_up(outcomes: dict[str, Outcome], store: Store) -> list[Outcome]:
    """With what other processes have made, meanwhile, of runs that they had."""
    summaries = store.summaries() if any(said["status"] == "busy" for said in outcomes.values()) else {}
    settled = {run_id: {**summaries[run_id], "skipped": True} for run_id in summaries if is_settled(summaries[run_id])}
    return [settled.get(run_id, said) if said["status"] == "busy" else said for run_id, said in outcomes.items()]


def _has_ended(outcome: Outcome | None) -> bool:
    """Whether a run has had its turn in this sweep; one that another process had may come to have it."""
    return outcome is not None and outcome["status"] != "busy"


def _wait_for_one_of(runs: list[PlannedRun], store: Store, limits: Limits) -> str | None:
    """Until another process is through with one of these runs, or has died; why not to wait any longer, or None."""
    _say(f"waiting for {len(runs)} runs that other processes have, such as {runs[0].run_id}")
    directories = [store.run(run.task, run.run_id) for run in runs]
    while True:
        if any(is_settled(run.read_summary()) or not run.is_held() for run in directories):
            return None
        if reason := limits.reason():
            return reason
        time.sleep(LOOK_EVERY)


def _quoted(value: str) -> str:
    """As Hydra's command line reads any text: a backslash counts where a quote follows, and only there."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), value)
    return f"'{escaped}'"


def _say(text: str) -> None:
    """Once, where torchrun has started several processes that all sweep alike."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)


def register() -> None:
    """Make the sweeper known to Hydra, in this program alone."""
    Plugins.instance().register(PlanSweeper)
