"""The store as tidy frames. Everything that a figure draws comes through here."""

from collections.abc import Collection, Iterator
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

    `run_ids` are the only runs to read; None reads all.
    """
    parts: dict[str, list[Any]] = {name: [] for name in (*WHOSE, "epoch", "step", "key", "value")}
    for whose, record in _records(store, run_ids):
        values = {key: value for key, value in record.items() if key not in NOT_CURVES and _is_number(value)}
        for name in WHOSE:
            parts[name] += [whose[name]] * len(values)
        parts["epoch"] += [record["epoch"]] * len(values)
        parts["step"] += [record.get("step")] * len(values)
        parts["key"] += values.keys()
        parts["value"] += values.values()
    types = {"lr": "float64", "seed": "Int64", "epoch": "int64", "step": "Int64", "value": "float64"}
    texts = dict.fromkeys(("run_id", "task", "optim", "key"), "str")
    return pd.DataFrame(parts).astype({**types, **texts})


def load_traces(store: Store, run_ids: Collection[str] | None = None) -> pd.DataFrame:
    """One row per run, traced key and iteration, counted from 1 over all epochs."""
    parts = []
    for whose, record in _records(store, run_ids):
        for key, values in (record.get("trace") or {}).items():
            # Counted back from the epoch's last step, so that an epoch whose line was lost leaves a gap, not a shift.
            last = int(record["step"])
            iterations = np.arange(last - len(values) + 1, last + 1)
            parts.append(
                pd.DataFrame({**whose, "key": key, "iteration": iterations, "value": np.array(values, dtype="float64")})
            )
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


def _records(store: Store, run_ids: Collection[str] | None) -> Iterator[tuple[Record, Record]]:
    """Whose it is and one epoch's line, run by run; a line without its epoch is damaged and passed over."""
    for run in store.runs():
        if run_ids is not None and run.run_id not in run_ids:
            continue
        whose = _whose(run)
        if whose is not None:
            yield from ((whose, record) for record in run.read_metrics() if isinstance(record.get("epoch"), int))


def _whose(run: RunDirectory) -> Record | None:
    summary = run.read_summary()
    return None if summary is None else {"run_id": run.run_id, **{name: summary.get(name) for name in WHOSE[1:]}}


def _is_number(value: Any) -> bool:
    """Null counts: it is a number that was not finite."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
