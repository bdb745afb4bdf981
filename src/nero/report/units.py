"""Units of metrics: errors and accuracies are logged as fractions and shown in per cent, as in the paper."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class ShownMetric(NamedTuple):
    """A metric as shown in a table; its label ends with the unit, if there is one."""

    label: str
    goal: str  # "min" or "max"

    @property
    def heading(self) -> str:
        """The label with an arrow in the direction of better values."""
        return f"{self.label} {'↓' if self.goal == 'min' else '↑'}"

    @property
    def sign(self) -> float:
        """1 or -1: times this, the smallest value is the best."""
        return 1.0 if self.goal == "min" else -1.0


def scale(key: str) -> float:
    """Factor from a logged value of `key` to the shown value."""
    return 100.0 if key.endswith(("error", "accuracy")) else 1.0


def shown_metric(metric: Mapping[str, Any]) -> ShownMetric:
    """From the `metric` of a run's summary."""
    return ShownMetric(metric["label"] + " (%)" * (scale(metric["key"]) == 100), metric["goal"])


def number(value: float) -> str:
    """Two decimals, as in the paper's tables; three digits from a million."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2e}"


def signed(difference: float) -> str:
    """The same with a sign; zero has a plus."""
    return f"{round(difference, 2) + 0.0:+.2f}" if abs(difference) < 1e6 else f"{difference:+.2e}"


def rate(lr: float) -> str:
    return f"{lr:g}"
