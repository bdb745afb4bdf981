"""Tables that are measured a few lines at a time: what is there already stays."""

from pathlib import Path


def kept_lines(path: Path, head: list[str], key: int) -> dict[tuple[str, ...], str] | None:
    """The lines of the table at `path`, by their first `key` cells, which say what was measured.

    Empty if there is no such file; None if it begins otherwise than with `head`, and is another table.
    """
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()
    if lines[: len(head)] != head:
        return None
    return {tuple(cell.strip() for cell in line.strip("|").split(" | ")[:key]): line for line in lines[len(head) :]}
