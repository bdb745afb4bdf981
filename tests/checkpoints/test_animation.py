"""Animations read back by Pillow, and what ffmpeg is given by a program that takes its place."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nero.checkpoints.animation import write_animation
from nero.checkpoints.loading import Unusable
from nero.checkpoints.pictures import MINUTE, Frame
from support.animations import COPY, fake_ffmpeg, pictures

KINDS = [".gif", ".png", ".webp"]


def moving(count: int, size: tuple[int, int] = (12, 10), seed: int = 0) -> list[Frame]:
    """Something of changing size that moves over a pattern; in every third frame nothing is new."""
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
    """What is to be seen in each fifteenth of a second, in its middle."""
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
def test_every_frame_is_there_in_its_time(tmp_path: Path, suffix: str, scale: int) -> None:
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
def test_a_single_frame(tmp_path: Path, suffix: str) -> None:
    frames, place = moving(1), tmp_path / f"film{suffix}"
    write_animation(place, frames)
    with Image.open(place) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), frames[0])


@pytest.mark.parametrize("suffix", KINDS)
def test_the_same_frames_are_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        write_animation(tmp_path / f"{name}{suffix}", moving(40, seed=seed), scale=2)
    one, again, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "again", "other"))
    assert one == again != other


@pytest.mark.parametrize("suffix", KINDS)
def test_a_frame_that_stays_for_long(tmp_path: Path, suffix: str) -> None:
    """For longer than a GIF can say in one; what comes then differs everywhere or in a corner."""
    first, then = moving(2)
    last = then.copy()
    last[0, 0] = then[0, 0] + 1
    frames = [first] * (11 * MINUTE + 5) + [then] * (MINUTE - 5) + [last] * 3
    place = tmp_path / f"film{suffix}"
    write_animation(place, frames)
    found = shown(place)
    assert len(found) == len(frames)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(found, frames, strict=True))


@pytest.mark.parametrize("suffix", KINDS)
def test_too_many_colours_take_the_nearest(tmp_path: Path, suffix: str) -> None:
    first = np.zeros((16, 16, 3), dtype=np.uint8)
    first[..., 0] = np.arange(256).reshape(16, 16)  # 256 reds, of which the last finds no place
    second = first.copy()
    second[0, 0] = (100, 1, 1)
    place = tmp_path / f"film{suffix}"
    write_animation(place, [first, second])
    one, other = (frame.astype(int) for frame in shown(place))
    assert np.array_equal(one.reshape(256, 3)[:255], first.reshape(256, 3)[:255])
    assert one[15, 15].tolist() == [254, 0, 0]
    assert other[0, 0].tolist() == [100, 0, 0]
    assert np.array_equal(other[1:], one[1:])


@pytest.mark.parametrize("suffix", [*KINDS, ".mp4"])
def test_what_is_cut_off_leaves_what_was_there(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "tools")))
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


def test_ffmpeg_gets_every_frame_whole_and_knows_their_size_and_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path)))
    frames, place = moving(9), tmp_path / "film.mp4"
    write_animation(place, frames, scale=2)
    words = (tmp_path / "words").read_text().splitlines()
    given = {words[i]: words[i + 1] for i in range(words.index("-y") + 1, words.index("-i"), 2)}
    assert given == {"-f": "rawvideo", "-pix_fmt": "rgb24", "-video_size": "20x24", "-framerate": "15"}
    assert words[words.index("-i") + 1] == "pipe:0"
    assert words[-3:-1] == ["-f", "mp4"]
    large = [np.kron(frame, np.ones((2, 2, 1), dtype=np.uint8)) for frame in frames]
    assert place.read_bytes() == b"".join(frame.tobytes() for frame in large)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("sys.exit('first\\nno such codec')", "no such codec"),
        (f"{COPY}; sys.exit('disk full')", "disk full"),
        ("sys.exit(0)", "it did not say why"),
    ],
)
def test_ffmpeg_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    """At once, after all frames, and without having taken them."""
    monkeypatch.setenv("PATH", str(fake_ffmpeg(tmp_path / "tools", code)))
    folder = tmp_path / "films"
    with pytest.raises(Unusable, match=f"^ffmpeg failed: {said}$"):
        write_animation(folder / "film.mp4", moving(30, size=(120, 120)))
    assert not list(folder.iterdir())
