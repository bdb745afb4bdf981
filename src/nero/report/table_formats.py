"""The table of an experiment laid out, and as Markdown, CSV and LaTeX. The same table gives the same bytes anywhere."""

import itertools
from collections.abc import Callable

from nero.report import cells, sheet_csv, sheet_latex, sheet_markdown, style
from nero.report.cells import Standing
from nero.report.sheet_csv import exact, whole
from nero.report.sheets import Line, Printed, RunLink, Sheet, Text, row_label
from nero.report.tables import Entry, Listing, Row, Table
from nero.report.units import number, rate
from nero.report.verdicts import RULE, Verdict

EMBEDDED = "Embedded data, not the paper's: these numbers say that the chain works and mean nothing beside the paper's."


def entry_text(entry: Entry) -> Text:
    """Our side of a cell: "11.16 ± 0.17" with n and learning rate, or why there is no such number."""
    result = entry.result
    details = []
    if entry.mean is not None:
        details.append(f"n = {entry.n}" + (f" of {entry.planned}" if entry.n < entry.planned else ""))
    diverged = cells.divergence(result.state)
    if diverged and entry.mean is not None:
        details.append(f"{diverged} diverged")
    if result.standing is Standing.INCOMPLETE:
        details.append(f"incomplete: {cells.gap(result.state)}")
    if result.lr is not None and entry.mean is not None:
        details.append(f"η = {rate(result.lr)}")
    said = ", ".join(details)
    return Text(value(entry), said, entry.rank, runs=_runs(entry), cell=_name(entry), verdict=_verdict(entry))


def value(entry: Entry) -> str:
    """The number alone, or why there is none."""
    if entry.mean is not None:
        return number(entry.mean) + (f" ± {number(entry.std)}" if entry.std is not None else "")
    standing = entry.result.standing
    return "diverged so far" if standing is Standing.INCOMPLETE else str(standing)


def _runs(entry: Entry) -> tuple[RunLink, ...]:
    """Those that the value is of: the seeds at the leading learning rate or, where none leads, what has diverged."""
    result = entry.result
    if result.runs:
        return tuple(RunLink.to(run, f"seed {run['seed']}") for run in result.runs)
    searched = (run for run in result.state.search.values() if run is not None)
    return tuple(RunLink.to(run, f"η = {rate(run['lr'])}") for run in searched)


def _name(entry: Entry) -> str:
    cell = entry.result.state.cell
    return "|".join((cell.task, cells.variant_text(cell.variant), cell.optim))


def _verdict(entry: Entry) -> str:
    return str(entry.verdict or "")


def verdict_text(entry: Entry) -> Text:
    """Such as "within (+0.53 σ)"; of a cell that is not settled it is so far."""
    if entry.verdict is None:
        return Text("")
    so_far = "" if entry.result.settled or entry.verdict is Verdict.MISSING else " so far"
    distance = "" if entry.deviation is None else f"{entry.deviation:+.2f} σ"
    return Text(f"{entry.verdict}{so_far}", distance, verdict=str(entry.verdict))


def published_text(entry: Entry) -> Text:
    """The paper's side of a cell."""
    theirs = entry.published
    if theirs is None:
        return Text("")
    details = [f"n = {theirs.n}"] if theirs.n is not None else []
    return Text(
        f"{number(theirs.mean)} ± {number(theirs.std)}",
        ", ".join([*details, f"η = {rate(theirs.lr)}"]),
        entry.published_rank,
    )


def notes(table: Table) -> str:
    """How to read the table."""
    ranked = "column" if table.listing else "row"
    said = [
        "Mean ± population standard deviation over n seeds, at the end of training, at the best learning rate η of a "
        "search with one seed, or at the only one asked for. "
        f"In each {ranked} the best is bold and the runner-up underlined."
    ]
    if table.listing:
        said.append(f"Task: {', '.join(dict.fromkeys(row.task for row in table.rows))}.")
    if arithmetic := _arithmetic(table):
        said.append(arithmetic)
    if _judged(table):
        said.append(RULE)
    if table.remark:
        said.append(table.remark)
    if not table.complete:
        said.append(f"A {ranked} with unfinished cells is not ranked; an incomplete cell shows what is logged so far.")
    return " ".join(said)


def _judged(table: Table) -> bool:
    return any(entry.verdict for row in table.rows for entry in row.entries.values())


def _arithmetic(table: Table) -> str | None:
    """Which rows were computed how; None while every task is to come."""
    found: dict[str, list[str]] = {}
    for row in table.rows:
        of_row: dict[str, list[str]] = {}
        for optim, entry in row.entries.items():
            if precision := cells.precision(entry.result.state.cell):
                of_row.setdefault(precision, []).append(style.name(optim))
        name = cells.row_text((row.task, row.variant))
        for precision, optims in of_row.items():
            found.setdefault(precision, []).append(name if len(of_row) == 1 else f"{name} with {', '.join(optims)}")
    if not found:
        return None
    ours = ", ".join(found) if len(found) == 1 else ", ".join(f"{key} ({'; '.join(of)})" for key, of in found.items())
    return f"Arithmetic: {ours}" + (f"; {table.source}: float32." if table.source else ".")


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
        first = [row_label(row.task, row.variant), Text(_heading(row))]
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
    for entry in (entry for row in table.rows for entry in row.entries.values()):
        theirs = [published_text(entry)] if table.source else []
        theirs += [verdict_text(entry)] * _judged(table)
        lines.append([*map(Text, listing.words(entry.result.state.cell)), entry_text(entry), *theirs])
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet(heads, blocks, len(listing.heads))


# Formats


def print_table(table: Table) -> Printed:
    """Ready for any format."""
    records = tuple(_record(table, row, optim, entry) for row in table.rows for optim, entry in row.entries.items())
    warning = EMBEDDED if table.embedded else ""
    return Printed(table.name, table.title, lay_out(table), notes(table), records, warning)


def to_markdown(table: Table, runs: str | None = None) -> str:
    return sheet_markdown.to_markdown(print_table(table), runs)


def to_latex(table: Table, runs: str | None = None) -> str:
    return sheet_latex.to_latex(print_table(table), runs)


def to_csv(table: Table) -> str:
    """One line per cell with all of its numbers; run ids are separated by spaces."""
    return sheet_csv.to_csv(print_table(table).records)


def _record(table: Table, row: Row, optim: str, entry: Entry) -> dict[str, str]:
    result, theirs = entry.result, entry.published
    search = [run for run in result.state.search.values() if run is not None]
    metric = row.metric
    return {
        "experiment": table.name,
        "task": row.task,
        "variant": cells.variant_text(row.variant),
        "optim": optim,
        "data": "embedded" if table.embedded else "real",
        "precision": cells.precision(result.state.cell) or "",
        "metric": metric.label if metric else "",
        "goal": metric.goal if metric else "",
        "status": str(result.standing),
        "mean": exact(entry.mean),
        "std": exact(entry.std),
        "n": str(entry.n),
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
        "deviation": exact(entry.deviation),
        "runs": " ".join(run["run_id"] for run in result.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }


FORMATS: dict[str, Callable[[Printed, str], str]] = {
    "md": sheet_markdown.to_markdown,
    "csv": lambda printed, _: sheet_csv.to_csv(printed.records),
    "tex": sheet_latex.to_latex,
}
"""By the ending of the file's name: what makes its text, given where the store lies from there."""
