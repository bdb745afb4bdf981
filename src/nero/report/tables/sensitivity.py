"""Sensitivity to the learning rate: the final metric of every run of every search."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nero.plans.plan import Cell, CellState, Summary, best_lr
from nero.report import cells
from nero.report.cells import CellStatus
from nero.report.figures import style
from nero.report.tables.sheets import EMBEDDED, Line, Printed, RunLink, Sheet, Text, exact, row_label
from nero.report.units import number, rate, scale, shown_metric
from nero.runs.store import Status

NAME = "sensitivity"
TITLE = "Final metric at every learning rate"
CLOSE = 0.1
"""Relative distance from the best result of a search that still counts as close."""

ANY_RATE = 1.0

NOTES = (
    "The metric at the end of training at every learning rate of a search, with one seed. The best of each line is "
    "bold; a dash marks a rate that the search does not have. "
    f"Close: the number of logged rates whose result is within {CLOSE:.0%} of the best. "
    "Learning rates of different optimisers are not comparable: compare only the shapes of lines."
)


@dataclass(frozen=True)
class Grid:
    """All learning rates searched with otherwise the same settings and seed."""

    cell: Cell  # the first that has some of them
    search: Mapping[float, Summary | None]

    @property
    def finals(self) -> dict[float, float]:
        """Of the runs that did not diverge."""
        return {lr: run["final"] for lr, run in self.search.items() if run is not None and not cells.has_diverged(run)}

    @property
    def leading_lr(self) -> float | None:
        return best_lr(self.search)


def sensitivity(states: Iterable[CellState]) -> Printed:
    """Every search of more than one learning rate, grouped by task and settings."""
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
    """Merge the searches of experiments that share runs: one may have rates that another does not."""
    found: dict[object, tuple[Cell, dict[float, Summary | None]]] = {}
    for state in states:
        cell = state.cell
        # Cells whose runs at one rate have the same id differ only in their rates.
        same = cell.all_overrides if cell.missing_config else cell.run(ANY_RATE, cell.search_seed).run_id
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
        lines.append([*first, *whose, *(_final(grid, lr) for lr in lrs), _close(grid)])
    return lines


def _final(grid: Grid, lr: float) -> Text:
    if lr not in grid.search:
        return Text("-")
    run = grid.search[lr]
    if run is None:
        return Text(CellStatus.MISSING)
    link = RunLink.to(run, f"seed {run['seed']}")
    shown = _shown(run)
    rank = 1 if lr == grid.leading_lr else None
    return Text(
        CellStatus.DIVERGED if shown is None else number(shown), rank=rank, link=link, cell=_name(grid.cell, lr)
    )


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
        finished = Status.DIVERGED if run and cells.has_diverged(run) else Status.DONE
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
            "status": finished if run else CellStatus.MISSING,
            "final": exact(_shown(run)) if run else "",
            "leads": str(int(lr == grid.leading_lr)),
            "run": run["run_id"] if run else "",
        }


def _shown(run: Summary) -> float | None:
    """The final value in the unit of tables; None if it is not finite."""
    return None if cells.has_diverged(run) else scale(run["metric"]["key"]) * float(run["final"])
