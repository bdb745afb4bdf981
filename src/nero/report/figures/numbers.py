"""Markdown tables of a figure's numbers: points on curves, final values of seeds, and learning rate searches."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from nero.plans.plan import CellState, Summary
from nero.report import cells
from nero.report.figures.curves import Curve, at_leading
from nero.report.tables.sheets import markdown_line, markdown_text
from nero.report.units import number, rate, scale


def document(figure: str, *parts: str) -> str:
    """A Markdown document of these tables and paragraphs."""
    return "\n\n".join([f"# {figure} in numbers", *parts]) + "\n"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    texts = ([markdown_text(word) for word in line] for line in (heads, ["---"] * len(heads), *lines))
    return "\n".join(map(markdown_line, texts))


def numbers_of_curves(
    figure: str,
    head: str,
    curves: Sequence[Curve],
    frame: pd.DataFrame,
    keys: Sequence[str],
    points: Mapping[str, float],
    notes: str,
    quantity: str,
    *remarks: str,
    x: str = "epoch",
    near: float = 0.0,
) -> str:
    """Means over seeds at these points of `x`, and the final values of all seeds and of searches: the first key's.

    The means are of all `keys`, such as "9.1 / 8.7"; n is the number of seeds of the first. A point stands for what is
    logged `near` it. Raises for embedded data.
    """
    cells.require_real(curve.state for curve in curves)
    lines = []
    for curve in curves:
        ours = [(at_leading(curve.state, frame, key), key) for key in keys]
        ended = why_ended(curve.state)
        means = [" / ".join(mean_at(*each, x, at, ended, near) for each in ours) for at in points.values()]
        lines.append([curve.name, cells.leading_text(curve.state), str(ours[0][0].seed.nunique()), *means])
    parts = [table([head, "η", "n", *points], lines), notes, seed_table(curves, quantity, keys[0])]
    if searched := [curve for curve in curves if len(curve.state.search) > 1]:
        parts.append(search_table(searched, quantity, keys[0]))
    return document(figure, *parts, *remarks)


def epochs(*numbers: int) -> dict[str, float]:
    """Points of `numbers_of_curves`."""
    return {f"epoch {epoch}": epoch for epoch in numbers}


def mean_at(frame: pd.DataFrame, key: str, x: str, at: float, ended: str, near: float = 0.0) -> str:
    """Mean of `key` over seeds where `x` is `at`, or `near` it; `ended` where some seed has no value there."""
    nearest = min(frame[x].unique(), key=lambda logged: abs(logged - at), default=math.inf)
    values = frame[frame[x] == nearest].value
    if abs(nearest - at) > near or len(values) < frame.seed.nunique():
        return ended
    return shown(key, values.mean()) if values.notna().all() else "not finite"


def why_ended(state: CellState) -> str:
    """Why a cell's curves may end early."""
    return "diverged" if "diverged" in cells.problems(state) else "missing"


def search_table(
    curves: Sequence[Curve],
    quantity: str,
    key: str,
    authors: Callable[[int], Mapping[tuple[str, float], float | str]] | None = None,
) -> str:
    """Final values of the search: a line per cell, a column per learning rate.

    `authors` maps a seed to the authors' final values, or text, by optimiser and learning rate: they stand beside ours.
    """
    [seed] = {curve.cell.search_seed for curve in curves}
    theirs = authors(seed) if authors else {}
    lrs = sorted({lr for curve in curves for lr in curve.state.search})
    lines = []
    for curve in curves:
        finals = [_final(curve.state.search.get(lr), key) for lr in lrs]
        if authors:
            others = [theirs.get((curve.cell.optim, lr), "not logged") for lr in lrs]
            texts = [other if isinstance(other, str) else shown(key, other) for other in others]
            finals = [f"{mine} / {text}" for mine, text in zip(finals, texts, strict=True)]
        lines.append([curve.name, *finals])
    title = f"Final {quantity} of the search, seed {seed}" + (", ours / the authors':" if authors else ":")
    return f"{title}\n\n{table(['', *(f'η = {rate(lr)}' for lr in lrs)], lines)}"


def seed_table(curves: Sequence[Curve], quantity: str, key: str) -> str:
    """Final values at the leading learning rate: a line per cell, a column per seed."""
    seeds = sorted({seed for curve in curves for seed in curve.cell.seeds})
    lines = [[curve.name, *(_final(curve.state.at_leading.get(seed), key) for seed in seeds)] for curve in curves]
    title = f"Final {quantity} of each seed at that learning rate:"
    return f"{title}\n\n{table(['', *(f'seed {seed}' for seed in seeds)], lines)}"


def _final(run: Summary | None, key: str) -> str:
    return "missing" if run is None else "diverged" if cells.has_diverged(run) else shown(key, run["final"])


def shown(key: str, value: float) -> str:
    """A logged value of `key` as tables show it."""
    return number(scale(key) * value)
