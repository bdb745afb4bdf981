"""Figure 4 in numbers: both distances along our curves, and where every seed and every learning rate ended.

Of the authors' runs there is no log.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, curves, paper
from nero.report.cgan_figure import TRAINING, VALIDATION
from nero.report.curve_numbers import mean_at, why_ended
from nero.report.panel import Curve, of_task
from nero.report.search_numbers import search_lines, seed_lines
from nero.report.table_formats import markdown_line

EPOCHS = (10, 30, 60, 90, paper.CGAN_EPOCHS)
HEADS = ["optimiser", "η", "n", *(f"epoch {epoch}" for epoch in EPOCHS)]
NOTES = (
    "FID against the test images / against the training images, each the mean over n seeds at the learning rate that "
    "was best for an optimiser by the former. An epoch at which a seed's was not finite has no mean."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame) -> str:
    """Both panels, epoch by epoch, and the seeds and the search behind them."""
    compared = of_task(paper.CGAN, states)
    cells.require_real(curve.state for curve in compared)
    lines = ["# Figure 4 in numbers", "", markdown_line(HEADS), markdown_line(["---"] * len(HEADS))]
    lines += [markdown_line(words) for words in _curves(compared, by_epoch)]
    states = [curve.state for curve in compared]
    quantity = "FID against the test images"
    seeds, search = (each(states, quantity, VALIDATION) for each in (seed_lines, search_lines))
    return "\n".join([*lines, "", NOTES, "", *seeds, "", *search, ""])


def _curves(compared: Sequence[Curve], by_epoch: pd.DataFrame) -> Iterator[list[str]]:
    for curve in compared:
        validation, training = (curves.at_leading(curve.state, by_epoch, key) for key in (VALIDATION, TRAINING))
        ended = why_ended(curve.state)
        means = (
            f"{mean_at(validation, VALIDATION, 'epoch', epoch, ended)}"
            f" / {mean_at(training, TRAINING, 'epoch', epoch, ended)}"
            for epoch in EPOCHS
        )
        yield [curve.name, cells.leading_text(curve.state), str(validation.seed.nunique()), *means]
