"""Curves over seeds: select them from the frames, draw their mean and range, and note what is missing.

`learning_curves` is a figure of any experiment: its metric against the epoch.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from nero.plans.plan import Cell, CellState
from nero.report import cells
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.finishing import finish
from nero.report.figures.scales import LogScale, plain_ticks
from nero.report.units import rate, scale, shown_metric

SIZE = (3.9, 3.2)  # inches of a panel of `learning_curves`, of up to three in a row; its scales:
LOG_FROM = 3  # highest to lowest value
START, SHARE = 0.05, 0.95  # see LogScale


@dataclass(frozen=True)
class Curve:
    """A cell in a panel."""

    state: CellState
    name: str  # in notes and numbers
    colour: str
    label: str  # in the legend
    group: str  # what a legend switches on and off together
    linestyle: str = style.OURS

    @property
    def cell(self) -> Cell:
        return self.state.cell


def named_curves(named: Mapping[str, CellState], colours: Mapping[str, str]) -> list[Curve]:
    """A curve per name; names without a colour get an unused one."""
    palette = style.palette(named, colours)
    usual = cells.usual_precision(named.values())
    return [Curve(state, name, palette[name], name + setting_text(state, usual), name) for name, state in named.items()]


def by_optimizer(
    states: Iterable[CellState], optimizer: Callable[[Cell], str] = lambda cell: cell.optim
) -> list[Curve]:
    """Curves in the usual order and colours of optimisers. Two of one optimiser need different labels."""
    unique = cells.unique_cells(states, lambda cell: (optimizer(cell), cell.label))
    order = style.in_order(optim for optim, _ in unique)
    ordered = sorted(unique.items(), key=lambda item: order.index(item[0][0]))
    named = {cells.labelled(style.name(optim), state.cell): state for (optim, _), state in ordered}
    return named_curves(named, style.named_colours())


def curves_of_task(task: str, states: Iterable[CellState]) -> list[Curve]:
    """A curve for each optimiser of an experiment on this task."""
    return by_optimizer(state for state in states if state.cell.task == task)


def with_variants(states: Sequence[CellState], palette: Mapping[str, str] | None = None) -> list[Curve]:
    """A curve for each optimiser; variants of it are dotted, and left out if they are the same runs."""
    palette = palette or style.colours(state.cell.optim for state in states)
    usual = cells.usual_precision(states)
    curves = []
    for optim in style.in_order(state.cell.optim for state in states):
        name, colour = style.name(optim), palette[optim]
        first, *others = (state for state in states if state.cell.optim == optim)
        curves.append(Curve(first, name, colour, name + setting_text(first, usual), name))
        for state in others:
            if (state.leading_lr, state.cell.label) != (first.leading_lr, first.cell.label):
                label = cells.labelled(name, state.cell) + setting_text(state, usual)
                curves.append(Curve(state, curve_name(state.cell), colour, label, name, style.VARIANT))
    return curves


def curve_name(cell: Cell) -> str:
    """Such as "Nero", or "Nero at lr = 0.001"."""
    variant = f" at {cells.variant_text(cell.variant)}" if cell.variant else ""
    return cells.labelled(style.name(cell.optim) + variant, cell)


def setting_text(state: CellState, usual: str | None) -> str:
    """The learning rate, and the precision where it is not the usual one: such as ", η = 0.01, float32"."""
    own = cells.precision(state.cell)
    return rate_text(state.leading_lr) + (f", {style.precision(own)}" if own and own != usual else "")


def rate_text(lr: float | None) -> str:
    return f", η = {rate(lr)}" if lr is not None else ""


def at_leading(state: CellState, frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """The lines of `frame` under `key` for a cell's runs at its leading learning rate."""
    run_ids = [run["run_id"] for run in cells.leading_runs(state)]
    return frame[frame.run_id.isin(run_ids) & (frame.key == key)]


def by_seed(frame: pd.DataFrame, x: str, factor: float) -> pd.DataFrame:
    """A row per `x` and a column per seed, as far as all seeds go; values are multiplied by `factor`."""
    return frame.pivot(index=x, columns="seed", values="value").dropna().astype("float64") * factor


def draw_curves(
    axes: Axes,
    title: str,
    curves: Sequence[Curve],
    frame: pd.DataFrame,
    key: str,
    x: str = "epoch",
    factor: float | None = None,
) -> list[Line2D | None]:
    """Draw what is logged under `key`, times `factor` if given: a line for each curve, or None without runs.

    Notes below the title say what is missing or diverged.
    """
    factor = scale(key) if factor is None else factor
    notes: dict[str, dict[str, list[str]]] = {"search incomplete": {}, "missing": {}, "diverged": {}}
    lines = []
    for curve in curves:
        state, found = curve.state, at_leading(curve.state, frame, key)
        # A run can diverge before its first line; any other run without a line has lost its log.
        logged = set(found.run_id)
        runs = cells.leading_runs(state)
        lost = cells.seeds_text(r["seed"] for r in runs if r["run_id"] not in logged and not cells.has_diverged(r))
        details = [*cells.problems(state).items(), *([("missing", f"no log of {lost}")] if lost else [])]
        for topic, detail in details:
            notes[topic].setdefault(detail, []).append(curve.name)
        look = curve.colour, curve.group, curve.label, curve.linestyle
        lines.append(draw(axes, found, x, factor, *look, planned=len(curve.cell.seeds)))
    style.set_title(axes, title, note_texts(notes))
    if any(cells.leading_runs(curve.state) for curve in curves):
        style.record(axes).empty = "no curves logged"
    return lines


