"""A table as Markdown, CSV and LaTeX. The same table gives the same bytes everywhere."""

import csv
import io
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from nero.report import cells, style
from nero.report.cells import Standing
from nero.report.tables import Entry, Listing, Row, Table
from nero.report.units import ShownMetric, number, rate

ARROWS = {"min": "↓", "max": "↑"}
EMBEDDED = "Embedded data, not the paper's: these numbers say that the chain works and mean nothing beside the paper's."


@dataclass(frozen=True)
class Text:
    """The words of one place: a value, which may be emphasised, and what is to be known about it."""

    value: str
    detail: str = ""
    rank: int | None = None
    code: str = ""  # a name that the project's files have, before the value


Line = list[Text]


@dataclass(frozen=True)
class Sheet:
    """A table laid out, before any format: column heads, and lines in blocks that stand together."""

    heads: list[str]
    blocks: list[list[Line]]
    left: int  # columns that say what a line is; the others hold numbers


def entry_text(entry: Entry) -> Text:
    """Our side of a cell: "11.16 ± 0.17" with n and learning rate, or why there is no such number."""
    result = entry.result
    details = []
    if entry.mean is not None:
        value = number(entry.mean) + (f" ± {number(entry.std)}" if entry.std is not None else "")
        details.append(f"n = {entry.n}" + (f" of {entry.planned}" if entry.n < entry.planned else ""))
    elif result.standing is Standing.INCOMPLETE:
        value = "diverged so far"
    else:
        value = str(result.standing)
    diverged = cells.divergence(result.state)
    if diverged and entry.mean is not None:
        details.append(f"{diverged} diverged")
    if result.standing is Standing.INCOMPLETE:
        details.append(f"incomplete: {cells.gap(result.state)}")
    if result.lr is not None and entry.mean is not None:
        details.append(f"η = {rate(result.lr)}")
    return Text(value, ", ".join(details), entry.rank)


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
    if table.remark:
        said.append(table.remark)
    if not table.complete:
        said.append(f"A {ranked} with unfinished cells is not ranked; an incomplete cell shows what is logged so far.")
    return " ".join(said)


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
    return _listed(table, table.listing) if table.listing else _grid(table)


def _grid(table: Table) -> Sheet:
    """A block per row: a line of ours and, where there are numbers of the paper's, one of those below it."""
    heads = ["task", "metric", *([""] if table.source else [])]
    blocks = []
    for row in table.rows:
        label = Text(f", {cells.variant_text(row.variant)}" if row.variant else "", code=row.task)
        # An optimiser that the row does not have leaves its place empty.
        entries = [row.entries.get(optim) for optim in table.optims]
        ours = [entry_text(entry) if entry else Text("") for entry in entries]
        theirs = [published_text(entry) if entry else Text("") for entry in entries]
        first = [label, Text(_heading(row.metric))]
        if table.source:
            below = [Text(""), Text(""), Text(table.source), *theirs]
            blocks.append([[*first, Text("ours"), *ours], below])
        else:
            blocks.append([[*first, *ours]])
    return Sheet([*heads, *map(style.name, table.optims)], blocks, len(heads))


def _listed(table: Table, listing: Listing) -> Sheet:
    """A line per cell, ours and the paper's side by side; lines with the same first word are a block."""
    [metric] = {_heading(row.metric) for row in table.rows}
    heads = [*listing.heads, *(f"{metric}, {whose}".lstrip(", ") for whose in ("ours", table.source) if whose)]
    lines = []
    for entry in (entry for row in table.rows for entry in row.entries.values()):
        theirs = [published_text(entry)] if table.source else []
        lines.append([*map(Text, listing.words(entry.result.state.cell)), entry_text(entry), *theirs])
    blocks = [list(block) for _, block in itertools.groupby(lines, key=lambda line: line[0].value)]
    return Sheet(heads, blocks, len(listing.heads))


# Markdown


