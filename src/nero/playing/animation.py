"""Frames to a file that moves, of the kind that its suffix says."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from nero.playing.gif import write_gif
from nero.playing.mp4 import find_ffmpeg, write_mp4
from nero.playing.png import write_png
from nero.playing.stills import Frame
from nero.playing.webp import write_webp
from nero.trained.loading import Unusable

WRITERS: dict[str, Callable[[Path, Iterable[Frame]], None]] = {
    ".gif": write_gif,
    ".png": write_png,
    ".webp": write_webp,
    ".mp4": write_mp4,
}


def check_place(path: Path) -> None:
    """Unusable if no animation can be written there: asked before anything is played."""
    if path.suffix.lower() not in WRITERS:
        raise Unusable(f"{path}: the name of an animation ends in one of {', '.join(WRITERS)}")
    if path.is_dir():
        raise Unusable(f"{path} is a directory")
    if WRITERS[path.suffix.lower()] is write_mp4:
        find_ffmpeg()


def write_animation(path: Path, frames: Iterable[Frame], scale: int = 1) -> None:
    """At least one frame, all of one size; each pixel becomes a square of `scale` x `scale`."""
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as part:
        WRITERS[path.suffix.lower()](part, (_enlarged(frame, scale) for frame in frames))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A place to write to, beside `path`: what is there in the end becomes `path`, unless something was raised."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _enlarged(frame: Frame, scale: int) -> Frame:
    return np.repeat(np.repeat(frame, scale, axis=0), scale, axis=1)
