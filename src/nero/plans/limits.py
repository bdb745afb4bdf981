"""When runs are to stop, as their config says it: of one run, or of all runs of a sweep together."""

from math import inf
from pathlib import Path

from omegaconf import DictConfig

from nero.plans.config import ConfigError
from nero.runs.stopping import Limits, moment_after, monotonic_at


def moment_of(machine: DictConfig) -> str | None:
    """As a word that can be handed on: the earlier one where both are given.

    A budget counts from now; a sweep hands its moment to its runs, whose own budgets would end later.
    """
    deadline, budget = machine.deadline, machine.budget_seconds
    try:
        if isinstance(budget, bool):
            raise TypeError
        moments = [] if budget is None else [moment_after(float(budget))]
        moments += [] if deadline is None else [str(deadline)]
        return min(moments, key=monotonic_at, default=None)
    except (TypeError, ValueError):
        raise ConfigError(
            "machine.budget_seconds must be null or a number of seconds, and machine.deadline null or Unix seconds, "
            f"not {budget!r} and {deadline!r}"
        ) from None


def limits_of(machine: DictConfig) -> Limits:
    moment = moment_of(machine)
    stop_file = Path(machine.stop_file) if machine.stop_file else None
    return Limits(inf if moment is None else monotonic_at(moment), stop_file)
