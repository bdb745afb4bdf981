"""What was measured of runs, one JSON file each: checkpoints are too large to keep, and measuring wants a GPU.

    networks/<run id>.json   a network as its run left it: balance, activations, robustness
    steps/<run id>.json      chosen steps along a training: trust, relative steps, angles

A record says what run it is of (`run_id`, `task`, `optim`, `lr`, `seed`, `settings`, `data`), how far that was trained
(`epochs_done` of `epochs`), and what measured it (`measured`: commit, device, torch). Angles are in radians.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nero.atomic import write_atomic

Record = dict[str, Any]
NETWORKS, STEPS = "networks", "steps"
KINDS = (NETWORKS, STEPS)


class UnreadableRecord(ValueError):
    """A file that is no record; in one line."""


def write(kind: str, record: Mapping[str, Any], folder: Path) -> Path:
    """Keep a record in place of an older one of the same run, to six digits. What is not finite becomes null."""
    path = folder / _known(kind) / f"{record['run_id']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(_short(record), separators=(",", ":"), allow_nan=False) + "\n").encode())
    return path


def read(kind: str, folder: Path) -> list[Record]:
    """All of a kind, in the order of their runs' ids."""
    return [_parse(path) for path in sorted((folder / _known(kind)).glob("*.json"))]


def is_whole(kind: str, record: Record) -> bool:
    """Whether it is of all that there is to measure: steps are of as many epochs as were asked for."""
    return kind == STEPS or record["epochs_done"] >= record["epochs"]


def _parse(path: Path) -> Record:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UnreadableRecord(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict) or record.get("run_id") != path.stem:
        raise UnreadableRecord(f"{path} is no record of the run {path.stem}")
    return record


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"no records are of the kind {kind!r}; there are {', '.join(KINDS)}")
    return kind


def _short(value: Any) -> Any:
    """JSON has no word for infinity, and no use for sixteen digits of a measurement."""
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
