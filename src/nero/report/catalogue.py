"""What the report makes of each experiment: its table, its figures, and the numbers of figures. Add entries here.

Every maker takes one argument, the `Evidence` of the experiment.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from nero.plans.plan import Summary, load_experiment, survey
from nero.plans.stores import COMMITTED, named_store
from nero.report import paper
from nero.report.evidence import Evidence
from nero.report.figures import figure3, figure4, figure8, figure9, language
from nero.report.figures.cifar import figure1, figure2, figure5
from nero.report.figures.curves import learning_curves
from nero.report.figures.samples import samples
from nero.report.figures.sensitivity import sensitivity_curves
from nero.report.tables import listings
from nero.report.tables.costs import cost_of_experiment, costs
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import Printed
from nero.report.tables.table import Table, build_table
from nero.runs.store import Store


class Contents(NamedTuple):
    """What is made of an experiment; figures and numbers by file name."""

    table: Callable[[Evidence], Table] = build_table
    figures: Mapping[str, Callable[[Evidence], Figure]] = {}
    numbers: Mapping[str, Callable[[Evidence], str]] = {}  # as Markdown


def usual_table(evidence: Evidence) -> Table:
    """The table of any experiment, with the paper's numbers for cells of Table 1 and Figure 3 on real data."""
    return build_table(evidence, paper.of_cells([state.cell for state in evidence.states]))


def usual_contents(name: str) -> Contents:
    return Contents(usual_table, {name: learning_curves, f"{name}_sensitivity": sensitivity_curves})


CATALOGUE: dict[str, Contents] = {
    "table1": Contents(
        lambda evidence: build_table(evidence, paper.table1()),
        {
            "figure4": figure4.figure4,
            "figure4_samples": samples,
            "figure5": figure5,
            "figure6": language.figure6,
            "figure7": language.figure7,
            "learning_rates": sensitivity_curves,
        },
        {"figure4": figure4.numbers, "figure6": language.figure6_numbers, "figure7": language.figure7_numbers},
    ),
    "ablation": Contents(
        lambda evidence: build_table(evidence, paper.ablation(), listings.ABLATION),
        {"figure1": figure1, "figure2": figure2},
    ),
    "mnist": Contents(
        lambda evidence: build_table(evidence, paper.mnist()),
        {"figure3": figure3.figure3},
        {"figure3": figure3.numbers},
    ),
    "pong": Contents(
        lambda evidence: build_table(evidence, paper.table1()),
        {"figure8": figure8.figure8},
        {"figure8": figure8.numbers},
    ),
    "imagenet": Contents(
        lambda evidence: build_table(evidence, paper.imagenet(), listings.IMAGENET),
        {"figure9": figure9.figure9},
        {"figure9": figure9.numbers},
    ),
    "checks": Contents(
        lambda evidence: build_table(evidence, paper.checks(evidence.experiment.cells)),
        {"checks": learning_curves},
    ),
    "modern": usual_contents("modern"),
    "pipeline": Contents(
        lambda evidence: build_table(evidence, listing=listings.IMAGENET), {"pipeline": figure9.pipeline}
    ),
}
"""By experiment, the paper's tables first. The default report has all of them."""

ON_REQUEST: dict[str, Contents] = {"smoke": Contents(figures={"smoke": learning_curves, "samples": samples})}
"""Experiments that are reported only when they are named: their runs are in another store.

An experiment without an entry gets `usual_contents`.
"""


def contents(name: str) -> Contents:
    return CATALOGUE.get(name) or ON_REQUEST.get(name) or usual_contents(name)


def contents_of(evidence: Evidence) -> Contents:
    return contents(evidence.experiment.name)


def default_store() -> Store:
    """The store at NERO_RUNS, else the committed runs."""
    return Store(named_store() or COMMITTED)


def gather(name: str, store: Store, summaries: Mapping[str, Summary] | None = None) -> Evidence:
    """Look up the runs of `experiments/<name>.yaml` in a store; pass `summaries` if they have been read already."""
    experiment = load_experiment(name)
    found = store.summaries() if summaries is None else summaries
    return Evidence(experiment, tuple(survey(cell, found) for cell in experiment.cells), found, store)


def make_table(evidence: Evidence) -> Table:
    return contents_of(evidence).table(evidence)


def make_figures(evidence: Evidence) -> dict[str, Figure]:
    """Every figure of the experiment by file name."""
    return {name: make(evidence) for name, make in contents_of(evidence).figures.items()}


def make_numbers(evidence: Evidence) -> dict[str, str]:
    """The numbers of figures as Markdown, by file name."""
    return {name: make(evidence) for name, make in contents_of(evidence).numbers.items()}


def make_overviews(experiments: Sequence[Evidence]) -> tuple[Printed, ...]:
    """Tables over several experiments; runs that they share count once."""
    states = [state for evidence in experiments for state in evidence.states]
    by_experiment = [cost_of_experiment(each.experiment, each.states, each.summaries) for each in experiments]
    return sensitivity(states), costs(states, by_experiment)
