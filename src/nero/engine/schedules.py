"""Learning-rate schedules: pure functions from progress to a factor of the initial learning rate.

Progress is measured in epochs, 0 at the start, with fractions within an epoch. Schedules that the paper changes once
per epoch round it down.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from nero.tasks.base import check_range

Schedule = Callable[[float], float]


def constant() -> Schedule:
    return lambda progress: 1.0


def exponential(gamma: float) -> Schedule:
    """x `gamma` after each epoch (the 100-layer MLP)."""
    check_range(0, math.inf, gamma=gamma)
    return lambda progress: gamma ** math.floor(progress)


def steps(milestones: Sequence[float], gamma: float, warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` epochs, iteration by iteration, then x `gamma` at each milestone epoch."""
    check_range(0, math.inf, gamma=gamma, warmup=warmup)
    for milestone in milestones:
        check_range(0, math.inf, milestones=milestone)

    def factor(progress: float) -> float:
        passed = sum(progress >= milestone for milestone in milestones)
        return _warmed(progress, warmup) * gamma**passed

    return factor


def cosine(epochs: float, warmup: float = 0.0) -> Schedule:
    """Linear warm-up over the first `warmup` epochs, then half a cosine down to 0 at epoch `epochs` (ImageNet)."""
    check_range(0, math.inf, epochs=epochs, warmup=warmup)
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

    So the first epoch is trained at 1 / `peak` and the last one at 0: the authors' logged curves end with two equal
    validation values.
    """
    check_range(1, math.inf, peak=peak, epochs=epochs)

    def factor(progress: float) -> float:
        epoch = math.floor(progress) + 1
        return epoch / peak if epoch < peak else max(0.0, (epochs - epoch) / (epochs - peak))

    return factor


def linear_to_zero(epochs: float) -> Schedule:
    """Linearly from 1 to 0 at epoch `epochs`, once per epoch (PPO, whose epoch is one update)."""
    check_range(1, math.inf, epochs=epochs)
    return lambda progress: max(0.0, 1.0 - math.floor(progress) / epochs)


def _warmed(progress: float, warmup: float) -> float:
    return progress / warmup if progress < warmup else 1.0


class LearningRates:
    """Sets every learning rate to its initial value times the schedule's factor.

    In a captured step the rate must be a device tensor; otherwise it is a number, which every optimiser accepts.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], device: torch.device, as_tensors: bool) -> None:
        self.groups = [group for optimizer in optimizers.values() for group in optimizer.param_groups]
        self.factor: float | None = None
        for group in self.groups:
            group.setdefault("initial_lr", float(group["lr"]))
            group["lr"] = torch.tensor(group["initial_lr"], device=device) if as_tensors else group["initial_lr"]

    def set(self, factor: float) -> None:
        if factor == self.factor:
            return
        self.factor = factor
        for group in self.groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["initial_lr"] * factor)
            else:
                group["lr"] = group["initial_lr"] * factor

    def current(self) -> float:
        return float(self.groups[0]["initial_lr"]) * (1.0 if self.factor is None else self.factor)
