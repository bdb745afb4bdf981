"""The text of an experiment's table: cells, notes, findings, layout and CSV records, for every format of `sheets`."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from nero.report import cells
from nero.report.cells import CellKey, CellStatus
from nero.report.figures import style
from nero.report.tables.sheets import EMBEDDED, Line, Printed, RunLink, Sheet, Text, exact, row_label
from nero.report.tables.table import Entry, Listing, Row, Table, ranks
from nero.report.units import DECIMALS, number, rate, signed
from nero.report.verdicts import RULE

VERDICT = "verdict"


def print_table(table: Table) -> Printed:
    """The table, ready for any format."""
    return Printed(
        name=table.name,
        title=table.title,
        sheet=_listed(table, table.listing) if table.listing else grid(table),
        notes=notes(table),
        records=tuple(
            _record(table, row, order, entry)
            for row, (order, _) in zip(table.rows, map(ranking, table.rows), strict=True)
            for entry in row.entries.values()
        ),
        warning=EMBEDDED if table.embedded else "",
        findings=findings(table),
        reasons=reasons(table),
    )


def entry_text(entry: Entry) -> Text:
    """Our result: "11.16 ± 0.17" with n and learning rate, or why there is none."""
    state, cell = entry.state, entry.cell
    leads = entry.published is not None and state.leading_lr == entry.published.lr
    # An incomplete search of several logged rates is led by one that is not the paper's: the rate's text says so.
    searched = [run for run in state.search.values() if run is not None]
    names_search = state.searching and len(searched) > 1 and entry.mean is not None and not leads
    details: list[str | None] = []
    if entry.mean is not None and state.leading_lr is not None:
        shown = f"η = {rate(state.leading_lr)}"
        if state.searching:
            shown = f"at the paper's {shown}" if leads else f"at {shown}"
        elif len(state.search) > 1:  # the search is complete
            whose = {None: "", True: ", the paper's", False: ", not the paper's"}[entry.has_papers_rate]
            shown = f"best {shown}{whose}"
        problems, second = cells.problems(state), entry.secondary
        details = [
            f"n = {entry.n}" + (f" of {len(cell.seeds)}" if entry.n < len(cell.seeds) else ""),
            f"{problems['diverged']} diverged" if "diverged" in problems else None,
            shown + (f", best of {problems['search incomplete']} searched" if names_search else ""),
            f"{second.name} {_spread(second.mean, second.std, DECIMALS)}" if second else None,
        ]
    if entry.status is not CellStatus.MISSING:
        details.append(precision_text(entry))
    detail = ", ".join(filter(None, details))
    if entry.status is CellStatus.INCOMPLETE and not names_search:
        detail = "; ".join(filter(None, [detail, cells.gap(state)]))
    # The seeds at the leading learning rate or, if none leads, the diverged runs of the search.
    links = [RunLink.to(run, f"seed {run['seed']}") for run in entry.runs] or [
        RunLink.to(run, f"η = {rate(run['lr'])}") for run in searched
    ]
    name = "|".join((cell.task, cell.label, cells.variant_as_typed(cell.variant), cell.optim))
    return Text(value(entry), detail, entry.rank, runs=tuple(links), cell=name, verdict=entry.verdict or "")


def value(entry: Entry) -> str:
    """The mean and its deviation, or why there is none."""
    if entry.mean is not None:
        return _spread(entry.mean, entry.std, entry.digits)
    return str(CellStatus.MISSING if entry.status is CellStatus.MISSING else CellStatus.DIVERGED)


def _spread(mean: float, std: float | None, digits: int) -> str:
    return number(mean, digits) + (f" ± {number(std, digits)}" if std is not None else "")


def precision_text(entry: Entry) -> str:
    """The arithmetic of the cell's runs, if it is not that of most cells of its row."""
    return style.precision(entry.marked_precision) if entry.marked_precision else ""


def verdict_text(entry: Entry) -> Text:
    """Such as "agrees: +0.28 [-0.04, +0.60] (preliminary, n = 1)"."""
    detail = ""
    if entry.verdict not in (None, CellStatus.MISSING, CellStatus.INCOMPLETE) and not entry.complete:
        detail = "preliminary" + (f", n = {entry.n}" if entry.n else "")
    return Text(verdict_words(entry), detail, verdict=entry.verdict or "")


def verdict_words(entry: Entry) -> str:
    """The verdict and the difference that it follows from."""
    if entry.comparison is None:
        return ""
    verdict, *difference = entry.comparison
    shown = [signed(end, entry.digits) for end in difference if end is not None]
    return f"{verdict}: {shown[0]} [{shown[1]}, {shown[2]}]" if shown else str(verdict)


