"""Learning curves of any experiment: its metric against the epoch."""

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nero.report import cells
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import Notes, draw_optimizers
from nero.report.units import is_ratio, shown_metric

COLUMNS = 3


@style.house_style()
def learning_curves(evidence: Evidence) -> Figure:
    """A panel per task and variant, each optimiser at its leading learning rate."""
    title = evidence.experiment.title
    if any(cells.is_embedded(state.cell) for state in evidence.states):
        title = f"{title} (embedded data, not the paper's)"
    rows = cells.rows(evidence.states)
    across = min(len(rows), COLUMNS)
    figure, panels = style.panels(-(-len(rows) // across), across, title)
    for spare in panels[len(rows) :]:
        spare.remove()
    for axes, (row, states) in zip(panels, rows.items(), strict=False):
        notes = Notes()
        metrics = [run["metric"] for state in states for run in state.logged.values()]
        key = metrics[0]["key"] if metrics else ""
        draw_optimizers(axes, states, evidence.curves, key, notes)
        if is_ratio(key):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel="epoch", ylabel=shown_metric(metrics[0]).label if metrics else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.set_title(axes, cells.row_text(row), notes.lines())
        style.legend_below(axes)
    return style.freeze_layout(figure)
