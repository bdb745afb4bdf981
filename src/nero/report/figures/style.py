"""How all figures and tables look: names, colours, panels, and settings that make a figure's bytes reproducible."""

import io
import re
import textwrap
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
PANEL = (4.6, 3.6)  # inches, text included

RC: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "lines.linewidth": 1.2,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "nero",  # otherwise the ids of clip paths are random
    "pdf.fonttype": 42,  # TrueType, which publishers accept
}
NO_DATES = {
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None},
    "png": {"Software": None},
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
    notes: Sequence[str] = ()
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
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": RecordedAxes})
    return figure, list(axes.flat)


def panels_for(count: int, most: int, title: str, size: tuple[float, float] = PANEL) -> tuple[Figure, list[Axes]]:
    """The same for `count` panels, at most so many in a row."""
    across = min(count, most)
    figure, axes = panels(-(-count // across), across, title, size)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def set_title(axes: Axes, title: str, notes: Iterable[str], width: int = 62) -> None:
    """Set a panel's title, with notes below it, wrapped at `width` characters."""
    shown = record(axes)
    shown.title, shown.notes = title, tuple(notes)
    # Keep a setting (lr = 1) and a short remark in brackets on one line: textwrap breaks at plain spaces only.
    whole = re.compile(r"\([^()]{1,30}\)| = ")
    texts = (whole.sub(lambda found: found[0].replace(" ", "\xa0"), text) for text in (title, *shown.notes))
    lines = [line.replace("\xa0", " ") for text in texts for line in textwrap.wrap(text, width)]
    axes.set_title("\n".join(lines), loc="left")


def legend_below(axes: Axes, columns: int = 2, handles: Sequence[Any] | None = None) -> None:
    """Put a legend below the panel, where it hides no curve; for everything with a label, or for `handles`.

    The handles of a tuple are drawn on top of each other; the last one has the label.
    """
    shown: list[Any] = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    if shown:
        # The distance is in font sizes, so it clears the axis label whatever the panel's size.
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}
        stacks = [type(handle) is tuple for handle in shown]  # a container is a tuple too, but has its own label
        labels = [(top[-1] if stack else top).get_label() for top, stack in zip(shown, stacks, strict=True)]
        # Wide enough for the dashes of a line with a mark on it.
        axes.legend(handles=shown, labels=labels, ncols=columns, handlelength=3.2 if any(stacks) else None, **place)


def freeze_layout(figure: Figure) -> Figure:
    """Compute the layout once; otherwise each file format would change it slightly."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


@house_style()
def render(figure: Figure, file_format: str) -> bytes:
    """The bytes of the figure's file, without dates or versions: the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=file_format, metadata=NO_DATES[file_format])
    return file.getvalue()
