"""What a generator makes of the same z as it is trained: a strip of images for each optimiser, in place of a curve."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nero.plans.plan import CellState, Summary
from nero.report import cells, paper
from nero.report.figures import style
from nero.report.figures.drawing import rate_text
from nero.report.figures.panel import Curve, of_task
from nero.report.units import number, rate, scale
from nero.runs.store import RunDirectory, Store

CLASSES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")
"""CIFAR-10's, in order of their numbers."""

NUMBERED = tuple(f"class {number}" for number in range(len(CLASSES)))
"""Embedded data's, which show none of these things."""

NAME = "samples"  # of the pictures in a run directory: a column per class, a row per z
SIDE = 32  # pixels of an image
ROWS = 8
SIZE = (SIDE * len(CLASSES), SIDE * ROWS)  # width and height of a picture
GAP = 2  # pixels of white between images
BLANK = 232  # grey, where an image is missing

COLUMNS = 5  # of a strip at most: photographs hardly compress, and no file of a report should grow beyond a megabyte

PANEL = (2.5, 4.6)  # inches, words included
TITLE = 28  # letters that fit over a panel
WIDTH = 26  # letters of a line in a strip's place
ACROSS = 4


@dataclass(frozen=True)
class Strip:
    """A run's samples of one z per class."""

    epochs: tuple[int, ...]  # a column each
    pixels: np.ndarray | None  # the whole strip; None where no picture can be shown
    faults: tuple[str, ...]  # what is to be said of pictures that cannot be shown


@dataclass(frozen=True)
class Shown:
    """A run whose samples stand for an optimiser."""

    curve: Curve
    run: Summary

    @property
    def detail(self) -> str:
        """Such as "η = 0.01, seed 0, FID 15.74"."""
        return f"η = {rate(self.run['lr'])}, seed {self.run['seed']}, {_end(self.run)}"


def shown_runs(states: Iterable[CellState]) -> list[Shown]:
    """One for each optimiser on the GAN that has any run at its leading learning rate."""
    pairs = ((curve, _run(curve.state)) for curve in of_task(paper.CGAN, states))
    return [Shown(curve, run) for curve, run in pairs if run is not None]


