"""Break texts into lines by their width in the figures' font."""

import re
from functools import lru_cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

PIXELS = 1.03  # width on a screen over that in print


@lru_cache(maxsize=4096)
def text_width(text: str, size: float) -> float:
    """Of a line, in points, with room for the rounding of letters to pixels."""
    return PIXELS * float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0])


def wrap(text: str, width: float, size: float) -> list[str]:
    """Lines no wider than `width` points, unless a word is."""
    # Keep a setting (lr = 1) and a short remark in brackets on one line.
    whole = re.compile(r"\([^()]{1,30}\)| = ")
    lines: list[str] = []
    for word in whole.sub(lambda found: found[0].replace(" ", "\xa0"), text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return [line.replace("\xa0", " ") for line in lines]
