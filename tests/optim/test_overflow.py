"""Gradients whose squares overflow float32 freeze the affected entries and cause no NaN."""

import pytest
import torch

from nero.engine.capture import allow_capture
from nero.optim import LAMB, Madam, Nero
from nero.optim.base import running_average

OPTIMIZERS = [Nero, LAMB, Madam]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_overflowed_average_freezes_its_entries(optimizer_class: type, foreach: bool) -> None:
    torch.manual_seed(0)
    params = [
        torch.nn.Parameter(torch.randn(3, 5)),
        torch.nn.Parameter(torch.randn(3, 5)),
        torch.nn.Parameter(torch.ones(3)),
    ]
    optimizer = optimizer_class(params, lr=0.01, foreach=foreach)
    explosion = torch.zeros(3, dtype=torch.bool)
    explosion[1] = True
    for step in range(4):
        for param in params:
            param.grad = torch.randn_like(param)
            if step == 1:
                param.grad[explosion] *= 1e25
        optimizer.step()
        if step == 1:
            stopped = [param.detach()[explosion].clone() for param in params]
    for param, before in zip(params, stopped, strict=True):
        assert param.isfinite().all()
        assert torch.equal(param.detach()[explosion], before)


def test_running_average_matches_formula_for_extreme_values() -> None:
    average = torch.tensor([0.0, 1.0, torch.inf, 1e38, torch.nan])
    value = torch.tensor([1.0, 3.0, 2.0, torch.inf, 1.0])
    expected = torch.tensor([0.1, 1.2, torch.inf, torch.inf, torch.nan])
    torch.testing.assert_close(running_average(average, value, 0.9), expected, equal_nan=True)


@pytest.mark.gpu
def test_adam_survives_overflow_after_allow_capture() -> None:
    param = torch.nn.Parameter(torch.ones(4, device="cuda"))
    optimizer = torch.optim.Adam([param], lr=torch.tensor(0.01, device="cuda"))
    allow_capture(optimizer)
    for size in (1.0, 1e25, 1.0, 1.0):
        param.grad = torch.full_like(param, size)
        optimizer.step()
    assert param.isfinite().all()


@pytest.mark.parametrize(
    ("optimizer_class", "asked", "fused"),
    [(torch.optim.Adam, None, None), (torch.optim.Adam, True, True), (torch.optim.SGD, None, True)],
)
def test_allow_capture_sets_fused_only_where_needed_or_requested(
    optimizer_class: type[torch.optim.Adam | torch.optim.SGD], asked: bool | None, fused: bool | None
) -> None:
    optimizer = optimizer_class([torch.nn.Parameter(torch.ones(2))], lr=0.1, fused=asked)
    allow_capture(optimizer)
    assert optimizer.param_groups[0]["fused"] is fused
