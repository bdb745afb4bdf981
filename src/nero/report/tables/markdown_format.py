"""A laid-out table as Markdown."""

from collections.abc import Iterable, Iterator

from nero.report.tables.sheets import REASONS, Printed, RunLink, Sheet, Text


def to_markdown(printed: Printed, runs: str | None = None) -> str:
    """With its title and notes. `runs` is the store's path from where the text stands, for links to runs."""
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
    """The table alone."""
    yield markdown_line(sheet.heads)
    yield markdown_line(["---"] * len(sheet.heads))
    for block in sheet.blocks:
        yield from (markdown_line([_cell(text, runs) for text in line]) for line in block)


def list_lines(texts: Iterable[Text]) -> Iterator[str]:
    """A list of sentences."""
    return (f"- {_cell(text, None)}" for text in texts)


def markdown_line(words: list[str]) -> str:
    return f"| {' | '.join(word.replace('|', '&#124;') for word in words)} |"


def _cell(text: Text, runs: str | None) -> str:
    emphasis: dict[int | None, str] = {1: f"**{text.value}**", 2: f"<u>{text.value}</u>"}
    value = emphasis.get(text.rank, text.value)
    if text.link and runs is not None:
        value = f"[{value}]({runs}/{text.link.path})"
    details = [*([text.detail] if text.detail else []), *_linked(text.runs, runs)]
    return (f"`{text.code}`" if text.code else "") + value + (f" ({'; '.join(details)})" if details else "")


def _linked(links: tuple[RunLink, ...], runs: str | None) -> list[str]:
    return [", ".join(f"[{link.words}]({runs}/{link.path})" for link in links)] if links and runs is not None else []
