"""Figure 3: training accuracy of MNIST perceptrons, ours solid and the authors' logs dashed.

Left: training a reparameterised network depends on the scale of its raw weights. Right: 100 layers, each optimiser at
its best learning rate, or at the leading one while its search is incomplete.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import (
    Notes,
    at_leading,
    by_seed,
    curve_name,
    draw,
    draw_authors,
    draw_optimizers,
    select,
)
from nero.report.figures.numbers import document, search_table, shown, table
from nero.report.units import number, rate, scale, shown_metric

KEY = paper.ACCURACY["key"]
BLOCK = 10  # iterations
PER_CENT = (0, 102)

COLUMNS = ["curve", "η", "authors' η", "n", "authors' n", "last", "authors' last", "mean gap", "largest gap", "at"]
NOTES = (
    "Training accuracy in per cent. The gap is the difference between the means over our seeds and over the authors', "
    f"in points: its mean size and its largest over the curve, and where that is. Left: means over {BLOCK} iterations; "
    "right: epochs."
)


@style.house_style()
def figure3(evidence: Evidence) -> Figure:
    cells.require_real(evidence.states)
    figure, (left, right) = style.panels(1, 2, "MNIST perceptrons (Figure 3): mean and range over seeds")
    _draw_reparameterised(left, _of_task(evidence, paper.REPARAM), evidence.traces)
    _draw_deep(right, _of_task(evidence, paper.DEEP), evidence.curves)
    for axes in (left, right):
        axes.set(ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
        style.legend_below(axes)
    return style.freeze_layout(figure)


def numbers(evidence: Evidence) -> str:
    """The distance of our curves from the authors', and the final values of the search."""
    cells.require_real(evidence.states)
    left, right = (_of_task(evidence, task) for task in (paper.REPARAM, paper.DEEP))
    compared = table(COLUMNS, [*_left_lines(left, evidence.traces), *_right_lines(right, evidence.curves)])
    searched = [state for state in right if len(state.search) > 1]
    return document("Figure 3", compared, NOTES, search_table(searched, "training accuracy", KEY, _authors_search))


def _of_task(evidence: Evidence, task: str) -> list[CellState]:
    return [state for state in evidence.states if state.cell.task == task]


def _block_means(frame: pd.DataFrame) -> pd.DataFrame:
    """Each seed's means over BLOCK iterations, placed at the last of them: single batches are too noisy to compare."""
    last = -(-frame.iteration // BLOCK) * BLOCK
    by = [name for name in ("run_id", "seed") if name in frame]
    return frame.assign(iteration=last).groupby([*by, "iteration"])[["value"]].mean().reset_index()


def _draw_reparameterised(axes: Axes, states: Sequence[CellState], traces: pd.DataFrame) -> None:
    authors = paper.reparam_curves()
    notes = Notes()
    by_sigma = cells.unique_cells(states, lambda cell: dict(cell.variant)["task.sigma"])
    palette = dict(zip(by_sigma, style.VARIANTS, strict=True))
    for sigma, state in by_sigma.items():
        name = f"σ = {sigma}"
        ours = _block_means(select(state, traces, KEY, name, notes))
        draw(axes, ours, "iteration", scale(KEY), palette[sigma], name, name, planned=len(state.cell.seeds))
    for sigma, colour in palette.items():
        name, theirs = f"σ = {sigma}", _block_means(authors[authors.sigma == sigma])
        draw(axes, theirs, "iteration", scale(KEY), colour, name, f"{name}, authors", style.THEIRS)
    axes.set_xlabel(f"iteration (means over {BLOCK})")
    style.set_title(axes, "5 layers, reparameterised, Adam", notes.lines())


def _draw_deep(axes: Axes, states: Sequence[CellState], curves: pd.DataFrame) -> None:
    notes = Notes()
    draw_optimizers(axes, states, curves, KEY, notes)
    draw_authors(axes, paper.deep_curves(), scale(KEY), style.colours(state.cell.optim for state in states))
    axes.set_xlabel("epoch")
    style.set_title(axes, "100 layers", notes.lines())


def _left_lines(states: Sequence[CellState], frame: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.reparam_curves()
    for state in states:
        sigma = dict(state.cell.variant)["task.sigma"]
        ours, theirs = _block_means(at_leading(state, frame, KEY)), authors[authors.sigma == sigma]
        name = cells.labelled(f"σ = {sigma}", state.cell)
        yield _compare(name, state, ours, theirs.lr.iloc[0], _block_means(theirs), "iteration")


def _right_lines(states: Sequence[CellState], frame: pd.DataFrame) -> Iterator[list[str]]:
    authors = paper.deep_curves()
    for state in states:
        ours, theirs = at_leading(state, frame, KEY), authors[authors.optim == state.cell.optim]
        yield _compare(curve_name(state.cell), state, ours, theirs.lr.iloc[0], theirs, "epoch")


def _compare(
    name: str, state: CellState, ours: pd.DataFrame, their_lr: float, theirs: pd.DataFrame, x: str
) -> list[str]:
    """A line of COLUMNS."""
    mine, other = (by_seed(frame, x, scale(KEY)) for frame in (ours, theirs))
    gaps = (mine.mean(axis=1) - other.mean(axis=1)).dropna()
    if state.leading_lr is None or gaps.empty:
        return [name, cells.absence_text(state), rate(their_lr), *[""] * (len(COLUMNS) - 3)]
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
