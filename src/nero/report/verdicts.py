"""How a result of ours stands to the paper's: within its spread, better, worse, or missing."""

from enum import StrEnum

from nero.report.paper import Result
from nero.report.units import ShownMetric

WIDTH = 2.0
"""Standard deviations of the paper's to either side of its mean that count as its spread.

One alone would be too narrow a gate: of three seeds its population deviation is an estimate that tends to be too small,
and a faithful rerun of a single seed would miss one deviation about every second time.
"""

PRINTED = 0.005
"""Half a unit of the last digit that the paper prints: no spread is narrower than that."""

RULE = (
    f"Verdict: within, if our mean is no farther than {WIDTH:g} of the paper's standard deviations (σ) from its mean, "
    "else better or worse; worse as well where a seed diverged; missing without a run. The number is our mean less the "
    "paper's, in those σ."
)


class Verdict(StrEnum):
    WITHIN = "within"
    BETTER = "better"
    WORSE = "worse"
    MISSING = "missing"


def judge(mean: float | None, diverged: bool, theirs: Result | None, metric: ShownMetric | None) -> Verdict | None:
    """The verdict on a mean, in the unit of the paper's; None where the paper has no number to hold it against.

    `diverged` says that a seed, or every learning rate, has no finite end.
    """
    if theirs is None or metric is None:
        return None
    if diverged:
        return Verdict.WORSE
    if mean is None:
        return Verdict.MISSING
    difference = mean - theirs.mean
    if abs(difference) <= max(WIDTH * theirs.std, PRINTED):
        return Verdict.WITHIN
    return Verdict.BETTER if metric.sign * difference < 0 else Verdict.WORSE


def deviation(mean: float | None, theirs: Result | None) -> float | None:
    """Our mean less the paper's, in its standard deviations; None where there are none."""
    if mean is None or theirs is None or theirs.std == 0:
        return None
    return (mean - theirs.mean) / theirs.std
