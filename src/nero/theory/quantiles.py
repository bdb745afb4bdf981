"""How numbers are spread, in five of them."""

import math

import torch
from torch import Tensor

# The 5th and the 95th percentile stand between the extremes and the median.
SHARES = {"min": 0.0, "low": 0.05, "median": 0.5, "high": 0.95, "max": 1.0}


def quantiles(values: Tensor) -> dict[str, float]:
    """The extremes, the median and the percentiles 5 and 95 of a vector, interpolated linearly as numpy.quantile does.

    In float64 whatever the dtype, and of any length: torch.quantile takes 16 million entries at most. All five are NaN
    where an entry is.
    """
    if values.ndim != 1 or values.numel() == 0:
        raise ValueError(f"quantiles are of a vector that is not empty, not of the shape {tuple(values.shape)}")
    values = values.detach()
    if values.isnan().any():
        return dict.fromkeys(SHARES, math.nan)
    places = [share * (values.numel() - 1) for share in SHARES.values()]
    below = [math.floor(place) for place in places]
    above = [math.ceil(place) for place in places]
    ranks = torch.tensor([below, above], device=values.device)
    # Widened once chosen, as Python's floats: not every device has float64.
    lower, upper = values.sort().values[ranks].tolist()
    return {
        name: _between(low, high, place - rank)
        for name, low, high, place, rank in zip(SHARES, lower, upper, places, below, strict=True)
    }


def _between(low: float, high: float, share: float) -> float:
    """The point a share of the way from low to high."""
    if share == 0 or low == high:
        return low
    return low * (1 - share) + high * share
