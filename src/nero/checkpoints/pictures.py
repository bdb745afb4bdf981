"""Animated GIFs, PNGs and WebPs, by Pillow."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RATE = 15
"""Actions per second: the games run at 60 frames per second, and an action lasts 4 of them."""

MINUTE = 60 * RATE
COLOURS = 255  # of the 256 places in a palette: a GIF needs one for what does not change

Frame = NDArray[np.uint8]  # [rows, columns, 3]
Places = NDArray[np.uint8]  # [rows, columns], in a palette


class Palette:
    """Colours in the order in which they come. Games have few; once all places are taken, the nearest must do."""

    def __init__(self) -> None:
        self.colours: list[tuple[int, int, int]] = []
        self.place_of: dict[int, int] = {}  # by red, green and blue as one number

    def places(self, frame: Frame) -> Places:
        numbers = frame @ np.array([1 << 16, 1 << 8, 1])
        colours, which = np.unique(numbers, return_inverse=True)
        return np.array([self._place(colour) for colour in colours.tolist()], np.uint8)[which].reshape(numbers.shape)

    def table(self) -> bytes:
        return np.array(self.colours, np.uint8).tobytes()

    def _place(self, number: int) -> int:
        if number not in self.place_of:
            colour = number >> 16, number >> 8 & 255, number & 255
            if len(self.colours) < COLOURS:
                self.colours.append(colour)
            self.place_of[number] = int(((np.array(self.colours) - colour) ** 2).sum(axis=1).argmin())
        return self.place_of[number]


def write_pictures(path: Path, kind: str, frames: Iterable[Frame], scale: int) -> None:
    """kind: GIF, PNG or WEBP, as Pillow calls them"""
    palette = Palette()
    stills = [palette.places(frame) for frame in frames]  # one byte for each pixel until the last is known
    settings: dict[str, Any]
    # Pillow makes equal frames one picture, which can stay for 11 minutes in a GIF and for one in a PNG. So that it
    # begins another each minute, frames get a difference that is not to be seen.
    if kind == "GIF":
        unchanged = len(palette.colours)
        _part_long_stays(stills, unchanged)
        settings = {
            "palette": palette.table() + bytes(3),  # one for all pictures
            "transparency": unchanged,
            "optimize": True,  # write that for every pixel that is as before
            "disposal": 1,  # and let it stay
        }
    elif kind == "PNG":
        # Over what was there, or in its place: the same where nothing is transparent.
        settings = {"blend": [number // MINUTE % 2 for number in range(len(stills))]}
    else:
        settings = {"lossless": True}
    images = (_image(still, palette, scale) for still in stills)
    next(images).save(
        path,
        kind,
        save_all=True,
        append_images=images if kind == "GIF" else list(images),  # those of a PNG are read twice
        duration=_durations(len(stills), unit=10 if kind == "GIF" else 1),  # GIFs count hundredths
        loop=0,
        **settings,
    )


def _durations(count: int, unit: int) -> list[int]:
    """Of so many frames, in milliseconds. Moments are rounded to units, so that a long animation keeps time."""
    moments = (unit * round(1000 * number / RATE / unit) for number in range(count + 1))
    return [end - start for start, end in pairwise(moments)]


def _image(still: Places, palette: Palette, scale: int) -> Image.Image:
    image = Image.fromarray(still)
    image.putpalette(palette.table())
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def _part_long_stays(stills: list[Places], unchanged: int) -> None:
    """One pixel that says "unchanged" instead of its colour, where this is true."""
    for number in range(MINUTE, len(stills), MINUTE):
        if np.array_equal(stills[number], stills[number - 1]):
            stills[number][0, 0] = unchanged
