"""How all figures and tables look: names, colours, panels, and settings that make a figure's bytes reproducible."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from nero.report import display
from nero.report.figures import rendering
from nero.report.figures.texts import text_width

# The paper's optimisers (file names in configs/optim) in the paper's order -> their colours in every figure: Okabe and
# Ito's, which colour-blind readers can tell apart. Any other optimiser gets one of OTHERS, which differ as well.
COLOURS = {
    "nero": "#D55E00",
    "nero_tuned": "#882255",
    "sgd": "#0072B2",
    "adam": "#009E73",
    "lamb": "#CC79A7",
    "lamb_momentum": "#000000",
    "madam": "#E69F00",
}
OTHERS = ("#9900FF", "#553311", "#88BB66", "#886633", "#8877FF", "#553377", "#DDAAAA", "#003322")
VARIANTS = ("#808080", "#56B4E9")  # for settings of one optimiser; no optimiser has them

# (mean, norm) constraints of Nero -> their name in a legend, and their colour; both together are Nero itself.
CONSTRAINTS = {
    (False, False): ("neither", VARIANTS[0]),
    (True, False): ("mean", VARIANTS[1]),
    (False, True): ("norm", "#332288"),
    (True, True): ("both", COLOURS["nero"]),
}
PRECISIONS = {"fp32": "float32", "tf32": "TF32", "bf16": "bf16"}  # of a run -> name in tables and figures

OURS, THEIRS, VARIANT, TARGET = "-", "--", ":", "-."
FORMATS = ("pdf", "svg", "png")
PANEL = (4.2, 3.5)  # inches, text included: two are a page wide, with text of 6 points or more
POINTS = 72  # per inch
TITLE_SIZE, PANEL_TITLE_SIZE, SMALL_SIZE = 10, 9, 7  # of text, in points
GREY = "#444444"
ROOM = 1.1  # of a panel's width for its legend
DIGITS = 8  # significant ones of data that are drawn

RC: Any = {
    "font.size": 8,
    "figure.titlesize": TITLE_SIZE,
    "axes.titlesize": PANEL_TITLE_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "lines.linewidth": 1.2,
    # The same dashes whatever the width, so that those of curves on top of each other are in step.
    "lines.scale_dashes": False,
    "lines.dashed_pattern": (4.4, 1.9),
    "lines.dotted_pattern": (1.2, 1.9),
    "lines.dashdot_pattern": (7.5, 1.9, 1.2, 1.9),
    "legend.fontsize": SMALL_SIZE,
    "legend.frameon": False,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.6,
    "mathtext.fontset": "dejavusans",
    "savefig.dpi": 200,
    "svg.hashsalt": "nero",  # otherwise the ids of clip paths are random
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # TrueType, which publishers accept
}


class Series(NamedTuple):
    """A curve over seeds, with NaN where a seed's value is not finite."""

    group: str  # what a legend switches on and off together
    label: str
    colour: str
    linestyle: str  # OURS, THEIRS or VARIANT
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None  # None where no range is drawn
    high: np.ndarray | None = None
    runs: tuple[str, ...] = ()  # run ids; empty for the authors' curves


@dataclass
class Record:
    """Everything that a panel shows, so that the HTML page can draw the same."""

    title: str = ""
    notes: Sequence[str] = ()  # in the figure's caption, or in the panel if it has no curves
    empty: str = "no runs logged yet"  # in a panel without curves
    series: list[Series] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)  # final values from the paper
    rings: list[dict[str, Any]] = field(default_factory=list)  # our values at the paper's learning rates
    crosses: list[dict[str, Any]] = field(default_factory=list)  # learning rates that diverged
    rule: tuple[float, str] | None = None  # a horizontal line and its label


class RecordedAxes(Axes):
    """Axes with a record."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.record = Record()
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]


def record(axes: Axes) -> Record:
    """The record of a panel; for plain axes a new one, which nobody reads."""
    return axes.record if isinstance(axes, RecordedAxes) else Record()


@contextmanager
def house_style() -> Iterator[None]:
    """Context manager or decorator; starts from matplotlib's defaults, so that a user's matplotlibrc has no effect."""
    prefer_bundled_fonts()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


@cache
def prefer_bundled_fonts() -> None:
    """Make matplotlib prefer the fonts that it ships: other versions on the system would change a figure's bytes.

    Among fonts that match equally well, matplotlib takes the first in its list.
    """
    fonts = font_manager.fontManager
    others = list(fonts.ttflist)
    fonts.ttflist.clear()
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        fonts.addfont(path)
    fonts.ttflist.extend(others)


def name(optim: str) -> str:
    """The optimiser's `display_name`, or its file name."""
    return display.optimizer_names().get(optim, optim)


