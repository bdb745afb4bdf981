"""Frames to a file that moves, of the kind that its suffix says."""

from collections.abc import Iterable
from pathlib import Path

from nero.atomic import replacing
from nero.checkpoints.loading import Unusable
from nero.checkpoints.mp4 import find_ffmpeg, write_mp4
from nero.checkpoints.pictures import Frame, write_pictures

KINDS = {".gif": "GIF", ".png": "PNG", ".webp": "WEBP", ".mp4": "MP4"}


def check_place(path: Path) -> None:
    """Unusable if no animation can be written there: asked before anything is played."""
    if path.suffix.lower() not in KINDS:
        raise Unusable(f"{path}: the name of an animation ends in one of {', '.join(KINDS)}")
    if path.is_dir():
        raise Unusable(f"{path} is a directory")
    if KINDS[path.suffix.lower()] == "MP4":
        find_ffmpeg()


def write_animation(path: Path, frames: Iterable[Frame], scale: int = 1) -> None:
    """At least one frame, all of one size; each pixel becomes a square of `scale` x `scale`."""
    check_place(path)
    kind = KINDS[path.suffix.lower()]
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        if kind == "MP4":
            write_mp4(part, (frame.repeat(scale, axis=0).repeat(scale, axis=1) for frame in frames))
        else:
            write_pictures(part, kind, frames, scale)
