"""How all figures and tables look: names, colours, and settings that make a figure's bytes reproducible."""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from nero.report.figures.recorded import RecordedAxes, record

OPTIMS = {
    "nero": ("Nero", "#D55E00"),
    "nero_tuned": ("Nero tuned", "#882255"),
    "sgd": ("SGD", "#0072B2"),
    "adam": ("Adam", "#009E73"),
    "lamb": ("LAMB", "#CC79A7"),
    "lamb_momentum": ("LAMB with β₁ = 0.9", "#000000"),
    "madam": ("Madam", "#E69F00"),
}
"""File name in configs/optim -> how the paper writes it, and its colour in every figure.

The colours are Okabe and Ito's, which colour-blind readers can tell apart. An optimiser that is not named here goes by
its file name and draws from OTHERS.
"""

VARIANTS = ("#808080", "#56B4E9")
"""Settings of one optimiser against each other: colours that no optimiser has."""

CONSTRAINTS = {
    (False, False): ("neither", VARIANTS[0]),
    (True, False): ("mean", VARIANTS[1]),
    (False, True): ("norm", "#332288"),
    (True, True): ("both", OPTIMS["nero"][1]),
}
"""(mean, norm) constraints of Nero -> how a legend names them, and their colour: with both it is any figure's Nero."""

PRECISIONS = {"fp32": "float32", "tf32": "TF32", "bf16": "bf16"}
"""Arithmetic of a run -> how tables and figures write it."""

OTHERS = ("#8C6D00", "#666666", "#7B3294", "#A6611A")

OURS, THEIRS, VARIANT, TARGET = "-", "--", ":", "-."
FORMATS = ("pdf", "svg", "png")

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
    "svg.hashsalt": "nero",  # else the ids of clip paths are drawn at random
    "pdf.fonttype": 42,  # TrueType, which publishers take
}
NO_DATES = {
    "pdf": {"Creator": None, "Producer": None, "CreationDate": None},
    "svg": {"Creator": None, "Date": None},
    "png": {"Software": None},
}


@contextmanager
def house_style() -> Iterator[None]:
    """Also a decorator. Starts from matplotlib's defaults, so that a reader's own matplotlibrc changes nothing."""
    own_fonts_first()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


@cache
def own_fonts_first() -> None:
    """Have matplotlib draw with the fonts it comes with.

    A system may have other versions of them, whose glyphs have other numbers, and so figures other bytes; of fonts that
    fit alike matplotlib takes the first.
    """
    fonts = font_manager.fontManager
    others = list(fonts.ttflist)
    fonts.ttflist.clear()
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        fonts.addfont(path)
    fonts.ttflist.extend(others)


def name(optim: str) -> str:
    return OPTIMS[optim][0] if optim in OPTIMS else optim


def precision(key: str) -> str:
    """The arithmetic of a run as tables and figures write it."""
    return PRECISIONS.get(key, key)


def colours(optims: Iterable[str]) -> dict[str, str]:
    """One colour per optimiser; those of OPTIMS are the same in every figure."""
    return palette(in_order(optims), {key: colour for key, (_, colour) in OPTIMS.items()})


def palette(names: Iterable[str], known: Mapping[str, str]) -> dict[str, str]:
    """The known colours, and further ones for names that have none."""
    others = [name for name in names if name not in known]
    return {**known, **{name: OTHERS[place % len(OTHERS)] for place, name in enumerate(others)}}


def darker(colour: str) -> str:
    """The same hue for the paper's curves, so that they show on top of ours where both agree."""
    red, green, blue = to_rgb(colour)
    return to_hex((0.65 * red, 0.65 * green, 0.65 * blue))


def in_order(optims: Iterable[str]) -> tuple[str, ...]:
    """Each once: the paper's optimisers as the paper orders them, then others as they come."""
    places = {optim: place for place, optim in enumerate(OPTIMS)}
    return tuple(sorted(dict.fromkeys(optims), key=lambda optim: places.get(optim, len(places))))


def panels(rows: int, columns: int, title: str, size: tuple[float, float] = (4.6, 3.6)) -> tuple[Figure, list[Axes]]:
    """An empty figure and its panels, row by row; `size` is each one's width and height in inches, words included."""
    width, height = size
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": RecordedAxes})
    return figure, list(axes.flat)


def head(axes: Axes, title: str, notes: Iterable[str], width: int = 62) -> None:
    """A panel's title, and below it what is to be said on its face, in lines of `width` letters."""
    shown = record(axes)
    shown.title, shown.notes = title, tuple(notes)
    # A setting (lr = 1) and a short remark in brackets are kept on one line: textwrap breaks at the plain space only.
    whole = re.compile(r"\([^()]{1,30}\)| = ")
    kept = (whole.sub(lambda found: found[0].replace(" ", "\xa0"), text) for text in (title, *shown.notes))
    lines = [line.replace("\xa0", " ") for text in kept for line in textwrap.wrap(text, width)]
    axes.set_title("\n".join(lines), loc="left")


def legend_below(axes: Axes, columns: int = 2, handles: Sequence[Any] | None = None) -> None:
    """Outside the panel, where it hides no curve; of all that has a label, or of `handles`.

    Several handles in a tuple are drawn over each other; the last has the words.
    """
    shown: list[Any] = axes.get_legend_handles_labels()[0] if handles is None else list(handles)
    if shown:
        # A distance in font sizes, not in panel heights: it clears the axis label whatever the panel's size.
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}
        stacks = [type(handle) is tuple for handle in shown]  # a container is a tuple too, but has its words itself
        labels = [(top[-1] if stack else top).get_label() for top, stack in zip(shown, stacks, strict=True)]
        # Wide enough for the dashes of a line that something lies on.
        axes.legend(handles=shown, labels=labels, ncols=columns, handlelength=3.2 if any(stacks) else None, **place)


def settle(figure: Figure) -> Figure:
    """Lay the figure out once and for all: else each format that is written would move things a little."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


@house_style()
def render(figure: Figure, file_format: str) -> bytes:
    """The figure as a file's bytes, without dates or versions: the same figure gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=file_format, metadata=NO_DATES[file_format])
    return file.getvalue()
