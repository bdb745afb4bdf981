"""Words in columns, as a terminal shows them."""

from collections.abc import Sequence

NARROWEST = 8
"""Characters that a column keeps in a narrow terminal."""


def lay_out(rows: Sequence[Sequence[str]], to_the_right: Sequence[bool] | None = None, width: int | None = None) -> str:
    """Words in columns. Where they are wider than `width`, the widest column is shortened in the middle of a word."""
    to_the_right = to_the_right or [False] * len(rows[0])
    widths = [max(len(row[place]) for row in rows) for place in range(len(to_the_right))]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return "\n".join(
        "  ".join(
            shortened(word, room).rjust(room) if right else shortened(word, room).ljust(room)
            for word, room, right in zip(row, widths, to_the_right, strict=True)
        ).rstrip()
        for row in rows
    )


def shortened(word: str, room: int) -> str:
    """A word with as much of its begin and its end as there is room for."""
    if len(word) <= room:
        return word
    begin = room // 2
    return f"{word[:begin]}…{word[len(word) - (room - begin - 1) :]}"
