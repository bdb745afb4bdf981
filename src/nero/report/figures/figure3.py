"""Figure 3: training accuracy of MNIST perceptrons, ours solid and the authors' logs dashed.

Left: training a reparameterised network depends on the scale of its raw weights. Right: 100 layers, each optimiser at
its best learning rate, or at the leading one while its search is incomplete.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nero.plans.plan import Cell, CellState
from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import curves, style
from nero.report.figures.finishing import finish
from nero.report.figures.numbers import document, search_table, table
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
    figure, (left, right) = style.panels(1, 2, "MNIST perceptrons (Figure 3)")
    _draw_reparameterised(left, evidence)
    deep = _of_task(evidence, paper.DEEP)
    curves.draw_curves(right, "100 layers", curves.with_variants(deep), evidence.curves, KEY)
    curves.draw_authors(right, paper.deep_curves(), scale(KEY), style.colours(state.cell.optim for state in deep))
    right.set_xlabel("epoch")
    for axes in (left, right):
        axes.set(ylabel=shown_metric(paper.ACCURACY).label, ylim=PER_CENT)
        style.legend_below(axes)
    return finish(figure)


def _of_task(evidence: Evidence, task: str) -> list[CellState]:
    return [state for state in evidence.states if state.cell.task == task]


def _draw_reparameterised(axes: Axes, evidence: Evidence) -> None:
    authors = paper.reparam_curves()
    named = cells.unique_cells(_of_task(evidence, paper.REPARAM), lambda cell: f"σ = {_sigma(cell)}")
    looks = zip(named.items(), style.VARIANTS, strict=True)
    ours = [curves.Curve(state, name, colour, name, name) for (name, state), colour in looks]
    curves.draw_curves(axes, "5 layers, reparameterised, Adam", ours, _block_means(evidence.traces), KEY, x="iteration")
    for curve in ours:
        theirs, label = _block_means(authors[authors.sigma == _sigma(curve.cell)]), f"{curve.name}, authors"
        curves.draw(axes, theirs, "iteration", scale(KEY), curve.colour, curve.name, label, style.THEIRS)
    axes.set_xlabel(f"iteration (means over {BLOCK})")


def _sigma(cell: Cell) -> float:
    return dict(cell.variant)["task.sigma"]


def _block_means(frame: pd.DataFrame) -> pd.DataFrame:
    """Each seed's means over BLOCK iterations, placed at the last of them: single batches are too noisy to compare."""
    last = -(-frame.iteration // BLOCK) * BLOCK
    by = [name for name in ("run_id", "key", "seed") if name in frame]
    return frame.assign(iteration=last).groupby([*by, "iteration"])[["value"]].mean().reset_index()


def numbers(evidence: Evidence) -> str:
    """The distance of our curves from the authors', and the final values of the search."""
    cells.require_real(evidence.states)
    traces, reparam, deep = _block_means(evidence.traces), paper.reparam_curves(), paper.deep_curves()
    lines = []
    for state in _of_task(evidence, paper.REPARAM):
        sigma = _sigma(state.cell)
        theirs, name = _block_means(reparam[reparam.sigma == sigma]), cells.labelled(f"σ = {sigma}", state.cell)
        lines.append(_compare(name, state, traces, theirs, paper.REPARAM_LR, "iteration"))
    states = _of_task(evidence, paper.DEEP)
    for state in states:
        theirs = deep[deep.optim == state.cell.optim]
        lines.append(
            _compare(curves.curve_name(state.cell), state, evidence.curves, theirs, theirs.lr.iloc[0], "epoch")
        )
    searched = curves.by_optimizer(state for state in states if len(state.search) > 1)
    search = search_table(searched, "training accuracy", KEY, paper.deep_search)
    return document("Figure 3", table(COLUMNS, lines), NOTES, search)


def _compare(
    name: str, state: CellState, frame: pd.DataFrame, theirs: pd.DataFrame, their_lr: float, x: str
) -> list[str]:
    """A line of COLUMNS."""
    mine, other = (curves.by_seed(each, x, scale(KEY)) for each in (curves.at_leading(state, frame, KEY), theirs))
    gaps = (mine.mean(axis=1) - other.mean(axis=1)).dropna()
    if state.leading_lr is None or gaps.empty:
        return [name, cells.absence_text(state), rate(their_lr), *[""] * (len(COLUMNS) - 3)]
    largest = int(gaps.abs().argmax())
    return [
        name,
        cells.leading_text(state),
        rate(their_lr),
        *(str(seeds.shape[1]) for seeds in (mine, other)),
        *(number(seeds.mean(axis=1).iloc[-1]) for seeds in (mine, other)),
        number(gaps.abs().mean()),
        f"{gaps.iloc[largest]:+.2f}",
        f"{x} {gaps.index[largest]}",
    ]
