"""How much the end of training depends on the learning rate: every grid that was searched, run by run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.plan import Cell, CellState, Summary, best_lr
from nero.report import cells
from nero.report.figures import style
from nero.report.tables.csv_format import exact
from nero.report.tables.formats import EMBEDDED
from nero.report.tables.sheets import Line, Printed, RunLink, Sheet, Text, row_label
from nero.report.units import number, rate, scale, shown_metric

NAME = "sensitivity"
TITLE = "Final metric over the whole grid of learning rates"
CLOSE = 0.1
"""How far from the best of its grid, in parts of it, an end still counts as close."""

ANY_RATE = 1.0

NOTES = (
    "The metric at the end of training of each search's one seed, over all of its grid. The best of each line is bold; "
    "a dash stands for a rate that was not asked for. "
    f"Close: how many rates, of those that are in, end no more than {CLOSE:.0%} of the best end's size from it. "
    "A learning rate means another thing for each optimiser, so that lines are to be compared by their shape alone."
)


@dataclass(frozen=True)
class Grid:
    """All learning rates that were asked for of the same runs otherwise, with one seed."""

    cell: Cell  # the first that asks for some of them
    search: Mapping[float, Summary | None]

    @property
    def finals(self) -> dict[float, float]:
        """Of the runs with a finite end."""
        return {lr: run["final"] for lr, run in self.search.items() if run is not None and not cells.has_diverged(run)}

    @property
    def leading_lr(self) -> float | None:
        return best_lr(self.search)


def sensitivity(states: Iterable[CellState]) -> Printed:
    """Every search of more than one learning rate; those of one task and its settings stand together."""
    grids = _grids(states)
    lrs = sorted({lr for grid in grids for lr in grid.search})
    rows: dict[cells.RowKey, list[Grid]] = {}
    for grid in grids:
        rows.setdefault(cells.CellKey.of(grid.cell).row, []).append(grid)
    blocks = [_block(row, of_row, lrs) for row, of_row in rows.items()]
    heads = ["task", "metric", "arithmetic", "optimiser", *(f"η = {rate(lr)}" for lr in lrs), "close"]
    records = [record for grid in grids for record in _records(grid)]
    warning = EMBEDDED if any(cells.is_embedded(grid.cell) for grid in grids) else ""
    return Printed(NAME, TITLE, Sheet(heads, blocks, 4), NOTES, tuple(records), warning)


def _grids(states: Iterable[CellState]) -> list[Grid]:
    """Experiments share runs, and one may search rates that another does not: they are of one grid."""
    found: dict[object, tuple[Cell, dict[float, Summary | None]]] = {}
    for state in states:
        cell = state.cell
        # Cells that would give the same run the same id differ in their rates alone.
        same = cell.words if cell.to_come else cell.run(ANY_RATE, cell.search_seed).run_id
        found.setdefault(same, (cell, {}))[1].update(state.search)
    return [Grid(cell, dict(sorted(search.items()))) for cell, search in found.values() if len(search) > 1]


def _block(row: cells.RowKey, grids: Sequence[Grid], lrs: Sequence[float]) -> list[Line]:
    metrics = [run["metric"] for grid in grids for run in grid.search.values() if run is not None]
    heading = shown_metric(metrics[0]).heading if metrics else ""
    order = style.in_order(grid.cell.optim for grid in grids)
    lines: list[Line] = []
    for grid in sorted(grids, key=lambda grid: order.index(grid.cell.optim)):
        first = [Text(""), Text("")] if lines else [row_label(row), Text(heading)]
        whose = [Text(cells.precision(grid.cell) or ""), Text(style.name(grid.cell.optim))]
        lines.append([*first, *whose, *(_end(grid, lr) for lr in lrs), _close(grid)])
    return lines


def _end(grid: Grid, lr: float) -> Text:
    if lr not in grid.search:
        return Text("-")
    run = grid.search[lr]
    if run is None:
        return Text("missing")
    link = RunLink.to(run, f"seed {run['seed']}")
    shown = _shown(run)
    rank = 1 if lr == grid.leading_lr else None
    return Text("diverged" if shown is None else number(shown), rank=rank, link=link, cell=_name(grid.cell, lr))


def _name(cell: Cell, lr: float) -> str:
    variant, precision = cells.variant_text(cell.variant), cells.precision(cell) or ""
    return "|".join((cell.task, cell.label, variant, cell.optim, precision, rate(lr)))


def _close(grid: Grid) -> Text:
    if grid.leading_lr is None or grid.leading_lr not in grid.finals:
        return Text("")
    best = grid.finals[grid.leading_lr]
    near = sum(abs(final - best) <= CLOSE * abs(best) for final in grid.finals.values())
    return Text(f"{near} of {sum(run is not None for run in grid.search.values())}")


def _records(grid: Grid) -> Iterator[dict[str, str]]:
    for lr, run in grid.search.items():
        metric = shown_metric(run["metric"]) if run else None
        yield {
            "task": grid.cell.task,
            "label": grid.cell.label,
            "variant": cells.variant_text(grid.cell.variant),
            "optim": grid.cell.optim,
            "precision": cells.precision(grid.cell) or "",
            "lr": exact(lr),
            "seed": str(grid.cell.search_seed),
            "metric": metric.label if metric else "",
            "goal": metric.goal if metric else "",
            "status": "missing" if run is None else "diverged" if cells.has_diverged(run) else "done",
            "final": exact(_shown(run)) if run else "",
            "leads": str(int(lr == grid.leading_lr)),
            "run": run["run_id"] if run else "",
        }


def _shown(run: Summary) -> float | None:
    """Where the run ended, in the unit that tables show; None where that is nowhere finite."""
    return None if cells.has_diverged(run) else scale(run["metric"]["key"]) * float(run["final"])
