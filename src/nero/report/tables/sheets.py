"""A table laid out, before any format: heads, lines in blocks that stand together, and what its numbers come from."""

from collections.abc import Mapping
from dataclasses import dataclass

from nero.plans.plan import Summary
from nero.report import cells


@dataclass(frozen=True)
class RunLink:
    """A run that a number comes from, and how it is called there."""

    words: str
    task: str
    run_id: str

    @classmethod
    def to(cls, run: Summary, words: str) -> "RunLink":
        return cls(words, run["task"], run["run_id"])

    @property
    def path(self) -> str:
        """Of its directory in the store."""
        return f"{self.task}/{self.run_id}"


@dataclass(frozen=True)
class Text:
    """The words of one place: a value, which may be emphasised, and what is to be known about it."""

    value: str
    detail: str = ""
    rank: int | None = None
    code: str = ""  # a name that the project's files have, before the value
    link: RunLink | None = None  # the one run that the value comes from
    runs: tuple[RunLink, ...] = ()  # or all of them, told after the details
    cell: str = ""  # which cell of the CSV stands here, as "task|label|variant|optimiser"
    verdict: str = ""


Line = list[Text]

REASONS = "Why cells differ from the paper's:"
"""Heads the list of reasons."""


def row_label(row: cells.RowKey) -> Text:
    """Such as "`mnist_reparam`, sigma = 100"."""
    return Text(cells.row_detail(row), code=row.task)


@dataclass(frozen=True)
class Sheet:
    heads: list[str]
    blocks: list[list[Line]]
    left: int  # columns that say what a line is; the others hold numbers


@dataclass(frozen=True)
class Printed:
    """A table as every format writes it."""

    name: str  # of its files
    title: str
    sheet: Sheet
    notes: str  # how to read it
    records: tuple[Mapping[str, str], ...]  # its numbers in full, a line of the CSV each; all with the same keys
    warning: str = ""
    findings: tuple[Text, ...] = ()  # on each row as a whole, in sentences
    reasons: tuple[Text, ...] = ()  # why cells differ from the paper's, likewise
