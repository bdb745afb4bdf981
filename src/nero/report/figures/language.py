"""Figures 6 and 7: perplexity of transformers, a language model on Wikitext-2 and translation of Multi30k (WMT16).

The authors' logs of the latter are dashed; their curves of the former are not logged anywhere.
"""

import pandas as pd
from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import at_leading, curves_of_task
from nero.report.figures.numbers import document, epochs, mean_at, search_table, table, why_ended
from nero.report.figures.panels import Pair, pair_figure
from nero.report.figures.scales import LogScale, plain_ticks
from nero.report.units import rate

VALIDATION = paper.PERPLEXITY["key"]

START = 0.05  # of the training: the scale fits what follows
SHARE = 0.75  # of a curve is visible: SGD's perplexity explodes on translation, and comes back
MOST = 1000.0  # higher values only say that little is learnt
BOUNDS = (1.0, 1e6)  # a perplexity is one or more
POINTS = epochs(10, 25, 50, 75, paper.MULTI30K_EPOCHS)
NOTES = (
    "Validation perplexity, ours / the authors', each the mean over n seeds at the learning rate η: the best of its "
    "search, or the best of the rates searched while ours is incomplete. An epoch at which a seed's was not finite has "
    "no mean."
)


@style.house_style()
def figure6(evidence: Evidence) -> Figure:
    """Each optimiser at the leading learning rate of its search."""
    title = "Wikitext-2 language model (Figure 6)"
    return _draw(evidence, title, paper.WIKITEXT2, "dropout on", paper.WIKITEXT2_EPOCHS)


@style.house_style()
def figure7(evidence: Evidence) -> Figure:
    """Each optimiser at the leading learning rate of its search."""
    title = "WMT16 translation, Multi30k (Figure 7)"
    conditions, authors = "label smoothing 0.1, dropout on", paper.translation_curves()
    return _draw(evidence, title, paper.MULTI30K, conditions, paper.MULTI30K_EPOCHS, authors)


def _draw(
    evidence: Evidence, title: str, task: str, conditions: str, length: int, authors: pd.DataFrame | None = None
) -> Figure:
    """Training and validation perplexity on a log scale."""
    # Without bars: a deviation as large as its mean would reach down to zero.
    scale = LogScale(plain_ticks, BOUNDS, length, round(START * length), SHARE, with_bars=False, most=MOST)
    row = Pair("Transformer", curves_of_task(task, evidence.states), "perplexity", "perplexity", conditions)
    return scale.fit_each(*pair_figure(title, [row], evidence.curves, scale, paper.table1(), authors))


def figure6_numbers(evidence: Evidence) -> str:
    """The final values of the search."""
    curves = curves_of_task(paper.WIKITEXT2, evidence.states)
    cells.require_real(curve.state for curve in curves)
    return document("Figure 6", search_table(curves, "validation perplexity", VALIDATION))


def figure7_numbers(evidence: Evidence) -> str:
    """Validation perplexity at some epochs, ours and the authors', and the final values of both searches."""
    curves = curves_of_task(paper.MULTI30K, evidence.states)
    cells.require_real(curve.state for curve in curves)
    authors = paper.translation_curves()
    lines = []
    for curve in curves:
        ours = at_leading(curve.state, evidence.curves, VALIDATION)
        theirs = authors[(authors.key == VALIDATION) & (authors.optim == curve.cell.optim)]
        both = (ours, why_ended(curve.state)), (theirs, "not logged")
        means = (" / ".join(mean_at(of, VALIDATION, "epoch", at, end) for of, end in both) for at in POINTS.values())
        their_rates = ", ".join(rate(lr) for lr in theirs.lr.unique())
        counts = (str(each.seed.nunique()) for each in (ours, theirs))
        lines.append([curve.name, cells.leading_text(curve.state), their_rates, *counts, *means])
    compared = table(["optimiser", "η", "authors' η", "n", "authors' n", *POINTS], lines)
    search = search_table(curves, "validation perplexity", VALIDATION, paper.translation_search)
    return document("Figure 7", compared, NOTES, search)