def published_text(entry: Entry) -> Text:
    """The paper's result."""
    theirs = entry.published
    if theirs is None:
        return Text("")
    shown = _spread(theirs.mean, theirs.std, entry.digits)
    return Text(shown, f"n = {theirs.n}, η = {rate(theirs.lr)}", entry.published_rank)


def notes(table: Table) -> str:
    """How to read the table."""
    ranked = "column" if table.listing else "row"
    states = [entry.state for entry in table.entries]
    text = ["Mean ± population standard deviation over n seeds, at the end of training and at the learning rate η."]
    if any(len(state.search) > 1 for state in states):
        text.append("Best η: of a complete search, with one seed at each rate of the grid.")
    if any(state.searching for state in states):
        text.append("While a search is incomplete, a cell shows the best rate searched so far.")
    text.append(f"In each {ranked}, the best is bold and the runner-up underlined.")
    if table.listing:
        text.append(f"Task: {cells.row_text(table.rows[0].key)}.")
    text += [_arithmetic(table), RULE if any(entry.verdict for entry in table.entries) else "", table.remark]
    if not table.complete:
        text.append(f"Our results in a {ranked} are ranked once none of its runs is missing.")
    return " ".join(filter(None, text))


def _arithmetic(table: Table) -> str:
    """The arithmetic of each row, with exceptions; empty if no task has a config yet."""
    found: dict[str, list[str]] = {}  # rows by arithmetic
    for row in table.rows:
        text = cells.row_text(row.key)
        names: dict[str, list[str]] = {}  # of the cells by arithmetic
        for entry in row.entries.values():
            if precision := cells.precision(entry.cell):
                names.setdefault(precision, []).append(entry.name)
        usual = cells.usual_precision(entry.state for entry in row.entries.values())
        if usual:
            others = (f", except {', '.join(of)}: {style.precision(key)}" for key, of in names.items() if key != usual)
            found.setdefault(usual, []).append(text + "".join(others))
        else:
            for key, of in names.items():
                found.setdefault(key, []).append(f"{text} with {', '.join(of)}")
    if not found:
        return ""
    one = len(found) == 1 and not any(entry.marked_precision for entry in table.entries)
    of_rows = (style.precision(key) + ("" if one else f" ({'; '.join(rows)})") for key, rows in found.items())
    theirs = f"; {table.source}: {style.precision('fp32')}" if table.source else ""
    return f"Arithmetic: {', '.join(of_rows)}{theirs}."


def findings(table: Table) -> tuple[Text, ...]:
    """One or two sentences on each row for which the paper has numbers."""
    found = []
    for row in table.rows:
        sentences = " ".join(filter(None, [ranking(row)[1], rates_text(row)]))
        if sentences:
            found.append(Text(f"{cells.row_text(row.key)}: {sentences}"))
    return tuple(found)


def ranking(row: Row) -> tuple[str, str]:
    """Whether the paper's ranking of the entries "holds", "differs", or is "unknown" yet, and a sentence that says so.

    Both are empty for fewer than two entries for which the paper has numbers.
    """
    theirs = {key: entry.published.mean for key, entry in row.entries.items() if entry.published}
    if row.metric is None or len(theirs) < 2:
        return "", ""
    ours = {key: row.entries[key] for key in theirs}
    if not all(entry.complete for entry in ours.values()):
        return "unknown", "Ranking not known yet: runs are missing."
    # What diverged comes last.
    means: dict[Any, float] = dict.fromkeys(ours, row.metric.sign * math.inf)
    finite = {key: e.mean for key, e in ours.items() if e.mean is not None and e.verdict is not CellStatus.DIVERGED}
    our_places, their_places = ranks(means | finite, row.metric), ranks(theirs, row.metric)
    our_order = _in_order(our_places, {key: e.name + " (diverged)" * (key not in finite) for key, e in ours.items()})
    if our_places == their_places:
        return "holds", f"Ranking holds: {our_order}."
    their_order = _in_order(their_places, {key: entry.name for key, entry in ours.items()})
    return "differs", f"Ranking differs: {our_order} (paper: {their_order})."


def _in_order(places: Mapping[Any, int], names: Mapping[Any, str]) -> str:
    """Such as "Nero, SGD = Adam, LAMB"."""
    shared: dict[int, list[str]] = {}
    for key, place in places.items():
        shared.setdefault(place, []).append(names[key])
    return ", ".join(" = ".join(shared[place]) for place in sorted(shared))


