"""The table of an experiment laid out, and as Markdown, CSV and LaTeX. The same table gives the same bytes anywhere."""

import itertools
from collections.abc import Callable

from nero.report import cells
from nero.report.cells import CellKey, Standing
from nero.report.figures import style
from nero.report.findings import Group, Ranking, findings, groups, ranking
from nero.report.tables import csv_format as sheet_csv
from nero.report.tables import latex_format as sheet_latex
from nero.report.tables import markdown_format as sheet_markdown
from nero.report.tables.csv_format import exact, whole
from nero.report.tables.sheets import Line, Printed, RunLink, Sheet, Text, row_label
from nero.report.tables.table import Entry, Listing, Row, Table
from nero.report.units import number, rate, signed
from nero.report.verdicts import RULE, Verdict

EMBEDDED = "Embedded data, not the paper's: these numbers say that the chain works and mean nothing beside the paper's."


def entry_text(entry: Entry) -> Text:
    """Our side of a cell: "11.16 ± 0.17" with n and learning rate, or why there is no such number."""
    result = entry.result
    details = []
    if entry.mean is not None:
        details.append(f"n = {entry.n}" + (f" of {entry.planned}" if entry.n < entry.planned else ""))
        if diverged := cells.divergence(result.state):
            details.append(f"{diverged} diverged")
        details.append(_rate_text(entry))
        if second := entry.secondary:
            details.append(f"{second.name} {_spread(second.mean, second.std)}")
    if result.standing is not Standing.MISSING:
        details.append(precision_text(entry))
    said = ", ".join(filter(None, details))
    if result.standing is Standing.INCOMPLETE and not _names_search(entry):
        said = "; ".join(filter(None, [said, cells.gap(result.state)]))
    return Text(value(entry), said, entry.rank, runs=_runs(entry), cell=_name(entry), verdict=_verdict(entry))


def value(entry: Entry) -> str:
    """The number alone, or why there is none."""
    if entry.mean is not None:
        return _spread(entry.mean, entry.std)
    return str(Standing.MISSING if entry.result.standing is Standing.MISSING else Standing.DIVERGED)


def _spread(mean: float, std: float | None) -> str:
    return number(mean) + (f" ± {number(std)}" if std is not None else "")


def _rate_text(entry: Entry) -> str:
    """The leading learning rate, called the best only where its search is complete."""
    state, lr = entry.result.state, entry.result.lr
    assert lr is not None, "there is no mean without a leading rate"
    shown = f"η = {rate(lr)}"
    if len(state.search) == 1:
        return shown
    if not state.searching:
        return f"best {shown}" + {None: "", True: ", the paper's", False: ", not the paper's"}[entry.has_papers_rate]
    if _names_search(entry):
        return f"at {shown}, best of {cells.searched_text(state)} searched"
    return f"at the paper's {shown}" if _leads_with_papers_rate(entry) else f"at {shown}"


def _names_search(entry: Entry) -> bool:
    """Several rates of an incomplete search are in, and one that is not the paper's leads: its rate is told as such."""
    state = entry.result.state
    several = state.searching and cells.searched(state) > 1 and entry.mean is not None
    return several and not _leads_with_papers_rate(entry)


def _leads_with_papers_rate(entry: Entry) -> bool:
    return entry.published is not None and entry.result.lr == entry.published.lr


def precision_text(entry: Entry) -> str:
    """The arithmetic of a cell's runs, where most of its row were computed in another; else nothing."""
    return style.precision(entry.marked_precision) if entry.marked_precision else ""


def _runs(entry: Entry) -> tuple[RunLink, ...]:
    """Those that the value is of: the seeds at the leading learning rate or, where none leads, what has diverged."""
    result = entry.result
    if result.runs:
        return tuple(RunLink.to(run, f"seed {run['seed']}") for run in result.runs)
    searched = (run for run in result.state.search.values() if run is not None)
    return tuple(RunLink.to(run, f"η = {rate(run['lr'])}") for run in searched)


def _name(entry: Entry) -> str:
    cell = entry.cell
    return "|".join((cell.task, cell.label, cells.variant_text(cell.variant), cell.optim))


def _verdict(entry: Entry) -> str:
    return str(entry.verdict or "")


def verdict_text(entry: Entry) -> Text:
    """Such as "agrees: +0.28 [-0.04, +0.60] (incomplete)"."""
    words = verdict_words(entry)
    waits = entry.verdict not in (None, Verdict.MISSING, Verdict.INCOMPLETE) and not entry.result.settled
    return Text(words, "incomplete" if waits else "", verdict=_verdict(entry))