def named_colours() -> dict[str, str]:
    """The colours of the paper's optimisers by name."""
    return {name(optim): colour for optim, colour in COLOURS.items()}


def precision(key: str) -> str:
    return PRECISIONS.get(key, key)


def colours(optims: Iterable[str]) -> dict[str, str]:
    """One per optimiser; those of COLOURS are the same in every figure."""
    return palette(in_order(optims), COLOURS)


def palette(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The known colours, plus one from OTHERS for each name without one."""
    others = [name for name in names if name not in known]
    return {**known, **{name: OTHERS[place % len(OTHERS)] for place, name in enumerate(others)}}


def darker(colour: str) -> str:
    """The same hue for the paper's curves, so that they stay visible on top of ours."""
    red, green, blue = to_rgb(colour)
    return to_hex((0.65 * red, 0.65 * green, 0.65 * blue))


def in_order(optims: Iterable[str]) -> tuple[str, ...]:
    """Without duplicates: the paper's optimisers in the paper's order, then others in order of appearance."""
    places = {optim: place for place, optim in enumerate(COLOURS)}
    return tuple(sorted(dict.fromkeys(optims), key=lambda optim: places.get(optim, len(places))))


def panels(rows: int, columns: int, title: str, size: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """An empty figure and its panels, row by row; `size` is the width and height of one."""
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": RecordedAxes})
    return figure, list(axes.flat)


def panels_for(count: int, most: int, title: str, size: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """The same for `count` panels in rows of about the same length, at most `most`."""
    rows = -(-count // most)
    figure, axes = panels(rows, -(-count // rows), title, size)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def set_title(axes: Axes, title: str, notes: Iterable[str] = ()) -> None:
    """A panel's title, of two lines at most, and notes for the figure's caption; `finish` draws them."""
    shown = record(axes)
    shown.title, shown.notes = title, tuple(notes)


def legend_below(axes: Axes, columns: int = 2, handles: Sequence[Any] | None = None) -> None:
    """Put a legend below the panel, where it hides no curve; for everything with a label, or for `handles`.

    The handles of a tuple are drawn on top of each other; the last one has the label. Columns are fewer where labels
    are long.
    """
    shown: list[Any] = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    if shown:
        # The distance is in font sizes, so it clears the axis label whatever the panel's size.
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}
        stacks = [type(handle) is tuple for handle in shown]  # a container is a tuple too, but has its own label
        labels = [(top[-1] if stack else top).get_label() for top, stack in zip(shown, stacks, strict=True)]
        # Wide enough for the dashes of a line with a mark on it.
        length = 3.2 if any(stacks) else 2.0
        columns = min(columns, len(shown))
        while columns > 1 and _legend_width(labels, columns, length) > ROOM * panel_width(axes):
            columns -= 1
        if columns == 1:
            kept = [(handle, label) for handle, label in zip(shown, labels, strict=True) if label.strip()]
            shown, labels = [handle for handle, _ in kept], [label for _, label in kept]
        axes.legend(handles=shown, labels=labels, ncols=columns, handlelength=length, **place)


def _legend_width(labels: Sequence[str], columns: int, handlelength: float) -> float:
    """In points; matplotlib fills the columns in turn."""
    rows = -(-len(labels) // columns)
    texts = (labels[start : start + rows] for start in range(0, len(labels), rows))
    gaps = (handlelength + RC["legend.handletextpad"] + RC["legend.columnspacing"]) * SMALL_SIZE
    return sum(gaps + max(text_width(label, SMALL_SIZE) for label in of_column) for of_column in texts)


def panel_width(axes: Axes) -> float:
    """In points, with the labels of the y axis."""
    place = axes.get_subplotspec()
    figure = axes.get_figure(root=True)
    assert figure is not None
    return POINTS * figure.get_figwidth() / (place.get_gridspec().ncols if place else 1)


def rounded(values: Any) -> np.ndarray:
    """Data to draw, without the last digits: means over seeds differ there between processors."""
    found = np.asarray(values, dtype=float)
    return np.array([float(f"{value:.{DIGITS}g}") for value in found.ravel()]).reshape(found.shape)


@house_style()
def render(figure: Figure, file_format: str) -> bytes:
    """The bytes of the figure's file, without dates or versions: the same figure gives the same bytes."""
    return rendering.file_bytes(figure, file_format)
