"""How a result of ours compares with the paper's: the difference of the means, its 95 % interval, and a verdict.

The paper prints a mean and a population standard deviation over a few seeds, so the seeds themselves are not known.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy.special import stdtrit

from nero.report.paper import Result

CONFIDENCE = 0.95

PRINTED = 0.005
"""Half a unit of the last digit that the paper prints: no interval is narrower than that to either side."""

RULE = (
    f"Verdict: our mean less the paper's, with its {100 * CONFIDENCE:g} % interval in brackets (Welch's; for a single "
    "run of ours, the prediction interval from the paper's runs). It agrees where the interval contains 0, which is "
    "weak evidence if the interval is wide; else it is lower or higher, which is not to say better or worse. Diverged: "
    "a seed or every learning rate has no finite result. Missing: there is no run. Incomplete: rates of the search or "
    "seeds are missing; where the paper's rate is one of them, nothing is compared yet."
)


class Verdict(StrEnum):
    AGREES = "agrees"
    LOWER = "lower"
    HIGHER = "higher"
    DIVERGED = "diverged"
    INCOMPLETE = "incomplete"  # the search has yet to reach the paper's learning rate
    MISSING = "missing"

    @property
    def differs(self) -> bool:
        """There is a result, and it is not the paper's."""
        return self in (Verdict.LOWER, Verdict.HIGHER, Verdict.DIVERGED)


@dataclass(frozen=True)
class Difference:
    """Our mean less the paper's in the unit that the metric is shown in, and the ends of its interval."""

    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        if self.low > 0:
            return Verdict.HIGHER
        return Verdict.LOWER if self.high < 0 else Verdict.AGREES


@dataclass(frozen=True)
class Comparison:
    """A verdict and the difference that it follows from, where there is one."""

    verdict: Verdict
    difference: Difference | None = None


def compare(finals: Sequence[float], diverged: bool, theirs: Result | None) -> Comparison | None:
    """Compare final values, in the unit of the paper's, with its result; None where the paper has none.

    `diverged` says that a seed, or every learning rate tried, has no finite result: the other seeds' mean is then not
    compared.
    """
    if theirs is None:
        return None
    if diverged:
        return Comparison(Verdict.DIVERGED)
    if not finals:
        return Comparison(Verdict.MISSING)
    found = difference(finals, theirs)
    return Comparison(found.verdict, found)


def difference(finals: Sequence[float], theirs: Result) -> Difference:
    """The difference of the means and its interval.

    Welch's interval for two runs or more. One run has no spread of its own: the interval is then the prediction
    interval that the paper's runs give for one more of their kind.
    """
    mean = statistics.fmean(finals) - theirs.mean
    deviation = sample_deviation(theirs.std, theirs.n)
    if len(finals) == 1:
        half = _t(theirs.n - 1) * deviation * math.sqrt(1 + 1 / theirs.n)
    else:
        half = welch_half_width(statistics.stdev(finals), len(finals), deviation, theirs.n)
    half = max(half, PRINTED)
    return Difference(mean, mean - half, mean + half)


def sample_deviation(population_deviation: float, n: int) -> float:
    """The square root of the unbiased variance (ddof 1), from the population standard deviation (ddof 0)."""
    if n < 2:
        raise ValueError(f"the spread of {n} run is not known")
    return population_deviation * math.sqrt(n / (n - 1))


def welch_half_width(deviation: float, n: int, other_deviation: float, other_n: int) -> float:
    """Half of Welch's interval for a difference of two means; the deviations are those of samples (ddof 1)."""
    errors = deviation / math.sqrt(n), other_deviation / math.sqrt(other_n)
    error = math.hypot(*errors)
    if error == 0:
        return 0.0
    # Welch and Satterthwaite's degrees of freedom, by shares of the variance, which neither overflow nor vanish.
    share, other_share = ((each / error) ** 2 for each in errors)
    return _t(1 / (share**2 / (n - 1) + other_share**2 / (other_n - 1))) * error


def _t(df: float) -> float:
    """Student's t that bounds the interval to either side."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))
