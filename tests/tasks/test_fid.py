"""Tests of FID against torchmetrics and closed forms, and of the cached statistics of real images."""

import copy
import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nero.data.download.inception import load_weights
from nero.data.images.arrays import load_cifar10
from nero.models import inception as inception_module
from nero.models.inception import (
    ConvolutionReLU,
    FastInception,
    NoInception,
    StandIn,
    inception,
    plain_inception,
    tf32_parts,
)
from nero.tasks.fid import Statistics, cached_statistics
from support.real_data import root_with


def images(count: int, seed: int, low: int = 0, high: int = 256) -> Tensor:
    return torch.randint(low, high, (count, 3, 32, 32), dtype=torch.uint8, generator=generator(seed))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(count: int, dimension: int, seed: int) -> Tensor:
    """Correlated float32 features with a mean away from zero, like those of a network."""
    mixing = torch.randn(dimension, dimension, generator=generator(seed + 1))
    return torch.randn(count, dimension, generator=generator(seed)) @ mixing + 3


def as_they_are(batch: Tensor) -> Tensor:
    return batch


def statistics(count: int = 200, dimension: int = 8, seed: int = 0) -> Statistics:
    return Statistics.of(as_they_are, [features(count, dimension, seed)])


# ------------------------------------------------------------------------------------------------------ the distance


def test_distance_matches_torchmetrics() -> None:
    """torchmetrics uses another formula: the eigenvalues of the product of the covariances."""
    fid = pytest.importorskip("torchmetrics.image.fid")

    class Float64(nn.Module):
        """torchmetrics returns its result in the dtype of the features, and float32 would round it to 1e-7."""

        num_features = StandIn.num_features

        def forward(self, batch: Tensor) -> Tensor:
            return network(batch).double()

    network = StandIn()
    real, generated = images(300, 0), images(200, 1, high=200)
    metric = fid.FrechetInceptionDistance(feature=Float64())
    for batch in real.split(64):
        metric.update(batch, real=True)
    for batch in generated.split(50):
        metric.update(batch, real=False)
    found = Statistics.of(network, real.split(100)).distance(Statistics.of(network, [generated]))
    assert found == pytest.approx(float(metric.compute()), rel=1e-6)
    assert found > 1e-3


def test_distance_matches_closed_form_for_diagonal_covariances() -> None:
    """The distance is the sum of (μ₁ - μ₂)² + (σ₁ - σ₂)² over the dimensions."""
    first, second = torch.tensor([1.0, 2.0, 0.5, 0.0]), torch.tensor([3.0, 0.25, 0.5, 2.0])
    means = torch.tensor([0.0, 1.0, -2.0, 5.0]), torch.tensor([1.0, 1.0, 2.0, 5.5])
    expected = float((means[0] - means[1]).square().sum() + (first - second).square().sum())
    one, two = (
        Statistics(10, mean.double(), sigma.double().square().diag())
        for mean, sigma in zip(means, (first, second), strict=True)
    )
    assert one.distance(two) == pytest.approx(expected, rel=1e-12)


def test_distance_matches_closed_form_for_rotated_gaussians() -> None:
    """The covariances share their eigenvectors, and a rotation of the space does not change the distance."""
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator(0), dtype=torch.float64)).Q
    first, second = torch.tensor([1.0, 2.0, 0.5, 0.1]).double(), torch.tensor([3.0, 0.25, 0.5, 2.0]).double()
    zero = torch.zeros(4, dtype=torch.float64)
    one, two = (Statistics(10, zero, turn * sigma.square() @ turn.T) for sigma in (first, second))
    assert one.distance(two) == pytest.approx(float((first - second).square().sum()), rel=1e-12)


def test_distance_between_equal_statistics_is_zero() -> None:
    own = statistics()
    distance = own.distance(own)
    assert 0 <= distance < 1e-10 * float(own.covariance.trace())


@given(seeds=st.tuples(st.integers(0, 1000), st.integers(0, 1000)), dimension=st.integers(1, 12))
@settings(max_examples=30)
def test_distance_is_symmetric_and_non_negative(seeds: tuple[int, int], dimension: int) -> None:
    one, two = (statistics(50, dimension, seed) for seed in seeds)
    there, back = one.distance(two), two.distance(one)
    assert there >= 0
    assert there == pytest.approx(back, rel=1e-8, abs=1e-6)


def test_distance_with_singular_covariances() -> None:
    """With fewer images than dimensions, some computed eigenvalues of the covariances are negative."""
    one, two = statistics(5, 40, seed=0), statistics(7, 40, seed=2)
    distance = one.distance(two)
    assert math.isfinite(distance)
    assert distance == pytest.approx(by_singular_values(one, two), rel=1e-5)
    assert one.distance(one) < 1e-4 * float(one.covariance.trace())


