"""What the scripts of the page get: the panels of figures, every run of the store, samples of GANs, and games."""

import base64
import gzip
import io
import json
import math
import mimetypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from nero.plans.plan import CellState, Summary
from nero.report import cells, display, paper
from nero.report.figures import style
from nero.report.figures.curves import Curve, by_optimizer
from nero.report.figures.figure8 import STEPS
from nero.report.figures.samples import CLASSES, NAME, NUMBERED, ROWS, SIDE, final_text, is_embedded, shown_run
from nero.report.figures.style import RecordedAxes, Series
from nero.report.units import number, rate, scale, shown_metric
from nero.runs.logged import LoggedRun, logged_runs
from nero.runs.reading import CONFIG
from nero.runs.store import Record, RunDirectory, Store

DASHES = {style.OURS: "solid", style.THEIRS: "dashed", style.VARIANT: "dotted"}
DIGITS = 6  # significant ones: more than a screen shows, and a third of the size of full floats
MOST_POINTS = 1000  # of a curve: more than a screen has room for. Longer ones keep every k-th point and the last
MOST_OF_RUN = 250  # of each metric of a run, for the list of runs: they are many
LEVEL = 6  # of compression; higher levels take twice as long to save a few per cent
COPIED = ("seed", "data", "epochs", "epochs_done", "seconds", "joules", "gpu_processes", "device", "traceback")
NOT_METRICS = frozenset({"epoch", "epochs", "step", "seconds", "trace"})
GAME = "game"  # of the animations in a run directory

# Label of an x axis -> the key of a run's log that it shows, and the unit: such curves can also be drawn against time.
TIMED = {"epoch": ("epoch", 1.0), "environment steps (millions)": (STEPS, 1e6)}

Clock = Mapping[str, Mapping[str, np.ndarray]]
"""By run: the cumulative seconds of training, and the value of each x axis of TIMED, at the lines of its log."""


