"""The part of the README that is made of runs: what is logged, Table 1 beside the paper's, the most telling figures."""

from collections.abc import Sequence

from nero.plans.plan import CellState
from nero.report import cells, style
from nero.report.catalogue import TELLING, Evidence
from nero.report.sheet_markdown import sheet_lines
from nero.report.sheets import Line, Sheet, Text
from nero.report.table_formats import ARROWS, published_text, verdict_text
from nero.report.tables import Entry, Row, Table
from nero.report.units import number
from nero.report.verdicts import RULE

TABLE = "table1"
"""The experiment whose table is shown."""

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
    lines += ["", f"Mean ± population standard deviation over n seeds, at the best learning rate. {RULE}"]
    lines += ["A verdict is so far while runs of its cell are missing.", ""]
    lines += ["Runs logged, of those that an experiment asks for: " + "; ".join(map(_logged, experiments)) + ".", ""]
    lines += [f"![{words}](results/figures/{name}.png)" for name, words in TELLING.items()]
    return "\n".join([*lines, ""])


def compact(table: Table) -> Sheet:
    """Table 1 without the learning rates, the links and what is missing."""
    blocks = [_block(row, table) for row in table.rows]
    return Sheet(["task", "metric", "", *map(style.name, table.optims)], blocks, 3)


def _block(row: Row, table: Table) -> list[Line]:
    entries = [row.entries.get(optim) for optim in table.optims]
    label = Text(f", {cells.variant_text(row.variant)}" if row.variant else "", code=row.task)
    heading = f"{row.metric.label} {ARROWS[row.metric.goal]}" if row.metric else ""
    return [
        [label, Text(heading), Text("ours"), *map(_ours, entries)],
        [Text(""), Text(""), Text("paper"), *(Text(_theirs(entry)) for entry in entries)],
        [Text(""), Text(""), Text("verdict"), *(verdict_text(entry) if entry else Text("") for entry in entries)],
    ]


def _ours(entry: Entry | None) -> Text:
    if entry is None:
        return Text("")
    if entry.mean is None:
        return Text(str(entry.result.standing))
    deviation = f" ± {number(entry.std)}" if entry.std is not None else ""
    return Text(number(entry.mean) + deviation, f"n = {entry.n}", entry.rank)


def _theirs(entry: Entry | None) -> str:
    return published_text(entry).value if entry else ""


def _logged(evidence: Evidence) -> str:
    return f"`{evidence.experiment.name}` {len(evidence.logged)} of {len(evidence.logged) + _to_run(evidence)}"


def _to_run(evidence: Evidence) -> int:
    """Runs still to be done, as far as they are known: a search that goes on may bring another rate to the front."""
    pending = {run.run_id for state in evidence.states for run in state.pending}
    repeated = sum(_repeats_in(state) for state in evidence.states if state.undecided)
    return len(pending) + sum(state.undecided for state in evidence.states) - repeated


def _repeats_in(state: CellState) -> int:
    """Repeats of an unfinished search that are logged already, at the rate that leads it."""
    return sum(run is not None for seed, run in state.at_leading.items() if seed != state.cell.search_seed)
