"""A store as tidy frames, which figures are drawn from, and frames as files for other programs."""

import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nero.atomic import replacing
from nero.runs.store import Record, Store

RUN_COLUMNS = {
    "run_id": "str",
    "task": "str",
    "optim": "str",
    "lr": "float64",
    "seed": "Int64",
    "data": "str",
    "status": "str",
    "metric": "str",  # key of the metric that tables report
    "goal": "str",
    "final": "float64",  # NaN if training ended without a finite value
    "epochs": "Int64",
    "epochs_done": "Int64",
    "seconds": "float64",
    "diverged_epoch": "Int64",
    "diverged_step": "Int64",
    "device": "str",
    "parameters": "Int64",
}
RUN_KEYS = ("run_id", "task", "optim", "lr", "seed")
NOT_CURVES = frozenset({"epoch", "epochs", "step", "trace"})


def load_runs(store: Store) -> pd.DataFrame:
    """One row per run, sorted by run id: RUN_COLUMNS, then every final metric under its key."""
    rows = [_run_row(run_id, summary) for run_id, summary in sorted(store.summaries().items())]
    frame = pd.DataFrame(rows)
    extra = [column for column in frame.columns if column not in RUN_COLUMNS]
    frame = frame.reindex(columns=[*RUN_COLUMNS, *sorted(extra)])
    return frame.astype({**RUN_COLUMNS, **dict.fromkeys(extra, "float64")})


def load_curves(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, logged epoch and key (metrics, `lr`, `seconds` since the previous line); null becomes NaN.

    `run_ids` limits the runs that are read. Strings are categories: a million rows repeat few of them.
    """
    runs: list[Record] = []
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("run", "epoch", "step", "key", "value")}
    keys: dict[str, int] = {}
    for run, records in _lines(store, run_ids):
        for key, (lines, values) in _by_key(records).items():
            columns["run"].append(np.full(len(lines), len(runs), dtype=np.int32))
            columns["epoch"].append(np.array([record["epoch"] for record in lines], dtype=np.int32))
            columns["step"].append(np.array([record.get("step") for record in lines], dtype=np.float64))
            columns["key"].append(np.full(len(lines), keys.setdefault(key, len(keys)), dtype=np.int16))
            columns["value"].append(np.array(values, dtype=np.float64))
        runs.append(run)
    joined = {name: np.concatenate(parts) if parts else np.empty(0, np.int32) for name, parts in columns.items()}
    # In the order of the log, and within each line by key.
    order = np.lexsort((joined["key"], joined["epoch"], joined["run"]))
    joined = {name: values[order] for name, values in joined.items()}
    frame = pd.DataFrame({name: _column(runs, name, joined["run"]) for name in RUN_KEYS})
    frame["epoch"] = joined["epoch"].astype(np.int64)
    frame["step"] = pd.array(joined["step"].astype(np.float64), dtype="Float64").astype("Int64")
    frame["key"] = pd.Categorical.from_codes(joined["key"], pd.Index(list(keys), dtype="str"))
    frame["value"] = joined["value"].astype(np.float64)
    return frame


def load_traces(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, traced key and iteration, counted from 1 over all epochs."""
    parts = []
    for run, records in _lines(store, run_ids):
        for record in records:
            for key, values in (record.get("trace") or {}).items():
                # Counted back from the epoch's last step: a lost line leaves a gap, not a shift.
                last = int(record["step"])
                iterations = np.arange(last - len(values) + 1, last + 1)
                numbers = np.array(values, dtype="float64")
                parts.append(pd.DataFrame({**run, "key": key, "iteration": iterations, "value": numbers}))
    columns = [*RUN_KEYS, "key", "iteration", "value"]
    frame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
    types = {"lr": "float64", "seed": "Int64", "iteration": "int64", "value": "float64"}
    texts = dict.fromkeys(("run_id", "task", "optim", "key"), "str")
    return frame.astype({**types, **texts})


def _run_row(run_id: str, summary: Record) -> Record:
    metric, diverged = summary.get("metric") or {}, summary.get("diverged_at") or {}
    fixed = {
        **{column: summary.get(column) for column in RUN_COLUMNS},
        "run_id": run_id,
        "metric": metric.get("key"),
        "goal": metric.get("goal"),
        "diverged_epoch": diverged.get("epoch"),
        "diverged_step": diverged.get("step"),
    }
    finals = {key: value for key, value in (summary.get("final_metrics") or {}).items() if _is_number(value)}
    return {**finals, **fixed}


def _lines(store: Store, run_ids: Collection[str] | None) -> Iterator[tuple[Record, list[Record]]]:
    """RUN_KEYS and the metric lines of each run; a line without an epoch is damaged and is skipped."""
    for run in store.runs():
        if run_ids is not None and run.run_id not in run_ids:
            continue
        summary = run.read_summary()
        if summary is not None:
            keys = {"run_id": run.run_id, **{name: summary.get(name) for name in RUN_KEYS[1:]}}
            yield keys, [record for record in run.read_metrics() if isinstance(record.get("epoch"), int)]


def _by_key(records: list[Record]) -> dict[str, tuple[list[Record], list[float | None]]]:
    """For each key that can be drawn as a curve: the lines that have a number under it, and these numbers."""
    found = {}
    for key in dict.fromkeys(key for keys in {tuple(record) for record in records} for key in keys):
        if key not in NOT_CURVES:
            lines = [record for record in records if key in record and _is_number(record[key])]
            if lines:
                found[key] = (lines, [record[key] for record in lines])
    return found


def _column(runs: Sequence[Record], name: str, places: np.ndarray) -> Any:
    """The value of each run under `name`, repeated at its places."""
    values = [run[name] for run in runs]
    if name == "lr":
        return np.array(values, dtype=np.float64)[places]
    if name == "seed":
        return pd.array(values, dtype="Int64").take(places)
    codes, names = pd.factorize(pd.Series(values, dtype="str"))
    return pd.Categorical.from_codes(codes[places], names)


def _is_number(value: Any) -> bool:
    """Null counts: it is a number that was not finite. A boolean does not."""
    return type(value) in (float, int, type(None))


# Export


class NoExport(ValueError):
    """A file cannot be written; the message is one line."""


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False, engine="pyarrow"),
}
"""By file name extension."""


def check_export(path: Path, force: bool = False) -> None:
    """Raise NoExport if a frame cannot be written there, or not without `force`. Call it before reading anything."""
    if path.suffix not in WRITERS:
        raise NoExport(f"{path}: the file name must end with one of {', '.join(WRITERS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise NoExport(f"{path}: Parquet needs the package pyarrow: pip install -e '.[parquet]'")
    if not path.parent.is_dir():
        raise NoExport(f"there is no folder {path.parent}")
    if path.is_dir():
        raise NoExport(f"{path} is a folder")
    if path.exists() and not force:
        raise NoExport(f"{path} already exists; --force replaces it")


def export(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame atomically. Floats in CSV have all their digits; missing values are empty."""
    with replacing(path) as part:
        WRITERS[path.suffix](frame, part)
