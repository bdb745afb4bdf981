"""Videos by ffmpeg, which is given raw frames and does the rest."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from nero.checkpoints.loading import Unusable
from nero.checkpoints.pictures import RATE, Frame


def find_ffmpeg() -> str:
    """Where it is on PATH; Unusable if nowhere."""
    found = shutil.which("ffmpeg")
    if found is None:
        raise Unusable("a video needs ffmpeg, and there is none on PATH; .gif, .png and .webp do without")
    return found


def write_mp4(path: Path, frames: Iterable[Frame]) -> None:
    """Unusable, with the last that ffmpeg said, if it fails."""
    frames = iter(frames)
    first = next(frames)
    rows, columns = first.shape[:2]
    size = f"{columns}x{rows}"
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-video_size", size, "-framerate", str(RATE), "-i", "pipe:0"]
    # Colours in the one way that every browser shows; and a file that can be shown while it is fetched.
    made = ["-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", f"file:{path}"]
    with tempfile.TemporaryFile() as said:
        command = [find_ffmpeg(), "-loglevel", "error", "-y", *given, *made]
        whole = _feed(command, chain([first], frames), said.fileno())
        said.seek(0)
        lines = said.read().decode(errors="replace").split("\n")
    if not whole:
        last = [line.strip() for line in lines if line.strip()][-1:] or ["it did not say why"]
        raise Unusable(f"ffmpeg failed: {last[0]}")


def _feed(command: list[str], frames: Iterator[Frame], said: int) -> bool:
    """Whether it took every frame and was content."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said) as process:
        assert process.stdin is not None
        try:
            for frame in frames:
                process.stdin.write(frame.tobytes())
            process.stdin.close()
        except BrokenPipeError:
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            return False
        except BaseException:
            process.kill()
            raise
    return process.returncode == 0
