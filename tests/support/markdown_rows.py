"""Tables in Markdown, read back."""

import re

Lines = dict[str, list[str]]
"""The words of each line after the first, by the first."""


def markdown_rows(text: str) -> list[list[str]]:
    """The words of every line of every table, the rules under their heads included."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[word.strip() for word in line.strip("|").split("|")] for line in lines]


def curves_seeds_and_search(text: str, quantity: str) -> tuple[Lines, Lines, Lines]:
    """The tables of a figure in numbers: of its curves, of each seed's final `quantity`, and of the search."""
    heads = rf"\nFinal {re.escape(quantity)} of (?:each seed at that learning rate|the search, seed 0):\n"
    curves, seeds, search = ({first: words for first, *words in markdown_rows(part)} for part in re.split(heads, text))
    return curves, seeds, search
