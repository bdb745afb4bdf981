"""The report in Python: logged runs as pandas frames, tables and figures. Import it as `from nero import report`.

Everywhere, `store` is a store or its folder; the default is that of `nero report`: NERO_RUNS, else the committed runs.
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image as Pictures

from nero.plans.argparse_types import nearest
from nero.plans.plan import experiment_files
from nero.report import catalogue, frame, readme
from nero.report.figures.style import render
from nero.report.tables.run_list import comparison
from nero.report.tables.table import Table
from nero.runs.logged import logged_runs, named
from nero.runs.store import Store

if TYPE_CHECKING:
    from IPython.display import Image

GREYS, COLOURS, DENSITY = 12, 32, 1.25  # of a figure in a notebook, which is kept in git: colours, and pixels per pixel


class UnknownName(ValueError):
    """There is no such task, optimiser, experiment, key or figure; the message is one line, with the known names."""


def runs(
    task: str | None = None,
    optim: str | None = None,
    experiment: str | None = None,
    store: Store | Path | str | None = None,
) -> pd.DataFrame:
    """One row per logged run.

    The columns are its id, task, optimiser, learning rate and seed; every setting in which the runs differ, such as
    task.depth, precision or optim.betas; status, metric, its final value and the like; and every final metric.

    Args:
        task: only runs of this task, such as "pong_ppo"
        optim: only runs of this optimiser, such as "nero"
        experiment: only runs that this experiment has, such as "table1"
    """
    found = _store(store)
    known = frame.load_runs(found)
    if experiment is not None:
        logged = {run_id for state in catalogue.gather(experiment, found).states for run_id in state.logged}
        known = known[known["run_id"].isin(logged)]
    for name, wanted in (("task", task), ("optim", optim)):
        if wanted is not None:
            _check(wanted, known[name], f"no logged run has the {'task' if name == 'task' else 'optimiser'}")
            known = known[known[name] == wanted]
    return frame.with_settings(known, found)


def curves(
    task: str,
    key: str,
    optim: str | None = None,
    experiment: str | None = None,
    store: Store | Path | str | None = None,
) -> pd.DataFrame:
    """One row per run of a task and logged epoch: the value of one key, such as "train/loss".

    The columns are run_id, optim, lr, seed; the settings in which the runs differ, as in `runs`; epoch, step (of the
    optimiser), seconds (of training until then) and value, which is NaN if it was not finite.
    """
    found = _store(store)
    chosen = runs(task, optim, experiment, found)
    settings = chosen.columns[len(frame.RUN_KEYS) : chosen.columns.get_loc("data")]
    lines = frame.load_curves(found, set(chosen["run_id"]))
    _check(key, lines["key"], f"no run of {task} logs")
    moments = lines[lines["key"] == "seconds"].set_index(["run_id", "epoch"])["value"]
    seconds = moments.groupby(level="run_id", observed=True).cumsum().rename("seconds")
    lines = lines[lines["key"] == key].astype({"run_id": "str"}).join(seconds, on=["run_id", "epoch"])
    own = chosen[["run_id", "optim", "lr", "seed", *settings]]
    return own.merge(lines[["run_id", "epoch", "step", "seconds", "value"]], on="run_id")


def compare(*names: str, store: Store | Path | str | None = None) -> pd.DataFrame:
    """The settings in which runs differ, their final metrics and their provenance, with a column for each run.

    A run is named by its id or a part of it that only one run has, such as its hash.
    """
    found = logged_runs(_store(store))
    chosen = [named(found, name) for name in names]
    parts = {(part, name): values for part, lines in comparison(chosen).items() for name, values in lines.items()}
    return pd.DataFrame.from_dict(parts, orient="index", columns=[run.run_id for run in chosen]).set_axis(
        pd.MultiIndex.from_tuples(list(parts)), axis="index"
    )


def table(experiment: str = "table1", store: Store | Path | str | None = None) -> Table:
    """The table of an experiment; in a notebook it is shown as in results/tables, and `to_frame()` has its numbers."""
    return catalogue.make_table(catalogue.gather(experiment, _store(store)))


def findings(store: Store | Path | str | None = None) -> readme.Findings:
    """What was found in Table 1, in three sentences: the best optimisers, agreement with the paper, and progress."""
    evidence = catalogue.gather(readme.TABLE, _store(store))
    return readme.findings_sentences([evidence], catalogue.make_table(evidence))


def figure(name: str, store: Store | Path | str | None = None) -> Figure:
    """A figure by the name of its file in results/figures, such as "figure3"; or of an experiment."""
    experiment = _experiment_of(name)
    return catalogue.contents(experiment).figures[name](catalogue.gather(experiment, _store(store)))


def numbers(name: str, store: Store | Path | str | None = None) -> str:
    """The same figure in numbers, as Markdown; empty for a figure without them."""
    experiment = _experiment_of(name)
    make = catalogue.contents(experiment).numbers.get(name)
    return make(catalogue.gather(experiment, _store(store))) if make else ""


def _experiment_of(figure: str) -> str:
    every = [*catalogue.CATALOGUE, *(name for name in experiment_files() if name not in catalogue.CATALOGUE)]
    found = {made: name for name in reversed(every) for made in catalogue.contents(name).figures}
    _check(figure, found, "there is no figure")
    return found[figure]


def show(figure: Figure, width: int = 760) -> "Image":
    """The figure as a small image for a notebook, shown that many pixels wide."""
    from IPython.display import Image

    drawn = Pictures.open(io.BytesIO(render(figure, "png"))).convert("RGB")
    across = round(DENSITY * width)
    drawn = drawn.resize((across, round(drawn.height * across / drawn.width)), Pictures.Resampling.LANCZOS)
    small = drawn.quantize(palette=_palette(drawn), dither=Pictures.Dither.NONE)
    small.save(file := io.BytesIO(), "png", optimize=True)
    return Image(file.getvalue(), width=width)


def _palette(drawn: Pictures.Image) -> Pictures.Image:
    """An image with the palette for another: greys apart, since all the text would take the colours of thin curves."""
    pixels = np.asarray(drawn)
    coloured = pixels[np.ptp(pixels, axis=2) > 24]
    palette = np.linspace(0, 255, GREYS).round().astype(int).repeat(3).tolist()
    if len(coloured):
        chosen = Pictures.fromarray(coloured[None]).quantize(COLOURS, dither=Pictures.Dither.NONE)
        palette += (chosen.getpalette() or [])[: 3 * COLOURS]
    image = Pictures.new("P", (1, 1))
    image.putpalette(palette)
    return image


def _store(given: Store | Path | str | None) -> Store:
    if isinstance(given, Store):
        return given
    return catalogue.default_store() if given is None else Store(given)


def _check(word: str, known: Iterable[str], problem: str) -> None:
    names = sorted(set(known))
    if word not in names:
        there = f"there are: {', '.join(names)}" if names else "none is logged"
        raise UnknownName(f"{problem} {word!r}{nearest(word, names)}; {there}")