def verdict_words(entry: Entry) -> str:
    """The verdict and, in the unit of the metric, the difference that it follows from."""
    found = entry.comparison.difference if entry.comparison else None
    if found is None:
        return _verdict(entry)
    return f"{_verdict(entry)}: {signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def published_text(entry: Entry) -> Text:
    """The paper's side of a cell."""
    theirs = entry.published
    if theirs is None:
        return Text("")
    detail = f"n = {theirs.n}, η = {rate(theirs.lr)}"
    return Text(f"{number(theirs.mean)} ± {number(theirs.std)}", detail, entry.published_rank)


def notes(table: Table) -> str:
    """How to read the table."""
    ranked = "column" if table.listing else "row"
    said = ["Mean ± population standard deviation over n seeds, at the end of training and at the learning rate η."]
    if any(len(entry.result.state.search) > 1 for entry in _every(table)):
        said.append("Best η: of a complete search, with one seed at each rate of the grid.")
    if any(entry.result.state.searching for entry in _every(table)):
        said.append("While a search is incomplete, a cell is at the best of the rates searched.")
    said.append(f"In each {ranked} the best is bold and the runner-up underlined.")
    if table.listing:
        said.append(f"Task: {', '.join(dict.fromkeys(row.key.task for row in table.rows))}.")
    if arithmetic := _arithmetic(table):
        said.append(arithmetic)
    if _judged(table):
        said.append(RULE)
    if table.remark:
        said.append(table.remark)
    if not table.complete:
        said.append(f"Our side of a {ranked} is ranked once none of its runs is missing.")
    return " ".join(said)


def _every(table: Table) -> list[Entry]:
    return [entry for row in table.rows for entry in row.entries.values()]


def _judged(table: Table) -> bool:
    return any(entry.verdict for entry in _every(table))


def _arithmetic(table: Table) -> str | None:
    """Which rows were computed how, and which cells of them otherwise; None while every task is to come."""
    found: dict[str, list[str]] = {}
    for group in groups(table):
        name, whose = cells.row_text(group.key), _by_precision(group)
        usual = cells.usual_precision(entry.cell for entry in group.entries)
        if usual:
            others = (f", except {', '.join(of)}: {style.precision(key)}" for key, of in whose.items() if key != usual)
            found.setdefault(usual, []).append(name + "".join(others))
        else:
            for key, of in whose.items():
                found.setdefault(key, []).append(f"{name} with {', '.join(of)}")
    if not found:
        return None
    one = len(found) == 1 and not any(entry.marked_precision for entry in _every(table))
    of_rows = (style.precision(key) + ("" if one else f" ({'; '.join(names)})") for key, names in found.items())
    theirs = f"; {table.source}: {style.precision('fp32')}" if table.source else ""
    return f"Arithmetic: {', '.join(of_rows)}{theirs}."


def _by_precision(group: Group) -> dict[str, list[str]]:
    """Names of cells by their arithmetic, as far as it is known."""
    found: dict[str, list[str]] = {}
    for name, entry in zip(group.names, group.entries, strict=True):
        if precision := cells.precision(entry.cell):
            found.setdefault(precision, []).append(name)
    return found


def reasons(table: Table) -> tuple[Text, ...]:
    """Why cells differ from the paper's, as far as that is written down."""
    known = {each.key: each for each in table.disagreements}
    found = []
    for group in groups(table):
        for name, entry in zip(group.names, group.entries, strict=True):
            why = known.get(CellKey.of(entry.cell))
            if why and entry.verdict and entry.verdict.differs:
                whose = f"{cells.row_detail(group.key)}, {name}"
                words = f"{whose} ({verdict_words(entry)}): {why.reason} Check: {why.check}"
                found.append(Text(words, code=group.key.task))
    return tuple(found)


# Layouts


def lay_out(table: Table) -> Sheet:
    return _listed(table, table.listing) if table.listing else grid(table)


def grid(
    table: Table, ours: Callable[[Entry], Text] = entry_text, theirs: Callable[[Entry], Text] = published_text
) -> Sheet:
    """A block per row: a line of ours and, where there are numbers of the paper's, those and our verdicts below it."""
    heads = ["task", "metric", *([""] if table.source else [])]
    blocks = []
    for row in table.rows:
        first = [row_label(row.key), Text(_heading(row))]
        if table.source:
            block = [[*first, Text("ours"), *_places(table, row, ours)]]
            block.append([Text(""), Text(""), Text(table.source), *_places(table, row, theirs)])
            if any(entry.verdict for entry in row.entries.values()):
                block.append([Text(""), Text(""), Text("verdict"), *_places(table, row, verdict_text)])
            blocks.append(block)
        else:
            blocks.append([[*first, *_places(table, row, ours)]])
    return Sheet([*heads, *map(style.name, table.optims)], blocks, len(heads))


