"""Places on the curves of several seeds in numbers, as Markdown tables have them."""

from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells
from nero.report.figures import curves
from nero.report.figures.panel import Curve
from nero.report.figures.search_numbers import shown
from nero.report.tables.markdown_format import markdown_line


def epoch_lines(
    whose: str, compared: Sequence[Curve], by_epoch: pd.DataFrame, keys: Sequence[str], epochs: Sequence[int]
) -> Iterator[str]:
    """A line per curve, a column per epoch: means over the seeds of all `keys` beside each other, such as "9.1 / 8.7".

    How many seeds there are is counted in the first key's curves; `whose` heads the column of names.
    """
    heads = [whose, "η", "n", *(f"epoch {epoch}" for epoch in epochs)]
    yield markdown_line(heads)
    yield markdown_line(["---"] * len(heads))
    for curve in compared:
        frames = {key: curves.at_leading(curve.state, by_epoch, key) for key in keys}
        ended = why_ended(curve.state)
        means = (
            " / ".join(mean_at(frame, key, "epoch", epoch, ended) for key, frame in frames.items()) for epoch in epochs
        )
        seeds = frames[keys[0]].seed.nunique()
        yield markdown_line([curve.name, cells.leading_text(curve.state), str(seeds), *means])


def mean_at(frame: pd.DataFrame, key: str, x: str, at: float, ended: str) -> str:
    """Mean of `key` over the seeds where `x` is `at`, or `ended` where some do not go as far."""
    values = frame[frame[x] == at].value
    if values.empty or len(values) < frame.seed.nunique():
        return ended
    return shown(key, values.mean()) if values.notna().all() else "not finite"


def why_ended(state: CellState) -> str:
    """What to say where a cell's curves do not go as far."""
    return "diverged" if cells.divergence(state) else "missing"
