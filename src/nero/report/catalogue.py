"""What each experiment reports: its table, its figures, and figures in numbers. A new one joins by an entry here."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from nero.plans.config import ROOT
from nero.plans.plan import CellState, Summary, load_experiment, survey
from nero.report import disagreements, paper
from nero.report.evidence import Evidence
from nero.report.figures import figure3 as figures
from nero.report.figures import (
    figure3_numbers,
    figure4_numbers,
    figure6_numbers,
    figure7_numbers,
    figure8_numbers,
    figure9_numbers,
    sample_strips,
)
from nero.report.figures import figure4 as cgan_figure
from nero.report.figures import figure5 as cifar_figures
from nero.report.figures import figure6 as language_figures
from nero.report.figures import figure8 as pong_figure
from nero.report.figures import figure9 as imagenet_figure
from nero.report.tables import constraints, imagenet_settings
from nero.report.tables.costs import RUNS_NAME, cost_of_experiment, costs, costs_of_runs
from nero.report.tables.sensitivity import sensitivity
from nero.report.tables.sheets import Printed
from nero.report.tables.table import Listing, Table, build_table
from nero.runs.store import Store

Made = TypeVar("Made")


@dataclass(frozen=True)
class Contents:
    """What is reported of an experiment."""

    published: Callable[[], paper.Published] | None = None  # the paper's numbers for its table
    figures: Mapping[str, Callable[[Evidence], Figure]] = field(default_factory=dict)  # by file name
    numbers: Mapping[str, Callable[[Evidence], str]] = field(default_factory=dict)  # figures as Markdown, likewise
    listing: Listing | None = None  # where the table has a line for each cell
    samples: str = ""  # that one of the figures which shows what its GANs draw


def _learning_curves(evidence: Evidence) -> Figure:
    return figures.learning_curves(evidence.experiment.title, evidence.states, evidence.curves)


def _figure3(evidence: Evidence) -> Figure:
    return figures.figure3(evidence.states, evidence.curves, evidence.traces)


def _figure3_numbers(evidence: Evidence) -> str:
    return figure3_numbers.to_markdown(evidence.states, evidence.curves, evidence.traces)


def _figure6_numbers(evidence: Evidence) -> str:
    return figure6_numbers.to_markdown(evidence.states)


def _samples(evidence: Evidence) -> Figure:
    return sample_strips.samples(evidence.states, evidence.store)


def _of_epochs(make: Callable[[Sequence[CellState], pd.DataFrame], Made]) -> Callable[[Evidence], Made]:
    """What needs the cells and their curves by epoch."""
    return lambda evidence: make(evidence.states, evidence.curves)


CATALOGUE: dict[str, Contents] = {
    "table1": Contents(
        paper.table1,
        {
            "figure4": _of_epochs(cgan_figure.figure4),
            "figure4_samples": _samples,
            "figure5": _of_epochs(cifar_figures.figure5),
            "figure6": _of_epochs(language_figures.figure6),
            "figure7": _of_epochs(language_figures.figure7),
        },
        {
            "figure4": _of_epochs(figure4_numbers.to_markdown),
            "figure6": _figure6_numbers,
            "figure7": _of_epochs(figure7_numbers.to_markdown),
        },
        samples="figure4_samples",
    ),
    "ablation": Contents(
        paper.ablation,
        {"figure1": _of_epochs(cifar_figures.figure1), "figure2": _of_epochs(cifar_figures.figure2)},
        listing=constraints.LISTING,
    ),
    "mnist": Contents(paper.mnist, {"figure3": _figure3}, {"figure3": _figure3_numbers}),
    "pong": Contents(
        paper.table1,
        {"figure8": _of_epochs(pong_figure.figure8)},
        {"figure8": _of_epochs(figure8_numbers.to_markdown)},
    ),
    "imagenet": Contents(
        paper.imagenet,
        {"figure9": _of_epochs(imagenet_figure.figure9)},
        {"figure9": _of_epochs(figure9_numbers.to_markdown)},
        imagenet_settings.LISTING,
    ),
    "checks": Contents(paper.checks, {"checks": _learning_curves}),
}
"""By experiment, the paper's tables first; all of it is made where no experiment is named."""

