"""Nero's fused path, on a GPU if there is one, otherwise in Triton's interpreter."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import slow_after
from nero.optim import Nero, neuron_norm
from nero.optim.triton import nero_launch as fused
from support import references
from support.fused_steps import DEVICE, assert_steps_alike, by_three_paths, make, set_gradients
from support.plain_nero import PlainNero

pytest.importorskip("triton")
HALVES = pytest.mark.parametrize("halves", [(True, True), (True, False), (False, True), (False, False)])
# At least one fan-in for every path through the kernel: padded or not, aligned or not, handled by one program of
# either size or in pieces; several tiles of each.
SHAPES = [
    (40, 1), (33, 5), (130, 4), (9, 3, 5, 5), (3, 147), (5, 784), (2, 1001), (2, 2048), (1, 2049), (2, 4608), (2, 8193),
    (2, 9000), (600,), (7,), (),
]  # fmt: skip


def launches_of(optimizer: Nero, group: int = 0) -> list[fused.Launch]:
    return [launch for tensors in optimizer._fused[group].lists for launch in tensors.launches]


@pytest.mark.parametrize("beta", [0.999, 0.0])
def test_matches_algorithm_1(beta: float) -> None:
    params = references.parameters(device=DEVICE, shapes=[*references.SHAPES, *SHAPES])
    reference = references.Nero(references.as_arrays(params), 0.03, beta)
    optimizer = Nero(params, lr=0.03, beta=beta, fused=True)
    references.assert_follows(params, reference, optimizer, steps=3)
    assert sum(len(tensors.params) for tensors in optimizer._fused[0].lists) > len(SHAPES)


@settings(max_examples=10)
@given(
    shapes=st.lists(
        st.one_of(
            st.tuples(st.integers(1, 20), st.integers(1, 40)),
            st.tuples(st.integers(1, 3), st.integers(1, 12000)),
            st.tuples(st.integers(1, 600), st.integers(1, 3)),
            st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)),
            st.tuples(st.integers(1, 2000)),
        ),
        min_size=1,
        max_size=4,
    ),
    lr=st.floats(1e-4, 0.5),
    beta=st.floats(0, 0.9999),
    seed=st.integers(0, 2**32),
)
def test_matches_plain_reference_on_any_shapes(shapes: list[Any], lr: float, beta: float, seed: int) -> None:
    params = make(shapes, seed=seed)
    reference = PlainNero(params, lr, beta)
    references.assert_follows(params, reference, Nero(params, lr=lr, beta=beta, fused=True), steps=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "halves"),
    [
        (torch.float32, (True, False)),
        (torch.float32, (False, True)),
        (torch.float32, (False, False)),
        (torch.bfloat16, (True, True)),
        (torch.float16, (True, True)),
    ],
)
def test_fused_foreach_and_single_tensor_paths_agree(dtype: torch.dtype, halves: tuple[bool, bool]) -> None:
    ours, *others = by_three_paths(Nero, SHAPES, dtype, mean=halves[0], norm=halves[1])
    # A mean that is negligible for its neuron is not removed; which means are negligible depends on rounding.
    tolerance = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    for theirs in others:
        for mine, param in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, param, rtol=2 * tolerance, atol=tolerance)


@pytest.mark.parametrize("setting", [{"maximize": True}, {"gain_penalty": 0.3}, {"sigma_b": 1.0}, {"beta": 0.5}])
def test_settings_have_same_effect_fused_and_unfused(setting: dict[str, Any]) -> None:
    ends = []
    for path in ({"fused": True}, {"fused": False, "foreach": False}):
        params = make([(4, 30), (9,), (9,), (5,)])
        with torch.no_grad():
            params[1].fill_(1.0)
            params[3].zero_()
        optimizer = Nero(params, lr=0.05, **setting, **path)
        for t in range(3):
            set_gradients(params, t)
            optimizer.step()
        ends.append(params)
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)


def degenerate_neurons(width: int) -> list[Tensor]:
    """Neurons that are zero, constant, huge, tiny or almost constant, among others; each is a separate tensor."""
    rows = references.draw(0, [(10, width)])[0]
    rows[1] = 0.0
    rows[2] = 3.0
    rows[3] *= 1e30
    rows[4] *= 1e-30
    rows[5] = 1.0 + 1e-7 * rows[5]
    rows[6] = 5.0 + 1e-3 * rows[6]
    rows[7, 1:] *= 1e-12
    return [row.view(1, width).to(DEVICE).requires_grad_() for row in rows.unbind()]


@HALVES
@pytest.mark.parametrize("width", slow_after(3, [1, 64, 5000, 2, 1000, 9000]))
def test_degenerate_neurons_match_single_tensor_path(width: int, halves: tuple[bool, bool]) -> None:
    ends = []
    for path in ({"fused": True}, {"fused": False, "foreach": False}):
        neurons = degenerate_neurons(width)
        optimizer = Nero(neurons, lr=0.02, mean=halves[0], norm=halves[1], **path)
        start = [neuron.detach().clone() for neuron in neurons]
        for t in range(3):
            set_gradients(neurons, t)
            for number, size in ((2, 0.0), (8, 0.0), (9, 1e-15)):
                grad = neurons[number].grad
                assert grad is not None
                neurons[number].grad = grad * size
            optimizer.step()
        for number in (2, 8):
            assert torch.equal(neurons[number], start[number])  # all its gradients were zero
        ends.append(neurons)
    for number, (mine, theirs) in enumerate(zip(*ends, strict=True)):
        size = neuron_norm(theirs.detach()).clamp(min=1e-37).unsqueeze(1)
        torch.testing.assert_close(mine / size, theirs / size, rtol=1e-4, atol=1e-5, msg=f"neuron {number}")


@pytest.mark.parametrize("width", [3, 40, 4000, 10_000])
def test_nan_gradient_affects_only_its_own_neuron(width: int) -> None:
    weight, bias = make([(4, width), (4,)])
    optimizer = Nero([weight, bias], fused=True)
    set_gradients([weight, bias], 0)
    assert weight.grad is not None
    assert bias.grad is not None
    weight.grad[2, 1] = math.nan
    bias.grad[1] = math.nan
    optimizer.step()
    assert weight.isnan().all(1).tolist() == [False, False, True, False]
    assert weight.isnan().any(1).tolist() == [False, False, True, False]
    assert bias.isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("width", [5, 3000, 9000])
def test_overflowed_average_freezes_its_neuron(width: int) -> None:
    weight, bias = make([(3, width), (3,)])
    optimizer = Nero([weight, bias], fused=True)
    for t in range(4):
        set_gradients([weight, bias], t)
        if t == 1:
            for param in (weight, bias):
                assert param.grad is not None
                param.grad[1] *= 1e25
        optimizer.step()
        if t == 1:
            stopped = [weight.detach()[1].clone(), bias.detach()[1].clone()]
    assert weight.isfinite().all()
    assert torch.equal(weight[1], stopped[0])
    assert torch.equal(bias[1], stopped[1])


def test_gradients_may_have_any_memory_layout() -> None:
    shapes = [(8, 3, 3, 3), (6, 10), (4, 4)]
    ends = []
    for odd in (True, False):
        params = make(shapes)
        if odd:
            params[0] = params[0].detach().contiguous(memory_format=torch.channels_last)
        optimizer = Nero(params, fused=True)
        for t in range(3):
            set_gradients(params, t)
            assert params[2].grad is not None
            params[2].grad = params[2].grad[:, :1].expand(4, 4)
            if not odd:
                params[2].grad = params[2].grad.contiguous()
            elif t > 0:
                assert params[0].grad is not None
                assert params[1].grad is not None
                params[0].grad = params[0].grad.contiguous(memory_format=torch.channels_last)
                params[1].grad = params[1].grad.t().contiguous().t()
            optimizer.step()
        ends.append(params)
    for mine, theirs in zip(*ends, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_unsupported_parameters_fall_back_to_unfused_path() -> None:
    kept = make([(4, 6), (3,)])
    left = [
        torch.randn(6, 4, device=DEVICE).t().requires_grad_(),  # neurons that are not contiguous
        torch.randn(3, 4, dtype=torch.float64, device=DEVICE).requires_grad_(),
        torch.zeros(0, 4, device=DEVICE, requires_grad=True),
        torch.randn(8, device=DEVICE)[::2].requires_grad_(),
    ]
    params = [*left[:2], *kept, *left[2:]]
    reference = references.Nero(references.as_arrays([*left[:2], *kept, left[3]]), 0.01, 0.999)
    optimizer = Nero(params, fused=True)
    for t in range(3):
        set_gradients(params, t)
        reference.step([*references.as_arrays([p.grad for p in params if p.numel() and p.grad is not None])])
        optimizer.step()
    assert [id(param) for param in optimizer._fused[0].rest] == [id(param) for param in left]
    for param, expected in zip([p for p in params if p.numel()], reference.params, strict=True):
        torch.testing.assert_close(param.detach().double().cpu(), torch.from_numpy(expected), rtol=2e-5, atol=2e-6)
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}


def test_one_kernel_launch_per_size_class(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = fused.Launch.__call__

    def counted(self: fused.Launch, *args: Any) -> None:
        calls.append(self.grid[0])
        original(self, *args)

    monkeypatch.setattr(fused.Launch, "__call__", counted)
    narrow, both = make([(3, 5), (4,), (2, 700), (3, 3, 3, 3)]), make([(3, 5), (2, 5000), (4,), (2, 9000)])
    for params, expected in ((narrow, 1), (both, 2)):
        optimizer = Nero(params, fused=True)
        calls.clear()
        set_gradients(params, 0)
        optimizer.step()
        assert len(calls) == expected


def test_parameter_without_gradient_keeps_value_and_step_count() -> None:
    used, unused = make([(3, 40), (3, 40)])
    optimizer = Nero([used, unused], fused=True)
    before = unused.detach().clone()
    used.grad = torch.ones_like(used)
    optimizer.step()
    optimizer.step()
    assert optimizer.state[used]["step"] == 2
    assert optimizer.state[unused]["step"] == 0
    assert torch.equal(unused, before)
    # Its first step, although later, equals the first step of a fresh optimiser.
    fresh = before.clone()
    unused.grad = fresh.grad = references.draw(1, [(3, 40)])[0].to(DEVICE)
    optimizer.step()
    Nero([fresh], fused=True).step()
    assert torch.equal(unused, fresh)


@pytest.fixture
def stepped() -> tuple[Nero, Nero]:
    """Two identical optimisers after two steps."""
    shapes = [(5, 30), (6,), (2, 3000), (2, 9000)]
    ours, theirs = Nero(make(shapes), fused=True), Nero(make(shapes), fused=True)
    assert_steps_alike(ours, theirs, range(2))
    return ours, theirs


@pytest.mark.slow
def test_loading_state_reuses_existing_tables(stepped: tuple[Nero, Nero]) -> None:
    ours, theirs = stepped
    tables = ours._fused[0]
    saved = copy.deepcopy(theirs.state_dict())
    weights = [param.detach().clone() for param in theirs.param_groups[0]["params"]]
    assert_steps_alike(ours, theirs, range(2, 4))
    for optimizer in (ours, theirs):
        with torch.no_grad():
            for param, weight in zip(optimizer.param_groups[0]["params"], weights, strict=True):
                param.copy_(weight)
        optimizer.load_state_dict(saved)
    assert_steps_alike(ours, theirs, range(4, 6))
    assert ours._fused[0] is tables
    assert {int(state["step"]) for state in ours.state.values()} == {4}


def test_param_groups_have_their_own_settings() -> None:
    first, second, third = make([(3, 20), (3, 20), (3, 20)])
    optimizer = Nero([{"params": [first], "lr": 0.0}, {"params": [second], "mean": False}], lr=0.1, fused=True)
    set_gradients([first, second, third], 0)
    still = first.detach().clone()
    optimizer.step()
    optimizer.add_param_group({"params": [third], "norm": False, "fused": False})
    optimizer.step()
    assert torch.equal(first, still)
    assert second.mean(1).abs().max() > 1e-4
    assert optimizer.state[third]["step"] == 1
    assert set(optimizer._fused) == {0, 1}


def test_integer_settings_are_accepted() -> None:
    params = make([(3, 20), (4,)])
    optimizer = Nero(params, lr=0, beta=0, fused=True)
    before = [param.detach().clone() for param in params]
    for lr, moves in ((0, False), (1, True), (0.5, True), (0, False)):
        set_gradients(params, 1)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        assert all(torch.equal(old, new) != moves for old, new in zip(before, params, strict=True))
        before = [param.detach().clone() for param in params]


def test_sparse_gradients_raise_before_any_update() -> None:
    embedding, other = nn.Embedding(4, 3, sparse=True, device=DEVICE), make([(3, 5)])[0]
    optimizer = Nero([other, embedding.weight], fused=True)
    before = other.detach().clone()
    embedding(torch.tensor([1, 2], device=DEVICE)).sum().backward()
    other.grad = torch.ones_like(other)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    assert torch.equal(other, before)
    assert optimizer.state[other]["step"] == 0


@pytest.mark.skipif(not hasattr(Tensor, "grad_dtype"), reason="torch before 2.10 has gradients of one dtype only")
def test_gradients_of_another_dtype_are_supported() -> None:
    half, full = torch.nn.Parameter(torch.randn(3, 8, dtype=torch.bfloat16, device=DEVICE)), None
    full = half.detach().clone().requires_grad_()
    half.grad_dtype = torch.float32
    grad = torch.randn(3, 8, device=DEVICE)
    half.grad, full.grad = grad, grad.to(torch.bfloat16)
    Nero([half], fused=True).step()
    Nero([full], fused=False).step()
    torch.testing.assert_close(half, full, rtol=2**-6, atol=2**-8)


def test_path_depends_on_device_and_settings() -> None:
    params = make([(3, 4)])
    set_gradients(params, 0)
    for keys, expected in (({}, DEVICE == "cuda"), ({"foreach": True}, False), ({"fused": False}, False)):
        optimizer = Nero(params, **keys)
        optimizer.step()
        assert bool(optimizer._fused) == expected
    with pytest.raises(ValueError, match="both"):
        Nero(params, foreach=True, fused=True)


def test_fused_raises_where_kernel_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nero.optim.base.unavailable", lambda device: "there is no such thing here")
    with pytest.raises(RuntimeError, match=r"`fused=True` requires .* there is no such thing here"):
        Nero(make([(3, 4)]), fused=True)


def test_longest_supported_fan_in_and_beyond() -> None:
    shapes = [(2, 65_536), (1, 65_537)]
    params = make(shapes)
    reference = references.Nero(references.as_arrays(params), 0.02, 0.999)
    references.assert_follows(params, reference, Nero(params, lr=0.02, fused=True), steps=2)
    for extra in (0, 1):
        weight, state = torch.zeros(1, fused.LONGEST_FAN_IN + extra, device=DEVICE), {"avg_sq": torch.zeros(1)}
        assert fused.NeroTensors.fits(weight, state, {"neuron_dim": 0}) == (extra == 0)


@pytest.mark.parametrize("fan_in", [1, 2, 3, 16, 17, 2048, 2049, 8192, 8193, 65_536])
@pytest.mark.parametrize("aligned", [False, True])
def test_tiles_cover_all_rows(fan_in: int, aligned: bool) -> None:
    for rows in (1, 7, 1000):
        kind, programs, size = fused.division(rows, fan_in, aligned)
        if kind == fused.LONG:
            assert programs == rows * math.ceil(fan_in / fused.LONG_TILE)
            continue
        width = kind % fused.ALIGNED
        height = fused.rows_in_a_tile(size.tile, width, aligned)
        assert fan_in <= 1 << width < 2 * fan_in
        assert (programs - 1) * height < rows <= programs * height


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors_match_float64(dtype: torch.dtype) -> None:
    shapes = [(3_000_000, 3), (2_000_000, 1), (1_000_003,), (30_000, 512), (5000, 784), (300, 65_536), (2000, 4608)]
    params = make(shapes, dtype)
    exact = [param.detach().double().requires_grad_() for param in params]
    ours, theirs = Nero(params, lr=0.03), Nero(exact, lr=0.03, fused=False)
    eps = torch.finfo(dtype).eps
    generator = torch.Generator("cuda").manual_seed(0)
    for _ in range(2):
        for param, other in zip(params, exact, strict=True):
            # Every step starts from the same weights, because neurons close to zero would amplify rounding errors.
            with torch.no_grad():
                other.copy_(param)
            param.grad = torch.randn(param.shape, generator=generator, device="cuda").to(dtype)
            other.grad = param.grad.double()
        ours.step()
        theirs.step()
        for param, other in zip(params, exact, strict=True):
            difference = (param.double() - other.detach()).abs()
            # In bfloat16, a neuron that is balanced to within one eps is left unchanged.
            too_large = difference > max(2 * eps, 2e-5) * other.detach().abs() + max(eps, 5e-6)
            # The direction of a neuron of three almost equal weights depends on rounding.
            assert too_large.float().mean() < 1e-4
    assert ours._fused[0].rest == []


@pytest.mark.gpu
def test_capture_without_prior_step_raises() -> None:
    params = make([(3, 4)])
    optimizer = Nero(params)
    set_gradients(params, 0)
    with pytest.raises(RuntimeError, match="take one before"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    optimizer.step()


@pytest.mark.gpu
def test_step_does_not_synchronise_with_gpu() -> None:
    params = make([(5, 30), (6,)])
    optimizer = Nero(params, lr=torch.tensor(0.02, device="cuda"))
    set_gradients(params, 0)
    optimizer.step()
    set_gradients(params, 1)  # new addresses
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
