"""All that a report consists of: for each experiment, over all of them, the page, and the README's part."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from nero.report import catalogue, files, readme
from nero.report.evidence import Evidence
from nero.report.page import page
from nero.report.tables.formats import print_table
from nero.report.tables.sheets import Printed
from nero.report.tables.table import Table
from nero.report.theory.report import make_tables
from nero.runs.store import Store

PAGE = Path("report.html")
TITLE = "Learning by Turning, rerun"
LEAD = (
    "Every table and figure of the paper that proposed the optimiser Nero, from logged runs, with the paper's numbers "
    "beside ours. Curves can be hovered, zoomed and switched; every number leads to its runs, and a run to its config "
    "and to the code and machine that it ran on."
)
LEAD_EMBEDDED = (
    "Runs on embedded data, which stand for nothing but themselves: they show that the chain works, from training to "
    "this page."
)


class Report:
    """Experiments held against a store. Paths are under the folder `out`, which is where links start."""

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
        """What was measured of the theory, where there are records; `scripts/theory.py report` writes its files."""
        records = self.out / "theory"
        return make_tables(records, self.store.root) if records.is_dir() else ()

    def texts(self, evidence: Evidence) -> dict[Path, bytes]:
        """All that is told of an experiment in words and numbers."""
        table = files.table_files(self.printed[evidence.experiment.name], self._runs)
        return table | files.number_files(catalogue.make_numbers(evidence))

    def figure_files(self, evidence: Evidence) -> dict[Path, bytes]:
        return files.figure_files(self.figures[evidence.experiment.name])

    def overview_texts(self) -> dict[Path, bytes]:
        """All that is told of the experiments together."""
        found = files.record_files(catalogue.make_records(self.experiments))
        for printed in self.overviews:
            found |= files.table_files(printed, self._runs)
        return found

    def page(self) -> dict[Path, bytes]:
        # The page shows samples in a way of its own.
        pictures = {catalogue.sample_figure(evidence) for evidence in self.experiments}
        every = {name: figure for made in self.figures.values() for name, figure in made.items()}
        embedded = any(table.embedded for table in self.tables.values())
        contents = page.Contents(
            title=TITLE,
            lead=LEAD_EMBEDDED if embedded else LEAD,
            tables=[*self.printed.values(), *self.overviews, *self.theory],
            figures={name: every[name] for name in sorted(every, key=_papers_first) if name not in pictures},
            states=catalogue.sampled(self.experiments),
            store=self.store,
            store_name=os.path.relpath(self.store.root, self.out.parent).replace(os.sep, "/"),
        )
        return {PAGE: page.build_page(contents).encode()}

    def readme(self, text: str) -> str:
        """A README with its part made anew; it needs the experiment of Table 1."""
        return readme.replaced(text, readme.results(self.experiments, self.tables[readme.TABLE]))

    @property
    def _runs(self) -> str:
        """Where the store lies from a table."""
        return os.path.relpath(self.store.root, self.out / "tables").replace(os.sep, "/")


def _papers_first(name: str) -> tuple[bool, str]:
    return not name.startswith("figure"), name
