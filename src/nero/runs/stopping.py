"""When runs stop: at a deadline that survives clock changes, or when a stop file appears.

A sweep passes both to its runs as strings, in the same process, in another one, or on another machine.
"""

import time
from dataclasses import dataclass, field
from math import inf, isnan
from pathlib import Path

from nero.runs.lock import boot_id

CHECK_SECONDS = 1.0  # seconds between two checks of the stop file, which may be on a slow disk


def moment_after(seconds: float) -> str:
    """A moment as UNIX@BOOT+UPTIME: in Unix seconds, and in seconds since this machine's boot.

    Other machines use the former; this machine uses the latter, which does not change when its clock is set.
    """
    unix, uptime = time.time() + seconds, time.monotonic() + seconds
    boot = boot_id()
    return f"{unix:.0f}@{boot}+{uptime:.3f}" if boot else f"{unix:.0f}"


def monotonic_at(moment: str | float | None) -> float:
    """`time.monotonic()` at a moment of `moment_after` or at Unix seconds; infinity for None, else ValueError."""
    if moment is None:
        return inf
    calendar, _, here = str(moment).partition("@")
    boot, _, uptime = here.partition("+")
    remaining = float(calendar) - time.time()
    if isnan(remaining):
        raise ValueError(f"{moment} is no moment")
    return float(uptime) if here and boot == boot_id() else time.monotonic() + remaining


@dataclass(eq=False)
class Limits:
    """When a run stops, apart from signals.

    deadline:   in seconds of `time.monotonic()`
    stop_file:  runs stop once it exists
    """

    deadline: float = inf
    stop_file: Path | None = None
    _checked: float = field(default=-inf, repr=False)

    def reason(self) -> str | None:
        """Why to stop now, or None."""
        now = time.monotonic()
        if now >= self.deadline:
            return "the time budget is used up"
        if self.stop_file is None or now - self._checked < CHECK_SECONDS:
            return None
        self._checked = now
        return "the sweep was asked to stop" if self.stop_file.exists() else None