def by_singular_values(one: Statistics, two: Statistics) -> float:
    """The distance by another formula: its last trace is the sum of the singular values of Σ₁^½ Σ₂^½."""
    roots = []
    for covariance in (one.covariance.numpy(), two.covariance.numpy()):
        values, vectors = np.linalg.eigh(covariance)
        roots.append(vectors * np.sqrt(values.clip(0)) @ vectors.T)
    shared = np.linalg.svd(roots[0] @ roots[1], compute_uv=False).sum()
    apart = np.square(one.mean.numpy() - two.mean.numpy()).sum()
    return float(apart + np.trace(one.covariance.numpy()) + np.trace(two.covariance.numpy()) - 2 * shared)


def test_non_finite_statistics_give_nan_and_mismatched_ones_raise() -> None:
    own = statistics(dimension=3)
    broken = Statistics(10, own.mean * math.nan, own.covariance)
    assert math.isnan(own.distance(broken))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        own.distance(statistics(dimension=4))


# ---------------------------------------------------------------------------------------------------- the statistics


@given(
    count=st.integers(2, 60), dimension=st.integers(1, 6), seed=st.integers(0, 1000), cuts=st.sets(st.integers(0, 60))
)
@settings(max_examples=50)
def test_statistics_do_not_depend_on_batch_split(count: int, dimension: int, seed: int, cuts: set[int]) -> None:
    rows = features(count, dimension, seed)
    edges = [0, *sorted(cut for cut in cuts if cut <= count), count]  # some batches are empty
    found = Statistics.of(as_they_are, [rows[a:b] for a, b in pairwise(edges)])
    exact = rows.double().numpy()
    assert found.count == count
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    np.testing.assert_allclose(found.mean.numpy(), exact.mean(0), rtol=1e-12, atol=1e-12)
    expected = np.cov(exact, rowvar=False).reshape(dimension, dimension)
    np.testing.assert_allclose(found.covariance.numpy(), expected, rtol=1e-10, atol=1e-10 * expected.max())


def test_covariance_is_accurate_for_features_far_from_zero() -> None:
    """Plain sums of squares would lose the covariance to cancellation."""
    rows = features(100, 3, 0).double()
    far = Statistics.of(as_they_are, (rows + 1e8).split(7))
    near = Statistics.of(as_they_are, [rows])
    torch.testing.assert_close(far.covariance, near.covariance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("batches", [[], [images(1, 0)], [images(1, 0), images(0, 0)]])
def test_fewer_than_two_images_raise(batches: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=r"at least 2 images, not [01]$"):
        Statistics.of(StandIn(), batches)


def test_statistics_are_unaffected_by_autocast() -> None:
    batch = images(20, 0)
    plain = Statistics.of(StandIn(), [batch])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        # Autocast must be active for this test to be meaningful.
        assert torch.nn.functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).dtype == torch.bfloat16
        around = Statistics.of(StandIn(), [batch])
        distance = plain.distance(around)
    assert torch.equal(plain.mean, around.mean)
    assert torch.equal(plain.covariance, around.covariance)
    assert distance == plain.distance(plain)


def test_statistics_keep_no_autograd_graph() -> None:
    layer = nn.Linear(4, 2)
    found = Statistics.of(layer, [torch.rand(8, 4)])
    assert not found.mean.requires_grad
    assert not found.covariance.requires_grad


# ------------------------------------------------------------------------------------------------------- the stand-in


def test_stand_in_is_deterministic_and_keeps_rng_state() -> None:
    batch = images(5, 0)
    before = torch.get_rng_state()
    first, second = StandIn(), StandIn()
    found = first(batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(found, second.train()(batch))
    assert found.shape == (5, StandIn.num_features)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert not list(first.parameters())


def test_stand_in_distinguishes_image_distributions() -> None:
    network = StandIn()
    real = Statistics.of(network, [images(400, 0)])
    alike = real.distance(Statistics.of(network, [images(400, 1)]))
    assert alike < 0.05 * real.distance(Statistics.of(network, [images(400, 2, high=200)]))


# --------------------------------------------------------------------------------------------------- cached statistics


class Counting:
    """Computes statistics and counts its calls."""

    def __init__(self, seed: int = 0) -> None:
        self.times = 0
        self.seed = seed

    def __call__(self) -> Statistics:
        self.times += 1
        return statistics(seed=self.seed)


def test_cached_statistics_are_computed_once(tmp_path: Path) -> None:
    path, compute = tmp_path / "new folder" / "real.pt", Counting()
    first = cached_statistics(path, "key", compute)
    second = cached_statistics(path, "key", compute)
    assert compute.times == 1
    assert (first.count, second.count) == (200, 200)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.covariance, second.covariance)
    assert [found.name for found in path.parent.iterdir()] == ["real.pt"]


