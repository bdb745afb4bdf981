"""Figure 9 in numbers: both errors along our curves, where every seed ended, and whether the paper's target is met.

Of the authors' runs there is no log.
"""

import statistics
from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.cells import Standing
from nero.report.figures.curve_numbers import epoch_lines
from nero.report.figures.figure9 import TRAINING, VALIDATION, of_settings
from nero.report.figures.search_numbers import search_lines, seed_lines
from nero.report.tables.imagenet_settings import BASELINE, name
from nero.report.units import number, scale

EPOCHS = (1, 10, 30, 60, paper.IMAGENET_EPOCHS)
QUANTITY = "validation error (%)"
NOTES = (
    "Top-1 error (%) on the validation images / of the training batches as they came, augmented, while the network "
    "learnt from them: each the mean over n seeds, at the only learning rate asked for, or at the best searched by the "
    "former."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame) -> str:
    """Both panels, epoch by epoch, the seeds behind them, the search of what was searched, and the target."""
    compared = of_settings(states)
    states = [curve.state for curve in compared]
    cells.require_real(states)
    lines = ["# Figure 9 in numbers", ""]
    lines += epoch_lines("curve", compared, by_epoch, (VALIDATION, TRAINING), EPOCHS)
    lines += ["", NOTES, "", *seed_lines(states, QUANTITY, VALIDATION, name), ""]
    if searched := [state for state in states if len(state.search) > 1]:
        lines += [*search_lines(searched, QUANTITY, VALIDATION, name=name), ""]
    return "\n".join([*lines, *_target(states), ""])


def _target(states: Sequence[CellState]) -> Iterator[str]:
    yield paper.imagenet().remark
    yield from (f"Ours with weight decay: {_verdict(state)}." for state in states if name(state.cell) == BASELINE)


def _verdict(state: CellState) -> str:
    """Whether all seeds together are as good as the target, once they are all there."""
    result = cells.read_cell(state)
    if result.standing is not Standing.COMPLETE:
        return str(result.standing)
    error = scale(VALIDATION) * statistics.fmean(result.finals)
    return f"{number(error)} %, {'passed' if error <= paper.IMAGENET_TARGET else 'not passed'}"
