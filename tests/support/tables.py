"""Build tables from given cells, and write tables in each format."""

from collections.abc import Sequence

from nero.plans.plan import CellState, Experiment
from nero.report import paper
from nero.report.evidence import Evidence
from nero.report.page import sheet_html
from nero.report.tables import latex, sheets
from nero.report.tables.layout import print_table
from nero.report.tables.table import Listing, Table, build_table
from nero.runs.store import Store


def table_of(
    experiment: Experiment,
    states: Sequence[CellState],
    published: paper.Published | None = None,
    listing: Listing | None = None,
) -> Table:
    return build_table(Evidence(experiment, tuple(states), {}, Store("no/store")), published, listing)


def to_markdown(table: Table, runs: str | None = None) -> str:
    """With plain spaces in place of those that do not break."""
    return sheets.to_markdown(print_table(table), runs).replace("\N{NO-BREAK SPACE}", " ")


def to_latex(table: Table) -> str:
    return latex.to_latex(print_table(table))


def to_csv(table: Table) -> str:
    return sheets.to_csv(print_table(table).records)


def to_html(table: Table) -> str:
    return sheet_html.to_html(print_table(table))
