"""The text of an experiment's table: cells, notes, layout and CSV records, ready for every format of `sheets`."""

import itertools
from collections.abc import Callable

from nero.report import cells
from nero.report.cells import CellKey, CellStatus
from nero.report.figures import style
from nero.report.findings import Ranking, findings, groups, ranking
from nero.report.tables.sheets import EMBEDDED, Line, Printed, RunLink, Sheet, Text, exact, row_label
from nero.report.tables.table import Entry, Listing, Row, Table
from nero.report.units import number, rate, signed
from nero.report.verdicts import RULE


def print_table(table: Table) -> Printed:
    """The table, ready for any format."""
    rankings = [ranking(group) for group in groups(table)] * (len(table.rows) if table.listing else 1)
    records = tuple(
        _record(table, row, ranked, optim, entry)
        for row, ranked in zip(table.rows, rankings, strict=True)
        for optim, entry in row.entries.items()
    )
    sheet = _listed(table, table.listing) if table.listing else grid(table)
    warning = EMBEDDED if table.embedded else ""
    return Printed(table.name, table.title, sheet, notes(table), records, warning, findings(table), reasons(table))


# Cells


def entry_text(entry: Entry) -> Text:
    """Our result: "11.16 ± 0.17" with n and learning rate, or why there is none."""
    result = entry.result
    details = []
    if entry.mean is not None:
        details.append(f"n = {entry.n}" + (f" of {entry.planned}" if entry.n < entry.planned else ""))
        if diverged := cells.divergence(result.state):
            details.append(f"{diverged} diverged")
        details.append(_rate_text(entry))
        if second := entry.secondary:
            details.append(f"{second.name} {_spread(second.mean, second.std)}")
    if result.status is not CellStatus.MISSING:
        details.append(precision_text(entry))
    detail = ", ".join(filter(None, details))
    if result.status is CellStatus.INCOMPLETE and not _names_search(entry):
        detail = "; ".join(filter(None, [detail, cells.gap(result.state)]))
    name = "|".join((entry.cell.task, entry.cell.label, cells.variant_text(entry.cell.variant), entry.cell.optim))
    return Text(value(entry), detail, entry.rank, runs=_runs(entry), cell=name, verdict=entry.verdict or "")


def value(entry: Entry) -> str:
    """The mean and its deviation, or why there is none."""
    if entry.mean is not None:
        return _spread(entry.mean, entry.std)
    return str(CellStatus.MISSING if entry.result.status is CellStatus.MISSING else CellStatus.DIVERGED)


def _spread(mean: float, std: float | None) -> str:
    return number(mean) + (f" ± {number(std)}" if std is not None else "")


def _rate_text(entry: Entry) -> str:
    """The leading learning rate, called the best only if its search is complete."""
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
    """An incomplete search of several logged rates is led by one that is not the paper's: the rate's text says so."""
    state = entry.result.state
    several = state.searching and cells.searched(state) > 1 and entry.mean is not None
    return several and not _leads_with_papers_rate(entry)


def _leads_with_papers_rate(entry: Entry) -> bool:
    return entry.published is not None and entry.result.lr == entry.published.lr


def precision_text(entry: Entry) -> str:
    """The arithmetic of the cell's runs, if it is not that of most cells of its row."""
    return style.precision(entry.marked_precision) if entry.marked_precision else ""


def _runs(entry: Entry) -> tuple[RunLink, ...]:
    """The seeds at the leading learning rate or, if none leads, the diverged runs of the search."""
    if entry.result.runs:
        return tuple(RunLink.to(run, f"seed {run['seed']}") for run in entry.result.runs)
    searched = (run for run in entry.result.state.search.values() if run is not None)
    return tuple(RunLink.to(run, f"η = {rate(run['lr'])}") for run in searched)


def verdict_text(entry: Entry) -> Text:
    """Such as "agrees: +0.28 [-0.04, +0.60] (preliminary, n = 1)"."""
    detail = ""
    if entry.verdict not in (None, CellStatus.MISSING, CellStatus.INCOMPLETE) and not entry.result.complete:
        detail = "preliminary" + (f", n = {entry.n}" if entry.n else "")
    return Text(verdict_words(entry), detail, verdict=entry.verdict or "")


def verdict_words(entry: Entry) -> str:
    """The verdict and the difference that it follows from."""
    difference = entry.comparison.difference if entry.comparison else None
    if difference is None:
        return str(entry.verdict or "")
    return f"{entry.verdict}: {signed(difference.mean)} [{signed(difference.low)}, {signed(difference.high)}]"


def published_text(entry: Entry) -> Text:
    """The paper's result."""
    theirs = entry.published
    if theirs is None:
        return Text("")
    detail = f"n = {theirs.n}, η = {rate(theirs.lr)}"
    return Text(f"{number(theirs.mean)} ± {number(theirs.std)}", detail, entry.published_rank)


# Notes


def notes(table: Table) -> str:
    """How to read the table."""
    ranked = "column" if table.listing else "row"
    text = ["Mean ± population standard deviation over n seeds, at the end of training and at the learning rate η."]
    if any(len(entry.result.state.search) > 1 for entry in table.entries):
        text.append("Best η: of a complete search, with one seed at each rate of the grid.")
    if any(entry.result.state.searching for entry in table.entries):
        text.append("While a search is incomplete, a cell shows the best rate searched so far.")
    text.append(f"In each {ranked}, the best is bold and the runner-up underlined.")
    if table.listing:
        text.append(f"Task: {', '.join(dict.fromkeys(row.key.task for row in table.rows))}.")
    text += [_arithmetic(table), RULE if _has_verdicts(table) else "", table.remark]
    if not table.complete:
        text.append(f"Our results in a {ranked} are ranked once none of its runs is missing.")
    return " ".join(filter(None, text))


