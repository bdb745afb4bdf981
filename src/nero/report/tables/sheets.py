"""A table laid out, independent of format, and its four renderings: Markdown, CSV, LaTeX and HTML."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nero.plans.plan import Summary
from nero.report import cells


@dataclass(frozen=True)
class RunLink:
    """A run that a number comes from, and the text of the link to it."""

    words: str
    task: str
    run_id: str

    @classmethod
    def to(cls, run: Summary, words: str) -> "RunLink":
        return cls(words, run["task"], run["run_id"])

    @property
    def path(self) -> str:
        """Path of its directory in the store."""
        return f"{self.task}/{self.run_id}"


@dataclass(frozen=True)
class Text:
    """The text of one table cell: a value, which may be emphasised, and details."""

    value: str
    detail: str = ""
    rank: int | None = None  # 1 is bold, 2 underlined
    code: str = ""  # a name from the project's files, before the value
    link: RunLink | None = None  # the one run that the value comes from
    runs: tuple[RunLink, ...] = ()  # all runs that it comes from, listed after the details
    cell: str = ""  # the matching line of the CSV, as "task|label|variant|optimiser"
    verdict: str = ""


Line = list[Text]

EMBEDDED = "Embedded data, not the paper's: these numbers test the pipeline and cannot be compared with the paper's."
REASONS = "Why cells differ from the paper's:"


def row_label(row: cells.RowKey) -> Text:
    """Such as "`mnist_reparam`, sigma = 100"."""
    return Text(cells.row_detail(row), code=row.task)


@dataclass(frozen=True)
class Sheet:
    """Headings and lines; lines of one block are set together."""

    heads: list[str]
    blocks: list[list[Line]]
    left: int  # number of label columns, before the columns of numbers


@dataclass(frozen=True)
class Printed:
    """A table with everything that its renderings show."""

    name: str  # of its files
    title: str
    sheet: Sheet
    notes: str  # how to read it
    records: tuple[Mapping[str, str], ...]  # the lines of the CSV, all with the same keys
    warning: str = ""
    findings: tuple[Text, ...] = ()  # sentences on each row
    reasons: tuple[Text, ...] = ()  # why cells differ from the paper's


@dataclass(frozen=True)
class Markup:
    """How one format writes a cell; templates have %s for the text."""

    escape: Callable[[str], str]
    code: str
    value: Mapping[int | None, str]  # by rank; None is any other
    detail: str
    link: Callable[[RunLink, str], str] | None  # given the escaped words; None writes no links

    def cell(self, text: Text) -> str:
        value = self.value.get(text.rank, self.value[None]) % self.escape(text.value) if text.value else ""
        if text.link and self.link:
            value = self.link(text.link, value)
        details = [self.escape(text.detail)] if text.detail else []
        if text.runs and self.link:
            details.append(", ".join(self.link(run, self.escape(run.words)) for run in text.runs))
        code = self.code % self.escape(text.code) if text.code else ""
        return code + value + (self.detail % "; ".join(details) if details else "")


# Markdown


def to_markdown(printed: Printed, runs: str | None = None) -> str:
    """The table with its title and notes. `runs` is the relative path of the store, for links to runs."""
    lines = [f"# {printed.title}", ""]
    if printed.warning:
        lines += [f"**{printed.warning}**", ""]
    lines += [*sheet_lines(printed.sheet, runs), ""]
    if printed.findings:
        lines += [*list_lines(printed.findings), ""]
    lines += [printed.notes, ""]
    if printed.reasons:
        lines += [REASONS, "", *list_lines(printed.reasons), ""]
    return "\n".join(lines)


def sheet_lines(sheet: Sheet, runs: str | None = None) -> Iterator[str]:
    """The Markdown of the table alone."""
    yield markdown_line(sheet.heads)
    yield markdown_line(["---"] * len(sheet.heads))
    for block in sheet.blocks:
        yield from (markdown_line([_markdown(runs).cell(text) for text in line]) for line in block)


def list_lines(texts: Iterable[Text]) -> Iterator[str]:
    """A Markdown list of sentences."""
    return (f"- {_markdown(None).cell(text)}" for text in texts)


def markdown_line(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '&#124;') for word in words)} |"


def _markdown(runs: str | None) -> Markup:
    def link(run: RunLink, words: str) -> str:
        return f"[{words}]({runs}/{run.path})"

    return Markup(str, "`%s`", {1: "**%s**", 2: "<u>%s</u>", None: "%s"}, " (%s)", None if runs is None else link)


# CSV


def to_csv(records: Sequence[Mapping[str, str]]) -> str:
    """One line per record; all have the keys of the first."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def exact(value: float | None) -> str:
    # Ten digits: more than any log holds, and none of the noise of multiplying by 100.
    return "" if value is None else f"{value:.10g}"


# LaTeX

LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "η": r"$\eta$",
    "σ": r"$\sigma$",
    "β": r"$\beta$",
    "₁": r"\textsubscript{1}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "✓": r"\checkmark{}",
}
"""Characters that have a meaning in LaTeX, or that would need further packages."""

PACKAGES = {"booktabs": r"\toprule", "amssymb": LATEX["✓"], "hyperref": r"\href"}
"""Package -> the command that needs it."""


def to_latex(printed: Printed, runs: str | None = None) -> str:
    """A floating table without the reasons; its first line names the packages that it needs.

    `runs` is the path of the store from the document, for links to runs.
    """
    sheet, markup = printed.sheet, _latex(runs)
    columns = "l" * sheet.left + "c" * (len(sheet.heads) - sheet.left)
    body: list[str] = []
    for block in sheet.blocks:
        if body:
            body.append(r"\addlinespace")
        body += [" & ".join(map(markup.cell, line)) + r" \\" for line in block]
    caption = " ".join(filter(None, [f"{printed.title}.", printed.warning, printed.notes]))
    lines = [
        r"\begin{table*}[t]",
        r"\centering\footnotesize",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_latex_escaped, sheet.heads)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip"] if printed.findings else []),
        *(rf"{{\raggedright\scriptsize {_latex(None).cell(text)}\par}}" for text in printed.findings),
        rf"\caption{{{_latex_escaped(caption)}}}",
        rf"\label{{table:{printed.name}}}",
        r"\end{table*}",
        "",
    ]
    text = "\n".join(lines)
    *most, last = [package for package, sign in PACKAGES.items() if sign in text]
    return f"% Needs {' and '.join(filter(None, [', '.join(most), last]))}.\n{text}"


def _latex(runs: str | None) -> Markup:
    def link(run: RunLink, words: str) -> str:
        # A backslash before these characters is all that the address of a link needs.
        address = re.sub(r"([%#&_])", r"\\\1", f"{runs}/{run.path}")
        return rf"\href{{{address}}}{{{words}}}"

    value: dict[int | None, str] = {1: r"\textbf{%s}", 2: r"\underline{%s}", None: "%s"}
    return Markup(_latex_escaped, "%s", value, r" {\scriptsize (%s)}", None if runs is None else link)


def _latex_escaped(text: str) -> str:
    escaped = "".join(LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # hyphens before digits are minus signs


# HTML


def to_html(printed: Printed) -> str:
    """A section with title, table and notes; runs link to their place on the same page."""
    name = escape(printed.name, quote=True)
    warning = f'<p class="warning">{escape(printed.warning)}</p>' if printed.warning else ""
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in printed.sheet.heads)
    bodies = ["\n".join(["<tbody>", *map(_html_line, block), "</tbody>"]) for block in printed.sheet.blocks]
    return "\n".join(
        [
            f'<section id="{name}" class="table">',
            f'<h2 id="{name}-title">{escape(printed.title)}</h2>{warning}',
            f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">',
            f"<table>\n<thead><tr>{heads}</tr></thead>",
            "\n".join(bodies),
            "</table>\n</div>",
            *_html_list(printed.findings),
            f'<p class="notes">{escape(printed.notes)}</p>',
            *([f'<p class="notes">{escape(REASONS)}</p>'] if printed.reasons else []),
            *_html_list(printed.reasons),
            "</section>",
        ]
    )


def _html_list(texts: Sequence[Text]) -> list[str]:
    items = (f"<li>{LIST_HTML.cell(text)}</li>" for text in texts)
    return ['<ul class="notes">', *items, "</ul>"] if texts else []


def _html_line(line: Line) -> str:
    return f"<tr>{''.join(map(_html_cell, line))}</tr>"


def _html_cell(text: Text) -> str:
    attributes = {"data-cell": text.cell, "data-verdict": text.verdict}
    written = "".join(f' {name}="{escape(value, quote=True)}"' for name, value in attributes.items() if value)
    return f"<td{written}>{CELL_HTML.cell(text)}</td>"


def _html_escaped(text: str) -> str:
    """Escaped, with what belongs together, such as "η = 0.01" or "[-0.04, +0.60]", kept on one line."""
    joined = re.sub(r" ([=±]|of) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", joined))


def _html_link(run: RunLink, words: str) -> str:
    return f'<a class="run" href="#run={escape(run.run_id, quote=True)}">{words}</a>'


CELL_HTML = Markup(
    _html_escaped,
    "<code>%s</code>",
    {
        1: '<span class="value best">%s</span>',
        2: '<span class="value second">%s</span>',
        None: '<span class="value">%s</span>',
    },
    ' <span class="detail">(%s)</span>',
    _html_link,
)
LIST_HTML = Markup(_html_escaped, "<code>%s</code>", {None: "%s"}, " (%s)", None)

FORMATS: dict[str, Callable[[Printed, str], str]] = {
    "md": to_markdown,
    "csv": lambda printed, _: to_csv(printed.records),
    "tex": to_latex,
}
"""File name extension -> renderer, given the table and the relative path of the store."""
