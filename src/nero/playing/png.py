"""Animated PNGs (APNG) written frame by frame: of each, only the rectangle in which something changed.

Pillow would hold every frame until the last is known.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nero.playing.stills import RATE, Frame, stills

SIGNATURE = b"\x89PNG\r\n\x1a\n"
EIGHT_BIT_RGB = bytes([8, 2, 0, 0, 0])
FOR_EVER = 0
UP = 2  # the filter that takes from each byte the one above it: nothing but zeros where rows are alike


def write_png(path: Path, frames: Iterable[Frame]) -> None:
    with path.open("wb") as file:
        write_film(file, frames)


def write_film(file: BinaryIO, frames: Iterable[Frame]) -> list[int]:
    """An animated PNG at the beginning of a file; gives for how many actions each of its pictures stays."""
    stays: list[int] = []
    control_at = 0
    for still in stills(frames):
        first, (rows, columns) = not stays, still.part.shape[:2]
        if first:
            file.write(SIGNATURE + _chunk(b"IHDR", struct.pack(">II", columns, rows) + EIGHT_BIT_RGB))
            control_at = file.tell()
            file.write(_animation_control(0))  # known at the end only
        # Two chunks of each picture are numbered, but one of the first.
        number = 0 if first else 2 * len(stays) - 1
        place = (columns, rows, still.columns.start, still.rows.start)
        neither_taken_away_nor_blended = (0, 0)
        control = struct.pack(">IIIIIHHBB", number, *place, still.actions, RATE, *neither_taken_away_nor_blended)
        file.write(_chunk(b"fcTL", control))
        data = _compressed(still.part)
        file.write(_chunk(b"IDAT", data) if first else _chunk(b"fdAT", struct.pack(">I", number + 1) + data))
        stays.append(still.actions)
    file.write(_chunk(b"IEND", b""))
    file.seek(control_at)
    file.write(_animation_control(len(stays)))
    return stays


def _animation_control(pictures: int) -> bytes:
    return _chunk(b"acTL", struct.pack(">II", pictures, FOR_EVER))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _compressed(frame: Frame) -> bytes:
    rows = frame.reshape(len(frame), -1)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    filtered = np.hstack([np.full((len(rows), 1), UP, dtype=np.uint8), rows - above])
    return zlib.compress(filtered.tobytes(), 9)
