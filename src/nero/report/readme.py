"""The part of the README that is made of runs: what is logged, Table 1 beside the paper's, a few figures."""

from collections.abc import Sequence
from dataclasses import replace

from nero.plans.plan import pending
from nero.report.catalogue import highlights
from nero.report.evidence import Evidence
from nero.report.findings import findings
from nero.report.tables.formats import grid, precision_text, published_text, value
from nero.report.tables.markdown_format import list_lines, sheet_lines
from nero.report.tables.sheets import Sheet, Text
from nero.report.tables.table import Entry, Table
from nero.report.verdicts import CONFIDENCE

TABLE = "table1"
"""The experiment whose table is shown."""

NOTES = (
    "Mean ± population standard deviation over n seeds, at the best learning rate of a complete search; while rates "
    "are missing, at the best of those searched. Verdict: our mean less the paper's, with its "
    f"{100 * CONFIDENCE:g} % interval; it agrees where the interval contains 0. The rule in full is below the "
    "[whole table](results/tables/table1.md)."
)

BEGIN = "<!-- made by `make report` from the logged runs: changes in here are lost -->"
END = "<!-- until here -->"


class NoPlaceError(ValueError):
    """A README without the two lines that the made part stands between."""


def replaced(readme: str, made: str) -> str:
    """The README with the part between BEGIN and END made anew."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoPlaceError(f"there is no place for the results: the lines {BEGIN!r} and {END!r} are not there")
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def results(experiments: Sequence[Evidence], table: Table) -> str:
    """What stands there; `table` is Table 1."""
    lines = ["**Table 1**, ours beside the paper's ([whole](results/tables/table1.md), with every run):", ""]
    lines += sheet_lines(compact(table))
    lines += ["", *list_lines(findings(table)), "", NOTES, ""]
    lines += ["Runs logged, of those that an experiment asks for: " + "; ".join(map(_logged, experiments)) + ".", ""]
    lines += [f"![{words}](results/figures/{name}.png)" for name, words in highlights(experiments).items()]
    return "\n".join([*lines, ""])


def compact(table: Table) -> Sheet:
    """Table 1 without the learning rates, the links and what is missing."""
    return grid(table, _ours, lambda entry: replace(published_text(entry), detail=""))


def _ours(entry: Entry) -> Text:
    details = [f"n = {entry.n}", precision_text(entry)] if entry.n else []
    return Text(value(entry), ", ".join(filter(None, details)), entry.rank)


def _logged(evidence: Evidence) -> str:
    return f"`{evidence.experiment.name}` {len(evidence.logged)} of {len(evidence.logged) + _to_run(evidence)}"


def _to_run(evidence: Evidence) -> int:
    """Runs still to be done, as far as they are known: a search that goes on may bring another rate to the front."""
    return len(pending(evidence.states)) + sum(state.to_follow for state in evidence.states)
