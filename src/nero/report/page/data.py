"""What the scripts of the page get: the panels of figures, every run of the store, and samples of GANs."""

import base64
import gzip
import json
import math
import mimetypes
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report import paper
from nero.report.figures import style
from nero.report.figures.curves import curves_of_task
from nero.report.figures.samples import CLASSES, NAME, NUMBERED, ROWS, SIDE, final_text, is_embedded, shown_run
from nero.report.figures.style import RecordedAxes, Series
from nero.report.units import rate, shown_metric
from nero.runs.store import Record, RunDirectory, Store

DASHES = {style.OURS: "solid", style.THEIRS: "dashed", style.VARIANT: "dotted"}
DIGITS = 6  # significant ones: more than a screen shows, and a third of the size of full floats
MOST_POINTS = 1000  # of a curve: more than a screen has room for. Longer ones keep every k-th point and the last
LEVEL = 6  # of compression; higher levels take twice as long to save a few per cent
COPIED = (
    *("seed", "status", "data", "epochs", "epochs_done", "seconds"),
    *("joules", "gpu_processes", "device", "traceback"),
)


def numbers(values: np.ndarray) -> list[float | None]:
    """Rounded to DIGITS for JSON; values that are not finite become null."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]


def thinned(count: int) -> np.ndarray:
    """Indices of the points to keep."""
    step = max(1, -(-count // MOST_POINTS))
    return np.unique([*range(0, count, step), *range(count)[-1:]]).astype(int)


def figure_data(figure: Figure) -> dict[str, Any]:
    return {"panels": [_panel(axes) for axes in figure.axes if isinstance(axes, RecordedAxes)]}


def _panel(axes: RecordedAxes) -> dict[str, Any]:
    shown = axes.record
    xscale = axes.get_xscale()
    ends = [x[end] for series in shown.series if len(x := series.x) for end in (0, -1)] if xscale == "linear" else []
    low, high = axes.get_ylim()
    return {
        "title": shown.title,
        "notes": list(shown.notes),
        "xlabel": axes.get_xlabel(),
        "ylabel": " ".join(axes.get_ylabel().split()),
        "xlim": list(map(float, (min(ends), max(ends)) if ends else axes.get_xlim())),
        "ylim": [float(low), float(high)],
        "xscale": xscale,
        "yscale": axes.get_yscale(),
        "yticks": [[float(place), f"{place:g}"] for place in axes.get_yticks() if low <= place <= high],
        "series": [_series(series) for series in shown.series],
        "marks": shown.marks,
        **({"rule": {"at": shown.rule[0], "label": shown.rule[1]}} if shown.rule else {}),
    }


def _series(series: Series) -> dict[str, Any]:
    kept = thinned(len(series.x))
    drawn = {"x": series.x, "mean": series.mean, "low": series.low, "high": series.high}
    return {
        "label": series.label,
        "group": series.group,
        "colour": series.colour,
        "dash": DASHES[series.linestyle],
        "whose": "authors" if series.linestyle == style.THEIRS else "ours",
        **{name: numbers(values[kept]) for name, values in drawn.items() if values is not None},
        "runs": list(series.runs),
    }


def pack(store: Store, name: str) -> str:
    """All runs as base64 of gzipped JSON, without a date, so that the same runs give the same bytes."""
    runs = [_run(run, summary) for run in store.runs() if (summary := run.read_summary()) is not None]
    text = json.dumps({"store": name, "runs": runs}, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def _run(run: RunDirectory, summary: Record) -> dict[str, Any]:
    """Numbers, config, provenance and curve of a run."""
    metric, final, config = summary.get("metric"), summary.get("final"), None
    with suppress(OSError):
        config = (run.path / "config.yaml").read_text()
    key = metric["key"] if metric else ""
    shown = shown_metric(metric, str(summary.get("task"))) if metric else None
    label, factor = (shown.label, shown.scale) if shown else (None, 1.0)
    # The metric at the epochs that have it.
    lines = [record for record in run.read_metrics() if key in record and isinstance(record.get("epoch"), int)]
    lines = [lines[place] for place in thinned(len(lines))]
    values = factor * np.array([record[key] for record in lines], dtype=np.float64)
    curve = {"xlabel": "epoch", "ylabel": label, "x": [record["epoch"] for record in lines], "y": numbers(values)}
    return {
        "id": run.run_id,
        "task": summary.get("task"),
        "optim": style.name(str(summary.get("optim"))),
        "lr": summary.get("lr"),
        **{name: summary.get(name) for name in COPIED},
        "final": None if final is None else numbers(np.array([factor * final]))[0],
        "metric": label,
        "goal": metric["goal"] if metric else None,
        "config": config,
        "provenance": run.read_provenance(),
        "curve": curve if lines else None,
    }


def sample_data(states: Iterable[CellState], store: Store) -> list[dict[str, Any]]:
    """The pictures of one run per optimiser; optimisers without pictures are left out."""
    found = []
    for curve in curves_of_task(paper.CGAN, states):
        run = shown_run(curve)
        pictures = []
        for epoch, path in store.run(run["task"], run["run_id"]).pictures(NAME).items() if run else ():
            kind, _ = mimetypes.guess_type(path.name)
            with suppress(OSError):
                if kind and kind.startswith("image/"):
                    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
                    pictures.append({"epoch": epoch, "src": source})
        if run and pictures:
            detail = f"η = {rate(run['lr'])}, seed {run['seed']}, {final_text(run)}"
            shown = {"name": curve.name, "detail": detail, "run": run["run_id"], "side": SIDE, "rows": ROWS}
            classes = list(NUMBERED if is_embedded(curve) else CLASSES)
            found.append({**shown, "columns": classes, "pictures": pictures})
    return found
