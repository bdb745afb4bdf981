"""Madam's fused path, on a GPU if there is one, otherwise in Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import slow_after
from nero.optim import Madam
from nero.optim.triton.madam_launch import MadamTensors
from support import references
from support.fused_steps import DEVICE, by_three_paths, make

pytest.importorskip("triton")
# Tensors of one tile and of several, with a full or a partial last tile, aligned or not.
TILE = MadamTensors.tile
SHAPES: list[Any] = [(3, 5), (4, TILE // 4), (2, TILE), (3, 3 * TILE // 4 + 1), (4, 3, 2, 2), (TILE + 4,), (7,), ()]


@pytest.mark.parametrize("beta", [0.999, 0.0])
@pytest.mark.parametrize(("g_bound", "p_scale"), [(10.0, 3.0), (0.7, 1.1)])
def test_matches_reference(g_bound: float, p_scale: float, beta: float) -> None:
    params = references.parameters(device=DEVICE, shapes=[*references.SHAPES, *SHAPES])
    reference = references.Madam(references.as_arrays(params), 0.03, beta, g_bound, p_scale)
    optimizer = Madam(params, lr=0.03, beta=beta, g_bound=g_bound, p_scale=p_scale, fused=True)
    references.assert_follows(params, reference, optimizer, steps=3)
    assert optimizer._fused


@settings(max_examples=10)
@given(
    shapes=st.lists(
        st.one_of(st.tuples(st.integers(1, 2 * TILE)), st.tuples(st.integers(1, 5), st.integers(1, TILE // 2))),
        min_size=1,
        max_size=4,
    ),
    lr=st.floats(1e-4, 0.5),
    beta=st.floats(0, 0.9999),
    seed=st.integers(0, 2**32),
)
def test_matches_reference_on_any_shapes(shapes: list[Any], lr: float, beta: float, seed: int) -> None:
    params = make(shapes, seed=seed)
    reference = references.Madam(references.as_arrays(params), lr, beta)
    references.assert_follows(params, reference, Madam(params, lr=lr, beta=beta, fused=True), steps=2)


@pytest.mark.parametrize("dtype", slow_after(2, [torch.float32, torch.bfloat16, torch.float16]))
@pytest.mark.parametrize("setting", [{}, {"maximize": True}, {"beta": 0.5, "g_bound": 0.5}])
def test_fused_foreach_and_single_tensor_paths_agree(dtype: torch.dtype, setting: dict[str, Any]) -> None:
    # Triton's interpreter truncates to bfloat16 instead of rounding, at each of the three steps.
    tolerance = 2e-6 if dtype == torch.float32 else 5 * torch.finfo(dtype).eps
    fused, *others = by_three_paths(Madam, SHAPES, dtype, **setting)
    for theirs in others:
        for mine, param in zip(fused, theirs, strict=True):
            torch.testing.assert_close(mine, param, rtol=tolerance, atol=tolerance / 10)


def test_nan_and_infinity_are_those_of_the_unfused_path() -> None:
    ends = []
    for fused in (True, False):
        weight = torch.tensor([1.0, -2.0, 0.0, 3.0, 1e-30, 1.0, 0.5, 0.0, 2.0], device=DEVICE)
        optimizer = Madam([weight], lr=0.1, fused=fused)
        weight[5] = math.nan  # refused at construction
        optimizer.state[weight]["bound"].fill_(3.0)
        values = [math.nan, 1.0, 1.0, math.inf, 1.0, 1.0, 1e25, math.nan, 0.0]
        for scale in (1.0, 0.5):
            weight.grad = torch.tensor(values, device=DEVICE) * scale
            optimizer.step()
        ends.append(weight)
    torch.testing.assert_close(*ends, rtol=1e-5, atol=0, equal_nan=True)
    assert ends[0].isnan().tolist() == [True, False, False, True, False, True, False, True, False]


def test_weight_of_zero_stays_zero_at_any_rate() -> None:
    weight = torch.tensor([0.0, 1.0, -1.0], device=DEVICE)
    optimizer = Madam([weight], lr=1e3, fused=True)
    weight.grad = torch.tensor([-1.0, -1.0, 1.0], device=DEVICE)
    optimizer.step()
    bound = 3 * math.sqrt(2 / 3)
    torch.testing.assert_close(weight.cpu(), torch.tensor([0.0, bound, -bound]))


def test_entries_with_only_zero_gradients_do_not_move() -> None:
    params = make([(3, 5), (7,)])
    with torch.no_grad():
        params[0][0, 0] = 100.0  # beyond the bound, but not to be clamped
    before = [param.detach().clone() for param in params]
    references.run(params, Madam(params, lr=0.1, fused=True), range(3))
    for old, new in zip(before, params, strict=True):
        assert torch.equal(old[0], new[0])
        assert not torch.equal(old[1:], new[1:])


@pytest.mark.gpu
def test_step_can_be_captured_in_cuda_graph() -> None:
    references.assert_captures(lambda params, lr: Madam(params, lr=lr, fused=True))
