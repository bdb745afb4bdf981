"""An experiment and its logged runs: the one argument of everything that makes a table, a figure or its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from nero.plans.plan import CellState, Experiment, Summary
from nero.report import cells, frame
from nero.runs.store import Status, Store


@dataclass(frozen=True, repr=False)
class Evidence:
    """An experiment and what a store holds of it."""

    experiment: Experiment
    states: tuple[CellState, ...]
    summaries: Mapping[str, Summary]
    store: Store

    def __repr__(self) -> str:
        logged = {run_id for state in self.states for run_id in state.logged}
        return f"Evidence({self.experiment.name}, {len(self.states)} cells, {len(logged)} runs)"

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Metrics by epoch of the runs at each cell's leading learning rate; read on first use, as tables need none."""
        return frame.load_curves(self.store, self._leading_runs)

    @cached_property
    def traces(self) -> pd.DataFrame:
        """Metrics by iteration of the same runs."""
        return frame.load_traces(self.store, self._leading_runs)

    @property
    def _leading_runs(self) -> set[str]:
        return {run["run_id"] for state in self.states for run in cells.leading_runs(state)}

    def gaps(self) -> list[str]:
        """What is missing, one line per row and reason, with the ids of failed runs."""
        has_failed = {run_id for run_id, run in self.summaries.items() if run.get("status") == Status.FAILED}
        found: dict[tuple[str, str], list[str]] = {}
        for state in self.states:
            if what := cells.gap(state):
                failed = [run.run_id for run in state.pending if run.run_id in has_failed]
                reason = f"{what}; failed: {', '.join(failed)}" if failed else what
                found.setdefault((cells.row_as_typed(cells.RowKey.of(state.cell)), reason), []).append(state.cell.optim)
        return [f"{row}, {', '.join(optims)}: {reason}" for (row, reason), optims in found.items()]