@style.house_style()
def samples(states: Sequence[CellState], store: Store) -> Figure:
    """Each optimiser at its leading learning rate: by epoch from left to right, a row per class, each with its own z.

    No number of the paper's stands here, so runs on embedded data are shown as well, under a title that says so.
    """
    shown = of_task(paper.CGAN, states)
    runs = [_run(curve.state) for curve in shown]
    embedded = any(map(is_embedded, shown, runs))
    data = "embedded data, not the paper's" if embedded else "CIFAR-10"
    across = min(ACROSS, max(1, len(shown)))
    title = textwrap.fill(f"Class-conditional GAN ({data}): samples from the same z by epoch", TITLE * across)
    figure, panels = style.panels(max(1, -(-len(shown) // across)), across, title, PANEL)
    for spare in panels[len(shown) or 1 :]:
        spare.remove()
    if not shown:
        _say(panels[0], f"no run of {paper.CGAN} is asked for")
    for axes, curve, run in zip(panels, shown, runs, strict=False):
        _panel(axes, curve, run, store, NUMBERED if embedded else CLASSES)
    return style.settle(figure)


def read_strip(run: RunDirectory, key: str) -> Strip:
    """The first row of some of the pictures; `key` tells the epochs in which there should be one."""
    pictures = run.pictures(NAME)
    measured = {r["epoch"] for r in run.read_metrics() if key in r and isinstance(r.get("epoch"), int)}
    epochs = spread(sorted(measured | pictures.keys()))
    read = {epoch: _read(pictures.get(epoch)) for epoch in epochs}
    found = {epoch: picture for epoch, picture in read.items() if not isinstance(picture, str)}
    faults: dict[str, list[int]] = {}
    for epoch, picture in read.items():
        if isinstance(picture, str):
            faults.setdefault(picture, []).append(epoch)
    said = tuple(f"{fault}: {_epochs_text(missed)}" for fault, missed in faults.items())
    return Strip(epochs, _assemble(epochs, found) if found else None, said if pictures else ("no pictures",))


def spread(epochs: Sequence[int], most: int = COLUMNS) -> tuple[int, ...]:
    """The last, those at equal distances before it, and the first: `most` of them at most, and two at least."""
    if len(epochs) <= most:
        return tuple(epochs)
    step = -(-len(epochs) // (most - 1))
    return tuple(sorted({epochs[0], *epochs[::-1][::step]}))


def _run(state: CellState) -> Summary | None:
    """The search's own run at the leading learning rate, or another seed's where that is missing."""
    return next((run for run in state.at_leading.values() if run is not None), None)


def is_embedded(curve: Curve, run: Summary | None) -> bool:
    return cells.is_embedded(curve.cell) or (run is not None and run.get("data") != "real")


def _panel(axes: Axes, curve: Curve, run: Summary | None, store: Store, names: Sequence[str]) -> None:
    lacking = cells.gap(curve.state)
    if run is None:
        style.head(axes, curve.name, [])
        _say(axes, lacking or cells.absence_text(curve.state))
        return
    strip = read_strip(store.run(run["task"], run["run_id"]), run["metric"]["key"])
    # Seeds that are missing change nothing here; a search that goes on may bring another rate to the front.
    searching = [lacking] if lacking and curve.state.searching else []
    heading = f"{curve.name}{rate_text(run['lr'])}, seed {run['seed']}:"
    faults = strip.faults if strip.pixels is not None else ()
    style.head(axes, heading, [_end(run), *searching, *faults], TITLE)
    if strip.pixels is None:
        _say(axes, "\n".join(strip.faults))
    else:
        _show(axes, strip.epochs, names, strip.pixels)


def _end(run: Summary) -> str:
    metric = run["metric"]
    return "diverged" if cells.has_diverged(run) else f"{metric['label']} {number(scale(metric['key']) * run['final'])}"


def _read(path: Path | None) -> np.ndarray | str:
    """A picture's pixels, or what is wrong with it."""
    if path is None:
        return "no picture"
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB")) if picture.size == SIZE else "picture of another size"
    except Exception:  # of a damaged file Pillow raises nearly anything, and no picture is worth a report
        return "damaged picture"


def _assemble(epochs: Sequence[int], pictures: Mapping[int, np.ndarray]) -> np.ndarray:
    """One image, a column per epoch and a row per class, on white."""
    step = SIDE + GAP
    strip = np.full((step * len(CLASSES) - GAP, step * len(epochs) - GAP, 3), 255, dtype=np.uint8)
    for column, epoch in enumerate(epochs):
        for row in range(len(CLASSES)):
            place = strip[step * row : step * row + SIDE, step * column : step * column + SIDE]
            place[:] = pictures[epoch][:SIDE, SIDE * row : SIDE * (row + 1)] if epoch in pictures else BLANK
    return strip


def _show(axes: Axes, epochs: Sequence[int], names: Sequence[str], pixels: np.ndarray) -> None:
    axes.imshow(pixels, interpolation="none")  # in files of vectors the pixels as they are
    step, middle = SIDE + GAP, (SIDE - 1) / 2
    axes.set_xticks([middle + step * place for place in range(len(epochs))], [str(epoch) for epoch in epochs])
    axes.set_yticks([middle + step * place for place in range(len(names))], names)
    axes.set(xlabel="epoch", anchor="W")
    _bare(axes)


def _say(axes: Axes, words: str) -> None:
    """In a strip's place."""
    lines = [line for said in words.splitlines() for line in textwrap.wrap(said, WIDTH)]
    axes.text(0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center")
    axes.set(xticks=[], yticks=[])
    _bare(axes)


def _bare(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _epochs_text(epochs: Iterable[int]) -> str:
    listed = [str(epoch) for epoch in epochs]
    return f"epoch{'s' if len(listed) > 1 else ''} {', '.join(listed)}"