def test_other_key_replaces_cached_statistics(tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    old = cached_statistics(path, "key", Counting())
    new = cached_statistics(path, "other", Counting(seed=5))
    assert not torch.equal(old.mean, new.mean)
    again = Counting()
    assert torch.equal(cached_statistics(path, "other", again).mean, new.mean)
    assert not again.times


def damages(whole: bytes) -> Iterator[bytes]:
    yield b""
    yield b"not statistics\n"
    yield whole[: len(whole) // 2]
    yield whole + b"\n"
    for place in range(0, len(whole), len(whole) // 23):  # including bytes of tensors
        yield whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


def test_damaged_cache_file_is_recomputed(tmp_path: Path) -> None:
    path = tmp_path / "real.pt"
    expected = cached_statistics(path, "key", Counting())
    whole = path.read_bytes()
    for damaged in damages(whole):
        path.write_bytes(damaged)
        compute = Counting()
        found = cached_statistics(path, "key", compute)
        assert compute.times == 1
        assert torch.equal(found.covariance, expected.covariance)
        assert path.read_bytes() == whole


def test_unwritable_cache_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match="could not store"):
        found = cached_statistics(tmp_path / "file" / "real.pt", "key", Counting())
    assert found.count == 200


# ------------------------------------------------------------------------------------------------------------ Inception


def test_missing_torchmetrics_error_names_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", None)
    with pytest.raises(NoInception, match=r"pip install -e '\.\[suite\]'") as caught:
        inception({})
    assert "\n" not in str(caught.value)


def test_missing_torch_fidelity_error_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("torchmetrics.image.fid"), "_TORCH_FIDELITY_AVAILABLE", False)
    with pytest.raises(NoInception, match="torch-fidelity"):
        inception({})


def random_inception(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Inception with random weights that preserve the scale of activations, and with non-trivial batch norms."""
    pytest.importorskip("torch_fidelity")
    with monkeypatch.context() as changed:
        changed.setattr(nn.Module, "load_state_dict", lambda network, state: None)
        network = plain_inception({})
    draws = generator(0)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            deviation = math.sqrt(2 / module.weight[0].numel())
            module.weight.data = torch.randn(module.weight.shape, generator=draws) * deviation
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features, generator=draws)
            module.running_var = 0.5 + torch.rand(module.num_features, generator=draws)
            module.bias.data = 0.1 * torch.randn(module.num_features, generator=draws)
    return network


@pytest.mark.slow
def test_fast_inception_matches_plain_inception(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = images(2, 0)
    plain = random_inception(monkeypatch)
    expected = plain(batch)
    assert len([module for module in plain.modules() if isinstance(module, nn.BatchNorm2d)]) == 94
    fast = FastInception(plain)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules()), "they are in the convolutions"
    torch.testing.assert_close(fast(batch), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1))
def test_tf32_parts_sum_to_original(values: list[float]) -> None:
    whole = torch.tensor(values)
    near, rest = tf32_parts(whole)
    assert torch.equal(near + rest, whole)
    assert not (near.view(torch.int32) & 0x1FFF).any(), "TF32 does not have these"
    assert (rest.abs() <= 2.0**-11 * near.abs() + 2.0**-136).all()


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("split_weights", [False, True])
@pytest.mark.parametrize("split_inputs", [False, True])
def test_split_weights_and_inputs_recover_float32_accuracy_in_tf32(
    split_inputs: bool, split_weights: bool, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TF32 is emulated by rounding the operands and summing in float64."""

    def in_tf32(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
        near, weight = tf32_parts(x)[0].double(), tf32_parts(weight)[0].double()
        return nn.functional.conv2d(near, weight, None if bias is None else bias.double(), stride, padding)

    draws = generator(0)
    layer = nn.Conv2d(channels, 5, 3, stride=2, padding=1)
    layer.weight.data = torch.randn(layer.weight.shape, generator=draws)
    layer.bias = nn.Parameter(torch.randn(5, generator=draws))
    x = torch.randn(2, channels, 9, 9, generator=draws).to(memory_format=torch.channels_last)
    exact = copy.deepcopy(layer).double()(x.double()).relu().detach()
    monkeypatch.setattr(inception_module, "conv2d", in_tf32)
    found = ConvolutionReLU(layer, split_weights, split_inputs)(x)
    error = float((found - exact).norm() / exact.norm())
    assert error < 2e-7 if split_inputs and split_weights else 5e-5 < error < 1e-3


@pytest.mark.gpu
def test_fast_inception_on_gpu_is_close_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tolerance of 1% allows for TF32's eleven significant bits, a spacing of about 1e-3."""
    batch = images(8, 0).cuda()
    plain = random_inception(monkeypatch).cuda()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected = plain(batch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    found = FastInception(plain.cpu()).cuda()(batch)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 * float(expected.abs().max()))


@pytest.mark.data
@pytest.mark.slow
def test_inception_features_match_torchmetrics() -> None:
    path = root_with("inception") / "inception-fid.pth"
    fid = pytest.importorskip("torchmetrics.image.fid")
    two = load_cifar10(root_with("cifar10")).train_images[:2]
    before = torch.get_rng_state()
    network = plain_inception(load_weights(path))
    found = network(two)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.shape == (2, 2048)
    assert found.dtype == torch.float32
    assert found.isfinite().all()
    assert not torch.equal(found[0], found[1])
    theirs = fid.FrechetInceptionDistance(feature=2048, feature_extractor_weights_path=str(path))
    assert torch.equal(found, theirs.inception(two))
    torch.testing.assert_close(inception(load_weights(path))(two), found, rtol=1e-4, atol=1e-4)
