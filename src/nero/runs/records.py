"""The JSON of a run directory: strict, appended line by line, and checked before use. See `nero.runs.store`."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nero.atomic import name_file

REQUIRED: dict[str, type | tuple[type, ...]] = {
    "run_id": str,
    "task": str,
    "optim": str,
    "lr": (int, float),
    "seed": int,
    "epochs_done": int,
    "seconds": (int, float),
    "final_metrics": dict,
}
"""Keys that every readable summary has, and their types."""


def has_required_keys(summary: dict[str, Any]) -> bool:
    """Whether a summary has the keys and types that readers rely on, whatever its status."""
    final, metric = summary.get("final"), summary.get("metric")
    has_metric = isinstance(metric, dict) and all(isinstance(metric.get(key), str) for key in ("key", "goal", "label"))
    return (
        all(_has_type(summary.get(key), types) for key, types in REQUIRED.items())
        and (final is None or _has_type(final, (int, float)))
        and (metric is None or has_metric)
    )


def is_metrics(record: Any) -> bool:
    """Whether a value is a line of metrics.jsonl."""
    return isinstance(record, dict) and _has_type(record.get("epoch"), int)


def _has_type(value: Any, types: type | tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def encode(record: Mapping[str, Any], **options: Any) -> bytes:
    """Strict JSON and a newline. `options` are those of `json.dumps`."""
    return (json.dumps(_finite(dict(record)), allow_nan=False, **options) + "\n").encode()


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, which readers treat as missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def parse_lines(data: bytes) -> list[Any]:
    """The values of all intact lines."""
    lines = data.splitlines()
    try:  # all at once, which is three times faster, unless a line is damaged
        parsed: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        parsed = []
    return parsed if len(parsed) == len(lines) else [value for line in lines for value in parse_line(line)]


def parse_line(line: bytes) -> list[Any]:
    """The line's value, or nothing if it is damaged."""
    try:
        return [json.loads(line)]
    except ValueError:
        return []


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file and flush it to disk, whole or not at all."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":
            line = b"\n" + line  # a kill cut off the last line: do not append to it
        try:
            # One write, so that readers see the whole line or, after a kill, a tail that they skip. A nearly full disk
            # may take only a part: the next write then raises.
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, before)
            name_file(error, path)
            raise
    finally:
        os.close(descriptor)
