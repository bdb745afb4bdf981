"""Figure 8 in numbers: reward along our curves, and where every seed and every learning rate of the search ended.

Of the authors' runs there is no log.
"""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import curves
from nero.report.figures.curve_numbers import mean_at, why_ended
from nero.report.figures.figure8 import REWARD, STEPS, rewards
from nero.report.figures.panel import Curve, of_task
from nero.report.figures.search_numbers import search_lines, seed_lines
from nero.report.tables.markdown_format import markdown_line

MILLIONS = tuple(range(1, paper.PONG_MILLIONS + 1))
NEAR = 0.01  # million steps: what is logged, every 10 updates, is never farther from any of them
HEADS = ["optimiser", "η", "n", *(f"{millions} M steps" for millions in MILLIONS)]
NOTES = (
    f"Reward (mean return of the last {paper.REWARD_GAMES} finished games, at most 21) where it is logged nearest to "
    "so many million steps of the environment: the mean over n seeds at the learning rate η, which is the best of the "
    "search, the best of the rates searched while it is incomplete, or the only one asked for."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame) -> str:
    """The figure, million by million, and the seeds and the search behind it."""
    compared = of_task(paper.PONG, states)
    cells.require_real(curve.state for curve in compared)
    lines = ["# Figure 8 in numbers", "", markdown_line(HEADS), markdown_line(["---"] * len(HEADS))]
    lines += [markdown_line(words) for words in _curves(compared, rewards(by_epoch))]
    states = [curve.state for curve in compared]
    seeds = seed_lines(states, paper.REWARD["label"], REWARD)
    search = search_lines([state for state in states if len(state.search) > 1], paper.REWARD["label"], REWARD)
    return "\n".join([*lines, "", NOTES, "", *seeds, "", *search, ""])


def _curves(compared: Sequence[Curve], by_step: pd.DataFrame) -> Iterator[list[str]]:
    for curve in compared:
        ours = curves.at_leading(curve.state, by_step, REWARD)
        ended = why_ended(curve.state)
        means = (_mean(ours, millions, ended) for millions in MILLIONS)
        yield [curve.name, cells.leading_text(curve.state), str(ours.seed.nunique()), *means]


def _mean(frame: pd.DataFrame, millions: int, ended: str) -> str:
    nearest = min(frame[STEPS].unique(), key=lambda logged: abs(logged - millions), default=math.inf)
    return mean_at(frame, REWARD, STEPS, nearest, ended) if abs(nearest - millions) <= NEAR else ended
