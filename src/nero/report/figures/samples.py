"""Samples of the GANs during training: for each optimiser a strip of images from the same z."""

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
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import rate_text
from nero.report.figures.panels import Curve, curves_of_task
from nero.report.units import number, rate, scale
from nero.runs.store import RunDirectory, Store

CLASSES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")
"""Of CIFAR-10, by label."""

NUMBERED = tuple(f"class {number}" for number in range(len(CLASSES)))
"""Of the embedded data."""

NAME = "samples"  # of the pictures in a run directory: a column per class, a row per z
SIDE = 32  # pixels of an image
ROWS = 8
SIZE = (SIDE * len(CLASSES), SIDE * ROWS)  # width and height of a picture
GAP = 2  # white pixels between images
STEP = SIDE + GAP
BLANK = 232  # grey, for a missing image

COLUMNS = 5  # of a strip at most: photographs hardly compress, and no file of a report should exceed a megabyte

PANEL = (2.5, 4.6)  # inches, text included
TITLE = 28  # characters per line above a panel
WIDTH = 26  # characters per line inside a panel
ACROSS = 4


@dataclass(frozen=True)
class Strip:
    """A run's samples from one z per class."""

    epochs: tuple[int, ...]  # a column each
    pixels: np.ndarray | None  # the whole strip; None where no picture can be shown
    faults: tuple[str, ...]  # messages about pictures that cannot be shown


@dataclass(frozen=True)
class Shown:
    """The run whose samples represent an optimiser."""

    curve: Curve
    run: Summary

    @property
    def detail(self) -> str:
        """Such as "η = 0.01, seed 0, FID 15.74"."""
        return f"η = {rate(self.run['lr'])}, seed {self.run['seed']}, {_final_text(self.run)}"


def shown_runs(states: Iterable[CellState]) -> list[Shown]:
    """One run for each optimiser on the GAN that has any at its leading learning rate."""
    pairs = ((curve, _run(curve.state)) for curve in curves_of_task(paper.CGAN, states))
    return [Shown(curve, run) for curve, run in pairs if run is not None]


def is_embedded(curve: Curve, run: Summary | None) -> bool:
    return cells.is_embedded(curve.cell) or (run is not None and run.get("data") != "real")


@style.house_style()
def samples(evidence: Evidence) -> Figure:
    """Each optimiser at its leading learning rate: a column per epoch, a row per class, each with its own z.

    The figure has no number from the paper, so it also shows runs on embedded data, with a title that says so.
    """
    curves = curves_of_task(paper.CGAN, evidence.states)
    runs = [_run(curve.state) for curve in curves]
    embedded = any(map(is_embedded, curves, runs))
    data = "embedded data, not the paper's" if embedded else "CIFAR-10"
    across = min(ACROSS, max(1, len(curves)))
    title = textwrap.fill(f"Class-conditional GAN ({data}): samples from the same z by epoch", TITLE * across)
    figure, panels = style.panels(max(1, -(-len(curves) // across)), across, title, PANEL)
    for spare in panels[len(curves) or 1 :]:
        spare.remove()
    if not curves:
        _write(panels[0], f"no run of {paper.CGAN} is planned")
    for axes, curve, run in zip(panels, curves, runs, strict=False):
        _draw_panel(axes, curve, run, evidence.store, NUMBERED if embedded else CLASSES)
    return style.freeze_layout(figure)


def _run(state: CellState) -> Summary | None:
    """The search's own run at the leading learning rate, or the first other seed's."""
    return next((run for run in state.at_leading.values() if run is not None), None)


def _final_text(run: Summary) -> str:
    metric = run["metric"]
    return "diverged" if cells.has_diverged(run) else f"{metric['label']} {number(scale(metric['key']) * run['final'])}"


# Read


def read_strip(run: RunDirectory, key: str) -> Strip:
    """The first row of some of the pictures; there should be one for each epoch with a value of `key`."""
    pictures = run.pictures(NAME)
    measured = {r["epoch"] for r in run.read_metrics() if key in r and isinstance(r.get("epoch"), int)}
    epochs = spread(sorted(measured | pictures.keys()))
    found: dict[int, np.ndarray] = {}
    faults: dict[str, list[int]] = {}
    for epoch in epochs:
        picture = _read(pictures.get(epoch))
        if isinstance(picture, str):
            faults.setdefault(picture, []).append(epoch)
        else:
            found[epoch] = picture
    messages = tuple(f"{fault}: {_epochs_text(missing)}" for fault, missing in faults.items())
    return Strip(epochs, _assemble(epochs, found) if found else None, messages if pictures else ("no pictures",))


def spread(epochs: Sequence[int], most: int = COLUMNS) -> tuple[int, ...]:
    """The first, the last, and those at equal distances before the last: at least two and at most `most`."""
    if len(epochs) <= most:
        return tuple(epochs)
    step = -(-len(epochs) // (most - 1))
    return tuple(sorted({epochs[0], *epochs[::-1][::step]}))


def _read(path: Path | None) -> np.ndarray | str:
    """A picture's pixels, or what is wrong with it."""
    if path is None:
        return "no picture"
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB")) if picture.size == SIZE else "picture of another size"
    except Exception:  # Pillow raises nearly anything for a damaged file, and no picture should stop a report
        return "damaged picture"


def _assemble(epochs: Sequence[int], pictures: Mapping[int, np.ndarray]) -> np.ndarray:
    """One image, a column per epoch and a row per class, on white."""
    strip = np.full((STEP * len(CLASSES) - GAP, STEP * len(epochs) - GAP, 3), 255, dtype=np.uint8)
    for column, epoch in enumerate(epochs):
        for row in range(len(CLASSES)):
            place = strip[STEP * row : STEP * row + SIDE, STEP * column : STEP * column + SIDE]
            place[:] = pictures[epoch][:SIDE, SIDE * row : SIDE * (row + 1)] if epoch in pictures else BLANK
    return strip


def _epochs_text(epochs: Iterable[int]) -> str:
    listed = [str(epoch) for epoch in epochs]
    return f"epoch{'s' if len(listed) > 1 else ''} {', '.join(listed)}"


# Draw


def _draw_panel(axes: Axes, curve: Curve, run: Summary | None, store: Store, classes: Sequence[str]) -> None:
    missing = cells.gap(curve.state)
    if run is None:
        style.set_title(axes, curve.name, [])
        _write(axes, missing or cells.absence_text(curve.state))
        return
    strip = read_strip(store.run(run["task"], run["run_id"]), run["metric"]["key"])
    # Missing seeds change nothing here; an incomplete search may still find another leading rate.
    searching = [missing] if missing and curve.state.searching else []
    title = f"{curve.name}{rate_text(run['lr'])}, seed {run['seed']}:"
    faults = strip.faults if strip.pixels is not None else ()
    style.set_title(axes, title, [_final_text(run), *searching, *faults], TITLE)
    if strip.pixels is None:
        _write(axes, "\n".join(strip.faults))
        return
    axes.imshow(strip.pixels, interpolation="none")  # vector formats keep the original pixels
    middle = (SIDE - 1) / 2
    axes.set_xticks(
        [middle + STEP * place for place in range(len(strip.epochs))], [str(epoch) for epoch in strip.epochs]
    )
    axes.set_yticks([middle + STEP * place for place in range(len(classes))], classes)
    axes.set(xlabel="epoch", anchor="W")
    _hide_frame(axes)


def _centres(count: int) -> list[float]:
    return [(SIDE - 1) / 2 + STEP * place for place in range(count)]


def _write(axes: Axes, text: str) -> None:
    """Write text in place of a strip."""
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, WIDTH)]
    axes.text(0.5, 0.5, "\n".join(lines), transform=axes.transAxes, ha="center", va="center")
    axes.set(xticks=[], yticks=[])
    _hide_frame(axes)


def _hide_frame(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
