"""Figure 4 in numbers: distances along our curves, and where every seed and every learning rate ended.

Of the authors' runs there is no log.
"""

from collections.abc import Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures.curve_numbers import epoch_lines
from nero.report.figures.figure4 import PLAIN, TRAINING, VALIDATION
from nero.report.figures.panel import of_task
from nero.report.figures.search_numbers import search_lines, seed_lines

EPOCHS = (10, 30, 60, 90, paper.CGAN_EPOCHS)
NOTES = (
    "FID against the test images / against the training images, both as the released code measures it / plain FID "
    "against the test images, each the mean over n seeds at the learning rate η: the best of the search by the first, "
    "or the best of the rates searched while it is incomplete. An epoch at which a seed's was not finite has no mean."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame) -> str:
    """All panels, epoch by epoch, and the seeds and the search behind them."""
    compared = of_task(paper.CGAN, states)
    cells.require_real(curve.state for curve in compared)
    lines = epoch_lines("optimiser", compared, by_epoch, (VALIDATION, TRAINING, PLAIN), EPOCHS)
    states = [curve.state for curve in compared]
    quantity = "FID against the test images"
    seeds, search = (each(states, quantity, VALIDATION) for each in (seed_lines, search_lines))
    return "\n".join(["# Figure 4 in numbers", "", *lines, "", NOTES, "", *seeds, "", *search, ""])
