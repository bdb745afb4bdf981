"""Schedules compared with torch.optim.lr_scheduler and with the paper's description."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.optim import lr_scheduler

from nero.engine import schedules


def factors_of(scheduler_class: type, epochs: int, **settings: object) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = scheduler_class(optimizer, **settings)
    found = []
    for _ in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_exponential_matches_torch() -> None:
    ours = [schedules.exponential(0.9)(epoch + 0.7) for epoch in range(50)]
    assert ours == pytest.approx(factors_of(lr_scheduler.ExponentialLR, 50, gamma=0.9))


def test_steps_match_torch_multi_step_lr() -> None:
    ours = [schedules.steps([100, 150, 180], 0.2)(epoch) for epoch in range(200)]
    assert ours == pytest.approx(factors_of(lr_scheduler.MultiStepLR, 200, milestones=[100, 150, 180], gamma=0.2))


def test_warm_up_is_linear_per_iteration() -> None:
    schedule = schedules.steps([100], 0.2, warmup=5)
    assert [schedule(x) for x in (0, 1.25, 2.5, 5, 99.99, 100)] == pytest.approx([0, 0.25, 0.5, 1, 1, 0.2])


def test_cosine_matches_torch_after_warm_up() -> None:
    schedule = schedules.cosine(epochs=90, warmup=1)
    ours = [schedule(1 + epoch) for epoch in range(89)]
    assert ours == pytest.approx(factors_of(lr_scheduler.CosineAnnealingLR, 89, T_max=89), abs=1e-9)
    assert schedule(0.5) == 0.5
    assert schedule(90) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="leaves nothing"):
        schedules.cosine(epochs=5, warmup=5)


def test_linear_up_down_changes_per_epoch_and_ends_at_zero() -> None:
    schedule = schedules.linear_up_down(peak=50, epochs=100)
    assert [schedule(x) for x in (0, 0.9, 24, 24.99, 48, 49, 50, 74, 98, 99, 99.5)] == pytest.approx(
        [0.02, 0.02, 0.5, 0.5, 0.98, 1, 0.98, 0.5, 0.02, 0, 0]
    )


def test_linear_to_zero_matches_torch() -> None:
    ours = [schedules.linear_to_zero(40)(epoch) for epoch in range(40)]
    theirs = factors_of(lr_scheduler.LinearLR, 40, start_factor=1.0, end_factor=0.0, total_iters=40)
    assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.constant(),
        schedules.exponential(0.9),
        schedules.steps([100, 150, 180], 0.2, warmup=5),
        schedules.cosine(200, warmup=5),
        schedules.linear_up_down(100, 200),
        schedules.linear_to_zero(200),
    ],
)
def test_every_schedule_is_pure_and_stays_between_zero_and_one(schedule: schedules.Schedule) -> None:
    points = [i / 7 for i in range(1400)]
    forwards = [schedule(x) for x in points]
    backwards = [schedule(x) for x in reversed(points)]
    assert forwards == backwards[::-1]
    assert all(0 <= x <= 1 and math.isfinite(x) for x in forwards)


@pytest.mark.parametrize(
    ("schedule", "settings"),
    [
        (schedules.exponential, {"gamma": -1.0}),
        (schedules.exponential, {"gamma": math.nan}),
        (schedules.exponential, {"gamma": True}),
        (schedules.steps, {"milestones": [1, "a"], "gamma": 0.1}),
        (schedules.steps, {"milestones": [-1], "gamma": 0.1}),
        (schedules.steps, {"milestones": [1], "gamma": 0.1, "warmup": -1}),
        (schedules.cosine, {"epochs": math.inf}),
        (schedules.linear_up_down, {"peak": 0, "epochs": 9}),
        (schedules.linear_to_zero, {"epochs": None}),
    ],
)
def test_setting_out_of_range_is_refused(schedule: Callable[..., object], settings: dict[str, object]) -> None:
    with pytest.raises(
        ValueError, match=r"(gamma|milestones|warmup|epochs|peak) must be a number of at least [01], not "
    ):
        schedule(**settings)
