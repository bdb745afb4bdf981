"""Animations read back by Pillow, and a program in ffmpeg's place."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from nero.checkpoints.pictures import Frame

COPY = "pathlib.Path(sys.argv[-1].removeprefix('file:')).write_bytes(sys.stdin.buffer.read())"


def fake_ffmpeg(folder: Path, code: str = COPY) -> Path:
    """A folder for PATH, in which ffmpeg notes its words in folder/words and runs this code."""
    program = folder / "bin" / "ffmpeg"
    program.parent.mkdir(parents=True)
    note = f"pathlib.Path({str(folder / 'words')!r}).write_text('\\n'.join(sys.argv[1:]))"
    program.write_text("\n".join([f"#!{sys.executable}", "import pathlib, sys", note, code]))
    program.chmod(0o755)
    return program.parent


def pictures(path: Path) -> list[tuple[Frame, float]]:
    """Each picture of a file, and for how many milliseconds it stays."""
    with Image.open(path) as images:
        return [(np.asarray(image.convert("RGB")), image.info["duration"]) for image in ImageSequence.Iterator(images)]
