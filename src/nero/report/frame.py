"""The store as tidy frames. Everything that a figure draws comes through here."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nero.runs.store import Record, RunDirectory, Store

RUN_COLUMNS = {
    "run_id": "str",
    "task": "str",
    "optim": "str",
    "lr": "float64",
    "seed": "Int64",
    "data": "str",
    "status": "str",
    "metric": "str",  # the key that tables report
    "goal": "str",
    "final": "float64",  # NaN where training ended without a finite value
    "epochs": "Int64",
    "epochs_done": "Int64",
    "seconds": "float64",
    "diverged_epoch": "Int64",
    "diverged_step": "Int64",
    "device": "str",
    "parameters": "Int64",
}
WHOSE = ("run_id", "task", "optim", "lr", "seed")
NOT_CURVES = frozenset({"epoch", "epochs", "step", "trace"})


def load_runs(store: Store) -> pd.DataFrame:
    """One row per run, in order of run id; after the columns above, every final metric under its own key."""
    rows = [_run_row(run_id, summary) for run_id, summary in sorted(store.summaries().items())]
    frame = pd.DataFrame(rows)
    extra = [column for column in frame.columns if column not in RUN_COLUMNS]
    frame = frame.reindex(columns=[*RUN_COLUMNS, *sorted(extra)])
    return frame.astype({**RUN_COLUMNS, **dict.fromkeys(extra, "float64")})


def load_curves(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, logged epoch and key (metrics, `lr`, `seconds` since the line before); null becomes NaN.

    `run_ids` are the only runs to read; None reads all. Words are kept as categories: a million rows repeat few.
    """
    whose: list[Record] = []
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("run", "epoch", "step", "key", "value")}
    keys: dict[str, int] = {}
    for run, records in _lines(store, run_ids):
        for key, (lines, values) in _by_key(records).items():
            columns["run"].append(np.full(len(lines), len(whose), dtype=np.int32))
            columns["epoch"].append(np.array([record["epoch"] for record in lines], dtype=np.int32))
            columns["step"].append(np.array([record.get("step") for record in lines], dtype=np.float64))
            columns["key"].append(np.full(len(lines), keys.setdefault(key, len(keys)), dtype=np.int16))
            columns["value"].append(np.array(values, dtype=np.float64))
        whose.append(run)
    joined = {name: np.concatenate(parts) if parts else np.empty(0, np.int32) for name, parts in columns.items()}
    # Line by line, as they were logged, and within each by key.
    order = np.lexsort((joined["key"], joined["epoch"], joined["run"]))
    joined = {name: values[order] for name, values in joined.items()}
    frame = pd.DataFrame({name: _spread(whose, name, joined["run"]) for name in WHOSE})
    frame["epoch"] = joined["epoch"].astype(np.int64)
    frame["step"] = pd.array(joined["step"].astype(np.float64), dtype="Float64").astype("Int64")
    frame["key"] = pd.Categorical.from_codes(joined["key"], pd.Index(list(keys), dtype="str"))
    frame["value"] = joined["value"].astype(np.float64)
    return frame


def load_traces(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, traced key and iteration, counted from 1 over all epochs."""
    parts = []
    for whose, records in _lines(store, run_ids):
        for record in records:
            for key, values in (record.get("trace") or {}).items():
                # Counted back from the epoch's last step: an epoch whose line was lost leaves a gap, not a shift.
                last = int(record["step"])
                iterations = np.arange(last - len(values) + 1, last + 1)
                numbers = np.array(values, dtype="float64")
                parts.append(pd.DataFrame({**whose, "key": key, "iteration": iterations, "value": numbers}))
    columns = [*WHOSE, "key", "iteration", "value"]
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
    """Whose they are and the lines of all epochs, run by run; a line without its epoch is damaged and passed over."""
    for run in store.runs():
        if run_ids is not None and run.run_id not in run_ids:
            continue
        whose = _whose(run)
        if whose is not None:
            yield whose, [record for record in run.read_metrics() if isinstance(record.get("epoch"), int)]


def _by_key(records: list[Record]) -> dict[str, tuple[list[Record], list[float | None]]]:
    """The lines that have a number under each key that a curve may be drawn of, and those numbers."""
    found = {}
    for key in dict.fromkeys(key for keys in {tuple(record) for record in records} for key in keys):
        if key not in NOT_CURVES:
            lines = [record for record in records if key in record and _is_number(record[key])]
            if lines:
                found[key] = (lines, [record[key] for record in lines])
    return found


def _spread(whose: Sequence[Record], name: str, places: np.ndarray) -> Any:
    """What each run says under `name`, at every place of it."""
    values = [run[name] for run in whose]
    if name == "lr":
        return np.array(values, dtype=np.float64)[places]
    if name == "seed":
        return pd.array(values, dtype="Int64").take(places)
    codes, names = pd.factorize(pd.Series(values, dtype="str"))
    return pd.Categorical.from_codes(codes[places], names)


def _whose(run: RunDirectory) -> Record | None:
    summary = run.read_summary()
    return None if summary is None else {"run_id": run.run_id, **{name: summary.get(name) for name in WHOSE[1:]}}


def _is_number(value: Any) -> bool:
    """Null counts: it is a number that was not finite."""
    return type(value) in NUMBERS


NUMBERS = frozenset({float, int, type(None)})
"""As JSON has them: a truth value is none."""