def _places(table: Table, row: Row, words: Callable[[Entry], Text]) -> Line:
    """One for each optimiser; one that the row does not have leaves its place empty."""
    entries = (row.entries.get(optim) for optim in table.optims)
    return [words(entry) if entry else Text("") for entry in entries]


def _heading(row: Row) -> str:
    return row.metric.heading if row.metric else ""


def _listed(table: Table, listing: Listing) -> Sheet:
    """A line per cell, ours and the paper's side by side; lines with the same first word are a block."""
    [metric] = {_heading(row) for row in table.rows}
    heads = [*listing.heads, *(f"{metric}, {whose}".lstrip(", ") for whose in ("ours", table.source) if whose)]
    heads += ["verdict"] * _judged(table)
    lines = []
    for entry in _every(table):
        theirs = [published_text(entry)] if table.source else []
        theirs += [verdict_text(entry)] * _judged(table)
        lines.append([*map(Text, listing.words(entry.cell)), entry_text(entry), *theirs])
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet(heads, blocks, len(listing.heads))


# Formats


def print_table(table: Table) -> Printed:
    """Ready for any format."""
    orders = [ranking(group) for group in groups(table)] * (len(table.rows) if table.listing else 1)
    records = tuple(
        _record(table, row, order, optim, entry)
        for row, order in zip(table.rows, orders, strict=True)
        for optim, entry in row.entries.items()
    )
    warning = EMBEDDED if table.embedded else ""
    return Printed(
        table.name, table.title, lay_out(table), notes(table), records, warning, findings(table), reasons(table)
    )


def to_markdown(table: Table, runs: str | None = None) -> str:
    return sheet_markdown.to_markdown(print_table(table), runs)


def to_latex(table: Table, runs: str | None = None) -> str:
    return sheet_latex.to_latex(print_table(table), runs)


def to_csv(table: Table) -> str:
    """One line per cell with all of its numbers; run ids are separated by spaces."""
    return sheet_csv.to_csv(print_table(table).records)


def _record(table: Table, row: Row, order: Ranking | None, optim: str, entry: Entry) -> dict[str, str]:
    result, theirs = entry.result, entry.published
    search = [run for run in result.state.search.values() if run is not None]
    metric = row.metric
    difference = entry.comparison.difference if entry.comparison else None
    return {
        "experiment": table.name,
        "task": row.key.task,
        "label": row.key.label,
        "variant": cells.variant_text(row.key.variant),
        "optim": optim,
        "data": "embedded" if table.embedded else "real",
        "precision": cells.precision(entry.cell) or "",
        "metric": metric.label if metric else "",
        "goal": metric.goal if metric else "",
        "status": str(result.standing),
        "mean": exact(entry.mean),
        "std": exact(entry.std),
        "n": str(entry.n),
        "secondary": entry.secondary.name if entry.secondary else "",
        "secondary_mean": exact(entry.secondary.mean if entry.secondary else None),
        "secondary_std": exact(entry.secondary.std if entry.secondary else None),
        "diverged": str(result.diverged),
        "planned": str(entry.planned),
        "lr": exact(result.lr),
        "searched": str(len(search)),
        "grid": str(len(result.state.search)),
        "rank": whole(entry.rank),
        "paper_mean": exact(theirs.mean if theirs else None),
        "paper_std": exact(theirs.std if theirs else None),
        "paper_n": whole(theirs.n if theirs else None),
        "paper_lr": exact(theirs.lr if theirs else None),
        "paper_rank": whole(entry.published_rank),
        "verdict": _verdict(entry),
        "complete": str(int(result.settled)),
        "difference": exact(difference.mean if difference else None),
        "difference_low": exact(difference.low if difference else None),
        "difference_high": exact(difference.high if difference else None),
        "best_lr_is_papers": whole(entry.has_papers_rate),
        "ranking": str(order.order) if order else "",
        "runs": " ".join(run["run_id"] for run in result.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }


FORMATS: dict[str, Callable[[Printed, str], str]] = {
    "md": sheet_markdown.to_markdown,
    "csv": lambda printed, _: sheet_csv.to_csv(printed.records),
    "tex": sheet_latex.to_latex,
}
"""By the ending of the file's name: what makes its text, given where the store lies from there."""
