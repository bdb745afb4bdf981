"""A Hydra sweeper: with `experiment=NAME` it launches what is pending until nothing is, else it sweeps as Hydra does.

Either way the runs land in one store, go through whatever launcher is set, and end in a table. The learning rate of a
repeat is known only once its search is logged, so the plan is asked again after every batch.
"""

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus

from nero.plans.config import ConfigError
from nero.plans.listing import describe_outcomes, describe_plan
from nero.plans.plan import load_experiment, pending, survey
from nero.runs.store import Store


@dataclass
class PlanSweeperConf:
    _target_: str = "hydra_plugins.nero_plan.sweeper.PlanSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="plan", node=PlanSweeperConf, provider="nero")


class PlanSweeper(BasicSweeper):
    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        if self.config.experiment is None:
            returns = super().sweep([*arguments, *self._deadline()])
            outcomes = [_outcome(job) for batch in returns for job in batch]
        else:
            outcomes = self._sweep_experiment(arguments)
        if outcomes:
            _say(describe_outcomes(outcomes))
        failed = [outcome for outcome in outcomes if outcome["status"] in ("failed", "refused")]
        if failed:
            _say(f"{len(failed)} of {len(outcomes)} runs failed")
            sys.exit(1)
        if any(outcome["status"] == "interrupted" for outcome in outcomes):
            _say("stopped before the end; the same command goes on from here")
        return outcomes

    def _sweep_experiment(self, arguments: list[str]) -> list[dict[str, Any]]:
        assert self.config is not None
        assert self.launcher is not None
        extra = [word for word in arguments if not word.startswith("experiment=")]
        try:
            experiment = load_experiment(self.config.experiment, extra)
            store = Store(self.config.store)
            deadline = self._deadline()
            outcomes: list[dict[str, Any]] = []
            tried: set[str] = set()
            while True:
                summaries = store.summaries()
                states = [survey(cell, summaries) for cell in experiment.cells]
                # A run that failed is asked for once per sweep, not for ever; the next sweep tries it again.
                runs = [run for run in pending(states) if run.run_id not in tried]
                if not tried or not runs:
                    _say(describe_plan(experiment, states, summaries))
                if not runs:
                    return outcomes
                tried |= {run.run_id for run in runs}
                jobs = [[*run.overrides, *deadline] for run in runs]
                batch = [_outcome(job) for job in self.launcher.launch(jobs, initial_job_idx=len(outcomes))]
                outcomes += batch
                if any(outcome["status"] == "interrupted" for outcome in batch):
                    return outcomes
        except ConfigError as error:
            sys.exit(f"error: {error}")

    def _deadline(self) -> list[str]:
        """A budget for the sweep is one moment for all of its runs, however they are launched."""
        assert self.config is not None
        budget = self.config.machine.budget_seconds
        return [] if budget is None else [f"machine.deadline={time.time() + budget:.0f}"]


def _say(text: str) -> None:
    """Once, where torchrun has started several processes that all sweep alike."""
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr)


def _outcome(job: JobReturn) -> dict[str, Any]:
    """What a job said of its run; a job that raised instead (a bug, or a launcher's trouble) counts as failed."""
    if job.status == JobStatus.COMPLETED and isinstance(job._return_value, dict):
        return job._return_value
    words: Iterable[str] = job.overrides or ()
    return {"run_id": " ".join(words), "status": "failed", "message": f"{job._return_value!r}"}
