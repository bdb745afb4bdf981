"""The runs of a store for the page: numbers, config, provenance and curve of each, and samples of GANs."""

import base64
import gzip
import json
import mimetypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nero.plans.plan import CellState
from nero.report.figures import style
from nero.report.figures.samples import CLASSES, NAME, NUMBERED, ROWS, SIDE, is_embedded, shown_runs
from nero.report.page.figure_data import numbers, thinned
from nero.report.units import scale, shown_metric
from nero.runs.store import Record, RunDirectory, Store

COPIED = (
    *("seed", "status", "data", "epochs", "epochs_done", "seconds"),
    *("joules", "gpu_processes", "device", "traceback"),
)
LEVEL = 6
"""Of compression; higher levels take twice as long to save a few per cent."""


def pack(store: Store, name: str) -> str:
    """Base64 of gzipped JSON, without a date, so that the same runs give the same bytes."""
    runs = [_run(run, summary) for run in store.runs() if (summary := run.read_summary()) is not None]
    text = json.dumps({"store": name, "runs": runs}, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def _run(run: RunDirectory, summary: Record) -> dict[str, Any]:
    metric = summary.get("metric")
    factor = scale(metric["key"]) if metric else 1.0
    final = summary.get("final")
    return {
        "id": run.run_id,
        "task": summary.get("task"),
        "optim": style.name(str(summary.get("optim"))),
        "lr": summary.get("lr"),
        **{key: summary.get(key) for key in COPIED},
        "final": None if final is None else numbers(np.array([factor * final]))[0],
        "metric": shown_metric(metric).label if metric else None,
        "goal": metric["goal"] if metric else None,
        "config": _config(run),
        "provenance": run.read_provenance(),
        "curve": _curve(run, metric) if metric else None,
    }


def _config(run: RunDirectory) -> str | None:
    """The text of config.yaml."""
    try:
        return (run.path / "config.yaml").read_text()
    except OSError:
        return None


def _curve(run: RunDirectory, metric: Mapping[str, str]) -> dict[str, Any] | None:
    """The metric at the epochs that have it."""
    key = metric["key"]
    lines = [record for record in run.read_metrics() if key in record and isinstance(record.get("epoch"), int)]
    if not lines:
        return None
    lines = [lines[place] for place in thinned(len(lines))]
    values = scale(key) * np.array([record[key] for record in lines], dtype=np.float64)
    return {
        "xlabel": "epoch",
        "ylabel": shown_metric(metric).label,
        "x": [record["epoch"] for record in lines],
        "y": numbers(values),
    }


# Samples of GANs


def sample_data(states: Iterable[CellState], store: Store) -> list[dict[str, Any]]:
    """The pictures of one run per optimiser; optimisers without pictures are left out."""
    found = []
    for shown in shown_runs(states):
        run = shown.run
        pictures = store.run(run["task"], run["run_id"]).pictures(NAME)
        read = ({"epoch": epoch, "src": _data_uri(path)} for epoch, path in pictures.items())
        if readable := [picture for picture in read if picture["src"]]:
            classes = NUMBERED if is_embedded(shown.curve, run) else CLASSES
            named = {"name": shown.curve.name, "detail": shown.detail, "run": run["run_id"]}
            found.append({**named, "side": SIDE, "rows": ROWS, "columns": list(classes), "pictures": readable})
    return found


def _data_uri(path: Path) -> str | None:
    """The file as a data URI; None if it cannot be read, or its name is not that of a picture."""
    kind, _ = mimetypes.guess_type(path.name)
    if not kind or not kind.startswith("image/"):
        return None
    try:
        return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    except OSError:
        return None
