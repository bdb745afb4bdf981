"""All tables and figures of the theory, from the records under results/theory."""

from pathlib import Path

from matplotlib.figure import Figure

from nero.report import files
from nero.report.tables.sheets import Printed
from nero.report.theory.angle_figures import bound_figure, robustness_figure
from nero.report.theory.balance_table import balance_table
from nero.report.theory.bound_table import bound_table
from nero.report.theory.evidence import Evidence, gather
from nero.report.theory.layer_figures import activations_figure, balance_figure
from nero.report.theory.robustness_table import robustness_table
from nero.report.theory.step_figures import steps_figure, trust_figure
from nero.report.theory.steps_table import steps_table

TABLES = (balance_table, steps_table, robustness_table, bound_table)
BY_TASK = {"theory_balance": (balance_figure, "networks"), "theory_activations": (activations_figure, "activations")}
"""Figures of which each task has its own (theory_balance_mnist_mlp100), and the part of a record that they show."""

FIGURES = {
    "theory_trust": trust_figure,
    "theory_steps": steps_figure,
    "theory_robustness": robustness_figure,
    "theory_bound": bound_figure,
}


def make_tables(folder: Path, store: Path | None = None) -> tuple[Printed, ...]:
    """From the records under `folder`, with links to runs that `store` has, which by default is `runs` beside it."""
    evidence = gather(folder, store or folder.parent / "runs")
    return tuple(table(evidence) for table in TABLES)


def make_figures(folder: Path) -> dict[str, Figure]:
    """By the names of their files."""
    evidence = gather(folder)
    made: dict[str, Figure] = {}
    for name in BY_TASK:
        made |= _of_tasks(evidence, name)
    return made | {name: figure(evidence) for name, figure in FIGURES.items()}


def _of_tasks(evidence: Evidence, name: str) -> dict[str, Figure]:
    """One for each task that has what it shows; where none has, one that says so."""
    figure, key = BY_TASK[name]
    tasks = dict.fromkeys(group.task for group in evidence.networks if group.having(key))
    return {f"{name}_{task}": figure(evidence.of(task)) for task in tasks} or {name: figure(evidence)}


def make(folder: Path, store: Path | None = None) -> tuple[tuple[Printed, ...], dict[str, Figure]]:
    """Tables and figures."""
    return make_tables(folder, store), make_figures(folder)


def theory_texts(folder: Path, runs: str = "../runs", store: Path | None = None) -> dict[Path, bytes]:
    """Path under the results folder -> content, of the tables: the same records give the same bytes anywhere.

    runs: where the store lies from the tables, for links
    """
    return {
        path: data for printed in make_tables(folder, store) for path, data in files.table_files(printed, runs).items()
    }


def theory_files(folder: Path, runs: str = "../runs", store: Path | None = None) -> dict[Path, bytes]:
    """The tables and the figures."""
    return theory_texts(folder, runs, store) | files.figure_files(make_figures(folder))
