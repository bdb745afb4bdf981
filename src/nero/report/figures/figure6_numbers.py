"""Figure 6 in numbers: where every learning rate of its search ended. Of the authors' runs there is no log."""

from collections.abc import Sequence

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures.panel import of_task
from nero.report.figures.search_numbers import search_lines


def to_markdown(states: Sequence[CellState]) -> str:
    compared = [curve.state for curve in of_task(paper.WIKITEXT2, states)]
    cells.require_real(compared)
    search = search_lines(compared, "validation perplexity", paper.PERPLEXITY["key"])
    return "\n".join(["# Figure 6 in numbers", "", *search, ""])
