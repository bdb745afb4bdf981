"""Figure 3 in numbers: how far our curves lie from the authors', and where every learning rate of the search ended."""

from collections.abc import Iterator, Sequence

import pandas as pd

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.figures import curves
from nero.report.figures.search_numbers import search_lines, shown
from nero.report.tables.markdown_format import markdown_line
from nero.report.units import number, rate, scale

KEY = paper.ACCURACY["key"]
CURVES = ["curve", "η", "authors' η", "n", "authors' n", "last", "authors' last", "mean gap", "largest gap", "there"]
NOTES = (
    "Training accuracy in per cent. A gap is that between the mean over our seeds and the mean over the authors', in "
    f"points: its mean size and its largest over the curve, and where that is. Left, means over {curves.BLOCK} "
    "iterations; right, epochs."
)


def to_markdown(states: Sequence[CellState], by_epoch: pd.DataFrame, by_iteration: pd.DataFrame) -> str:
    """Both halves of the figure, curve by curve, and the search behind the right one."""
    cells.require_real(states)
    left = [state for state in states if state.cell.task == paper.REPARAM]
    right = [state for state in states if state.cell.task == paper.DEEP]
    lines = ["# Figure 3 in numbers", "", markdown_line(CURVES), markdown_line(["---"] * len(CURVES))]
    lines += [markdown_line(words) for words in [*_left(left, by_iteration), *_right(right, by_epoch)]]
    searched = [state for state in right if len(state.search) > 1]
    search = search_lines(searched, "training accuracy", KEY, _authors_search)
    return "\n".join([*lines, "", NOTES, "", *search, ""])


def _left(states: Sequence[CellState], frame: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.reparam_curves()
    for state in states:
        sigma = dict(state.cell.variant)["task.sigma"]
        ours = curves.block_means(curves.at_leading(state, frame, KEY))
        theirs = authors[authors.sigma == sigma]
        name = cells.labelled(f"σ = {sigma}", state.cell)
        yield _line(name, state, ours, theirs.lr.iloc[0], curves.block_means(theirs), "iteration")


def _right(states: Sequence[CellState], frame: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.deep_curves()
    for state in states:
        theirs = authors[authors.optim == state.cell.optim]
        yield _line(
            curves.name(state.cell), state, curves.at_leading(state, frame, KEY), theirs.lr.iloc[0], theirs, "epoch"
        )


def _line(name: str, state: CellState, ours: pd.DataFrame, their_lr: float, theirs: pd.DataFrame, x: str) -> list[str]:
    mine, other = (curves.by_seed(frame, x, scale(KEY)) for frame in (ours, theirs))
    gaps = (mine.mean(axis=1) - other.mean(axis=1)).dropna()
    if state.leading_lr is None or gaps.empty:
        return [name, cells.absence_text(state), rate(their_lr), *[""] * (len(CURVES) - 3)]
    sizes = gaps.abs().to_numpy()
    largest = int(sizes.argmax())
    return [
        name,
        cells.leading_text(state),
        rate(their_lr),
        str(mine.shape[1]),
        str(other.shape[1]),
        number(mine.mean(axis=1).iloc[-1]),
        number(other.mean(axis=1).iloc[-1]),
        number(sizes.mean()),
        f"{gaps.iloc[largest]:+.2f}",
        f"{x} {gaps.index[largest]}",
    ]


def _authors_search(seed: int) -> dict[tuple[str, float], str]:
    return {run: shown(KEY, final) for run, final in paper.deep_search(seed).items()}
