"""A store as data frames, which figures are drawn from, and frames as files for other programs."""

import importlib.util
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from nero.atomic import replacing
from nero.plans.config import DEFAULTS_OF_LOGGED_RUNS
from nero.report.units import spreadsheet_text
from nero.runs.logged import LoggedRun, logged_runs, same_value
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
RUN_KEYS = {name: RUN_COLUMNS[name] for name in ("run_id", "task", "optim", "lr", "seed")}
# Settings that RUN_COLUMNS has under another name.
NAMED = frozenset({"task_name", "optim_name", "optim.lr", "seed", "data", "task.epochs"})
NOT_CURVES = frozenset({"epoch", "epochs", "step", "trace"})


def load_runs(store: Store) -> pd.DataFrame:
    """One row per run, sorted by run id: RUN_COLUMNS, then every final metric under its key."""
    rows = []
    for run_id, summary in sorted(store.summaries().items()):
        metric, diverged = summary.get("metric") or {}, summary.get("diverged_at") or {}
        finals = {key: value for key, value in summary["final_metrics"].items() if _is_number(value)}
        fixed = {column: summary.get(column) for column in RUN_COLUMNS} | {"run_id": run_id}
        fixed |= {"metric": metric.get("key"), "goal": metric.get("goal")}
        rows.append({**finals, **fixed, **{f"diverged_{unit}": diverged.get(unit) for unit in ("epoch", "step")}})
    frame = pd.DataFrame(rows)
    extra = sorted(set(frame.columns) - set(RUN_COLUMNS))
    return frame.reindex(columns=[*RUN_COLUMNS, *extra]).astype({**RUN_COLUMNS, **dict.fromkeys(extra, "float64")})


def load_settings(store: Store, run_ids: Collection[str]) -> pd.DataFrame:
    """One row per run, by its id, and one column per setting that tells runs apart, such as task.depth or optim.betas.

    These are the keys of config.yaml in which runs of one task or, if they are the optimiser's, runs of one optimiser
    differ. A missing value means that the run's config does not have the key. Lists are text.
    """
    runs = [run for run in logged_runs(store, only=run_ids) if run.config]
    columns = {key: [_column_value(_setting(run, key)) for run in runs] for key in _differing(runs)}
    frame = pd.DataFrame(columns, index=pd.Index([run.run_id for run in runs], name="run_id", dtype="str"))
    frame = frame.convert_dtypes()
    return frame.astype(dict.fromkeys(frame.select_dtypes("object"), "string"))


def with_settings(runs: pd.DataFrame, store: Store) -> pd.DataFrame:
    """Some rows of `load_runs` with the columns of `load_settings`, and without metrics that none of these runs has."""
    metrics = runs.columns.drop(list(RUN_COLUMNS))
    runs = runs.drop(columns=[name for name in metrics if runs[name].isna().all()])  # of other tasks
    settings = load_settings(store, set(runs["run_id"]))
    settings = settings[settings.columns.difference(runs.columns, sort=False)]  # of somebody's own config
    keys = list(RUN_KEYS)
    return runs[keys].join(settings, on="run_id").join(runs.drop(columns=keys)).reset_index(drop=True)


def _differing(runs: Iterable[LoggedRun]) -> list[str]:
    groups: dict[tuple[str, str], list[LoggedRun]] = {}
    for run in runs:
        for part in ("task", "optim"):
            groups.setdefault((part, run.summary[part]), []).append(run)
    found = set()
    for (part, _), group in groups.items():
        keys = {key for run in group for key in run.settings if key.startswith("optim.") == (part == "optim")}
        first = group[0]
        found |= {key for key in keys if any(not same_value(_setting(first, key), _setting(run, key)) for run in group)}
    return sorted(found - NAMED)


def _setting(run: LoggedRun, key: str) -> Any:
    return run.settings.get(key, DEFAULTS_OF_LOGGED_RUNS.get(key))


def _column_value(setting: Any) -> Any:
    return str(setting) if isinstance(setting, list | dict) else setting


def load_curves(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, logged epoch and key (metrics, `lr`, `seconds` since the previous line); null becomes NaN.

    `run_ids` limits the runs that are read. Strings are categories: a million rows repeat few of them.
    """
    runs: list[Record] = []
    keys: dict[str, int] = {}
    parts = [np.empty((0, 5))]
    for run, records in _lines(store, run_ids):
        rows = [
            (len(runs), record["epoch"], record.get("step"), keys.setdefault(key, len(keys)), value)
            for record in records
            for key, value in record.items()
            if key not in NOT_CURVES and _is_number(value)
        ]
        parts.append(np.array(rows, dtype=np.float64).reshape(-1, 5))
        runs.append(run)
    place, epoch, step, code, value = np.concatenate(parts).T
    texts = dict.fromkeys(("run_id", "task", "optim"), "category")
    frame = pd.DataFrame(runs, columns=list(RUN_KEYS)).astype(RUN_KEYS).astype(texts).take(place.astype(int))
    return frame.reset_index(drop=True).assign(
        epoch=epoch.astype(int),
        step=pd.array(step, dtype="Float64").astype("Int64"),
        key=pd.Categorical.from_codes(code.astype(int), pd.Index(list(keys), dtype="str")),
        value=value,
    )


def load_traces(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, traced key and iteration, counted from 1 over all epochs."""
    types = {**RUN_KEYS, "key": "str", "iteration": "int64", "value": "float64"}
    parts = [pd.DataFrame(columns=list(types)).astype(types)]
    for run, records in _lines(store, run_ids):
        for record in records:
            for key, values in (record.get("trace") or {}).items():
                if record.get("step") is None:
                    continue
                # Counted back from the epoch's last step: a lost line leaves a gap, not a shift.
                last = int(record["step"])
                iterations = np.arange(last - len(values) + 1, last + 1)
                numbers = np.array(values, dtype="float64")
                parts.append(pd.DataFrame({**run, "key": key, "iteration": iterations, "value": numbers}))
    return pd.concat(parts, ignore_index=True).astype(types)


def _lines(store: Store, run_ids: Collection[str] | None) -> Iterator[tuple[Record, list[Record]]]:
    """RUN_KEYS and the metric lines of each run."""
    for run, summary in store.read(only=run_ids):
        yield {name: summary[name] for name in RUN_KEYS}, run.read_metrics()


def _is_number(value: Any) -> bool:
    """Null counts: it is a number that was not finite. A boolean does not."""
    return type(value) in (float, int, type(None))


class NoExport(ValueError):
    """A file cannot be written; the message is one line."""


def _write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Texts, and names of settings and metrics, may come from elsewhere: they are written as in the tables' CSV."""
    safe = frame.copy(deep=False)
    for name, kind in frame.dtypes.items():
        if not (is_numeric_dtype(kind) or is_bool_dtype(kind)):
            safe[name] = frame[name].map(_spreadsheet_value, na_action="ignore")
    safe.rename(columns=spreadsheet_text).to_csv(path, index=False)


def _spreadsheet_value(value: Any) -> Any:
    return spreadsheet_text(value) if isinstance(value, str) else value


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    ".csv": _write_csv,
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False, engine="pyarrow"),
}


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
