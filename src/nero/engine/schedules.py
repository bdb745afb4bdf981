"""Learning-rate schedules: pure functions from progress to a factor of the initial learning rate.

Progress is measured in epochs, 0 at the start; within an epoch it is a fraction. A schedule that the paper moves once
per epoch takes the whole part.
"""

import math
from collections.abc import Callable, Sequence

Schedule = Callable[[float], float]


def constant() -> Schedule:
    return lambda progress: 1.0


def exponential(gamma: float) -> Schedule:
    """x `gamma` after each epoch (the 100-layer MLP)."""
    return lambda progress: gamma ** math.floor(progress)


def steps(milestones: Sequence[float], gamma: float, warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` epochs, iteration by iteration, then x `gamma` at each milestone epoch."""

    def factor(progress: float) -> float:
        passed = sum(progress >= milestone for milestone in milestones)
        return _warmed(progress, warmup) * gamma**passed

    return factor


def cosine(epochs: float, warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` epochs, then half a cosine down to 0 at epoch `epochs` (ImageNet)."""
    if warmup >= epochs:
        raise ValueError(f"a warm-up of {warmup} epochs leaves nothing of {epochs} epochs to decay over")

    def factor(progress: float) -> float:
        if progress < warmup:
            return _warmed(progress, warmup)
        done = min((progress - warmup) / (epochs - warmup), 1.0)
        return 0.5 * (1.0 + math.cos(math.pi * done))

    return factor


def linear_up_down(peak: float, epochs: float) -> Schedule:
    """Per epoch, counted from 1: linearly up to 1 in epoch `peak`, linearly down to 0 in epoch `epochs` (translation).

    So the first epoch is trained at 1 / `peak` and the last one not at all: the authors' logged curves end with two
    equal validation values.
    """

    def factor(progress: float) -> float:
        epoch = math.floor(progress) + 1
        return epoch / peak if epoch < peak else max(0.0, (epochs - epoch) / (epochs - peak))

    return factor


def linear_to_zero(epochs: float) -> Schedule:
    """Linearly from 1 to 0 at epoch `epochs`, once per epoch (PPO, whose epoch is one update)."""
    return lambda progress: max(0.0, 1.0 - math.floor(progress) / epochs)


def _warmed(progress: float, warmup: float) -> float:
    return progress / warmup if progress < warmup else 1.0
