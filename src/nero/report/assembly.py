"""The whole report: tables and figures of each experiment, overviews, the page, and the results in the README."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from nero.report import catalogue, files, readme
from nero.report.evidence import Evidence
from nero.report.page import page
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import Printed
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

    @cached_property
    def theory(self) -> tuple[Printed, ...]:
        """Tables of the theory, if there are records; `scripts/theory.py report` writes their files."""
        records = self.out / "theory"
        return make_tables(records, self.store.root) if records.is_dir() else ()

    def texts(self, evidence: Evidence) -> dict[Path, bytes]:
        """The table of an experiment and the numbers of its figures."""
        table = files.table_files(self.printed[evidence.experiment.name], self._runs)
        return table | files.number_files(catalogue.make_numbers(evidence))

    def figure_files(self, evidence: Evidence) -> dict[Path, bytes]:
        return files.figure_files(self.figures[evidence.experiment.name])

    def overview_texts(self) -> dict[Path, bytes]:
        """Tables over all experiments."""
        found = files.record_files(catalogue.make_records(self.experiments))
        for printed in self.overviews:
            found |= files.table_files(printed, self._runs)
        return found

    def page(self) -> dict[Path, bytes]:
        # The page has its own display of samples.
        pictures = {catalogue.sample_figure(evidence) for evidence in self.experiments}
        every = {name: figure for made in self.figures.values() for name, figure in made.items()}
        numbered_first = sorted(every, key=lambda name: (not name.startswith("figure"), name))
        contents = page.Contents(
            title=TITLE,
            lead=LEAD_EMBEDDED if any(table.embedded for table in self.tables.values()) else LEAD,
            tables=[*self.printed.values(), *self.overviews, *self.theory],
            figures={name: every[name] for name in numbered_first if name not in pictures},
            states=catalogue.sampled(self.experiments),
            store=self.store,
            store_name=os.path.relpath(self.store.root, self.out.parent).replace(os.sep, "/"),
        )
        return {PAGE: page.build_page(contents).encode()}

    def readme(self, text: str) -> str:
        """A README with its results updated; needs the experiment of Table 1."""
        return readme.replaced(text, readme.results(self.experiments, self.tables[readme.TABLE]))

    @property
    def _runs(self) -> str:
        """Path of the store relative to the tables."""
        return os.path.relpath(self.store.root, self.out / "tables").replace(os.sep, "/")