def numbers(values: np.ndarray) -> list[float | None]:
    """Rounded to DIGITS for JSON; values that are not finite become null."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()]


def thinned(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Indices of the points to keep."""
    step = max(1, -(-count // most))
    return np.unique([*range(0, count, step), *range(count)[-1:]]).astype(int)


def read_clock(store: Store, run_ids: Iterable[str]) -> Clock:
    """When each logged epoch of these runs ended."""
    wanted, found = set(run_ids), {}
    for run, _ in store.read(only=wanted):
        lines = run.read_metrics()
        found[run.run_id] = {"seconds": elapsed(lines)} | {key: _column(lines, key) for key, _ in TIMED.values()}
    return found


def _column(lines: Sequence[Record], key: str) -> np.ndarray:
    """The numbers under `key`, NaN where there is none."""
    return np.array([value if type(value := line.get(key)) in (float, int) else math.nan for line in lines], float)


def elapsed(lines: Sequence[Record]) -> np.ndarray:
    """Cumulative seconds at each line; a line has the seconds since the previous one."""
    return np.cumsum(np.nan_to_num(_column(lines, "seconds")))


def runs_of(figures: Iterable[Figure]) -> Iterator[str]:
    """Ids of all runs drawn."""
    for figure in figures:
        for axes in figure.axes:
            for series in axes.record.series if isinstance(axes, RecordedAxes) else ():
                yield from series.runs


def figure_data(figure: Figure, clock: Clock | None = None) -> dict[str, Any]:
    """The panels of a figure. With a clock, curves of training also have the seconds since its start."""
    return {"panels": [_panel(axes, clock or {}) for axes in figure.axes if isinstance(axes, RecordedAxes)]}


def _panel(axes: RecordedAxes, clock: Clock) -> dict[str, Any]:
    shown = axes.record
    xscale, xlabel = axes.get_xscale(), axes.get_xlabel()
    ends = [x[end] for series in shown.series if len(x := series.x) for end in (0, -1)] if xscale == "linear" else []
    low, high = axes.get_ylim()
    return {
        "title": shown.title,
        "notes": list(shown.notes),
        "xlabel": xlabel,
        "ylabel": " ".join(axes.get_ylabel().split()),
        "xlim": list(map(float, (min(ends), max(ends)) if ends else axes.get_xlim())),
        "ylim": [float(low), float(high)],
        "xscale": xscale,
        "yscale": axes.get_yscale(),
        "yticks": [[float(place), f"{place:g}"] for place in axes.get_yticks() if low <= place <= high],
        "series": [_series(series, xlabel, clock) for series in shown.series],
        **{name: drawn for name in ("marks", "rings", "crosses") if (drawn := getattr(shown, name, None))},
        **({"rule": {"at": shown.rule[0], "label": shown.rule[1]}} if shown.rule else {}),
    }


def _series(series: Series, xlabel: str, clock: Clock) -> dict[str, Any]:
    kept = thinned(len(series.x))
    drawn = {"x": series.x, "mean": series.mean, "low": series.low, "high": series.high}
    drawn["seconds"] = _seconds(series, xlabel, clock)
    return {
        "label": series.label,
        "group": series.group,
        "colour": series.colour,
        "dash": DASHES[series.linestyle],
        "whose": "authors" if series.linestyle == style.THEIRS else "ours",
        **{name: numbers(values[kept]) for name, values in drawn.items() if values is not None},
        "runs": list(series.runs),
    }


def _seconds(series: Series, xlabel: str, clock: Clock) -> np.ndarray | None:
    """Seconds of training at each x: the mean over the runs of the curve; None if a run has no such times."""
    key, unit = TIMED.get(xlabel, ("", 1.0))
    known = [clock[run] for run in series.runs if key in clock.get(run, {})]
    if not known or len(known) < len(series.runs):
        return None
    times = []
    for run in known:
        has = np.isfinite(run[key])
        if not has.any():
            return None
        times.append(np.interp(series.x, run[key][has] / unit, run["seconds"][has]))
    return np.mean(times, axis=0)


def pack(store: Store, name: str) -> str:
    """All runs as base64 of gzipped JSON."""
    return packed(json.dumps({"store": name, "runs": [_run(run) for run in logged_runs(store)]}, **COMPACT))


COMPACT: Any = {"separators": (",", ":"), "allow_nan": False}


def packed(text: str) -> str:
    """Base64 of the gzipped text, without a date, so that the same text gives the same bytes."""
    return base64.b64encode(gzip.compress(text.encode(), LEVEL, mtime=0)).decode()


def _run(run: LoggedRun) -> dict[str, Any]:
    """Numbers, config, provenance and metrics of a run."""
    directory, summary = run.directory, run.summary
    metric, final = summary.get("metric"), summary.get("final")
    task = str(summary.get("task"))
    shown = shown_metric(metric, task) if metric else None
    factor = shown.scale if shown else 1.0
    return {
        "id": run.run_id,
        "task": task,
        "task_name": display.task_name(task),
        "optim": style.name(str(summary.get("optim"))),
        "lr": summary.get("lr"),
        "status": run.status,
        **{name: summary.get(name) for name in COPIED},
        "final": None if final is None else numbers(np.array([factor * final]))[0],
        "metric": shown.label if shown else None,
        "metric_key": metric["key"] if metric else None,
        "goal": metric["goal"] if metric else None,
        "settings": {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in run.settings.items()
            if isinstance(value, str | int | float | bool)
        },
        "config": directory.content(CONFIG).decode() if run.config else None,
        "provenance": directory.read_provenance(),
        "metrics": _metrics(directory.read_metrics(), {metric["key"]: factor} if metric else {}),
    }


def _metrics(lines: Sequence[Record], factors: Mapping[str, float]) -> dict[str, Any]:
    """By key: epochs, values in the unit that tables show, and seconds since the start."""
    seconds = elapsed(lines)
    found: dict[str, Any] = {}
    for key in sorted({key for line in lines for key in line} - NOT_METRICS):
        having = [place for place, line in enumerate(lines) if type(line.get(key, "")) in (float, int, type(None))]
        kept = [having[place] for place in thinned(len(having), MOST_OF_RUN)]
        if kept:
            with np.errstate(over="ignore"):  # infinity becomes null
                values = _column(lines, key)[kept] * factors.get(key, scale(key))
            epochs = [lines[place]["epoch"] for place in kept]
            found[key] = {"x": epochs, "y": numbers(values), "seconds": numbers(seconds[kept])}
    return found


def sample_data(states: Iterable[CellState], store: Store) -> list[dict[str, Any]]:
    """The pictures of one run per optimiser, of the first row with any; optimisers without pictures are left out."""
    of_task = (state for state in states if state.cell.task == paper.CGAN)
    samples = (list(_samples(by_optimizer(row), store)) for row in cells.rows(of_task).values())
    return next(filter(None, samples), [])


def _samples(curves: Iterable[Curve], store: Store) -> Iterator[dict[str, Any]]:
    for curve in curves:
        run = shown_run(curve)
        pictures = list(_pictures(store.run(run["task"], run["run_id"]), run)) if run else []
        if run and pictures:
            # The metric is shown with each picture.
            diverged = ", diverged" if cells.has_diverged(run) else ""
            detail = f"η = {rate(run['lr'])}, seed {run['seed']}{diverged}"
            shown = {"name": curve.name, "detail": detail, "run": run["run_id"], "side": SIDE, "rows": ROWS}
            yield {**shown, "columns": list(NUMBERED if is_embedded(curve) else CLASSES), "pictures": pictures}


def _pictures(directory: RunDirectory, run: Summary) -> Iterator[dict[str, Any]]:
    """Epoch, data and, where it was measured, the metric at that epoch, as text."""
    key = run["metric"]["key"]
    metric = shown_metric(run["metric"], run["task"])
    measured = {line.get("epoch"): line[key] for line in directory.read_metrics() if line.get(key) is not None}
    for epoch, path in directory.pictures(NAME).items():
        if source := _data_url(path):
            value = measured.get(epoch)
            text = "" if value is None else f"{metric.label} {number(metric.scale * value, metric.digits)}"
            yield {"epoch": epoch, "src": source, "value": text}


def game_data(states: Iterable[CellState], store: Store) -> list[dict[str, Any]]:
    """An animation of each optimiser's agent at its leading learning rate, by the first seed that has one."""
    of_task = (state for state in states if state.cell.task == paper.PONG)
    rows = (
        [game for curve in by_optimizer(row) if (game := _game(curve, store))] for row in cells.rows(of_task).values()
    )
    return next(filter(None, rows), [])


def _game(curve: Curve, store: Store) -> dict[str, Any] | None:
    for run in cells.leading_runs(curve.state):
        pictures = store.run(run["task"], run["run_id"]).pictures(GAME)
        path = pictures[max(pictures)] if pictures else None
        source = _data_url(path) if path else None
        still = _first_frame(path) if path and source else None
        if source and still:
            detail = f"η = {rate(run['lr'])}, seed {run['seed']}, {final_text(run)}"
            return {"name": curve.name, "detail": detail, "run": run["run_id"], "src": source, **still}
    return None


def _first_frame(path: Path) -> dict[str, Any] | None:
    """What is shown until the reader plays the animation; None for a damaged file."""
    file = io.BytesIO()
    try:
        with Image.open(path) as image:
            size, frames = image.size, getattr(image, "n_frames", 1)
            milliseconds = frames * int(image.info.get("duration", 0))
            image.convert("P", palette=Image.Palette.ADAPTIVE, colors=16).save(file, "PNG", optimize=True)
    except Exception:  # Pillow raises nearly anything for a damaged file, and no picture should stop a report
        return None
    still = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"still": still, "width": size[0], "height": size[1], "length": round(milliseconds / 1000)}


def _data_url(path: Path) -> str | None:
    """An image as a URL; None for another file, or one that cannot be read."""
    kind, _ = mimetypes.guess_type(path.name)
    with suppress(OSError):
        if kind and kind.startswith("image/"):
            return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return None
