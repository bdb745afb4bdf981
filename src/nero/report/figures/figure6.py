"""Figure 6: perplexity of a transformer language model on Wikitext-2. The authors' curves are not logged anywhere."""

import math

import pandas as pd
from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.numbers import document, search_table
from nero.report.figures.panels import LogScale, Pair, curves_of_task

TRAINING, VALIDATION = "train/perplexity", paper.PERPLEXITY["key"]
WIKITEXT2 = Pair(TRAINING, VALIDATION, "perplexity", "dropout on", paper.WIKITEXT2_EPOCHS)

START = 0.05  # of the training: the scale fits what follows
SHARE = 0.75  # of a curve is visible: SGD's perplexity explodes on translation, and comes back
MOST = 1000.0  # higher values only say that little is learnt
BOUNDS = (1.0, 1e6)  # a perplexity is one or more
TICKS = (
    (3, (1, 1.2, 1.4, 1.6, 1.8, 2, 2.2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9)),
    (10, (1, 1.5, 2, 3, 5, 7)),
    (math.inf, (1, 2, 5)),
)
"""Largest ratio of highest to lowest value -> ticks of each decade."""


@style.house_style()
def figure6(evidence: Evidence) -> Figure:
    """Each optimiser at the leading learning rate of its search."""
    title = "Wikitext-2 language model (Figure 6): mean and range over seeds"
    return draw_perplexity(evidence, title, paper.WIKITEXT2, WIKITEXT2)


def draw_perplexity(
    evidence: Evidence, title: str, task: str, pair: Pair, authors: pd.DataFrame | None = None
) -> Figure:
    """Training and validation perplexity on a log scale, also for Figure 7."""
    figure, panels = style.panels(1, 2, title)
    curves = curves_of_task(task, evidence.states)
    pair.draw(panels, "Transformer", curves, evidence.curves, paper.table1(), authors)
    # Without bars: a deviation as large as its mean would reach down to zero.
    scale = LogScale(_ticks, BOUNDS, pair.epochs, round(START * pair.epochs), SHARE, with_bars=False)
    for panel in panels:
        scale.fit([panel])
    return style.freeze_layout(figure)


def _ticks(low: float, high: float) -> list[float]:
    """Up to MOST, or to three times the lowest value where that is more."""
    top = max(MOST, 3 * low)
    ticks = next(ticks for ratio, ticks in TICKS if min(high, top) <= ratio * low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(top)) + 1)
    return [tick * 10.0**decade for decade in decades for tick in ticks if tick * 10.0**decade <= top]


def numbers(evidence: Evidence) -> str:
    """The final values of the search."""
    states = [curve.state for curve in curves_of_task(paper.WIKITEXT2, evidence.states)]
    cells.require_real(states)
    return document("Figure 6", search_table(states, "validation perplexity", VALIDATION))
