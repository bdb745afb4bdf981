"""The top of the page: what was found, the grid of agreement, and Table 1 with the reason for each disagreement."""

import re
from collections.abc import Iterator, Sequence
from html import escape

from nero.report import cells, display
from nero.report.cells import CellKey, CellStatus
from nero.report.figures import style
from nero.report.page.sheet_html import CELL_HTML
from nero.report.tables.entries import entry_text, published_text, verdict_words
from nero.report.tables.table import Entry, Row, Table
from nero.report.verdicts import CONFIDENCE

# State of a cell in the grid -> its sign and its word. What a comparison lacks makes it incomplete.
WORDS = {
    CellStatus.AGREES: ("✓", "agrees"),
    CellStatus.LOWER: ("↓", "lower"),
    CellStatus.HIGHER: ("↑", "higher"),
    CellStatus.DIVERGED: ("✕", "diverged"),
    CellStatus.INCOMPLETE: ("·", "incomplete"),
}
LEGEND = (
    f"✓ agrees: the {100 * CONFIDENCE:g} % interval of the difference between our mean and the paper's contains 0. "
    "↓ lower and ↑ higher: it does not; this does not mean better or worse. Pale: preliminary, since learning rates or "
    "seeds are missing. · incomplete: there is nothing to compare yet."
)


def state(entry: Entry) -> CellStatus:
    """The entry's state in the grid."""
    return entry.verdict if entry.verdict in WORDS else CellStatus.INCOMPLETE


def grid_html(table: Table) -> str:
    """A row per task and a column per optimiser; each cell leads to its numbers in the table."""
    heads = "".join(f'<th scope="col">{escape(style.name(optim))}</th>' for optim in table.optims)
    rows = "".join(
        f'<tr><th scope="row">{escape(cells.row_text(row.key))}</th>{"".join(_grid_cells(table, row))}</tr>'
        for row in table.rows
    )
    head = f'<thead><tr><th scope="col"><span class="unseen">Task</span></th>{heads}</tr></thead>'
    caption = '<caption class="unseen">Whether our results agree with the paper\'s</caption>'
    return f'<table class="agreement">{caption}{head}<tbody>{rows}</tbody></table><p class="notes">{escape(LEGEND)}</p>'


def _grid_cells(table: Table, row: Row) -> Iterator[str]:
    for optim in table.optims:
        entry = row.entries.get(optim)
        if entry is None:
            yield "<td></td>"
            continue
        preliminary = ", preliminary" if _is_preliminary(entry) else ""
        said = f"{cells.row_text(row.key)}, {entry.name}: {WORDS[state(entry)][1]}{preliminary}"
        yield f"<td>{_chip(entry, anchor(table, entry), said)}</td>"


def _is_preliminary(entry: Entry) -> bool:
    return not entry.complete and state(entry) is not CellStatus.INCOMPLETE


def _chip(entry: Entry, target: str = "", label: str = "") -> str:
    """The state as a coloured word; a link if there is a target."""
    sign, word = WORDS[state(entry)]
    kind = "chip preliminary" if _is_preliminary(entry) else "chip"
    own = f'class="{kind}" data-state="{state(entry)}"'
    text = f'<span aria-hidden="true">{sign}</span> {word}'
    if not target:
        return f"<span {own}>{text}</span>"
    return f'<a href="#{target}" {own} aria-label="{escape(label)}" title="{escape(label)}">{text}</a>'


def anchor(table: Table, entry: Entry) -> str:
    """The id of a cell on the page."""
    cell = entry.cell
    words = (table.name, cell.task, cells.row_detail(cells.RowKey.of(cell)), cell.optim)
    return re.sub(r"[^\w]+", "-", "-".join(filter(None, words)))


def table_html(table: Table) -> str:
    """A table with one cell per task and optimiser: our result, the paper's, the verdict and the runs.

    Below each row are the reasons for its cells that do not agree. On a narrow screen, a row becomes a card.
    """
    heads = "".join(f'<th scope="col">{escape(word)}</th>' for word in ("Task", *map(style.name, table.optims)))
    bodies = "\n".join(_row_html(table, row) for row in table.rows)
    return f'<table class="cards results">\n<thead><tr>{heads}</tr></thead>\n{bodies}\n</table>'


def _row_html(table: Table, row: Row) -> str:
    metric = f' <span class="detail">{escape(row.metric.heading)}</span>' if row.metric else ""
    tds = "".join(
        _entry_html(table, entry) if (entry := row.entries.get(optim)) else "<td></td>" for optim in table.optims
    )
    line = f'<tr><th scope="row">{escape(cells.row_text(row.key))}{metric}</th>{tds}</tr>'
    return f"<tbody>\n{line}\n{_reasons_html(table, row)}</tbody>"


def _entry_html(table: Table, entry: Entry) -> str:
    own, theirs = entry_text(entry), published_text(entry)
    difference = verdict_words(entry).partition(": ")[2]
    details = [
        ("theirs", f"paper {CELL_HTML.cell(theirs._replace(detail=''))}" if theirs.value else ""),
        ("detail", CELL_HTML.escape(own.detail)),
        ("seeds", CELL_HTML.links(own, "")),
    ]
    paper, *facts = (f'<span class="{kind}">{text}</span>' if text else "" for kind, text in details)
    chip = _chip(entry) if entry.published else ""
    chip += f' <span class="detail difference">{CELL_HTML.escape(difference)}</span>' if difference else ""
    parts = [CELL_HTML.cell(own._replace(detail="", runs=())), paper, chip, *facts]
    attributes = f'id="{anchor(table, entry)}" data-cell="{escape(own.cell)}" data-head="{escape(entry.name)}"'
    return f"<td {attributes}>{''.join(parts)}</td>"


def _reasons_html(table: Table, row: Row) -> str:
    """A line for each cell of the row that does not agree and whose cause is known or looked for."""
    lines = []
    for entry in row.entries.values():
        why = table.disagreements.get(CellKey.of(entry.cell))
        if why and entry.verdict and entry.verdict.differs:
            lines.append(f'<p data-why="{anchor(table, entry)}">{reason_html(entry.name, entry.verdict, why)}</p>')
    return f'<tr class="why"><td colspan="{len(table.optims) + 1}">{"".join(lines)}</td></tr>\n' if lines else ""


def reason_html(name: str, verdict: str, why: str) -> str:
    """Such as "SGD is lower: ...", and the check behind it, which leads to the table of checks."""
    reason, _, check = why.partition(" Check: ")
    check = re.sub(r"\b[a-z0-9]+_\w+", lambda found: display.task_name(found[0]), check)
    link = f' <a href="#checks">Check</a>: {escape(check.removeprefix("checks: "))}' if check else ""
    return f"<strong>{escape(name)} is {escape(verdict)}.</strong> {escape(reason)}{link}"


def finding_html(sentences: Sequence[str]) -> str:
    first, *others = sentences
    return f'<p class="lead">{escape(first)}</p>' + "".join(f"<p>{escape(each)}</p>" for each in others)
