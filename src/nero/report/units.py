"""How a metric is shown: errors and accuracies are logged as fractions and shown in per cent, as the paper does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARROWS = {"min": "↓", "max": "↑"}


@dataclass(frozen=True)
class ShownMetric:
    """A metric as a table heads it; its label ends with the unit, where there is one."""

    label: str
    goal: str  # "min" or "max"

    @property
    def unit(self) -> str:
        return "%" if self.label.endswith("(%)") else ""

    @property
    def heading(self) -> str:
        """With an arrow to where it is better."""
        return f"{self.label} {ARROWS[self.goal]}"

    @property
    def sign(self) -> float:
        """What to multiply values by so that the smallest is the best."""
        return 1.0 if self.goal == "min" else -1.0


def in_percent(key: str) -> bool:
    return key.endswith(("error", "accuracy"))


def is_ratio(key: str) -> bool:
    """Whether values of `key` are told apart by how many times one is the other: on a log scale."""
    return key.endswith("perplexity")


def scale(key: str) -> float:
    """What a logged value of `key` is multiplied by to be shown."""
    return 100.0 if in_percent(key) else 1.0


def shown_metric(metric: Mapping[str, Any]) -> ShownMetric:
    """From the `metric` of a run's summary."""
    label = f"{metric['label']} (%)" if in_percent(metric["key"]) else str(metric["label"])
    return ShownMetric(label, metric["goal"])


def number(value: float) -> str:
    """Two decimals, as in the paper's tables; a perplexity that exploded in three digits."""
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2e}"


def signed(difference: float) -> str:
    """Likewise with its sign; what rounds to zero has a plus."""
    return f"{round(difference, 2) + 0.0:+.2f}" if abs(difference) < 1e6 else f"{difference:+.2e}"


def rate(lr: float) -> str:
    return f"{lr:g}"
