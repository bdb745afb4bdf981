"""A place on the curves of several seeds in numbers, as Markdown tables have it."""

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells
from nero.report.search_numbers import shown


def mean_at(frame: pd.DataFrame, key: str, x: str, at: float, ended: str) -> str:
    """Mean of `key` over the seeds where `x` is `at`, or `ended` where some do not go as far."""
    values = frame[frame[x] == at].value
    if values.empty or len(values) < frame.seed.nunique():
        return ended
    return shown(key, values.mean()) if values.notna().all() else "not finite"


def why_ended(state: CellState) -> str:
    """What to say where a cell's curves do not go as far."""
    return "diverged" if cells.divergence(state) else "missing"