ON_REQUEST: dict[str, Contents] = {
    "smoke": Contents(figures={"smoke": _learning_curves, "samples": _samples}, samples="samples")
}
"""Likewise, but made only for whoever names it: its runs are in a store of their own.

An experiment that is in neither gets its table and its learning curves, with no numbers of the paper's.
"""


def default_store() -> Store:
    """NERO_RUNS, else the runs that are committed."""
    return Store(os.environ.get("NERO_RUNS") or ROOT / "results" / "runs")


def gather(name: str, store: Store, summaries: Mapping[str, Summary] | None = None) -> Evidence:
    """Hold `experiments/<name>.yaml` against a store; `summaries` where the store's have been read already."""
    experiment = load_experiment(name)
    found = store.summaries() if summaries is None else summaries
    return Evidence(experiment, tuple(survey(cell, found) for cell in experiment.cells), found, store)


class Highlight(NamedTuple):
    """A figure that a first look at the suite should have."""

    tasks: tuple[str, ...]  # whose runs it shows
    words: str  # what it shows, in a line


HIGHLIGHTS = {
    "figure5": Highlight((paper.VGG11, paper.RESNET18), "Figure 5, CIFAR-10: ours beside the paper's final errors"),
    "figure7": Highlight((paper.MULTI30K,), "Figure 7, translation: ours and the authors'"),
    "figure8": Highlight((paper.PONG,), "Figure 8, Pong: ours beside the paper's final rewards"),
    "figure4_samples": Highlight((paper.CGAN,), "Samples of the four GANs of Figure 4 from the same z over the epochs"),
    "figure3": Highlight((paper.REPARAM, paper.DEEP), "Figure 3, MNIST: ours and the authors'"),
}
"""By file name, in the order in which they are shown."""


def highlights(experiments: Iterable[Evidence]) -> dict[str, str]:
    """Those of HIGHLIGHTS that show at least one run of these experiments, and their words."""
    logged: dict[str, set[str]] = {}  # tasks with a logged run, by the figures that may show it
    for evidence in experiments:
        tasks = {state.cell.task for state in evidence.states if state.logged}
        for name in _contents(evidence).figures:
            logged.setdefault(name, set()).update(tasks)
    return {name: each.words for name, each in HIGHLIGHTS.items() if logged.get(name, set()).intersection(each.tasks)}


def make_table(evidence: Evidence) -> Table:
    contents = _contents(evidence)
    published = contents.published() if contents.published else None
    reasons = disagreements.of_store(evidence.store)
    return build_table(evidence.experiment, evidence.states, published, contents.listing, reasons)


def make_figures(evidence: Evidence) -> dict[str, Figure]:
    """Every figure of the experiment, by file name."""
    return {name: make(evidence) for name, make in _contents(evidence).figures.items()}


def make_numbers(evidence: Evidence) -> dict[str, str]:
    """What figures show, as Markdown, by file name."""
    return {name: make(evidence) for name, make in _contents(evidence).numbers.items()}


def sampled(experiments: Sequence[Evidence]) -> Sequence[CellState]:
    """Cells of the first experiment whose samples are shown, if any."""
    return next((evidence.states for evidence in experiments if sample_figure(evidence)), ())


def sample_figure(evidence: Evidence) -> str:
    """The name of its figure of samples, if it has one."""
    return _contents(evidence).samples


def make_overviews(experiments: Sequence[Evidence]) -> tuple[Printed, ...]:
    """Tables over several experiments: what they share counts once."""
    by_experiment = [cost_of_experiment(each.experiment, each.states, each.summaries) for each in experiments]
    return sensitivity(_states(experiments)), costs(_states(experiments), by_experiment)


def make_records(experiments: Sequence[Evidence]) -> dict[str, Sequence[Mapping[str, str]]]:
    """What overviews sum up, line by line, by file name."""
    return {RUNS_NAME: costs_of_runs(_states(experiments))}


def _states(experiments: Sequence[Evidence]) -> list[CellState]:
    return [state for evidence in experiments for state in evidence.states]


def _contents(evidence: Evidence) -> Contents:
    name = evidence.experiment.name
    return CATALOGUE.get(name) or ON_REQUEST.get(name) or Contents(figures={name: _learning_curves})
