"""Units and digits of metrics.

By default errors and accuracies, which are logged as fractions, are shown in per cent, and all numbers with two
decimals, as in the paper. `display` in a task's YAML changes this for the metric of the task.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from nero.report import display

PER_CENT = "%"
DECIMALS = 2


class ShownMetric(NamedTuple):
    """A metric as shown in a table; its label ends with the unit, if there is one."""

    label: str
    goal: str  # "min" or "max"
    scale: float = 1.0  # factor from logged to shown values
    digits: int = DECIMALS

    @property
    def heading(self) -> str:
        """The label with an arrow in the direction of better values."""
        return f"{self.label} {'↓' if self.goal == 'min' else '↑'}"

    @property
    def sign(self) -> float:
        """1 or -1: times this, the smallest value is the best."""
        return 1.0 if self.goal == "min" else -1.0


def scale(key: str) -> float:
    """Factor from a logged value of `key` to the shown value, by default."""
    return 100.0 if key.endswith(("error", "accuracy")) else 1.0


def shown_metric(metric: Mapping[str, Any], task: str = "") -> ShownMetric:
    """From the `metric` of a run's summary and the YAML of its task."""
    given = display.of_task(task)
    unit = (PER_CENT if scale(metric["key"]) == 100 else "") if given.unit is None else given.unit
    label = metric["label"] if given.name is None else given.name
    factor = (100.0 if unit == PER_CENT else 1.0) if given.scale is None else given.scale
    digits = DECIMALS if given.digits is None else given.digits
    return ShownMetric(f"{label} ({unit})" if unit else label, metric["goal"], factor, digits)


def number(value: float, digits: int = DECIMALS) -> str:
    """So many decimals; three significant digits from a million."""
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"


def signed(difference: float, digits: int = DECIMALS) -> str:
    """The same with a sign; zero has a plus."""
    return f"{round(difference, digits) + 0.0:+.{digits}f}" if abs(difference) < 1e6 else f"{difference:+.2e}"


def rate(lr: float) -> str:
    return f"{lr:g}"


def spreadsheet_text(text: str) -> str:
    """With an apostrophe before text that a spreadsheet would execute; numbers stay as they are."""
    text = re.sub("\r\n?", "\n", text)  # the csv module leaves these unquoted, and what follows would begin a line
    if not text.startswith(("=", "+", "-", "@", "\t", "\n")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
