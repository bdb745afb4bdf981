"""One neuron with three weights that is trained by Nero: the figure at the top of the README.

The notebook `optimiser_tour` trains it, since that needs torch.
"""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge

from nero.report.figures.style import COLOURS, house_style

NERO, GREY, LIGHT = COLOURS["nero"], "#606060", "#909090"
# Rows: the directions to the right of, above and in front of the page, for vectors of three weights.
CAMERA = np.array([[0.435, 0.900, 0.0], [-0.266, 0.129, 0.955], [0.860, -0.416, 0.296]])
AROUND = np.linspace(0, 2 * math.pi, 91)
CIRCLE = np.stack([np.cos(AROUND), np.sin(AROUND)], 1)
HIGHLIGHTED = 3  # number of the step whose angle is marked


@house_style()
def turning_neurons(plane: np.ndarray, paths: Mapping[tuple[str, float], np.ndarray], lr: float) -> Figure:
    """A neuron's weights on the circle of mean 0 and norm 1, the angles of its steps, and the same with other losses.

    Args:
        plane: two orthonormal vectors of mean 0, [2, 3]; the minimum of the loss is at the first
        paths: optimiser and the factor of the loss -> weights at the start and after each step, [steps + 1, 3]
        lr: learning rate of all paths
    """
    figure = Figure(figsize=(7.6, 2.6))
    titles = (
        "Mean 0 and norm 1 hold a\nneuron's weights on a circle",
        "Each step turns them by\nabout the learning rate",
        "This angle does not depend\non the scale of the loss",
    )
    for title, middle in zip(titles, (0.155, 0.475, 0.825), strict=True):
        figure.text(middle, 0.97, title, ha="center", va="top", fontsize=9)
    path = paths["nero", 1]
    _draw_sphere(_panel(figure, (0.0, 0.01, 0.31, 0.84), 1.4), path, plane)
    front = _panel(figure, (0.335, 0.01, 0.28, 0.84), 1.17)
    _draw_circle(front, path @ plane.T, NERO, 3.5)
    _explain_step(front, path @ plane.T, lr)

    labels = {"nero": "Nero", "sgd": "SGD,\nprojected"}
    factors = sorted({factor for _, factor in paths})
    for row, (optim, label) in enumerate(labels.items()):
        figure.text(0.695, 0.55 - 0.38 * row, label, ha="right", va="center", color=COLOURS[optim], fontsize=8)
        for column, factor in enumerate(factors):
            small = _panel(figure, (0.705 + 0.098 * column, 0.4 - 0.38 * row, 0.096, 0.3), 1.1)
            _draw_circle(small, paths[optim, factor] @ plane.T, COLOURS[optim], 1.5)
            if row == 0:
                small.set_title(f"{'loss ' if column == 0 else ''}× {factor:,}", fontsize=8)
    return figure


def _panel(figure: Figure, place: tuple[float, float, float, float], reach: float) -> Axes:
    axes = figure.add_axes(place, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axis("off")
    return axes


def _draw_sphere(axes: Axes, path: np.ndarray, plane: np.ndarray) -> None:
    """Norm 1 is a sphere, mean 0 a plane, and both a circle."""
    circle, steps = CIRCLE @ plane @ CAMERA.T, path @ CAMERA.T
    axes.fill(*CIRCLE.T, facecolor="#eeeeee", edgecolor=LIGHT, linewidth=0.8)
    axes.text(0.74, 0.74, "norm 1", color=GREY)
    axes.fill(*1.35 * circle[:, :2].T, color=NERO, alpha=0.15, linewidth=0)
    axes.text(-0.8, 1.1, "mean 0", color=NERO, ha="right")
    beside = ((-0.1, -0.12), (0.12, 0.02), (0.12, 0.02))
    for number, (end, offset) in enumerate(zip(1.35 * CAMERA.T[:, :2], beside, strict=True), start=1):
        _draw_arrow(axes, end, "->", LIGHT, 0.7)
        axes.text(end[0] + offset[0], end[1] + offset[1], f"$w_{number}$", ha="center", va="center", color=GREY)
    axes.plot(*circle[:, :2].T, ":", color="black", linewidth=0.8)
    axes.plot(*np.where(circle[:, 2:] >= 0, circle[:, :2], math.nan).T, color="black")
    axes.plot(*steps[:, :2].T, "o", color=NERO, markersize=3)
    _draw_arrow(axes, steps[0, :2], "-|>", NERO, 1.5)


def _draw_arrow(axes: Axes, end: np.ndarray, style: str, colour: str, width: float) -> None:
    """From the centre."""
    shape = {"arrowstyle": style, "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (end[0], end[1]), (0, 0), arrowprops=shape)


def _draw_circle(axes: Axes, steps: np.ndarray, colour: str, size: float) -> None:
    """The circle from the front, with a spoke for the neuron's direction at every step."""
    axes.plot(*CIRCLE.T, color="black", linewidth=0.8)
    axes.plot(*np.stack([np.zeros_like(steps), steps]).transpose(2, 0, 1), color=colour, linewidth=0.6)
    axes.plot(*steps.T, "o", color=colour, markersize=size)
    axes.plot(1, 0, "*", color="black", markersize=2 * size + 1)


def _explain_step(axes: Axes, steps: np.ndarray, lr: float) -> None:
    before, after = (math.atan2(y, x) for x, y in steps[HIGHLIGHTED : HIGHLIGHTED + 2])
    axes.add_patch(Wedge((0, 0), 1, *np.rad2deg((after, before)), color=NERO, alpha=0.35, linewidth=0))
    middle = (before + after) / 2
    above = 1.06 * math.cos(middle), 1.06 * math.sin(middle)
    axes.text(*above, f"{lr} radians", ha="center", va="bottom", color=NERO)
    axes.text(steps[0, 0] - 0.06, steps[0, 1] + 0.06, "start", ha="right")
    axes.text(0.93, -0.07, "minimum of the loss", ha="right", va="top")
    axes.text(0, -0.42, r"$w \leftarrow w - \eta \, g \,/\, \mathrm{average\ of\ } \Vert g \Vert$", ha="center")
    axes.text(0, -0.6, "then mean 0, norm 1", ha="center")
