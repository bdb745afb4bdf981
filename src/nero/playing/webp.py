"""Animated WebPs by Pillow, which takes frames one by one only from a file: an animated PNG beforehand."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from nero.playing.png import write_film
from nero.playing.stills import RATE, Frame


def write_webp(path: Path, frames: Iterable[Frame]) -> None:
    with tempfile.TemporaryFile() as film:
        stays = write_film(film, frames)
        film.seek(0)
        # In milliseconds; what is rounded are the moments, so that a long animation keeps time.
        durations = [1000 * actions / RATE for actions in stays]
        with Image.open(film) as images:
            images.save(path, "WEBP", save_all=True, duration=durations, loop=0, lossless=True)
