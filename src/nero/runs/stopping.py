"""When runs are to stop: a moment that holds whatever becomes of the clock, and a file that whoever asks them writes.

Both pass as words from a sweep to its runs, in the same process, in another one, or on another machine.
"""

import time
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from nero.runs.boot import boot_id

LOOK_EVERY = 1.0
"""Seconds between two looks at the file, which may be on a slow disk."""


def moment_after(seconds: float) -> str:
    """As a word: UNIX@BOOT+UPTIME, the same moment by the calendar and by the seconds since this machine's start.

    Only the former means something elsewhere; only the latter stays where it is when a clock is set.
    """
    unix, uptime = time.time() + seconds, time.monotonic() + seconds
    boot = boot_id()
    return f"{unix:.0f}@{boot}+{uptime:.3f}" if boot else f"{unix:.0f}"


def monotonic_at(moment: str | float) -> float:
    """When `time.monotonic()` will be at a moment: a word of `moment_after`, or Unix seconds. ValueError for others."""
    calendar, _, here = str(moment).partition("@")
    boot, _, uptime = here.partition("+")
    remaining = float(calendar) - time.time()
    return float(uptime) if here and boot == boot_id() else time.monotonic() + remaining


@dataclass(eq=False)
class Limits:
    """What a run is to stop for beside signals.

    deadline:   in seconds of `time.monotonic()`
    stop_file:  runs stop once it is there
    """

    deadline: float = inf
    stop_file: Path | None = None
    _looked: float = field(default=-inf, repr=False)

    def reason(self) -> str | None:
        """Why to stop now, or None."""
        now = time.monotonic()
        if now >= self.deadline:
            return "the time budget is used up"
        if self.stop_file is not None and now - self._looked >= LOOK_EVERY:
            self._looked = now
            if self.stop_file.exists():
                return "the sweep was asked to stop"
        return None
