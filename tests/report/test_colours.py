"""Tests that the report's colours can be told apart with normal and with colour-blind vision."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from nero.report.figures import style
from nero.report.page import page

# Perceived linear RGB if one kind of cone is missing, from Machado, Oliveira and Fernandes (2009).
SEEN = {
    "all cones": np.eye(3),
    "no L cones (protanopia)": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no M cones (deuteranopia)": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no S cones (tritanopia)": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TOGETHER = {
    "Table 1's optimisers": [style.COLOURS[optim] for optim in ("nero", "sgd", "adam", "lamb")],
    "Figure 2's": [style.COLOURS[optim] for optim in ("nero", "madam", "lamb")],
    "Figure 8's": [style.COLOURS[optim] for optim in ("nero", "sgd", "adam", "lamb", "lamb_momentum")],
    "all optimisers, ours and others": [*style.COLOURS.values(), *style.OTHERS],
    "Figure 1's constraints": [colour for _, colour in style.CONSTRAINTS.values()],
    "Figure 3's scales": list(style.VARIANTS),
}


def lab(colour: str, matrix: object) -> np.ndarray:
    """CIE Lab coordinates of the perceived colour; their distances approximate perceived differences."""
    srgb = np.array(to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (np.array(to_xyz) @ seen) / [0.9505, 1.0, 1.089]
    fx, fy, fz = (np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


def distance(one: str, other: str, matrix: object) -> float:
    return float(np.linalg.norm(lab(one, matrix) - lab(other, matrix)))


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("whose", TOGETHER)
def test_panel_colours_are_distinguishable_with_colour_blindness(whose: str, eyes: str) -> None:
    nearest = min(distance(*pair, SEEN[eyes]) for pair in itertools.combinations(TOGETHER[whose], 2))
    assert nearest > 10, "a difference of two or three can be seen at all; of ten, in lines that cross"


def test_red_and_green_of_equal_lightness_fail_distance_check() -> None:
    pair = ("#d62728", "#6f7a1b")
    assert distance(*pair, SEEN["no M cones (deuteranopia)"]) < 10 < distance(*pair, SEEN["all cones"])
    assert distance("#ff0000", "#808000", SEEN["no L cones (protanopia)"]) > 10, (
        "but two that differ in lightness would"
    )


def css_colours(name: str) -> tuple[str, str]:
    """The light and the dark theme's value of a colour variable in the page's style sheet."""
    css = (page.FILES / "page.css").read_text()
    light, dark = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\);", css).groups()
    return light, dark


def contrast(one: str, other: str) -> float:
    """Contrast ratio as defined by the Web Content Accessibility Guidelines."""
    srgb = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_verdict_colours_are_distinguishable_and_readable(theme: int, eyes: str) -> None:
    agrees, differs, text, paper = (css_colours(name)[theme] for name in ("agrees", "differs", "text", "paper"))
    assert distance(agrees, differs, SEEN[eyes]) > 25
    for colour in (agrees, differs):
        assert contrast(colour, paper) >= 4.5
        assert distance(colour, text, SEEN[eyes]) > 10
