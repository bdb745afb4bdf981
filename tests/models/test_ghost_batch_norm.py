"""Batch norm over parts of a batch, compared with torch's batch norm on each part in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nero.models.ghost_batch_norm import GhostBatchNorm2d

CHANNELS = 5
# Used by a process with complete parts, in compiled code, and by processes that share parts.
WAYS = ("_part_by_part", "_by_formula", "_by_sums")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def images(count: int, height: int = 3, width: int = 4, seed: int = 0) -> Tensor:
    """Images whose mean changes along the batch, and whose channels have different standard deviations."""
    scale = torch.linspace(0.2, 3, CHANNELS).reshape(-1, 1, 1)
    drift = torch.linspace(-2, 2, count).reshape(-1, 1, 1, 1)
    return scale * normal(count, CHANNELS, height, width, seed=seed) + drift + 1


def make(parts: int, kind: type[nn.BatchNorm2d] = GhostBatchNorm2d, **settings: Any) -> Any:
    """A norm whose gains, biases and running statistics differ from their initial values."""
    own = {"parts": parts} if kind is GhostBatchNorm2d else {}
    norm = kind(CHANNELS, **own, **settings)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * normal(CHANNELS, seed=1))
        norm.bias.copy_(normal(CHANNELS, seed=2))
        norm.running_mean.copy_(normal(CHANNELS, seed=3))
        norm.running_var.copy_(normal(CHANNELS, seed=4).abs() + 0.5)
    return norm


def implementation(norm: GhostBatchNorm2d, way: str) -> Callable[[Tensor], Tensor]:
    """One implementation of the norm, even if the norm would choose another; sums are over a single process."""
    if way == "_by_sums":
        # More ranks than parts, so that sums are exchanged, although this process has all images.
        norm.divide(0, norm.parts * 6, norm.parts * 6, ranks=norm.parts + 1)
        assert norm.local_parts == 0
    return getattr(norm, way)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the sum over all processes by that of this process."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, **_: None)


def reference(x: Tensor, grad: Tensor, parts: int, **settings: Any) -> dict[str, Tensor]:
    """Results of torch's batch norm on each part, from the same running statistics, in float64."""
    norms = [make(1, nn.BatchNorm2d, **settings).double() for _ in range(parts)]
    x = x.double().requires_grad_()
    out = torch.cat([norm(part) for norm, part in zip(norms, x.chunk(parts), strict=True)])
    out.backward(grad.double())
    assert x.grad is not None
    return {
        "out": out.detach(),
        "x": x.grad,
        "weight": torch.stack([norm.weight.grad for norm in norms]).sum(0),
        "bias": torch.stack([norm.bias.grad for norm in norms]).sum(0),
        "running_mean": torch.stack([norm.running_mean for norm in norms]).mean(0),
        "running_var": torch.stack([norm.running_var for norm in norms]).mean(0),
    }


