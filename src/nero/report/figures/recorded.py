"""Panels that remember what was drawn in them, so that a page can draw the very same again."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes


@dataclass(frozen=True)
class Series:
    """A curve over seeds. Where a seed's value is not finite there is a NaN."""

    group: str  # whose it is: what a legend switches on and off together
    label: str
    colour: str
    linestyle: str  # one of nero.report.figures.style's
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None  # None where no range is drawn
    high: np.ndarray | None = None
    runs: tuple[str, ...] = ()  # ids; none of the authors' curves


@dataclass(frozen=True)
class Mark:
    """A final value of the paper's."""

    group: str
    label: str
    colour: str
    mean: float
    std: float


@dataclass
class Record:
    """All that a panel shows."""

    title: str = ""
    notes: Sequence[str] = ()
    series: list[Series] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rule: tuple[float, str] | None = None  # a line across, and its words


class RecordedAxes(Axes):
    """An ordinary panel with a record, which whoever draws in it keeps."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.record = Record()
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]


def record(axes: Axes) -> Record:
    """Of a panel; a plain one has none, and what is written into this is lost."""
    return axes.record if isinstance(axes, RecordedAxes) else Record()
