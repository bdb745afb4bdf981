"""Frames that stay for a while, and the part of a frame that is not as before: what keeps animations small."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RATE = 15
"""Actions per second: the games run at 60 frames per second, and an action lasts 4 of them."""

LONGEST = 60 * RATE
"""No still is longer than a minute: a GIF cannot count beyond eleven."""

Frame = NDArray[np.uint8]  # [rows, columns, 3]


class Still(NamedTuple):
    """A frame that stays for so many actions.

    changed:        [rows, columns], where it is not as the frame before; everywhere in the first
    rows, columns:  of the smallest rectangle around what changed; one pixel if nothing did
    """

    frame: Frame
    actions: int
    changed: NDArray[np.bool_]
    rows: slice
    columns: slice

    @property
    def part(self) -> Frame:
        """The frame in that rectangle."""
        return self.frame[self.rows, self.columns]


def stills(frames: Iterable[Frame]) -> Iterator[Still]:
    """Equal frames in a row as one."""
    before: Frame | None = None
    for frame, actions in _stays(frames):
        changed = np.ones(frame.shape[:2], dtype=np.bool_) if before is None else (frame != before).any(axis=-1)
        yield Still(frame, actions, changed, _around(changed, 1), _around(changed, 0))
        before = frame


def _stays(frames: Iterable[Frame]) -> Iterator[tuple[Frame, int]]:
    """Each frame, and for how many actions it stays."""
    present: Frame | None = None
    actions = 0
    for frame in frames:
        if present is not None:
            if actions < LONGEST and np.array_equal(frame, present):
                actions += 1
                continue
            yield present, actions
        present, actions = frame, 1
    if present is not None:
        yield present, actions


def _around(changed: NDArray[np.bool_], across: int) -> slice:
    (places,) = np.nonzero(changed.any(axis=across))
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)
