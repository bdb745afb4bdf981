"""Figures 6 and 7: training and validation perplexity of language models and translators, the paper's beside ours."""

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.log_scale import LogScale
from nero.report.figures.panel import of_task
from nero.report.figures.rows_of_panels import Followed, draw_row

TRAINING, VALIDATION = "train/perplexity", paper.PERPLEXITY["key"]
WIKITEXT2 = Followed(TRAINING, VALIDATION, "perplexity", "dropout on", paper.WIKITEXT2_EPOCHS)
MULTI30K = Followed(TRAINING, VALIDATION, "perplexity", "label smoothing 0.1, dropout on", paper.MULTI30K_EPOCHS)

START = 0.05  # of the training: the scale is that of what follows
SHARE = 0.75  # of a curve is in sight: SGD's perplexity explodes on translation, and comes back
MOST = 1000.0  # what lies higher says no more than that little is learnt
BOUNDS = (1.0, 1e6)  # a perplexity is one or more; where nothing was learnt, more than the upper one tells no more
LADDERS = (
    (3, (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)),
    (10, (1, 1.5, 2, 3, 5, 7)),
    (math.inf, (1, 2, 5)),
)
"""Highest over lowest value below which to use it -> ticks of each decade."""


@style.house_style()
def figure6(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 6: a transformer on Wikitext-2, each optimiser at the leading learning rate of its search."""
    title = "Wikitext-2 language model (Figure 6): mean and range over seeds"
    return _figure(title, paper.WIKITEXT2, WIKITEXT2, states, curves)


@style.house_style()
def figure7(states: Sequence[CellState], curves: pd.DataFrame) -> Figure:
    """Figure 7: a transformer that translates WMT16's multimodal pairs (Multi30k), the authors' logs dashed."""
    title = "WMT16 translation, Multi30k (Figure 7): mean and range over seeds, the authors' mean dashed"
    return _figure(title, paper.MULTI30K, MULTI30K, states, curves, paper.translation_curves())


def _figure(
    title: str,
    task: str,
    followed: Followed,
    states: Sequence[CellState],
    curves: pd.DataFrame,
    authors: pd.DataFrame | None = None,
) -> Figure:
    figure, panels = style.panels(1, 2, title)
    draw_row(panels, followed, "Transformer", of_task(task, states), curves, paper.table1(), authors)
    start = round(START * followed.epochs)
    # A deviation as large as its mean would reach down to nothing.
    scale = LogScale(_ladder, BOUNDS, followed.epochs, start, SHARE, with_bars=False)
    for panel in panels:
        scale.fit([panel])
    return style.settle(figure)


def _ladder(low: float, high: float) -> list[float]:
    """Up to MOST, or to three times the lowest value where that is more."""
    top = max(MOST, 3 * low)
    ticks = next(ticks for reach, ticks in LADDERS if min(high, top) <= reach * low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(top)) + 1)
    return [tick * 10.0**decade for decade in decades for tick in ticks if tick * 10.0**decade <= top]
