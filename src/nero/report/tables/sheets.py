"""A table laid out, independent of format, and two of its renderings: Markdown and CSV."""

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple
from urllib.parse import quote

from nero.plans.plan import Summary
from nero.report import cells
from nero.report.units import spreadsheet_text
from nero.report.verdicts import RULE

EMBEDDED = "Embedded data, not the paper's: these numbers test the pipeline and cannot be compared with the paper's."
REASONS = "Why cells differ from the paper's:"
# How to read the tables of experiments; in docs/reproduction.md and once on the page, not below every table.
GENERAL_NOTES = (
    "A result is the mean ± population standard deviation over n seeds, at the end of training and at the learning "
    "rate η: the best of a search with one seed at each rate. While the search is incomplete, it is the best rate so "
    'far, and the table has the number of rates, such as "2 of 5 rates". The best result is bold and the runner-up '
    f"underlined; ours are ranked once none of the runs to compare is missing. {RULE}"
)


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
    runs: tuple[RunLink, ...] = ()  # all runs that it comes from
    name: str = ""  # of these runs in the list below the table; by default, the labels of the line
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
    general: bool = False  # GENERAL_NOTES hold for it
    narrow: Sheet | None = None  # for the width of a paper, if that is another sheet
    narrow_notes: str = ""  # what its signs mean


class Markup(NamedTuple):
    """How one format writes a cell; templates have %s for the text."""

    escape: Callable[[str], str]
    code: str
    value: Mapping[int | None, str]  # by rank; None is any other
    detail: str
    alone: str = ""  # the same without a value before it
    link: str = ""  # has {words}, {path} of the run's directory, and {run}, its id

    def cell(self, text: Text, runs: str | None = None) -> str:
        """`runs` is the relative path of the store; without it there are no links to runs."""

        value = self.value.get(text.rank, self.value[None]) % self.escape(text.value) if text.value else ""
        if text.link and runs is not None:
            value = self._linked(text.link, value, runs)
        details = [self.escape(text.detail)] if text.detail else []
        if text.runs and runs is not None:
            details.append(self.links(text, runs))
        code = self.code % self.escape(text.code) if text.code else ""
        if not details:
            return code + value
        return code + value + (self.detail if code or value else self.alone or self.detail) % "; ".join(details)

    def links(self, text: Text, runs: str) -> str:
        """Links to all runs of a cell."""
        return ", ".join(self._linked(run, self.escape(run.words), runs) for run in text.runs)

    def _linked(self, run: RunLink, words: str, runs: str) -> str:
        return self.link.format(words=words, path=f"{runs}/{quote(run.path)}", run=escape(run.run_id))


def markdown_text(text: str) -> str:
    """Text that may come from elsewhere, for Markdown: on one line, without HTML, code and links."""
    return escape(re.sub(r"[\r\n]+", " ", text), quote=False).replace("`", "&#96;").replace("](", "]&#40;")


MARKDOWN = Markup(markdown_text, "`%s`", {1: "**%s**", 2: "<u>%s</u>", None: "%s"}, " (%s)", link="[{words}]({path})")


def to_markdown(printed: Printed, runs: str | None = None, guide: str = "") -> str:
    """The table with its title, its notes and a list of runs.

    `runs` is the relative path of the store, for links to runs, and `guide` that of the page with GENERAL_NOTES.
    """
    parts = [
        f"# {markdown_text(printed.title)}",
        f"**{markdown_text(printed.warning)}**" if printed.warning else "",
        "\n".join(sheet_lines(printed.sheet, runs)),
        "\n".join(list_lines(printed.findings)),
        markdown_text(printed.notes),
        "\n".join([REASONS, "", *list_lines(printed.reasons)]) if printed.reasons else "",
        f"[{GUIDE}]({guide})" if printed.general and guide else "",
        RUNS_MARKDOWN.format(lines="\n".join(lines)) if (lines := list(run_lines(printed.sheet, runs))) else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


NO_BREAK = "\N{NO-BREAK SPACE}"
GUIDE = "How to read this table"
RUNS_MARKDOWN = """<details>
<summary>The runs of each result</summary>

{lines}

</details>"""


def for_terminal(markdown: str) -> str:
    """The Markdown of a table without its links, its list of runs, and spaces that do not break."""
    table = re.split(rf"\n(?:\[{GUIDE}\]|<details>)", markdown)[0]
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", table).replace(NO_BREAK, " ")


def sheet_lines(sheet: Sheet, runs: str | None = None) -> Iterator[str]:
    """The Markdown of the table alone."""
    yield from map(markdown_line, ([*map(markdown_text, sheet.heads)], ["---"] * len(sheet.heads)))
    for line in itertools.chain(*sheet.blocks):
        yield markdown_line([_kept_together(MARKDOWN.cell(text._replace(runs=()), runs)) for text in line])


def _kept_together(text: str) -> str:
    """The text with no line break within "η = 0.01", "[-0.04, +0.60]" or "FID ↓", however narrow its column."""
    joined = re.sub(r" ([=±]|(?<=\d )of(?= \d)) ", f"{NO_BREAK}\\1{NO_BREAK}", text)
    return re.sub(r"(\[\S+,) (\S+\])| (?=[↑↓])", lambda found: found[0].replace(" ", NO_BREAK), joined)


def run_lines(sheet: Sheet, runs: str | None) -> Iterator[str]:
    """A Markdown list with the runs of each cell that has several; without the path of the store, no lines."""
    for block in sheet.blocks if runs is not None else ():
        for line in block:
            labels = [line[0].value or block[0][0].value, *(text.value for text in line[1 : sheet.left])]
            for text in line:
                if text.runs:
                    name = markdown_text(text.name or ", ".join(filter(None, labels)))
                    yield f"- {name}: {MARKDOWN.links(text, str(runs))}"


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
    writer.writerows({key: spreadsheet_text(text) for key, text in record.items()} for record in records)
    return file.getvalue()


def exact(value: float | None) -> str:
    # Ten digits: more than any log holds, and none of the noise of multiplying by 100.
    return "" if value is None else f"{value:.10g}"
