"""Figure 7: perplexity of a transformer that translates WMT16's multimodal pairs (Multi30k).

The authors' logs are dashed.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.figure import Figure

from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import at_leading
from nero.report.figures.figure6 import TRAINING, VALIDATION, draw_perplexity
from nero.report.figures.numbers import document, mean_at, search_table, shown, table, why_ended
from nero.report.figures.panels import Curve, Pair, curves_of_task
from nero.report.units import rate

MULTI30K = Pair(TRAINING, VALIDATION, "perplexity", "label smoothing 0.1, dropout on", paper.MULTI30K_EPOCHS)

EPOCHS = (10, 25, 50, 75, 100)
COLUMNS = ["optimiser", "η", "authors' η", "n", "authors' n", *(f"epoch {epoch}" for epoch in EPOCHS)]
NOTES = (
    "Validation perplexity, ours / the authors', each the mean over n seeds at the learning rate η: the best of its "
    "search, or the best of the rates searched while ours is incomplete. An epoch at which a seed's was not finite has "
    "no mean."
)


@style.house_style()
def figure7(evidence: Evidence) -> Figure:
    """Each optimiser at the leading learning rate of its search."""
    title = "WMT16 translation, Multi30k (Figure 7): mean and range over seeds, the authors' mean dashed"
    return draw_perplexity(evidence, title, paper.MULTI30K, MULTI30K, paper.translation_curves())


def numbers(evidence: Evidence) -> str:
    """Validation perplexity at some epochs, ours and the authors', and the final values of both searches."""
    curves = curves_of_task(paper.MULTI30K, evidence.states)
    states = [curve.state for curve in curves]
    cells.require_real(states)
    compared = table(COLUMNS, _compare(curves, evidence.curves))
    search = search_table(states, "validation perplexity", VALIDATION, _authors_search)
    return document("Figure 7", compared, NOTES, search)


def _compare(curves: Sequence[Curve], frame: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.translation_curves()
    authors = authors[authors.key == VALIDATION]
    for curve in curves:
        ours, theirs = at_leading(curve.state, frame, VALIDATION), authors[authors.optim == curve.cell.optim]
        yield [
            curve.name,
            cells.leading_text(curve.state),
            ", ".join(rate(lr) for lr in theirs.lr.unique()),
            str(ours.seed.nunique()),
            str(theirs.seed.nunique()),
            *(
                f"{_mean(ours, epoch, why_ended(curve.state))} / {_mean(theirs, epoch, 'not logged')}"
                for epoch in EPOCHS
            ),
        ]


def _mean(frame: pd.DataFrame, epoch: int, ended: str) -> str:
    return mean_at(frame, VALIDATION, "epoch", epoch, ended)


def _authors_search(seed: int) -> dict[tuple[str, float], str]:
    return {
        run: shown(VALIDATION, last.value) if last.epoch == paper.MULTI30K_EPOCHS else f"cut off at epoch {last.epoch}"
        for run, last in paper.translation_search(seed).items()
    }
