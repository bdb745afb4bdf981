"""A table laid out, independent of format, and its four renderings: Markdown, CSV, LaTeX and HTML."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from nero.plans.plan import Summary
from nero.report import cells

EMBEDDED = "Embedded data, not the paper's: these numbers test the pipeline and cannot be compared with the paper's."
REASONS = "Why cells differ from the paper's:"


class RunLink(NamedTuple):
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


class Text(NamedTuple):
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


def row_label(row: cells.RowKey) -> Text:
    """Such as "MNIST MLP, reparameterised, sigma = 100"."""
    return Text(cells.row_text(row))


class Sheet(NamedTuple):
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


class Markup(NamedTuple):
    """How one format writes a cell; templates have %s for the text."""

    escape: Callable[[str], str]
    code: str
    value: Mapping[int | None, str]  # by rank; None is any other
    detail: str
    link: str = ""  # has {words}, {path} of the run's directory, and {run}, its id
    address: Callable[[str], str] = str  # escapes that path

    def cell(self, text: Text, runs: str | None = None) -> str:
        """`runs` is the relative path of the store; without it there are no links to runs."""

        def link(run: RunLink, words: str) -> str:
            return self.link.format(words=words, path=self.address(f"{runs}/{run.path}"), run=escape(run.run_id))

        value = self.value.get(text.rank, self.value[None]) % self.escape(text.value) if text.value else ""
        if text.link and runs is not None:
            value = link(text.link, value)
        details = [self.escape(text.detail)] if text.detail else []
        if text.runs and runs is not None:
            details.append(", ".join(link(run, self.escape(run.words)) for run in text.runs))
        code = self.code % self.escape(text.code) if text.code else ""
        return code + value + (self.detail % "; ".join(details) if details else "")


MARKDOWN = Markup(str, "`%s`", {1: "**%s**", 2: "<u>%s</u>", None: "%s"}, " (%s)", "[{words}]({path})")


def to_markdown(printed: Printed, runs: str | None = None) -> str:
    """The table with its title and notes. `runs` is the relative path of the store, for links to runs."""
    warning = [f"**{printed.warning}**", ""] if printed.warning else []
    findings = [*list_lines(printed.findings), ""] if printed.findings else []
    reasons = [REASONS, "", *list_lines(printed.reasons), ""] if printed.reasons else []
    lines = [*warning, *sheet_lines(printed.sheet, runs), "", *findings, printed.notes, "", *reasons]
    return "\n".join([f"# {printed.title}", "", *lines])


def sheet_lines(sheet: Sheet, runs: str | None = None) -> Iterator[str]:
    """The Markdown of the table alone."""
    yield from map(markdown_line, (sheet.heads, ["---"] * len(sheet.heads)))
    yield from (markdown_line([MARKDOWN.cell(text, runs) for text in line]) for block in sheet.blocks for line in block)


def list_lines(texts: Iterable[Text]) -> Iterator[str]:
    """A Markdown list of sentences."""
    return (f"- {MARKDOWN.cell(text)}" for text in texts)


def markdown_line(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '&#124;') for word in words)} |"


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


# Characters that have a meaning in LaTeX, or that would need further packages.
LATEX_SIGNS = {
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
PACKAGES = {"booktabs": r"\toprule", "amssymb": LATEX_SIGNS["✓"], "hyperref": r"\href"}  # the commands that need them

LATEX_TABLE = r"""\begin{table*}[t]
\centering\footnotesize
\begin{tabular}{%s}
\toprule
%s \\
\midrule
%s\bottomrule
\end{tabular}
%s\caption{%s}
\label{table:%s}
\end{table*}
"""


def to_latex(printed: Printed, runs: str | None = None) -> str:
    """A floating table without the reasons; its first line names the packages that it needs.

    `runs` is the path of the store from the document, for links to runs.
    """
    sheet = printed.sheet
    columns = "l" * sheet.left + "c" * (len(sheet.heads) - sheet.left)
    heads = " & ".join(map(_latex_escaped, sheet.heads))
    lines = ([" & ".join(LATEX.cell(text, runs) for text in line) for line in block] for block in sheet.blocks)
    blocks = ("".join(f"{line} \\\\\n" for line in block) for block in lines)
    sentences = [rf"{{\raggedright\scriptsize {LATEX.cell(text)}\par}}" for text in printed.findings]
    findings = "".join(f"{line}\n" for line in ([r"\par\smallskip", *sentences] if sentences else []))
    caption = _latex_escaped(" ".join(filter(None, [f"{printed.title}.", printed.warning, printed.notes])))
    text = LATEX_TABLE % (columns, heads, "\\addlinespace\n".join(blocks), findings, caption, printed.name)
    *most, last = [package for package, sign in PACKAGES.items() if sign in text]
    return f"% Needs {' and '.join(filter(None, [', '.join(most), last]))}.\n{text}"


def _latex_escaped(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # hyphens before digits are minus signs


LATEX = Markup(
    _latex_escaped,
    code="%s",
    value={1: r"\textbf{%s}", 2: r"\underline{%s}", None: "%s"},
    detail=r" {\scriptsize (%s)}",
    link=r"\href{{{path}}}{{{words}}}",
    # A backslash before these characters is all that the address of a link needs.
    address=lambda path: re.sub(r"([%#&_])", r"\\\1", path),
)


HTML_TABLE = """<section id="{name}" class="table">
<h2 id="{name}-title">{title}</h2>{warning}
<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">
<table>
<thead><tr>{heads}</tr></thead>
{bodies}
</table>
</div>
{findings}<p class="notes">{notes}</p>
{reasons}</section>"""


def to_html(printed: Printed) -> str:
    """A section with title, table and notes; runs link to their place on the same page."""
    bodies = ["\n".join(["<tbody>", *map(_html_line, block), "</tbody>"]) for block in printed.sheet.blocks]
    return HTML_TABLE.format(
        name=escape(printed.name, quote=True),
        title=escape(printed.title),
        warning=f'<p class="warning">{escape(printed.warning)}</p>' if printed.warning else "",
        heads="".join(f'<th scope="col">{escape(head)}</th>' for head in printed.sheet.heads),
        bodies="\n".join(bodies),
        findings=_html_list(printed.findings),
        notes=escape(printed.notes),
        reasons=(f'<p class="notes">{escape(REASONS)}</p>\n' if printed.reasons else "") + _html_list(printed.reasons),
    )


def _html_list(texts: Sequence[Text]) -> str:
    items = "".join(f"<li>{LIST_HTML.cell(text)}</li>\n" for text in texts)
    return f'<ul class="notes">\n{items}</ul>\n' if items else ""


def _html_line(line: Line) -> str:
    html = ""
    for text in line:
        attributes = {"data-cell": text.cell, "data-verdict": text.verdict}
        written = "".join(f' {name}="{escape(value, quote=True)}"' for name, value in attributes.items() if value)
        html += f"<td{written}>{CELL_HTML.cell(text, '')}</td>"
    return f"<tr>{html}</tr>"


def _html_escaped(text: str) -> str:
    """Escaped, with what belongs together, such as "η = 0.01" or "[-0.04, +0.60]", kept on one line."""
    joined = re.sub(r" ([=±]|of) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", joined))


LIST_HTML = Markup(_html_escaped, "<code>%s</code>", {None: "%s"}, " (%s)")
CELL_HTML = LIST_HTML._replace(
    value={rank: f'<span class="value{name}">%s</span>' for rank, name in {1: " best", 2: " second", None: ""}.items()},
    detail=' <span class="detail">(%s)</span>',
    link='<a class="run" href="#run={run}">{words}</a>',
)

# File name extension -> renderer, given the table and the relative path of the store.
FORMATS: dict[str, Callable[[Printed, str], str]] = {
    "md": to_markdown,
    "csv": lambda printed, _: to_csv(printed.records),
    "tex": to_latex,
}
