"""Measurements of runs, one JSON file each: checkpoints are too large to store, and measuring needs a GPU.

    networks/<run id>.json   a trained network: balance, activations, robustness
    steps/<run id>.json      selected steps of a training: trust, relative steps, angles

A record identifies its run (`run_id`, `task`, `optim`, `lr`, `seed`, `settings`, `data`), how far it was trained
(`epochs_done` of `epochs`), and the measurement (`measured`: commit, device, torch). Angles are in radians.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nero.atomic import open_to_read, write_atomic

Record = dict[str, Any]
NETWORKS, STEPS = "networks", "steps"
KINDS = (NETWORKS, STEPS)
MOST_BYTES = 256 << 20  # of a file that is read


class UnreadableRecord(ValueError):
    """A file that is not a record; the message is one line."""


def write(kind: str, record: Mapping[str, Any], folder: Path) -> Path:
    """Store a record, to six digits, replacing an older one of the same run. Values that are not finite become null."""
    path = _folder(kind, folder) / f"{record['run_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(_rounded(record), separators=(",", ":"), allow_nan=False) + "\n").encode())
    return path


def read(kind: str, folder: Path) -> list[Record]:
    """All records of a kind, sorted by run id."""
    found = []
    for path in sorted(_folder(kind, folder).glob("*.json")):
        try:
            with open_to_read(path, MOST_BYTES) as file:
                record = json.loads(file.read().decode())
        except RecursionError:
            raise UnreadableRecord(f"{path} cannot be read: it is nested too deeply") from None
        except (OSError, ValueError) as error:
            raise UnreadableRecord(f"{path} cannot be read: {error}") from error
        if not isinstance(record, dict) or record.get("run_id") != path.stem:
            raise UnreadableRecord(f"{path} is no record of the run {path.stem}")
        found.append(record)
    return found


def is_whole(kind: str, record: Record) -> bool:
    """Whether a record is complete: networks need all epochs, steps are of as many epochs as requested."""
    return kind == STEPS or record["epochs_done"] >= record["epochs"]


def _folder(kind: str, folder: Path) -> Path:
    if kind not in KINDS:
        raise ValueError(f"no records are of the kind {kind!r}; there are {', '.join(KINDS)}")
    return folder / kind


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