def _has_verdicts(table: Table) -> bool:
    return any(entry.verdict for entry in table.entries)


def _arithmetic(table: Table) -> str:
    """The arithmetic of each row, with exceptions; empty if no task has a config yet."""
    found: dict[str, list[str]] = {}  # rows by arithmetic
    for group in groups(table):
        row = cells.row_text(group.key)
        names: dict[str, list[str]] = {}  # of the cells by arithmetic
        for name, entry in zip(group.names, group.entries, strict=True):
            if precision := cells.precision(entry.cell):
                names.setdefault(precision, []).append(name)
        usual = cells.usual_precision(entry.cell for entry in group.entries)
        if usual:
            others = (f", except {', '.join(of)}: {style.precision(key)}" for key, of in names.items() if key != usual)
            found.setdefault(usual, []).append(row + "".join(others))
        else:
            for key, of in names.items():
                found.setdefault(key, []).append(f"{row} with {', '.join(of)}")
    if not found:
        return ""
    one = len(found) == 1 and not any(entry.marked_precision for entry in table.entries)
    of_rows = (style.precision(key) + ("" if one else f" ({'; '.join(rows)})") for key, rows in found.items())
    theirs = f"; {table.source}: {style.precision('fp32')}" if table.source else ""
    return f"Arithmetic: {', '.join(of_rows)}{theirs}."


def reasons(table: Table) -> tuple[Text, ...]:
    """Why cells differ from the paper's, from results/disagreements.yaml."""
    known = {each.key: each for each in table.disagreements}
    found = []
    for group in groups(table):
        for name, entry in zip(group.names, group.entries, strict=True):
            why = known.get(CellKey.of(entry.cell))
            if why and entry.verdict and entry.verdict.differs:
                cell = f"{cells.row_detail(group.key)}, {name} ({verdict_words(entry)})"
                found.append(Text(f"{cell}: {why.reason} Check: {why.check}", code=group.key.task))
    return tuple(found)


# Layouts


def grid(
    table: Table, ours: Callable[[Entry], Text] = entry_text, theirs: Callable[[Entry], Text] = published_text
) -> Sheet:
    """A block per row: our results and, if the paper has numbers, its results and our verdicts below."""
    heads = ["task", "metric", *([""] if table.source else [])]
    blocks = []
    for row in table.rows:
        block = [[row_label(row.key), Text(_heading(row)), *([Text("ours")] if table.source else [])]]
        block[0] += _places(table, row, ours)
        if table.source:
            block.append([Text(""), Text(""), Text(table.source), *_places(table, row, theirs)])
            if any(entry.verdict for entry in row.entries.values()):
                block.append([Text(""), Text(""), Text("verdict"), *_places(table, row, verdict_text)])
        blocks.append(block)
    return Sheet([*heads, *map(style.name, table.optims)], blocks, len(heads))


def _places(table: Table, row: Row, words: Callable[[Entry], Text]) -> Line:
    """One text per optimiser, empty if the row does not have it."""
    entries = (row.entries.get(optim) for optim in table.optims)
    return [words(entry) if entry else Text("") for entry in entries]


def _heading(row: Row) -> str:
    return row.metric.heading if row.metric else ""


def _listed(table: Table, listing: Listing) -> Sheet:
    """One line per cell, ours and the paper's side by side; lines with the same first text form a block."""
    [metric] = {_heading(row) for row in table.rows}
    judged = _has_verdicts(table)
    heads = [*listing.heads, *(f"{metric}, {whose}".lstrip(", ") for whose in ("ours", table.source) if whose)]
    heads += ["verdict"] * judged
    lines = []
    for entry in table.entries:
        theirs = [published_text(entry)] if table.source else []
        theirs += [verdict_text(entry)] * judged
        lines.append([*map(Text, listing.words(entry.cell)), entry_text(entry), *theirs])
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet(heads, blocks, len(listing.heads))


def _record(table: Table, row: Row, ranked: Ranking | None, optim: str, entry: Entry) -> dict[str, str]:
    """A line of the CSV; run ids are separated by spaces."""
    result, theirs, second = entry.result, entry.published, entry.secondary
    search = [run for run in result.state.search.values() if run is not None]
    difference = entry.comparison.difference if entry.comparison else None
    return {
        "experiment": table.name,
        "task": row.key.task,
        "label": row.key.label,
        "variant": cells.variant_text(row.key.variant),
        "optim": optim,
        "data": "embedded" if table.embedded else "real",
        "precision": cells.precision(entry.cell) or "",
        "metric": row.metric.label if row.metric else "",
        "goal": row.metric.goal if row.metric else "",
        "status": result.status,
        "mean": exact(entry.mean),
        "std": exact(entry.std),
        "n": str(entry.n),
        "secondary": second.name if second else "",
        **{f"secondary_{name}": exact(getattr(second, name, None)) for name in ("mean", "std")},
        "diverged": str(result.diverged),
        "planned": str(entry.planned),
        "lr": exact(result.lr),
        "searched": str(len(search)),
        "grid": str(len(result.state.search)),
        "rank": exact(entry.rank),
        **{f"paper_{name}": exact(getattr(theirs, name, None)) for name in ("mean", "std", "n", "lr")},
        "paper_rank": exact(entry.published_rank),
        "verdict": entry.verdict or "",
        "complete": exact(result.complete),
        "difference": exact(difference.mean if difference else None),
        **{f"difference_{end}": exact(getattr(difference, end, None)) for end in ("low", "high")},
        "best_lr_is_papers": exact(entry.has_papers_rate),
        "ranking": ranked.order if ranked else "",
        "runs": " ".join(run["run_id"] for run in result.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }
