"""The text of an experiment's table: cells, notes, findings, layout and CSV records, for every format of `sheets`."""

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nero.report import cells
from nero.report.cells import CellKey, CellStatus
from nero.report.figures import style
from nero.report.tables.entries import (
    difference_text,
    entry_text,
    narrow_entry,
    narrow_published,
    published_text,
    secondary_text,
    verdict_text,
    verdict_words,
)
from nero.report.tables.sheets import EMBEDDED, Line, Printed, Sheet, Text, exact, row_label
from nero.report.tables.table import Entry, Row, Table, ranks, record
from nero.report.units import rate
from nero.report.verdicts import CONFIDENCE

OURS, VERDICT, DIFFERENCE = "ours", "verdict", "difference"
MOST_COLUMNS = 5  # optimisers that fit beside each other; a table of more has one line per cell
NARROW_NOTES = (
    "Mean ± standard deviation over {over}, at the learning rate η. Bold: the best; underlined: the runner-up. "
    "*: preliminary, since learning rates or seeds are missing."
)
NARROW_DIFFERENCE = (
    f" Difference: our mean minus the paper's, ± half the width of its {100 * CONFIDENCE:g} % interval; †: this "
    "interval does not contain 0."
)
# A kind of line, or of column: what it is called -> the text of each entry.
Kinds = Mapping[str, Callable[[Entry], Text]]


def print_table(table: Table) -> Printed:
    """The table, ready for any format."""
    return Printed(
        name=table.name,
        title=table.title,
        sheet=_sheet(table, _kinds(table)),
        notes=notes(table),
        records=tuple(
            {key: _text(value) for key, value in record(table, row, entry, order).items()}
            for row, (order, _) in zip(table.rows, map(ranking, table.rows), strict=True)
            for entry in row.entries.values()
        ),
        warning=EMBEDDED if table.embedded else "",
        findings=findings(table),
        reasons=reasons(table),
        general=True,
        narrow=_sheet(table, _narrow_kinds(table), narrow=True),
        narrow_notes=_narrow_notes(table),
    )


def notes(table: Table) -> str:
    """What holds for this table; GENERAL_NOTES hold for all."""
    task = f"Task: {cells.row_text(table.rows[0].key)}." if table.listing else ""
    return " ".join(filter(None, [task, _precisions(table), table.remark]))


def _precisions(table: Table) -> str:
    """The precision of each row, with exceptions; empty if no task has a config yet."""
    found: dict[str, list[str]] = {}  # rows by precision
    for row in table.rows:
        text = cells.row_text(row.key)
        names: dict[str, list[str]] = {}  # of the cells by precision
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
    return f"Precision: {', '.join(of_rows)}{theirs}."


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


def _sheet(table: Table, kinds: Kinds, narrow: bool = False) -> Sheet:
    """One column per optimiser or, for a listing and for many optimisers, one line per cell."""
    by_line = table.listing or len(table.optims) > MOST_COLUMNS
    return _listed(table, kinds, narrow) if by_line else _grid(table, kinds, narrow)


def _grid(table: Table, kinds: Kinds, narrow: bool) -> Sheet:
    """A block per row: a line of our results and, if the paper has numbers, its results and our verdicts below."""
    shows_kind = len(kinds) > 1
    blocks = []
    for row in table.rows:
        block: list[Line] = []
        for kind, words in kinds.items():
            entries = [row.entries.get(optim) for optim in table.optims]
            texts = [_named(words(entry), row, entry) if entry else Text("") for entry in entries]
            if kind == OURS or any(text.value for text in texts):
                block.append([*_labels(row, narrow, not block), *([Text(kind)] if shows_kind else []), *texts])
        blocks.append(block)
    heads = [*_label_heads(narrow), *([""] if shows_kind else [])]
    return Sheet([*heads, *map(style.name, table.optims)], blocks, len(heads))


def _listed(table: Table, kinds: Kinds, narrow: bool) -> Sheet:
    """One line per cell, ours and the paper's side by side."""
    if table.listing is None:
        blocks = [
            [
                [
                    *_labels(row, narrow, not place),
                    Text(entry.name),
                    *(_named(words(entry), row, entry) for words in kinds.values()),
                ]
                for place, entry in enumerate(row.entries.values())
            ]
            for row in table.rows
        ]
        heads = [*_label_heads(narrow), "optimiser"]
        return Sheet([*heads, *kinds], blocks, len(heads))
    [row] = table.rows
    words_of = table.listing.words
    lines = [
        [*map(Text, words_of(entry.cell)), *(words(entry)._replace(name=entry.name) for words in kinds.values())]
        for entry in table.entries
    ]
    heads = [kind if kind in (VERDICT, DIFFERENCE) else f"{_heading(row)}, {kind}".lstrip(", ") for kind in kinds]
    # Lines with the same first text form a block.
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet([*table.listing.heads, *heads], blocks, len(table.listing.heads))


def _named(text: Text, row: Row, entry: Entry) -> Text:
    """The text with the name of its runs."""
    return text._replace(name=f"{cells.row_text(row.key)}, {entry.name}")


def _label_heads(narrow: bool) -> list[str]:
    return ["task"] if narrow else ["task", "metric"]


def _labels(row: Row, narrow: bool, is_first: bool) -> list[Text]:
    """The name of a row and its metric, in the first of its lines; in a narrow sheet the metric is below the name."""
    if not is_first:
        return [Text("")] * len(_label_heads(narrow))
    name = row_label(row.key)
    return [name._replace(detail=_heading(row))] if narrow else [name, Text(_heading(row))]


def _kinds(table: Table) -> Kinds:
    """What is shown of cells: our results and, if there are any, the paper's and our verdicts."""
    kinds: dict[str, Callable[[Entry], Text]] = {OURS: entry_text}
    seconds = dict.fromkeys(entry.secondary.name for entry in table.entries if entry.secondary)
    kinds |= {name: partial(secondary_text, name=name) for name in seconds}
    kinds |= {table.source: published_text} if table.source else {}
    return kinds | ({VERDICT: verdict_text} if any(entry.verdict for entry in table.entries) else {})


def _narrow_kinds(table: Table) -> Kinds:
    """The same in short."""
    seeds, kinds = _usual_seeds(table), dict(_kinds(table))
    kinds[OURS] = partial(narrow_entry, seeds=seeds)
    if table.source:
        kinds[table.source] = partial(narrow_published, seeds=seeds)
    return {DIFFERENCE if kind == VERDICT else kind: words for kind, words in kinds.items()} | (
        {DIFFERENCE: difference_text} if VERDICT in kinds else {}
    )


def _usual_seeds(table: Table) -> int | None:
    """The number of seeds of every cell; None if they differ."""
    planned = {len(entry.cell.seeds) for entry in table.entries}
    return planned.pop() if len(planned) == 1 else None


def _narrow_notes(table: Table) -> str:
    seeds = _usual_seeds(table)
    over = f"{seeds} seeds, or n where it is given" if seeds else "n seeds"
    compared = any(entry.verdict for entry in table.entries)
    return NARROW_NOTES.format(over=over) + (NARROW_DIFFERENCE if compared else "")


def _heading(row: Row) -> str:
    return row.metric.heading if row.metric else ""


def _text(value: str | float | None) -> str:
    """A value of a record, for the CSV."""
    return value if isinstance(value, str) else exact(value)
