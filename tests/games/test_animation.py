"""Tests of animations, which are read back with Pillow and ffmpeg."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nero.games.animation import LONGEST_STILL, AnimationError, Frame, small_gif, write_animation
from support.animations import pictures, video

KINDS = [".gif", ".png", ".webp"]


def moving(count: int, size: tuple[int, int] = (12, 10), seed: int = 0) -> list[Frame]:
    """Frames with a small rectangle at random places on a fixed pattern; every third frame repeats the previous one."""
    rows, columns = size
    random = np.random.default_rng(seed)
    ground = random.integers(0, 4, (rows, columns, 3), dtype=np.uint8) * 60
    frames = []
    for _ in range(count):
        top, left = random.integers(0, rows - 1), random.integers(0, columns - 1)
        frame = ground.copy()
        frame[top : top + 3, left : left + 2] = random.integers(0, 4, 3) * 80
        frames.append(frames[-1].copy() if len(frames) % 3 == 2 else frame)
    return frames


def shown(path: Path) -> list[Frame]:
    """The frame that is visible in the middle of each 1/15 s."""
    read = pictures(path)
    ends = list(accumulate(duration for _, duration in read))
    number, found = 0, []
    for moment in np.arange(0.5, round(ends[-1] * 15 / 1000)) * 1000 / 15:
        while ends[number] <= moment:
            number += 1
        found.append(read[number][0])
    return found


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("scale", [1, 3])
def test_every_frame_is_shown_at_its_time(tmp_path: Path, suffix: str, scale: int) -> None:
    frames, place = moving(200), tmp_path / f"film{suffix}"
    write_animation(place, iter(frames), scale)
    found = shown(place)
    assert len(found) == len(frames)
    for ours, theirs in zip(found, frames, strict=True):
        assert ours.shape == (12 * scale, 10 * scale, 3)
        assert np.array_equal(ours, np.kron(theirs, np.ones((scale, scale, 1), dtype=np.uint8)))
    with Image.open(place) as image:
        assert image.n_frames < 150, "frames that are the same are one"
        assert image.info["loop"] == 0, "for ever"


@pytest.mark.parametrize("suffix", KINDS)
def test_single_frame_animation(tmp_path: Path, suffix: str) -> None:
    frames, place = moving(1), tmp_path / f"film{suffix}"
    write_animation(place, frames)
    with Image.open(place) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), frames[0])


@pytest.mark.parametrize("suffix", KINDS)
def test_same_frames_give_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        write_animation(tmp_path / f"{name}{suffix}", moving(40, seed=seed), scale=2)
    one, again, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other


@pytest.mark.parametrize("suffix", KINDS)
def test_still_screen_is_shown_for_at_most_a_minute(tmp_path: Path, suffix: str) -> None:
    """No format limits the number of frames, but some limit how long one frame can be shown."""
    first, then = moving(2)
    last = then.copy()
    last[0, 0] = then[0, 0] + 1
    path = tmp_path / f"film{suffix}"
    write_animation(path, [first] * (11 * LONGEST_STILL + 5) + [then] * LONGEST_STILL + [last] * 3)
    found = shown(path)
    expected = [first] * LONGEST_STILL + [then] * LONGEST_STILL + [last] * 3
    assert len(found) == len(expected)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("suffix", KINDS)
def test_only_gif_of_many_colours_is_lossy(tmp_path: Path, suffix: str) -> None:
    frame = np.zeros((16, 64, 3), dtype=np.uint8)
    frame[..., 0], frame[..., 1] = np.arange(16)[:, None] * 17, np.arange(64) * 4  # 1,024 colours
    path = tmp_path / f"film{suffix}"
    write_animation(path, [frame, frame[::-1]])
    for ours, theirs in zip(shown(path), [frame, frame[::-1]], strict=True):
        assert np.abs(ours.astype(int) - theirs).max() <= (20 if suffix == ".gif" else 0)


def test_small_gif_is_halved_until_it_fits(tmp_path: Path) -> None:
    frames, path = moving(60, size=(48, 40)), tmp_path / "film.gif"
    write_animation(path, frames)
    whole = path.read_bytes()
    assert small_gif(iter(frames), largest=len(whole)) == whole
    path.write_bytes(small_gif(iter(frames), largest=len(whole) - 1))
    assert path.stat().st_size < len(whole)
    assert all(np.array_equal(ours, theirs[::2, ::2]) for ours, theirs in zip(shown(path), frames, strict=True))
    path.write_bytes(small_gif(iter(frames), largest=1))
    assert {frame.shape for frame in shown(path)} == {(1, 1, 3)}, "it ends"


def test_frames_may_share_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nero.games.animation.LONGEST_STILL", 2)  # frames in one buffer must not count as equal
    frames, buffer, path = moving(6), np.zeros((12, 10, 3), np.uint8), tmp_path / "film.gif"

    def reused() -> Iterator[Frame]:
        for frame in frames:
            buffer[:] = frame
            yield buffer

    write_animation(path, reused())
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(shown(path), frames, strict=True))


@pytest.mark.parametrize("suffix", [*KINDS, ".mp4"])
def test_interrupted_write_keeps_old_file(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "films"
    folder.mkdir()
    place = folder / f"film{suffix}"
    place.write_bytes(b"before")

    def broken() -> Iterator[Frame]:
        yield from moving(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_animation(place, broken())
    assert [path.name for path in folder.iterdir()] == [place.name]
    assert place.read_bytes() == b"before"
    write_animation(place, moving(5))
    assert place.read_bytes() != b"before"
    assert [path.name for path in folder.iterdir()] == [place.name]


def test_video_has_every_frame_with_correct_size_and_rate(tmp_path: Path) -> None:
    frames, path = moving(9, size=(24, 20)), tmp_path / "film.mp4"
    write_animation(path, frames, scale=4)
    found, rate = video(path)
    assert rate == 15
    assert len(found) == len(frames)
    for ours, theirs in zip(found, frames, strict=True):
        large = np.kron(theirs, np.ones((4, 4, 1), dtype=np.uint8)).astype(int)
        assert ours.shape == large.shape
        assert np.abs(ours - large).mean() < 20, "lossy"


@pytest.mark.parametrize(
    ("program", "message"),
    [("exit 1", "it did not take all frames|0 of 30 frames"), ("cat > /dev/null", "0 of 30 frames are in the video")],
    ids=["at once", "without writing"],
)
def test_ffmpeg_failure_gives_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    failing = tmp_path / "ffmpeg"
    failing.write_text(f"#!/bin/sh\n{program}\n")
    failing.chmod(0o755)
    monkeypatch.setattr("imageio_ffmpeg._io.get_ffmpeg_exe", lambda: str(failing))
    monkeypatch.setattr("imageio_ffmpeg._io.get_first_available_h264_encoder", lambda: "libx264")
    folder = tmp_path / "films"
    with pytest.raises(AnimationError, match=f"^ffmpeg failed: ({message})"):
        write_animation(folder / "film.mp4", moving(30, size=(120, 120)))
    assert not list(folder.iterdir())
