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
from nero.report.page.page import build_page
from nero.report.tables.costs import costs_of_runs
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import Printed, to_csv
from nero.report.tables.table import Table
from nero.report.theory.report import make_tables
from nero.runs.store import Store

PAGE = Path("report.html")


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
        name = os.path.relpath(self.store.root, self.out.parent).replace(os.sep, "/")
        return {PAGE: build_page(self, name).encode()}

    @property
    def main(self) -> Table | None:
        return self.tables.get(readme.TABLE)

    @property
    def embedded(self) -> bool:
        return any(table.embedded for table in self.tables.values())

    @cached_property
    def charts(self) -> dict[str, Figure]:
        """The figures of all experiments but those of samples, of which the page has a display of its own."""
        makers = {name: make for each in self.experiments for name, make in catalogue.contents_of(each).figures.items()}
        figures = {name: figure for made in self.figures.values() for name, figure in made.items()}
        return {name: figure for name, figure in figures.items() if makers[name] is not catalogue.samples}

    @cached_property
    def findings(self) -> tuple[str, ...]:
        """Sentences on Table 1, if it is there."""
        return readme.findings_sentences(self.experiments, self.main) if self.main else ()

    def latest_run(self) -> str:
        """Date and commit of the latest run."""
        latest = readme.latest_start(self.store)
        if not (date := readme.date_of(latest)):
            return ""
        commit = f" with commit {str(latest['commit'])[:10]}" if latest.get("commit") else ""
        return f"The latest run was started on {date}{commit}."

    @cached_property
    def samples(self) -> tuple[list[dict[str, Any]], str]:
        """Samples of the first experiment with any, and a note if they are not those of Table 1."""
        for each in self.experiments:
            if found := sample_data(each.states, self.store):
                if self.main is None or each.experiment.name == readme.TABLE:
                    return found, ""
                return found, f"From {each.experiment.title}; Table 1 has none yet. "
        return [], ""

    @cached_property
    def games(self) -> list[dict[str, Any]]:
        """Animations of the first experiment with any."""
        return next(filter(None, (game_data(each.states, self.store) for each in self.experiments)), [])

    @cached_property
    def theory(self) -> Sequence[Printed]:
        """The theory's tables. Their files, and their figures, are written by `nero theory report`."""
        folder = self.out / "theory"
        return make_tables(folder, self.store.root) if folder.is_dir() else ()

    def pictures(self, pattern: str) -> dict[str, str]:
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
