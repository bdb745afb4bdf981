"""Compare our result with the paper's: the difference of the means, its 95 % interval, and a verdict.

The paper prints a mean and a population standard deviation over a few seeds; the values of the seeds are unknown.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

from nero.report.cells import CellStatus
from nero.report.paper import Result

CONFIDENCE = 0.95
PRINTED = 0.005  # half a unit of the last digit that the paper prints: the smallest half-width of an interval
RULE = (
    f"Verdict: our mean minus the paper's, with its {100 * CONFIDENCE:g} % interval in brackets (Welch's; for a single "
    "run of ours, the prediction interval from the paper's runs). Agrees: the interval contains 0, which is weak "
    "evidence if the interval is wide. Lower, higher: it does not; this does not mean better or worse. Preliminary: "
    "learning rates of the search or seeds are missing. Diverged: a seed or every learning rate has no finite result. "
    "Missing: there is no run. Incomplete: the run at the paper's learning rate is missing, so nothing is compared yet."
)


class Comparison(NamedTuple):
    """A verdict and, if the results could be compared, our mean minus the paper's and the ends of its interval."""

    verdict: CellStatus
    mean: float | None = None  # in the unit of the table
    low: float | None = None
    high: float | None = None


def compare(finals: Sequence[float], diverged: bool, theirs: Result | None) -> Comparison | None:
    """Compare final values, in the paper's unit, with its result; None if the paper has none.

    Two runs or more have Welch's interval. One run has no spread of its own: its interval is the prediction interval
    for one further run of the paper's. `diverged`: a seed, or every learning rate tried, has no finite result; the mean
    of the other seeds is then not compared.
    """
    if theirs is None:
        return None
    if diverged or not finals:
        return Comparison(CellStatus.DIVERGED if diverged else CellStatus.MISSING)
    mean = statistics.fmean(finals) - theirs.mean
    deviation = sample_deviation(theirs.std, theirs.n)
    if len(finals) == 1:
        half = _t(theirs.n - 1) * deviation * math.sqrt(1 + 1 / theirs.n)
    else:
        half = welch_half_width(statistics.stdev(finals), len(finals), deviation, theirs.n)
    half = max(half, PRINTED)
    verdict = CellStatus.HIGHER if mean > half else CellStatus.LOWER if mean < -half else CellStatus.AGREES
    return Comparison(verdict, mean, mean - half, mean + half)


def sample_deviation(population_deviation: float, n: int) -> float:
    """The sample standard deviation (ddof 1) from the population standard deviation (ddof 0)."""
    if n < 2:
        raise ValueError(f"the spread of {n} run is not known")
    return population_deviation * math.sqrt(n / (n - 1))


def welch_half_width(deviation: float, n: int, other_deviation: float, other_n: int) -> float:
    """Half the width of Welch's interval for a difference of two means; the deviations have ddof 1."""
    errors = deviation / math.sqrt(n), other_deviation / math.sqrt(other_n)
    error = math.hypot(*errors)
    if error == 0:
        return 0.0
    # Welch-Satterthwaite degrees of freedom, from shares of the variance, which neither overflow nor vanish.
    share, other_share = ((each / error) ** 2 for each in errors)
    return _t(1 / (share**2 / (n - 1) + other_share**2 / (other_n - 1))) * error


def _t(df: float) -> float:
    """Student's t quantile of the two-sided interval."""
    return float(stdtrit(df, (1 + CONFIDENCE) / 2))