def note_texts(notes: Mapping[str, Mapping[str, Sequence[str]]]) -> list[str]:
    """Notes below a title, from topic -> detail -> names: such as "missing: Nero, SGD (seeds 1, 2)"."""
    texts = {
        topic: "; ".join(f"{', '.join(names)} ({detail})" for detail, names in details.items())
        for topic, details in notes.items()
    }
    return [f"{topic}: {text}" for topic, text in texts.items() if text]


def draw(
    axes: Axes,
    frame: pd.DataFrame,
    x: str,
    factor: float,
    colour: str,
    group: str,
    label: str,
    linestyle: str = style.OURS,
    planned: int = 0,
) -> Line2D | None:
    """Draw the mean over seeds as a line and their range as a band, as far as all seeds go.

    A value that is not finite leaves a gap. The label says how many of the `planned` seeds there are.
    """
    seeds = by_seed(frame, x, factor)
    if seeds.empty:
        return None
    logged = np.unique(frame[x])
    seeds = seeds.reindex(logged[(logged >= seeds.index[0]) & (logged <= seeds.index[-1])])
    count = seeds.shape[1]
    at, ours = style.rounded(seeds.index), linestyle != style.THEIRS
    shade = colour if ours else style.darker(colour)
    label = f"{label}, n = {count}" + (f" of {planned}" if count < planned else "")
    means = style.rounded(seeds.mean(axis=1))
    [line] = axes.plot(at, means, linestyle, color=shade, label=label)
    finite = np.pad(np.isfinite(means), 1)
    isolated = np.flatnonzero(finite[1:-1] & ~finite[:-2] & ~finite[2:]).tolist()
    if isolated:  # a line through one point is invisible
        line.set(marker=".", markevery=isolated)
    low = high = None
    if ours and count > 1:  # the authors' range is left out: two bands of one colour could not be told apart
        low, high = style.rounded(seeds.min(axis=1)), style.rounded(seeds.max(axis=1))
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    runs = tuple(frame.run_id.unique()) if "run_id" in frame else ()
    style.record(axes).series.append(style.Series(group, label, shade, linestyle, at, means, low, high, runs))
    return line


def draw_authors(
    axes: Axes, authors: pd.DataFrame, factor: float, palette: Mapping[str, str]
) -> dict[str, Line2D | None]:
    """Draw a dashed line per optimiser, at the learning rate that the authors chose."""
    lines = {}
    for optim in style.in_order(authors.optim):
        theirs, name = authors[authors.optim == optim], style.name(optim)
        label = f"{name}, authors{rate_text(theirs.lr.iloc[0])}"
        lines[optim] = draw(axes, theirs, "epoch", factor, palette[optim], name, label, style.THEIRS)
    return lines


@style.house_style()
def learning_curves(evidence: Evidence) -> Figure:
    """A panel per task and variant, each optimiser at its leading learning rate."""
    figure, panels = panels_of_rows(evidence, evidence.experiment.title, SIZE)
    palette = style.colours(state.cell.optim for state in evidence.states)
    for axes, row, states in panels:
        metrics = [run["metric"] for state in states for run in state.logged.values()]
        key = metrics[0]["key"] if metrics else ""
        metric = shown_metric(metrics[0], row.task) if metrics else None
        factor = metric.scale if metric else 1.0
        draw_curves(axes, cells.row_text(row), with_variants(states, palette), evidence.curves, key, factor=factor)
        axes.set(xlabel="epoch", ylabel=metric.label if metric else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if metric and metric.goal == "min":
            fit_log_scale(axes)
        style.legend_below(axes)
    return finish(figure)


def fit_log_scale(axes: Axes) -> None:
    """For errors, perplexities and the like, if all are positive and they differ much."""
    drawn = [
        (series.x[shown], series.mean[shown])
        for series in style.record(axes).series
        if (shown := np.isfinite(series.mean)).any()
    ]
    values = np.concatenate([mean for _, mean in drawn] or [np.array([])])
    if len(values) and values.max() > LOG_FROM * values.min() > 0:
        length = max(float(x[-1]) for x, _ in drawn)
        LogScale(plain_ticks, (values.min(), math.inf), round(length), round(START * length), SHARE).fit([axes])


def panels_of_rows(
    evidence: Evidence, title: str, size: tuple[float, float]
) -> tuple[Figure, list[tuple[Axes, cells.RowKey, list[CellState]]]]:
    """An empty figure with a panel per row of the experiment."""
    if any(cells.is_embedded(state.cell) for state in evidence.states):
        title = f"{title} (embedded data, not the paper's)"
    rows = cells.rows(evidence.states)
    figure, panels = style.panels_for(len(rows), 3, title, size)
    return figure, [(axes, row, states) for axes, (row, states) in zip(panels, rows.items(), strict=True)]
