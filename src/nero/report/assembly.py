"""The whole report: tables and figures of each experiment, overviews, the page, and the results in the README."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from nero.report import catalogue, readme
from nero.report.evidence import Evidence
from nero.report.figures.samples import samples
from nero.report.files import figure_files, table_files
from nero.report.page.page import build_page
from nero.report.tables.costs import costs_of_runs
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import Printed, to_csv
from nero.report.tables.table import Table
from nero.report.theory.report import make_tables
from nero.runs.store import Store

PAGE = Path("report.html")
TITLE = "Learning by Turning: a reproduction"
LEAD = (
    "Every table and figure of the paper that introduced the optimiser Nero, made from logged runs, with the paper's "
    "numbers for comparison. Hover over curves, zoom in, and switch them on and off. Every number links to its runs, "
    "and every run to its config, code version and machine."
)
LEAD_EMBEDDED = (
    "Runs on embedded data. They test the pipeline, from training to this page, and cannot be compared with the "
    "paper's numbers."
)


class Report:
    """Experiments and their runs in a store. Paths are relative to the folder `out`."""

    def __init__(self, experiments: Sequence[Evidence], store: Store, out: Path) -> None:
        self.experiments, self.store, self.out = experiments, store, out

    @cached_property
    def tables(self) -> dict[str, Table]:
        """By experiment."""
        return {each.experiment.name: catalogue.make_table(each) for each in self.experiments}

    @cached_property
    def printed(self) -> dict[str, Printed]:
        return {name: print_table(table) for name, table in self.tables.items()}

    @cached_property
    def overviews(self) -> tuple[Printed, ...]:
        return catalogue.make_overviews(self.experiments)

    @cached_property
    def figures(self) -> dict[str, dict[str, Figure]]:
        """By experiment and name."""
        return {each.experiment.name: catalogue.make_figures(each) for each in self.experiments}

    def texts(self, evidence: Evidence) -> dict[Path, bytes]:
        """The table of an experiment and the numbers of its figures."""
        files = table_files(self.printed[evidence.experiment.name], self._runs)
        for name, text in catalogue.make_numbers(evidence).items():
            files[Path("tables") / f"{name}.md"] = text.encode()
        return files

    def figure_files(self, evidence: Evidence) -> dict[Path, bytes]:
        return figure_files(self.figures[evidence.experiment.name])

    def overview_texts(self) -> dict[Path, bytes]:
        """Tables over all experiments."""
        records = costs_of_runs(state for evidence in self.experiments for state in evidence.states)
        files = {Path("tables") / "costs_of_runs.csv": to_csv(records).encode()}
        for printed in self.overviews:
            files |= table_files(printed, self._runs)
        return files

    def page(self) -> dict[Path, bytes]:
        # The page has its own display of samples, of the first experiment with any.
        makers = {name: make for each in self.experiments for name, make in catalogue.contents_of(each).figures.items()}
        figures = {name: figure for made in self.figures.values() for name, figure in made.items()}
        numbered_first = sorted(figures, key=lambda name: (not name.startswith("figure"), name))
        sampled = (each for each in self.experiments if samples in catalogue.contents_of(each).figures.values())
        theory = self.out / "theory"  # `nero theory report` writes the files of its tables
        theory_tables = make_tables(theory, self.store.root) if theory.is_dir() else ()
        text = build_page(
            TITLE,
            LEAD_EMBEDDED if any(table.embedded for table in self.tables.values()) else LEAD,
            tables=[*self.printed.values(), *self.overviews, *theory_tables],
            figures={name: figures[name] for name in numbered_first if makers[name] is not samples},
            sampled=next((each.states for each in sampled), ()),
            store=self.store,
            store_name=os.path.relpath(self.store.root, self.out.parent).replace(os.sep, "/"),
        )
        return {PAGE: text.encode()}

    def readme(self, text: str) -> str:
        """A README with new results between its markers; needs the experiment of Table 1."""
        return readme.filled(text, readme.make_parts(self.experiments, self.tables[readme.TABLE]))

    @property
    def _runs(self) -> str:
        """Path of the store relative to the tables."""
        return os.path.relpath(self.store.root, self.out / "tables").replace(os.sep, "/")