def rates_text(row: Row) -> str | None:
    """How many complete searches have the paper's best rate, and which do not; None if nothing is searched."""
    entries = row.entries.values()
    if not any(entry.published and len(entry.state.search) > 1 for entry in entries):
        return None
    complete = [entry for entry in entries if entry.has_papers_rate is not None]
    if not complete:
        return "No search is complete."
    others = []
    for entry in complete:
        if entry.published and not entry.has_papers_rate:
            ours = "every rate diverged" if entry.state.best_lr is None else rate(entry.state.best_lr)
            others.append(f"{entry.name}: {ours} (paper {rate(entry.published.lr)})")
    count = f"{len(complete) - len(others)} of {len(complete)} complete search{'es' * (len(complete) > 1)}"
    return "; ".join([f"Best rate is the paper's for {count}", *others]) + "."


def reasons(table: Table) -> tuple[Text, ...]:
    """Why cells differ from the paper's, from results/disagreements.yaml."""
    found = []
    for row in table.rows:
        for entry in row.entries.values():
            why = table.disagreements.get(CellKey.of(entry.cell))
            if why and entry.verdict and entry.verdict.differs:
                cell = f"{cells.row_text(row.key)}, {entry.name} ({verdict_words(entry)})"
                found.append(Text(f"{cell}: {why}"))
    return tuple(found)


def grid(table: Table) -> Sheet:
    """A block per row: our results and, if the paper has numbers, its results and our verdicts below."""
    heads = ["task", "metric", *([""] if table.source else [])]
    blocks = []
    for row in table.rows:
        block: list[Line] = []
        for kind, words in _kinds(table, row).items():
            first = [Text(""), Text("")] if block else [row_label(row.key), Text(_heading(row))]
            places = [words(row.entries[optim]) if optim in row.entries else Text("") for optim in table.optims]
            block.append([*first, *([Text(kind)] if table.source else []), *places])
        blocks.append(block)
    return Sheet([*heads, *map(style.name, table.optims)], blocks, len(heads))


def _listed(table: Table, listing: Listing) -> Sheet:
    """One line per cell, ours and the paper's side by side; lines with the same first text form a block."""
    [row] = table.rows
    kinds = _kinds(table, row)
    heads = [kind if kind == VERDICT else f"{_heading(row)}, {kind}".lstrip(", ") for kind in kinds]
    lines = [
        [*map(Text, listing.words(entry.cell)), *(words(entry) for words in kinds.values())] for entry in table.entries
    ]
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet([*listing.heads, *heads], blocks, len(listing.heads))


def _kinds(table: Table, row: Row) -> dict[str, Callable[[Entry], Text]]:
    """What is shown of the cells of a row: our results and, if there are any, the paper's and our verdicts."""
    kinds: dict[str, Callable[[Entry], Text]] = {"ours": entry_text}
    kinds |= {table.source: published_text} if table.source else {}
    return kinds | ({VERDICT: verdict_text} if any(entry.verdict for entry in row.entries.values()) else {})


def _heading(row: Row) -> str:
    return row.metric.heading if row.metric else ""


def _record(table: Table, row: Row, ranked: str, entry: Entry) -> dict[str, str]:
    """A line of the CSV; run ids are separated by spaces."""
    cell, theirs, second = entry.cell, entry.published, entry.secondary
    search = [run for run in entry.state.search.values() if run is not None]
    return {
        "experiment": table.name,
        "task": cell.task,
        "label": cell.label,
        "variant": cells.variant_as_typed(cell.variant),
        "optim": cell.optim,
        "data": "embedded" if table.embedded else "real",
        "precision": cells.precision(cell) or "",
        "metric": row.metric.label if row.metric else "",
        "goal": row.metric.goal if row.metric else "",
        "status": entry.status,
        "mean": exact(entry.mean),
        "std": exact(entry.std),
        "n": str(entry.n),
        "secondary": second.name if second else "",
        **{f"secondary_{name}": exact(getattr(second, name, None)) for name in ("mean", "std")},
        "diverged": str(len(entry.runs) - entry.n),
        "planned": str(len(cell.seeds)),
        "lr": exact(entry.state.leading_lr),
        "searched": str(len(search)),
        "grid": str(len(entry.state.search)),
        "rank": exact(entry.rank),
        **{f"paper_{name}": exact(getattr(theirs, name, None)) for name in ("mean", "std", "n", "lr")},
        "paper_rank": exact(entry.published_rank),
        "verdict": entry.verdict or "",
        "complete": exact(entry.complete),
        "difference": exact(getattr(entry.comparison, "mean", None)),
        **{f"difference_{end}": exact(getattr(entry.comparison, end, None)) for end in ("low", "high")},
        "best_lr_is_papers": exact(entry.has_papers_rate),
        "ranking": ranked,
        "runs": " ".join(run["run_id"] for run in entry.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }
