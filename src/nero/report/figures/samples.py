"""Samples of the GANs during training: for each optimiser a strip of images from the same z."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from nero.plans.plan import Summary
from nero.report import cells, paper
from nero.report.evidence import Evidence
from nero.report.figures import style
from nero.report.figures.curves import Curve, curves_of_task, rate_text
from nero.report.figures.finishing import finish
from nero.report.units import number, shown_metric
from nero.runs.store import RunDirectory, Store

CLASSES = ("aeroplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "lorry")  # of CIFAR-10
NUMBERED = tuple(f"class {number}" for number in range(len(CLASSES)))  # of the embedded data

NAME = "samples"  # of the pictures in a run directory: a column per class, a row per z
SIDE = 32  # pixels of an image
ROWS = 8
SIZE = (SIDE * len(CLASSES), SIDE * ROWS)  # width and height of a picture
STEP = SIDE + 2  # with the white pixels between images
BLANK = 232  # grey, for a missing image

COLUMNS = 5  # of a strip at most: photographs hardly compress, and no file of a report should exceed a megabyte

PANEL = (2.5, 4.6)  # inches, text included
EMPTY = 1.5  # inches, of a figure without pictures
ACROSS = 4


@style.house_style()
def samples(evidence: Evidence) -> Figure:
    """Each optimiser at its leading learning rate: a column per epoch, a row per class, each with its own z.

    The figure has no number from the paper, so it also shows runs on embedded data, with a title that says so.
    """
    curves = curves_of_task(paper.CGAN, evidence.states)
    embedded = any(map(is_embedded, curves))
    data = "embedded data, not the paper's" if embedded else "CIFAR-10"
    title = f"Class-conditional GAN ({data}): samples from the same z by epoch"
    figure, panels = style.panels_for(max(1, len(curves)), ACROSS, title, PANEL)
    for axes in panels:
        axes.grid(False)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    style.record(panels[0]).empty = f"no run of {paper.CGAN} is planned"
    for axes, curve in zip(panels, curves, strict=False):
        _draw_panel(axes, curve, evidence.store, NUMBERED if embedded else CLASSES)
    if not any(axes.images for axes in panels):
        figure.set_figheight(EMPTY)
    return finish(figure)


def shown_run(curve: Curve) -> Summary | None:
    """The search's own run at the leading learning rate, or the first other seed's."""
    return next(iter(cells.leading_runs(curve.state)), None)


def is_embedded(curve: Curve) -> bool:
    run = shown_run(curve)
    return cells.is_embedded(curve.cell) or (run is not None and run.get("data") != "real")


def final_text(run: Summary) -> str:
    if cells.has_diverged(run):
        return "diverged"
    metric = shown_metric(run["metric"], run["task"])
    return f"{metric.label} {number(metric.scale * run['final'], metric.digits)}"


def read_strip(run: RunDirectory, key: str) -> tuple[Sequence[int], Mapping[int, np.ndarray], list[str]]:
    """Epochs of a strip, a picture of each, and a message if some cannot be shown.

    There should be a picture for each epoch with a value of `key`.
    """
    pictures = run.pictures(NAME)
    measured = {r["epoch"] for r in run.read_metrics() if key in r and isinstance(r.get("epoch"), int)}
    if not pictures:
        return (), {}, ["no pictures"]
    epochs = spread(sorted(measured | pictures.keys()))
    read = {epoch: _read(pictures.get(epoch)) for epoch in epochs}
    missing = [str(epoch) for epoch, pixels in read.items() if pixels is None]
    message = f"picture missing or damaged: epoch{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    found = {epoch: pixels for epoch, pixels in read.items() if pixels is not None}
    return epochs, found, [message] if missing else []


def spread(epochs: Sequence[int], most: int = COLUMNS) -> Sequence[int]:
    """The first, the last, and those at equal distances before the last: at least two and at most `most`."""
    if len(epochs) <= most:
        return tuple(epochs)
    step = -(-len(epochs) // (most - 1))
    return tuple(sorted({epochs[0], *epochs[::-1][::step]}))


def _read(path: Path | None) -> np.ndarray | None:
    """A picture's pixels; None if it is missing, damaged or of another size."""
    if path is None:
        return None
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB")) if picture.size == SIZE else None
    except Exception:  # Pillow raises nearly anything for a damaged file, and no picture should stop a report
        return None


def _draw_panel(axes: Axes, curve: Curve, store: Store, classes: Sequence[str]) -> None:
    run, missing = shown_run(curve), cells.gap(curve.state)
    if run is None:
        style.set_title(axes, curve.name)
        style.record(axes).empty = missing or cells.absence_text(curve.state)
        return
    epochs, pictures, faults = read_strip(store.run(run["task"], run["run_id"]), run["metric"]["key"])
    # Missing seeds change nothing here; an incomplete search may still find another leading rate.
    searching = [missing] if missing and curve.state.searching else []
    title = f"{curve.name}{rate_text(run['lr'])}, seed {run['seed']}: {final_text(run)}"
    style.set_title(axes, title, [*searching, *(faults if pictures else ())])
    if not pictures:
        style.record(axes).empty = "; ".join(faults)
        return
    # One image on white: of each picture, the first row as a column.
    strip = np.full((STEP * len(classes), STEP * len(epochs), 3), 255, dtype=np.uint8)
    for row, (column, epoch) in itertools.product(range(len(classes)), enumerate(epochs)):
        image = pictures[epoch][:SIDE, SIDE * row : SIDE * (row + 1)] if epoch in pictures else BLANK
        strip[STEP * row : STEP * row + SIDE, STEP * column : STEP * column + SIDE] = image
    gap = STEP - SIDE
    axes.imshow(strip[:-gap, :-gap], interpolation="none")  # vector formats keep the original pixels
    middles = [(SIDE - 1) / 2 + STEP * place for place in range(max(len(epochs), len(classes)))]
    axes.set_xticks(middles[: len(epochs)], [str(epoch) for epoch in epochs])
    axes.set_yticks(middles[: len(classes)], classes)
    axes.set(xlabel="epoch", anchor="W")
