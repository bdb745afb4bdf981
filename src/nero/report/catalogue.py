"""What the report makes of each experiment: its table, its figures, and the numbers of figures. Add entries here.

Every maker takes one argument, the `Evidence` of the experiment.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from matplotlib.figure import Figure

from nero.plans.config import ROOT
from nero.plans.plan import CellState, Summary, load_experiment, survey
from nero.report import paper
from nero.report.evidence import Evidence
from nero.report.figures import figure3, figure4, figure6, figure7, figure8, figure9
from nero.report.figures.cifar import figure1, figure2, figure5
from nero.report.figures.learning_curves import learning_curves
from nero.report.figures.samples import samples
from nero.report.tables import constraints, imagenet_settings
from nero.report.tables.costs import RUNS_NAME, cost_of_experiment, costs, costs_of_runs
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import Printed
from nero.report.tables.table import Table, build_table
from nero.runs.store import Store


def table1(evidence: Evidence) -> Table:
    return build_table(evidence, paper.table1())


def ablation(evidence: Evidence) -> Table:
    return build_table(evidence, paper.ablation(), constraints.LISTING)


def mnist(evidence: Evidence) -> Table:
    return build_table(evidence, paper.mnist())


def imagenet(evidence: Evidence) -> Table:
    return build_table(evidence, paper.imagenet(), imagenet_settings.LISTING)


def checks(evidence: Evidence) -> Table:
    return build_table(evidence, paper.checks(evidence.experiment.cells))


@dataclass(frozen=True)
class Contents:
    """What is made of an experiment; figures and numbers by file name."""

    table: Callable[[Evidence], Table] = build_table
    figures: Mapping[str, Callable[[Evidence], Figure]] = field(default_factory=dict)
    numbers: Mapping[str, Callable[[Evidence], str]] = field(default_factory=dict)  # as Markdown
    samples: str = ""  # which of the figures shows samples of its GANs


CATALOGUE: dict[str, Contents] = {
    "table1": Contents(
        table1,
        {
            "figure4": figure4.figure4,
            "figure4_samples": samples,
            "figure5": figure5,
            "figure6": figure6.figure6,
            "figure7": figure7.figure7,
        },
        {"figure4": figure4.numbers, "figure6": figure6.numbers, "figure7": figure7.numbers},
        samples="figure4_samples",
    ),
    "ablation": Contents(ablation, {"figure1": figure1, "figure2": figure2}),
    "mnist": Contents(mnist, {"figure3": figure3.figure3}, {"figure3": figure3.numbers}),
    "pong": Contents(table1, {"figure8": figure8.figure8}, {"figure8": figure8.numbers}),
    "imagenet": Contents(imagenet, {"figure9": figure9.figure9}, {"figure9": figure9.numbers}),
    "checks": Contents(checks, {"checks": learning_curves}),
}
"""By experiment, the paper's tables first. The default report has all of them."""

ON_REQUEST: dict[str, Contents] = {
    "smoke": Contents(figures={"smoke": learning_curves, "samples": samples}, samples="samples")
}
"""Experiments that are reported only when they are named: their runs are in another store.

An experiment without an entry gets its table and its learning curves, without numbers of the paper.
"""


def default_store() -> Store:
    """The store at NERO_RUNS, else the committed runs."""
    return Store(os.environ.get("NERO_RUNS") or ROOT / "results" / "runs")


def gather(name: str, store: Store, summaries: Mapping[str, Summary] | None = None) -> Evidence:
    """Look up the runs of `experiments/<name>.yaml` in a store; pass `summaries` if they have been read already."""
    experiment = load_experiment(name)
    found = store.summaries() if summaries is None else summaries
    return Evidence(experiment, tuple(survey(cell, found) for cell in experiment.cells), found, store)


class Highlight(NamedTuple):
    """A figure on the front page."""

    tasks: tuple[str, ...]  # whose runs it shows
    caption: str


HIGHLIGHTS = {
    "figure5": Highlight((paper.VGG11, paper.RESNET18), "Figure 5, CIFAR-10: our curves and the paper's final errors"),
    "figure7": Highlight((paper.MULTI30K,), "Figure 7, translation: our curves and the authors'"),
    "figure8": Highlight((paper.PONG,), "Figure 8, Pong: our curves and the paper's final rewards"),
    "figure4_samples": Highlight((paper.CGAN,), "Samples of the four GANs of Figure 4 from the same z over the epochs"),
    "figure3": Highlight((paper.REPARAM, paper.DEEP), "Figure 3, MNIST: our curves and the authors'"),
}
"""By file name, in the order of the front page."""


def highlights(experiments: Iterable[Evidence]) -> dict[str, str]:
    """Captions of those HIGHLIGHTS that show at least one run of these experiments."""
    logged: dict[str, set[str]] = {}  # figure -> tasks with a logged run
    for evidence in experiments:
        tasks = {state.cell.task for state in evidence.states if state.logged}
        for name in _contents(evidence).figures:
            logged.setdefault(name, set()).update(tasks)
    return {name: each.caption for name, each in HIGHLIGHTS.items() if logged.get(name, set()).intersection(each.tasks)}


def make_table(evidence: Evidence) -> Table:
    return _contents(evidence).table(evidence)


def make_figures(evidence: Evidence) -> dict[str, Figure]:
    """Every figure of the experiment by file name."""
    return {name: make(evidence) for name, make in _contents(evidence).figures.items()}


def make_numbers(evidence: Evidence) -> dict[str, str]:
    """The numbers of figures as Markdown, by file name."""
    return {name: make(evidence) for name, make in _contents(evidence).numbers.items()}


def sampled(experiments: Sequence[Evidence]) -> Sequence[CellState]:
    """Cells of the first experiment with a figure of samples."""
    return next((evidence.states for evidence in experiments if sample_figure(evidence)), ())


def sample_figure(evidence: Evidence) -> str:
    """The name of the experiment's figure of samples, or an empty string."""
    return _contents(evidence).samples


def make_overviews(experiments: Sequence[Evidence]) -> tuple[Printed, ...]:
    """Tables over several experiments; runs that they share count once."""
    by_experiment = [cost_of_experiment(each.experiment, each.states, each.summaries) for each in experiments]
    return sensitivity(_states(experiments)), costs(_states(experiments), by_experiment)


def make_records(experiments: Sequence[Evidence]) -> dict[str, Sequence[Mapping[str, str]]]:
    """Overviews run by run, for CSV files, by file name."""
    return {RUNS_NAME: costs_of_runs(_states(experiments))}


def _states(experiments: Sequence[Evidence]) -> list[CellState]:
    return [state for evidence in experiments for state in evidence.states]


def _contents(evidence: Evidence) -> Contents:
    name = evidence.experiment.name
    return CATALOGUE.get(name) or ON_REQUEST.get(name) or Contents(figures={name: learning_curves})
