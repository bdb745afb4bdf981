"""Read wandb's offline files without wandb's own reader: LevelDB's log format, with a protobuf in each record."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK, HEAD, FILE_HEAD = 32768, 7, 7


@dataclass
class Mirror:
    """The data of a run that wandb would upload."""

    run_id: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def read_mirror(path: Path) -> Mirror:
    from wandb.proto import wandb_internal_pb2

    found = Mirror()
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run_id, found.project = record.run.run_id, record.run.project
            found.config |= _values(record.run.config.update)
        elif kind == "history":
            found.history.append(_values(record.history.item))
        elif kind == "summary":
            found.summary |= _values(record.summary.update)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _values(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(data: bytes) -> Iterator[bytes]:
    """Yield each complete record after checking the checksums of its parts."""
    place, parts = FILE_HEAD, b""
    while place + HEAD <= len(data):
        room = BLOCK - place % BLOCK
        if room < HEAD:
            place += room  # the end of a block that is too short for a header
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + HEAD : place + HEAD + length]
        assert checksum == zlib.crc32(bytes([kind]) + part)
        parts = part if kind in (1, 2) else parts + part  # 1 full, 2 first, 3 middle, 4 last
        if kind in (1, 4):
            yield parts
        place += HEAD + length
