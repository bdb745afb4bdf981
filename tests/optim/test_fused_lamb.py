"""LAMB's fused path, on a GPU if there is one, otherwise in Triton's interpreter."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import slow_after
from nero.optim import LAMB
from nero.optim.triton.lamb_launch import LAMBTensors, both_passes
from nero.optim.triton.pointer_tables import run_table
from support import references
from support.fused_steps import DEVICE, assert_steps_alike, by_three_paths, make, set_gradients

triton = pytest.importorskip("triton")
tl = triton.language
kernels = pytest.importorskip("nero.optim.triton.lamb_kernels")
SUMMED, add_up = kernels.SUMMED, kernels.add_up
# Tensors of one tile and of several, with a full or a partial last tile, aligned or not.
TILE = LAMBTensors.tile
SHAPES: list[Any] = [(3, 5), (4, TILE // 4), (2, TILE), (3, 3 * TILE // 4 + 1), (4, 3, 2, 2), (TILE + 4,), (7,), ()]


@pytest.mark.parametrize("betas", slow_after(1, [(0.9, 0.999), (0.0, 0.999), (0.5, 0.0)]))
@pytest.mark.parametrize(("clamp_value", "debias"), [(10.0, False), (0.5, False), (10.0, True), (math.inf, True)])
def test_matches_reference(clamp_value: float, debias: bool, betas: tuple[float, float]) -> None:
    params = references.parameters(device=DEVICE, shapes=[*references.SHAPES, *SHAPES])
    reference = references.LAMB(references.as_arrays(params), 0.03, betas, 1e-6, clamp_value, debias)
    optimizer = LAMB(params, lr=0.03, betas=betas, clamp_value=clamp_value, debias=debias, fused=True)
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
    beta1=st.sampled_from([0.0, 0.9]),
    debias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_matches_reference_on_any_shapes(shapes: list[Any], lr: float, beta1: float, debias: bool, seed: int) -> None:
    params = make(shapes, seed=seed)
    reference = references.LAMB(references.as_arrays(params), lr, (beta1, 0.999), 1e-6, 10.0, debias)
    optimizer = LAMB(params, lr=lr, betas=(beta1, 0.999), debias=debias, fused=True)
    references.assert_follows(params, reference, optimizer, steps=2)


@pytest.mark.parametrize("dtype", slow_after(2, [torch.float32, torch.bfloat16, torch.float16]))
@pytest.mark.parametrize("setting", [{}, {"maximize": True}, {"betas": (0.0, 0.999)}, {"debias": True}])
def test_fused_foreach_and_single_tensor_paths_agree(dtype: torch.dtype, setting: dict[str, Any]) -> None:
    # Triton's interpreter truncates to bfloat16 instead of rounding, at each of the three steps.
    tolerance = 2e-6 if dtype == torch.float32 else 5 * torch.finfo(dtype).eps
    fused, *others = by_three_paths(LAMB, SHAPES, dtype, **setting)
    for theirs in others:
        for mine, param in zip(fused, theirs, strict=True):
            torch.testing.assert_close(mine, param, rtol=tolerance, atol=tolerance / 2)


@settings(max_examples=50)
@given(
    tiles=st.lists(st.integers(1, 40) | st.sampled_from([1, 500]), min_size=1, max_size=9),
    held=st.integers(1, 50),
    lag=st.integers(0, 99),
)
def test_items_are_each_tile_once_in_an_order_that_need_not_wait(tiles: list[int], held: int, lag: int) -> None:
    items = run_table(both_passes(tiles, held, lag), torch.device("cpu")).tolist()
    first = {(tensor, code): i for i, (tensor, code) in enumerate(items) if code >= 0}
    second = {(tensor, -1 - code): i for i, (tensor, code) in enumerate(items) if code < 0}
    assert len(first) + len(second) == len(items)
    assert sorted(first) == [(tensor, tile) for tensor, count in enumerate(tiles) for tile in range(count)]
    assert sorted(second) == [(tensor, tile) for tensor, tile in sorted(first) if tiles[tensor] > held]
    others = max(first.values())
    for tensor, count in enumerate(tiles):
        places = [first[tensor, tile] for tile in range(count)]
        if count > held:
            start = min(second[tensor, tile] for tile in range(count))
            assert start > max(places), "the second pass begins before the first has ended"
            assert start > max(places) + lag or start > others, "the second pass begins before it should"
        else:
            assert places == list(range(places[0], places[0] + count)), "programs that wait do not start together"


@pytest.mark.parametrize(("held", "betas"), [(2.5, (0.9, 0.999)), (1e6, (0.9, 0.999)), (1e6, (0.0, 0.999))])
def test_programs_without_patience_leave_their_tiles_to_another(
    monkeypatch: pytest.MonkeyPatch, held: float, betas: tuple[float, float]
) -> None:
    # In the interpreter, where one program runs at a time, none but the last one of a tensor would stop waiting.
    monkeypatch.setattr(LAMBTensors, "held", held)
    monkeypatch.setattr(LAMBTensors, "patience", 0)
    params = references.parameters(device=DEVICE, shapes=[(7, TILE), (TILE + 4,), (3, 3 * TILE // 4 + 1), (5,)])
    reference = references.LAMB(references.as_arrays(params), 0.03, betas, 1e-6, 10.0, True)
    optimizer = LAMB(params, lr=0.03, betas=betas, debias=True, fused=True)
    references.assert_follows(params, reference, optimizer, steps=2)
    (tensors,) = optimizer._fused[0].lists
    assert isinstance(tensors, LAMBTensors)
    assert max(tensors.tiles) == 7
    assert not tensors.arrivals.any()
    assert not tensors.tile_states.any()


@triton.jit
def total_kernel(sums, tiles, totals):  # type: ignore[no-untyped-def]
    weight_square, step_square = add_up(sums, tiles)
    tl.store(totals, weight_square)
    tl.store(totals + 1, step_square)


@pytest.mark.parametrize("tiles", [1, SUMMED.value, SUMMED.value + 1, 5 * SUMMED.value // 2])
def test_sums_of_any_number_of_tiles(tiles: int) -> None:
    sums = torch.rand(tiles, 2, generator=torch.Generator().manual_seed(0))
    totals = torch.zeros(2, dtype=torch.float64, device=DEVICE)
    total_kernel[(1,)](sums.to(DEVICE), tiles, totals)
    torch.testing.assert_close(totals.cpu(), sums.double().sum(0), rtol=1e-12, atol=0)


def test_counters_are_zero_between_steps() -> None:
    params = make(SHAPES)
    optimizer = LAMB(params, fused=True)
    for t in range(3):
        set_gradients(params, t)
        params[t].grad = None
        optimizer.step()
        (tensors,) = optimizer._fused[0].lists
        assert isinstance(tensors, LAMBTensors)
        assert not tensors.arrivals.any()
        assert not tensors.tile_states.any()


def test_momentum_without_its_average_raises_before_any_update() -> None:
    params = make([(3, 5), (4,)])
    optimizer = LAMB(params, betas=(0.0, 0.999), fused=True)
    set_gradients(params, 0)
    optimizer.step()
    before = [param.detach().clone() for param in params]
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    with pytest.raises(RuntimeError, match=r"betas\[0\] was 0"):
        optimizer.step()
    references.assert_same(params, before)


def test_nan_gradient_affects_whole_tensor_but_no_other() -> None:
    for betas in ((0.0, 0.999), (0.9, 0.999)):
        first, second = make([(3, TILE), (3, 4)])
        optimizer = LAMB([first, second], betas=betas, fused=True)
        set_gradients([first, second], 0)
        assert first.grad is not None
        first.grad[1, 1] = math.nan
        optimizer.step()
        assert first.isnan().all(), "its step has a norm that is no number"
        assert second.isfinite().all()


def test_zero_tensor_and_zero_gradient_match_unfused() -> None:
    ends = []
    for fused in (True, False):
        zero, still = make([(5,), (2, 3)])
        with torch.no_grad():
            zero.zero_()
        optimizer = LAMB([zero, still], lr=0.1, fused=fused)
        for t in range(2):
            set_gradients([zero, still], t)
            still.grad = torch.zeros_like(still)
            optimizer.step()
        ends.append([zero, still])
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
    assert torch.equal(ends[0][1], make([(5,), (2, 3)])[1])


def test_loading_state_reuses_existing_tables() -> None:
    ours, theirs = (LAMB(make([(5, 30), (6,), (2, 3000)]), fused=True) for _ in range(2))
    assert_steps_alike(ours, theirs, range(2))
    tables = ours._fused[0]
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    assert_steps_alike(ours, theirs, range(2, 4))
    assert ours._fused[0] is tables


def test_param_groups_have_their_own_settings() -> None:
    first, second, third = make([(3, 20), (3, 20), (3, 20)])
    optimizer = LAMB([{"params": [first], "lr": 0.0}, {"params": [second]}], lr=0.1, fused=True)
    set_gradients([first, second, third], 0)
    still, moved = first.detach().clone(), second.detach().clone()
    optimizer.add_param_group({"params": [third], "fused": False})
    optimizer.step()
    assert torch.equal(first, still)
    assert not torch.equal(second, moved)
    assert {*optimizer._fused} == {0, 1}


def test_fused_raises_where_kernels_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nero.optim.base.unavailable", lambda device: "Triton is not installed")
    with pytest.raises(RuntimeError, match=r"`fused=True` requires .* Triton is not installed"):
        LAMB(make([(3, 4)]), fused=True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("held", "patience"), [(LAMBTensors.held, LAMBTensors.patience), (LAMBTensors.held, 0), (0.0, 0), (20.0, 3)]
)
def test_large_tensors_match_float64_and_repeat_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, held: float, patience: int
) -> None:
    # 20 tiles for each multiprocessor are more than run at the same time.
    monkeypatch.setattr(LAMBTensors, "held", held)
    monkeypatch.setattr(LAMBTensors, "patience", patience)
    shapes = [(30_000, 512), (1000,), (5000, 783), (64, 64, 3, 3), (2000, 4608), (1_000_003,), (100,), (700, 700)]
    ends = []
    for fused in (True, True, False):
        params = make(shapes)
        if not fused:
            params = [param.detach().double().requires_grad_() for param in params]
        optimizer = LAMB(params, fused=fused)
        generator = torch.Generator("cuda").manual_seed(0)
        for _ in range(20):
            for param in params:
                param.grad = torch.randn(param.shape, generator=generator, device="cuda").to(param.dtype)
            optimizer.step()
        ends.append(params)
    references.assert_same(ends[0], ends[1])
    for mine, exact in zip(ends[0], ends[2], strict=True):
        torch.testing.assert_close(mine.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_steps_on_several_streams_at_once_all_end() -> None:
    optimizers, streams = [], [torch.cuda.Stream() for _ in range(4)]
    for seed, stream in enumerate(streams):
        params = make([(700, 700)] * 30, seed=seed)
        set_gradients(params, 0)
        optimizers.append(LAMB(params, fused=True))
        stream.wait_stream(torch.cuda.current_stream())
    for _ in range(50):
        for optimizer, stream in zip(optimizers, streams, strict=True):
            with torch.cuda.stream(stream):
                optimizer.step()
    torch.cuda.synchronize()
    for optimizer in optimizers:
        assert {int(state["step"]) for state in optimizer.state.values()} == {50}


@pytest.mark.gpu
@pytest.mark.parametrize("betas", [(0.0, 0.999), (0.9, 0.999)])
def test_step_can_be_captured_in_cuda_graph(betas: tuple[float, float]) -> None:
    references.assert_captures(lambda params, lr: LAMB(params, lr=lr, betas=betas, fused=True))


@pytest.mark.gpu
def test_capture_without_prior_step_raises() -> None:
    params = make([(3, 4)])
    set_gradients(params, 0)
    optimizer = LAMB(params, fused=True)
    with pytest.raises(RuntimeError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
