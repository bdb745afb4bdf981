"""Curves of several seeds, cut out of frames and made comparable."""

import pandas as pd

from nero.plans.plan import Cell, CellState
from nero.report import cells
from nero.report.figures import style

BLOCK = 10


def name(cell: Cell) -> str:
    """Such as "Nero", or "Nero at lr = 0.001"."""
    varied = f" at {cells.variant_text(cell.variant)}" if cell.variant else ""
    return cells.labelled(style.name(cell.optim) + varied, cell)


def at_leading(state: CellState, frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """The lines of `frame` under `key` of a cell's runs at its leading learning rate."""
    run_ids = [run["run_id"] for run in state.at_leading.values() if run is not None]
    return frame[frame.run_id.isin(run_ids) & (frame.key == key)]


def against(frame: pd.DataFrame, key: str, x: str, unit: float) -> pd.DataFrame:
    """The lines of `frame` under `key`, with a column `x`: what the same record has under that key, in units of `unit`.

    A line whose record does not say where it stands is left out.
    """
    places = frame[frame.key == x].set_index(["run_id", "epoch"]).value.rename(x) / unit
    return frame[frame.key == key].join(places.dropna(), on=["run_id", "epoch"], how="inner")


def block_means(frame: pd.DataFrame) -> pd.DataFrame:
    """Each seed's values over BLOCK iterations, placed at the last of them: single batches are too noisy to compare."""
    last = -(-frame.iteration // BLOCK) * BLOCK
    whose = [name for name in ("run_id", "seed") if name in frame]
    return frame.assign(iteration=last).groupby([*whose, "iteration"])[["value"]].mean().reset_index()


def by_seed(frame: pd.DataFrame, x: str, factor: float) -> pd.DataFrame:
    """A line per `x` and a column per seed, as far as every seed goes; values times `factor`."""
    return frame.pivot(index=x, columns="seed", values="value").dropna().astype("float64") * factor