def results(norm: GhostBatchNorm2d, compute: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    x = x.detach().clone().requires_grad_()
    out = compute(x)
    out.backward(grad)
    assert norm.num_batches_tracked == 1
    assert x.grad is not None
    grads = {"x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    return {"out": out.detach(), **grads, "running_mean": norm.running_mean, "running_var": norm.running_var}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        scale = theirs[name].abs().max().item()
        torch.testing.assert_close(
            value.double(),
            theirs[name],
            rtol=0,
            atol=tolerance * max(scale, 1),
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_every_implementation_matches_batch_norm_on_each_part(way: str, parts: int) -> None:
    x, grad = images(6 * parts), normal(6 * parts, CHANNELS, 3, 4, seed=5)
    norm = make(parts)
    assert_close(results(norm, implementation(norm, way), x, grad), reference(x, grad, parts))


@given(
    parts=st.integers(1, 5),
    size=st.integers(1, 4),
    height=st.integers(1, 4),
    width=st.integers(2, 5),
    settings=st.fixed_dictionaries({"eps": st.sampled_from([1e-5, 0.1]), "momentum": st.sampled_from([0.1, 1.0, 0.0])}),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_matches_batch_norm_for_any_shape_and_settings(
    parts: int, size: int, height: int, width: int, settings: dict[str, float], seed: int
) -> None:
    x, grad = images(parts * size, height, width, seed), normal(parts * size, CHANNELS, height, width, seed=seed + 1)
    expected = reference(x, grad, parts, **settings)
    # A larger tolerance, because a channel may have only two values, and their deviation may be small.
    for way in WAYS[:2]:
        norm = make(parts, **settings)
        assert_close(results(norm, implementation(norm, way), x, grad), expected, 1e-3)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("way", WAYS)
def test_large_mean_does_not_cause_cancellation(way: str) -> None:
    """For values around 100, float32 keeps 5 digits after the mean is subtracted; E[x²] - E[x]² would keep 1."""
    x, grad = images(12) + 100, normal(12, CHANNELS, 3, 4, seed=5)
    norm = make(2)
    assert_close(results(norm, implementation(norm, way), x, grad), reference(x, grad, 2), 1e-3)


def refuse(*args: object) -> Tensor:
    raise AssertionError("not this way")


@pytest.mark.parametrize("compiled", [False, True])
def test_formula_is_used_when_compiled_and_torch_kernels_in_eager_mode(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    monkeypatch.setattr(GhostBatchNorm2d, "_part_by_part" if compiled else "_by_formula", refuse)
    x, grad = images(12), normal(12, CHANNELS, 3, 4, seed=5)
    norm = make(4)
    torch.compiler.reset()
    compute = torch.compile(norm, backend="aot_eager", fullgraph=True) if compiled else norm
    assert_close(results(norm, compute, x, grad), reference(x, grad, 4))
    torch.compiler.reset()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_dtype_and_memory_format_are_preserved(way: str, dtype: torch.dtype) -> None:
    x = images(12).to(memory_format=torch.channels_last).to(dtype)
    grad = normal(12, CHANNELS, 3, 4, seed=5).to(memory_format=torch.channels_last).to(dtype)
    norm = make(2)
    found = results(norm, implementation(norm, way), x, grad)
    for name in ("out", "x"):
        assert found[name].dtype == dtype
        assert found[name].is_contiguous(memory_format=torch.channels_last)
    assert found["weight"].dtype == found["running_var"].dtype == torch.float32
    assert_close(found, reference(x, grad, 2), 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("settings", [{}, {"momentum": None}])
def test_one_part_equals_batch_norm(settings: dict[str, Any]) -> None:
    x = images(6)
    ours, theirs = make(1, **settings), make(1, nn.BatchNorm2d, **settings)
    for _ in range(2):
        assert torch.equal(ours(x), theirs(x))
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("divided", [False, True])
def test_evaluation_uses_running_statistics_for_any_batch_size(divided: bool) -> None:
    ours, theirs = make(4).eval(), make(1, nn.BatchNorm2d).eval()
    if divided:
        ours.divide(0, 3, 8, ranks=3)
        assert ours.local_parts == 0
    before = ours.running_mean.clone()
    for count in (1, 7, 8):
        assert torch.equal(ours(images(count)), theirs(images(count)))
    assert torch.equal(ours.running_mean, before)


def test_state_dict_is_compatible_with_batch_norm() -> None:
    ours, theirs = make(4), nn.BatchNorm2d(CHANNELS)
    ours.divide(0, 3, 8, ranks=3)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    make(2).load_state_dict(theirs.state_dict())


# a batch shared by several processes


@pytest.mark.parametrize(("parts", "ranks"), [(4, 1), (4, 2), (4, 4), (6, 3), (1, 1)])
def test_ranks_with_whole_parts_need_no_communication(parts: int, ranks: int) -> None:
    """Each rank computes its part of the batch, and the mean of their running statistics is that of the batch."""
    batch = 24
    x, grad = images(batch), normal(batch, CHANNELS, 3, 4, seed=5)
    found = []
    for rank in range(ranks):
        begin, end = batch * rank // ranks, batch * (rank + 1) // ranks
        norm = make(parts)
        norm.divide(begin, end, batch, ranks)
        assert norm.local_parts == parts // ranks
        found.append(results(norm, norm, x[begin:end], grad[begin:end]))
    joined = {name: torch.cat([each[name] for each in found]) for name in ("out", "x")}
    joined |= {name: torch.stack([each[name] for each in found]).sum(0) for name in ("weight", "bias")}
    joined |= {name: torch.stack([each[name] for each in found]).mean(0) for name in ("running_mean", "running_var")}
    assert_close(joined, reference(x, grad, parts))


@given(parts=st.integers(1, 6), size=st.integers(1, 5), ranks=st.integers(1, 8))
@settings(max_examples=60)
def test_either_all_ranks_exchange_sums_or_none(parts: int, size: int, ranks: int) -> None:
    """A rank would wait forever for sums that another rank does not send. Every image is in exactly one part."""
    batch = parts * size
    norms = []
    for rank in range(min(ranks, batch)):
        norms.append(make(parts))
        shared = min(ranks, batch)
        norms[-1].divide(batch * rank // shared, batch * (rank + 1) // shared, batch, shared)
    own = {norm.local_parts for norm in norms}
    assert len(own) == 1, "also as many whole parts each, or the mean over processes would not be that over parts"
    if own == {0}:
        joined = torch.cat([norm.membership for norm in norms], dim=1)
        assert torch.equal(joined, torch.eye(parts, dtype=torch.float64).repeat_interleave(size, dim=1))
        assert {norm.count for norm in norms} == {size}
    else:
        assert own == {parts // len(norms)}


def test_exchanged_sums_give_statistics_of_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process receives the sums of all images: its outputs and running statistics match the full batch."""
    batch, end, parts = 12, 4, 2  # parts of 6 images; the first process has 4 images
    x, grad = images(batch), normal(batch, CHANNELS, 3, 4, seed=5)
    expected = reference(x, grad, parts)
    means = torch.stack([part.mean((0, 2, 3)) for part in x.double().chunk(parts)])
    variances = torch.stack([part.var((0, 2, 3), correction=0) for part in x.double().chunk(parts)])
    totals = [means * 6 * 12, variances * 6 * 12]
    monkeypatch.setattr(torch.distributed.nn.functional, "all_reduce", lambda own: totals.pop(0))
    norm = make(parts)
    norm.divide(0, end, batch, ranks=2 + 1)
    out = norm(x[:end])
    torch.testing.assert_close(out.detach().double(), expected["out"][:end], rtol=0, atol=1e-5)
    torch.testing.assert_close(norm.running_mean.double(), expected["running_mean"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var.double(), expected["running_var"], rtol=1e-5, atol=1e-6)


def test_sum_over_ranks_also_reduces_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a second process with the same images: sums and their gradients are doubled."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, **_: tensor.mul_(2))
    half, grad = images(4), normal(4, CHANNELS, 3, 4, seed=5)
    expected = reference(torch.cat([half, half]), torch.cat([grad, grad]), 1)
    norm = make(1)
    norm.divide(0, 4, 8, ranks=2)
    found = results(norm, norm, half, grad)
    assert_close({name: found[name] for name in ("out", "x")}, {name: expected[name][:4] for name in ("out", "x")})
    assert_close({"weight": 2 * found["weight"]}, {"weight": expected["weight"]})


@pytest.mark.parametrize("parts", [0, -2, 3, 11, 2.5])
def test_divide_raises_for_unequal_parts(parts: Any) -> None:
    norm = GhostBatchNorm2d(CHANNELS, parts)
    with pytest.raises(ValueError, match=rf"^a batch of 10 images cannot be divided into {parts} equal parts$"):
        norm.divide(0, 10, 10)


def test_indivisible_batch_raises_without_changing_state() -> None:
    norm = make(4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    with pytest.raises(ValueError, match="6 images cannot be divided into 4 equal parts"):
        norm(images(6))
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
