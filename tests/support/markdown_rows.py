"""Read tables in Markdown back."""

import re

Lines = dict[str, list[str]]
"""The cells of each row after the first, keyed by the first."""


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, including the separators below the headers."""
    lines = [line for line in text.replace("\N{NO-BREAK SPACE}", " ").splitlines() if line.startswith("|")]
    return [[word.strip() for word in line.strip("|").split("|")] for line in lines]


def curves_seeds_and_search(text: str, quantity: str) -> tuple[Lines, Lines, Lines]:
    """The three tables of a figure's numbers: curves, final `quantity` of each seed, and search."""
    heads = rf"\nFinal {re.escape(quantity)} of (?:each seed at that learning rate|the search, seed 0):\n"
    curves, seeds, search = ({first: words for first, *words in markdown_rows(part)} for part in re.split(heads, text))
    return curves, seeds, search
