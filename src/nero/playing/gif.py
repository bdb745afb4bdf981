"""GIFs written frame by frame: of each, only the pixels that changed, in one palette for all.

Pillow would hold every frame until the last is known.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import GifImagePlugin, Image

from nero.playing.stills import RATE, Frame, stills

TICKS = 100  # per second: a GIF counts time in hundredths
UNCHANGED = 255  # the one of the 256 places in a palette that is no colour
COLOURS = 255
PALETTE_SIZE, PALETTE_AT = 3 * 256, 13  # bytes, and where in the file
WITH_PALETTE = 0b11110111  # of 256 colours, of 8 bits each
FOR_EVER = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def write_gif(path: Path, frames: Iterable[Frame]) -> None:
    palette = Palette()
    shown = 0  # actions
    with path.open("wb") as file:
        for still in stills(frames):
            if not shown:
                rows, columns = still.changed.shape
                file.write(b"GIF89a" + struct.pack("<HHBBB", columns, rows, WITH_PALETTE, 0, 0))
                file.write(bytes(PALETTE_SIZE))  # known at the end only
                file.write(FOR_EVER)
            colours = palette.indices(still.part)
            pixels = np.where(still.changed[still.rows, still.columns], colours, UNCHANGED)
            # Moments are rounded, not durations, so that a long animation keeps time.
            ticks = round((shown + still.actions) * TICKS / RATE) - round(shown * TICKS / RATE)
            block = GifImagePlugin.getdata(
                Image.fromarray(pixels.astype(np.uint8)),
                (still.columns.start, still.rows.start),
                duration=10 * ticks,
                transparency=UNCHANGED,
                disposal=1,  # what does not change stays
            )
            file.writelines(block)
            shown += still.actions
        file.write(b";")
        file.seek(PALETTE_AT)
        file.write(palette.table())


class Palette:
    """Colours in the order in which they come. Games have few; once all places are taken, the nearest must do."""

    def __init__(self) -> None:
        self.colours = np.zeros((0, 3), dtype=np.int64)
        self.index_of = np.full(1 << 24, -1, dtype=np.int16)  # by red, green and blue as one number; -1 has not come

    def indices(self, frame: Frame) -> NDArray[np.int16]:
        """[rows, columns]"""
        red, green, blue = np.moveaxis(frame.astype(np.int32), -1, 0)
        colours = red << 16 | green << 8 | blue
        for colour in np.unique(colours[self.index_of[colours] < 0]).tolist():
            self.index_of[colour] = self._place(colour >> 16, colour >> 8 & 255, colour & 255)
        return self.index_of[colours]

    def table(self) -> bytes:
        """Red, green and blue of every place."""
        return self.colours.astype(np.uint8).tobytes().ljust(PALETTE_SIZE, b"\0")

    def _place(self, *colour: int) -> int:
        if len(self.colours) < COLOURS:
            self.colours = np.vstack([self.colours, colour])
            return len(self.colours) - 1
        return int(((self.colours - colour) ** 2).sum(axis=1).argmin())