def to_markdown(table: Table) -> str:
    sheet = lay_out(table)
    lines = [f"# {table.title}", ""]
    if table.embedded:
        lines += [f"**{EMBEDDED}**", ""]
    lines += [markdown_line(sheet.heads), markdown_line(["---"] * len(sheet.heads))]
    lines += [markdown_line([_markdown_cell(text) for text in line]) for block in sheet.blocks for line in block]
    return "\n".join([*lines, "", notes(table), ""])


def markdown_line(words: list[str]) -> str:
    return f"| {' | '.join(word.replace('|', '&#124;') for word in words)} |"


def _markdown_cell(text: Text) -> str:
    emphasis: dict[int | None, str] = {1: f"**{text.value}**", 2: f"<u>{text.value}</u>"}
    value = emphasis.get(text.rank, text.value)
    return (f"`{text.code}`" if text.code else "") + value + (f" ({text.detail})" if text.detail else "")


# LaTeX


def to_latex(table: Table) -> str:
    """A floating table; its first line says which packages a document has to load."""
    sheet = lay_out(table)
    columns = "l" * sheet.left + "c" * (len(sheet.heads) - sheet.left)
    body: list[str] = []
    for block in sheet.blocks:
        if body:
            body.append(r"\addlinespace")
        body += [" & ".join(map(_latex_cell, line)) + r" \\" for line in block]
    caption = " ".join([f"{table.title}.", *([EMBEDDED] if table.embedded else []), notes(table)])
    packages = ["booktabs", *(["amssymb"] if any(LATEX["✓"] in line for line in body) else [])]
    return "\n".join(
        [
            f"% Needs {' and '.join(packages)}.",
            r"\begin{table*}[t]",
            r"\centering\footnotesize",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(map(_latex, sheet.heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex(caption)}}}",
            rf"\label{{table:{table.name}}}",
            r"\end{table*}",
            "",
        ]
    )


LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "η": r"$\eta$",
    "β": r"$\beta$",
    "₁": r"\textsubscript{1}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "✓": r"\checkmark{}",
}


def _latex(text: str) -> str:
    # Hyphens before digits are minus signs.
    escaped = "".join(LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def _latex_cell(text: Text) -> str:
    emphasis: dict[int | None, Callable[[str], str]] = {1: r"\textbf{{{}}}".format, 2: r"\underline{{{}}}".format}
    value = emphasis.get(text.rank, str)(_latex(text.value))
    return _latex(text.code) + value + (rf" {{\scriptsize ({_latex(text.detail)})}}" if text.detail else "")


# CSV


def to_csv(table: Table) -> str:
    """One line per cell with all of its numbers; run ids are separated by spaces."""
    file = io.StringIO()
    lines = [_csv_line(table, row, optim, entry) for row in table.rows for optim, entry in row.entries.items()]
    writer = csv.DictWriter(file, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _csv_line(table: Table, row: Row, optim: str, entry: Entry) -> dict[str, str]:
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
        "mean": _exact(entry.mean),
        "std": _exact(entry.std),
        "n": str(entry.n),
        "diverged": str(result.diverged),
        "planned": str(entry.planned),
        "lr": _exact(result.lr),
        "searched": str(len(search)),
        "grid": str(len(result.state.search)),
        "rank": _whole(entry.rank),
        "paper_mean": _exact(theirs.mean if theirs else None),
        "paper_std": _exact(theirs.std if theirs else None),
        "paper_n": _whole(theirs.n if theirs else None),
        "paper_lr": _exact(theirs.lr if theirs else None),
        "paper_rank": _whole(entry.published_rank),
        "runs": " ".join(run["run_id"] for run in result.runs),
        "search_runs": " ".join(run["run_id"] for run in search),
    }


def _exact(value: float | None) -> str:
    # Ten digits: more than any log holds, and none of the noise of multiplying by 100.
    return "" if value is None else f"{value:.10g}"


def _whole(value: int | None) -> str:
    return "" if value is None else str(value)


def _heading(metric: ShownMetric | None) -> str:
    return f"{metric.label} {ARROWS[metric.goal]}" if metric else ""


FORMATS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "csv": to_csv, "tex": to_latex}
"""By the ending of the file's name."""
