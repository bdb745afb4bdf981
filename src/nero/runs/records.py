"""The JSON of a run directory: strict, and appended line by line. See `nero.runs.store`."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nero.atomic import append_whole


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
    """The value of each line, None for damaged ones."""
    lines = data.splitlines()
    try:  # all at once, which is three times faster, unless a line is damaged
        parsed: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        parsed = []
    return parsed if len(parsed) == len(lines) else [parse_line(line) for line in lines]


def parse_line(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def is_metrics(record: Any) -> bool:
    """Whether a value is a line of metrics.jsonl."""
    return isinstance(record, dict) and type(record.get("epoch")) is int


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file and flush it to disk, whole or not at all."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a kill: do not append to that line
        append_whole(descriptor, b"\n" + line if is_cut_off else line, path)
    finally:
        os.close(descriptor)
