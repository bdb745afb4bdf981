"""The whole report: tables and figures of each experiment, overviews, the page, and the results in the README."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nero.plans.config import ROOT
from nero.report import catalogue, readme
from nero.report.evidence import Evidence
from nero.report.files import figure_files, table_files
from nero.report.page.data import game_data, sample_data
from nero.report.page.page import Content, build_page
from nero.report.tables.costs import costs_of_runs
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import GENERAL_NOTES, Printed, to_csv
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
        files = table_files(self.printed[evidence.experiment.name], self._runs, self._guide)
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
        # The page has a display of samples of its own.
        makers = {name: make for each in self.experiments for name, make in catalogue.contents_of(each).figures.items()}
        figures = {name: figure for made in self.figures.values() for name, figure in made.items()}
        theory = self.out / "theory"  # `nero theory report` writes the files of its tables and figures
        embedded = any(table.embedded for table in self.tables.values())
        samples, samples_note = self._samples()
        main = self.tables.get(readme.TABLE)
        content = Content(
            title=TITLE,
            lead=LEAD_EMBEDDED if embedded else LEAD,
            tables=self.tables,
            printed=self.printed,
            overviews=self.overviews,
            figures={name: figure for name, figure in figures.items() if makers[name] is not catalogue.samples},
            theory=make_tables(theory, self.store.root) if theory.is_dir() else (),
            pictures=self._pictures("theory_*.svg"),
            banner=self._pictures("turning_neurons.svg").get("turning_neurons", ""),
            findings=readme.findings_sentences(self.experiments, main) if main else (),
            as_of=self._as_of(),
            samples=samples,
            samples_note=samples_note,
            games=next(filter(None, (game_data(each.states, self.store) for each in self.experiments)), []),
            general_notes=GENERAL_NOTES,
        )
        name = os.path.relpath(self.store.root, self.out.parent).replace(os.sep, "/")
        return {PAGE: build_page(content, self.store, name).encode()}

    def _as_of(self) -> str:
        """Date and commit of the latest run."""
        latest = readme.latest_start(self.store)
        if not (date := readme.date_of(latest)):
            return ""
        commit = f" with commit {str(latest['commit'])[:10]}" if latest.get("commit") else ""
        return f"The latest run was started on {date}{commit}."

    def _samples(self) -> tuple[list[dict[str, Any]], str]:
        """Samples of the first experiment with any, and a note if they are not those of Table 1."""
        for each in self.experiments:
            if found := sample_data(each.states, self.store):
                if readme.TABLE not in self.tables or each.experiment.name == readme.TABLE:
                    return found, ""
                return found, f"From {each.experiment.title}; Table 1 has none yet. "
        return [], ""

    def _pictures(self, pattern: str) -> dict[str, str]:
        """SVG files that are there already, by name."""
        return {path.stem: path.read_text() for path in sorted((self.out / "figures").glob(pattern))}

    def readme(self, text: str) -> str:
        """A README with new results between its markers; needs the experiment of Table 1."""
        return readme.filled(text, readme.make_parts(self.experiments, self.tables[readme.TABLE]))

    @property
    def _runs(self) -> str:
        """Path of the store relative to the tables."""
        return self._from_tables(self.store.root)

    @property
    def _guide(self) -> str:
        """Where the tables of experiments are explained."""
        return self._from_tables(ROOT / "docs" / "reproduction.md") + "#how-to-read-the-tables"

    def _from_tables(self, path: Path) -> str:
        return os.path.relpath(path, self.out / "tables").replace(os.sep, "/")
