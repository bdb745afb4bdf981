"""Write frames as an animation; the suffix of the file decides the format.

GIF, PNG and WebP are written by Pillow and are lossless for frames of at most 256 colours, which games have. MP4 is
written by the ffmpeg that imageio-ffmpeg installs.
"""

import io
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain, groupby, islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nero.atomic import replacing

SUFFIXES = (".gif", ".png", ".webp", ".mp4")
RATE = 15  # frames per second: games run at 60 frames per second, and an action lasts 4 of them
# Equal frames in a row that are written, at most: a frame of a PNG cannot last longer than 65 seconds.
LONGEST_STILL = 60 * RATE
Frame = NDArray[np.uint8]  # [height, width, 3]


class AnimationError(ValueError):
    """An animation cannot be written; the message is one line."""


def check_path(path: Path) -> None:
    """Raise AnimationError if no animation can be written to `path`. Call it before anything is played."""
    if path.suffix.lower() not in SUFFIXES:
        raise AnimationError(f"{path}: the name of an animation must end with one of {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise AnimationError(f"{path} is a directory")
    if path.suffix.lower() == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            raise AnimationError("a video needs imageio-ffmpeg; get it with: pip install -e '.[suite]'") from error


def write_animation(path: Path, frames: Iterable[Frame], scale: int = 1) -> None:
    """Write at least one frame, all of one size, to `path`; each pixel becomes a square of `scale` x `scale` pixels."""
    check_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower()[1:]
    copies = (frame.copy() for frame in frames)  # a game may reuse its buffer
    stills = groupby(copies, key=np.ndarray.tobytes)
    shown = (frame for _, still in stills for frame in islice(still, LONGEST_STILL))
    write = _write_mp4 if kind == "mp4" else _write_pictures
    with replacing(path) as part:
        write(part, kind, shown, scale)


def small_gif(frames: Iterable[Frame], largest: int) -> bytes:
    """The bytes of a GIF of at most `largest` bytes: frames are halved in height and width as often as needed."""
    shown = [frame.copy() for frame in frames]
    while True:
        file = io.BytesIO()
        _write_pictures(file, "gif", iter(shown), scale=1)
        if file.tell() <= largest or min(shown[0].shape[:2]) == 1:
            return file.getvalue()
        shown = [frame[::2, ::2] for frame in shown]


def _write_pictures(file: Path | io.BytesIO, kind: str, frames: Iterator[Frame], scale: int) -> None:
    pictures = [Image.fromarray(frame) for frame in frames]
    if kind == "gif":
        pictures = [picture.convert("P", palette=Image.Palette.ADAPTIVE) for picture in pictures]
    size = pictures[0].width * scale, pictures[0].height * scale
    scaled = (picture.resize(size, Image.Resampling.NEAREST) for picture in pictures)
    # Times are rounded, not durations: a long animation stays in time.
    unit = 10 if kind == "gif" else 1  # milliseconds
    times = (unit * round(1000 * number / RATE / unit) for number in range(len(pictures) + 1))
    next(scaled).save(
        file,
        kind,
        save_all=True,
        append_images=scaled if kind == "gif" else list(scaled),  # the other formats read them twice
        duration=[end - start for start, end in pairwise(times)],
        loop=0,
        optimize=kind == "gif",  # write only the pixels that change
        lossless=True,
    )


def _write_mp4(part: Path, kind: str, frames: Iterator[Frame], scale: int) -> None:
    from imageio_ffmpeg import count_frames_and_secs, write_frames

    first = next(frames)
    size = first.shape[1] * scale, first.shape[0] * scale
    output = ["-f", kind, "-movflags", "+faststart"]  # a browser can play it while it downloads
    count = written = 0
    with closing(write_frames(part, size, fps=RATE, macro_block_size=2, output_params=output)) as writer:
        writer.send(None)
        for frame in chain([first], frames):
            try:
                writer.send(frame.repeat(scale, axis=0).repeat(scale, axis=1).tobytes())
            except OSError as error:
                raise AnimationError("ffmpeg failed: it did not take all frames") from error
            count += 1
    with suppress(RuntimeError):  # imageio-ffmpeg ignores the exit status of ffmpeg
        written = count_frames_and_secs(part)[0]
    if written != count:
        raise AnimationError(f"ffmpeg failed: {written} of {count} frames are in the video")
