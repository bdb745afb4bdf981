"""Read animations and videos back."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from nero.games.animation import Frame


def pictures(path: Path) -> list[tuple[Frame, float]]:
    """The pictures of a file, each with its duration in milliseconds."""
    with Image.open(path) as images:
        return [(np.asarray(image.convert("RGB")), image.info["duration"]) for image in ImageSequence.Iterator(images)]


def video(path: Path) -> tuple[list[Frame], float]:
    """The frames of a video and its frame rate."""
    from imageio_ffmpeg import read_frames

    frames = read_frames(path)
    about = next(frames)
    width, height = about["size"]
    return [np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in frames], about["fps"]
