"""Figure 7 in numbers: validation perplexity along our curves and the authors', and where every learning rate ended."""

from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import curves
from nero.report.figures.curve_numbers import mean_at, why_ended
from nero.report.figures.panel import Curve, of_task
from nero.report.figures.search_numbers import search_lines, shown
from nero.report.tables.markdown_format import markdown_line
from nero.report.units import rate

KEY = paper.PERPLEXITY["key"]
EPOCHS = (10, 25, 50, 75, 100)
HEADS = ["optimiser", "η", "authors' η", "n", "authors' n", *(f"epoch {epoch}" for epoch in EPOCHS)]
NOTES = (
    "Validation perplexity, ours / the authors', each the mean over n seeds at the learning rate η: the best of its "
    "search, or the best of the rates searched while ours is incomplete. An epoch at which a seed's was not finite has "
    "no mean."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame) -> str:
    """The right half of the figure, epoch by epoch, and the search behind it."""
    compared = of_task(paper.MULTI30K, states)
    cells.require_real(curve.state for curve in compared)
    lines = ["# Figure 7 in numbers", "", markdown_line(HEADS), markdown_line(["---"] * len(HEADS))]
    lines += [markdown_line(words) for words in _curves(compared, by_epoch)]
    search = search_lines([curve.state for curve in compared], "validation perplexity", KEY, _authors_search)
    return "\n".join([*lines, "", NOTES, "", *search, ""])


def _curves(compared: Sequence[Curve], by_epoch: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.translation_curves()
    authors = authors[authors.key == KEY]
    for curve in compared:
        state = curve.state
        ours, theirs = curves.at_leading(state, by_epoch, KEY), authors[authors.optim == curve.cell.optim]
        yield [
            curve.name,
            cells.leading_text(state),
            ", ".join(rate(lr) for lr in theirs.lr.unique()),
            str(ours.seed.nunique()),
            str(theirs.seed.nunique()),
            *(f"{_mean(ours, epoch, why_ended(state))} / {_mean(theirs, epoch, 'not logged')}" for epoch in EPOCHS),
        ]


def _mean(frame: pd.DataFrame, epoch: int, ended: str) -> str:
    return mean_at(frame, KEY, "epoch", epoch, ended)


def _authors_search(seed: int) -> dict[tuple[str, float], str]:
    return {
        run: shown(KEY, last.value) if last.epoch == paper.MULTI30K_EPOCHS else f"cut off at epoch {last.epoch}"
        for run, last in paper.translation_search(seed).items()
    }
