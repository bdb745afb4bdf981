"""Sensitivity to the learning rate: the final metric of every run of every search."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nero.plans.plan import Cell, CellState, Summary, best_lr
from nero.report import cells
from nero.report.cells import CellStatus
from nero.report.figures import style
from nero.report.tables.sheets import EMBEDDED, Line, Printed, RunLink, Sheet, Text, exact, row_label
from nero.report.units import DECIMALS, number, rate, shown_metric
from nero.runs.store import Status

CLOSE = 0.1  # relative distance from the best result of a search that still counts as close
NOTES = (
    "The metric at the end of training at every learning rate of a search, with one seed. The best of each line is "
    "bold; a dash marks a rate that the search does not have. "
    f"Close: the number of logged rates whose result is within {CLOSE:.0%} of the best. "
    "Learning rates of different optimisers are not comparable: compare only the shapes of lines."
)

# The runs at all learning rates searched with otherwise the same settings and seed, and the first cell with any.
Search = Mapping[float, Summary | None]
Grid = tuple[Cell, Search]


def sensitivity(states: Iterable[CellState]) -> Printed:
    """Every search of more than one learning rate, grouped by task and settings."""
    grids = _grids(states)
    lrs = sorted({lr for _, search in grids for lr in search})
    rows: dict[cells.RowKey, list[Grid]] = {}
    for cell, search in grids:
        rows.setdefault(cells.CellKey.of(cell).row, []).append((cell, search))
    blocks = [_block(row, of_row, lrs) for row, of_row in rows.items()]
    heads = [*("task", "metric", "precision", "optimiser"), *(f"η = {rate(lr)}" for lr in lrs), "close"]
    records = tuple(_record(cell, search, lr) for cell, search in grids for lr in search)
    warning = EMBEDDED if any(cells.is_embedded(cell) for cell, _ in grids) else ""
    return Printed(
        name="sensitivity",
        title="Final metric at every learning rate",
        sheet=Sheet(heads, blocks, 4),
        notes=NOTES,
        records=records,
        warning=warning,
        narrow=Sheet(["task", "optimiser", *map(rate, lrs), "close"], list(map(_narrow_block, blocks)), 2),
    )


def _narrow_block(block: Sequence[Line]) -> list[Line]:
    """The metric and the precision below the name of the task; another precision beside the optimiser."""
    usual = Counter(line[2].value for line in block).most_common(1)[0][0]
    lines: list[Line] = []
    for task, metric, precision, optim, *finals in block:
        detail = ", ".join(filter(None, [metric.value, style.precision(usual)]))
        own = style.precision(precision.value) if precision.value != usual else ""
        lines.append([task._replace(detail="" if lines else detail), optim._replace(detail=own), *finals])
    return lines


def _grids(states: Iterable[CellState]) -> list[Grid]:
    """Merge the searches of experiments that share runs: one may have rates that another does not."""
    found: dict[object, tuple[Cell, dict[float, Summary | None]]] = {}
    for state in states:
        cell = state.cell
        # Cells whose runs at one rate, whichever, have the same id differ only in their rates.
        same = cell.all_overrides if cell.missing_config else cell.run(1.0, cell.search_seed).run_id
        found.setdefault(same, (cell, {}))[1].update(state.search)
    return [(cell, dict(sorted(search.items()))) for cell, search in found.values() if len(search) > 1]


def _block(row: cells.RowKey, grids: Sequence[Grid], lrs: Sequence[float]) -> list[Line]:
    metrics = [run["metric"] for _, search in grids for run in search.values() if run is not None]
    metric = shown_metric(metrics[0], row.task) if metrics else None
    digits = metric.digits if metric else DECIMALS
    order = style.in_order(cell.optim for cell, _ in grids)
    lines: list[Line] = []
    for cell, search in sorted(grids, key=lambda grid: order.index(grid[0].optim)):
        first = [Text(""), Text("")] if lines else [row_label(row), Text(metric.heading if metric else "")]
        whose = [Text(cells.precision(cell) or ""), Text(style.name(cell.optim))]
        finals = (_final(_record(cell, search, lr), digits) if lr in search else Text("-") for lr in lrs)
        lines.append([*first, *whose, *finals, Text(_close(search))])
    return lines


def _final(record: Mapping[str, str], digits: int) -> Text:
    if not record["run"]:
        return Text(record["status"])
    *name, lr = (record[key] for key in ("task", "label", "variant", "optim", "precision", "lr"))
    return Text(
        number(float(record["final"]), digits) if record["final"] else record["status"],
        rank=1 if record["leads"] == "1" else None,
        link=RunLink(f"seed {record['seed']}", record["task"], record["run"]),
        cell="|".join((*name, rate(float(lr)))),
    )


def _close(search: Search) -> str:
    runs = {lr: run for lr, run in search.items() if run is not None}
    finals = {lr: run["final"] for lr, run in runs.items() if not cells.has_diverged(run)}
    best = finals.get(best_lr(search) or 0.0)
    if best is None:
        return ""
    return f"{sum(abs(final - best) <= CLOSE * abs(best) for final in finals.values())} of {len(runs)}"


def _record(cell: Cell, search: Search, lr: float) -> dict[str, str]:
    run = search[lr]
    metric, final, status = None, None, str(CellStatus.MISSING)
    if run:
        metric = shown_metric(run["metric"], cell.task)
        status = Status.DIVERGED if cells.has_diverged(run) else Status.DONE
        final = None if cells.has_diverged(run) else metric.scale * run["final"]
    return {
        "task": cell.task,
        "label": cell.label,
        "variant": cells.variant_as_typed(cell.variant),
        "optim": cell.optim,
        "precision": cells.precision(cell) or "",
        "lr": exact(lr),
        "seed": str(cell.search_seed),
        "metric": metric.label if metric else "",
        "goal": metric.goal if metric else "",
        "status": status,
        "final": exact(final),
        "leads": str(int(lr == best_lr(search))),
        "run": run["run_id"] if run else "",
    }
