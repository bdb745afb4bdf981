"""All tables and figures of the theory, from the records under results/theory."""

from pathlib import Path

from matplotlib.figure import Figure

from nero.report import files
from nero.report.tables.sheets import Printed
from nero.report.theory.bound import bound_figure, bound_table
from nero.report.theory.evidence import gather
from nero.report.theory.layers import activations_figure, balance_figure, balance_table
from nero.report.theory.robustness import robustness_figure, robustness_table
from nero.report.theory.steps import steps_figure, steps_table, trust_figure

TABLES = (balance_table, steps_table, robustness_table, bound_table)
# Figures with a file per task (theory_balance_mnist_mlp100), and the part of a record that they show.
BY_TASK = {"theory_balance": (balance_figure, "networks"), "theory_activations": (activations_figure, "activations")}
FIGURES = {
    "theory_trust": trust_figure,
    "theory_steps": steps_figure,
    "theory_robustness": robustness_figure,
    "theory_bound": bound_figure,
}


def make_tables(folder: Path, store: Path | None = None) -> tuple[Printed, ...]:
    """Tables of the records under `folder`, with links to runs in `store`, by default `runs` beside it."""
    evidence = gather(folder, store or folder.parent / "runs")
    return tuple(table(evidence) for table in TABLES)


def make_figures(folder: Path) -> dict[str, Figure]:
    """Figures by file name; one per task stays a single empty one where no task has what it shows."""
    evidence = gather(folder)
    made: dict[str, Figure] = {}
    for name, (figure, key) in BY_TASK.items():
        tasks = dict.fromkeys(group.task for group in evidence.measured(key))
        made |= {f"{name}_{task}": figure(evidence.of_task(task)) for task in tasks} or {name: figure(evidence)}
    return made | {name: figure(evidence) for name, figure in FIGURES.items()}


def make(folder: Path, store: Path | None = None) -> tuple[tuple[Printed, ...], dict[str, Figure]]:
    """Tables and figures."""
    return make_tables(folder, store), make_figures(folder)


def theory_texts(folder: Path) -> dict[Path, bytes]:
    """Files of the tables by path under the results folder; the same records give the same bytes anywhere."""
    return {path: data for table in make_tables(folder) for path, data in files.table_files(table, "../runs").items()}


def theory_files(folder: Path) -> dict[Path, bytes]:
    """Files of the tables and the figures."""
    return theory_texts(folder) | files.figure_files(make_figures(folder))
