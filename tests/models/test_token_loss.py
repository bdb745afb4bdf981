"""Cross entropy with one copy of the logits, compared with torch's in float64.

The kernel runs on a GPU if there is one, otherwise in Triton's interpreter.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nero.models import token_loss as module
from nero.models.token_loss import IGNORE_INDEX, split_k_product, token_loss
from support.fused_steps import DEVICE

kernels = pytest.importorskip("nero.models.kernels.token_loss")

WIDTH = 5


def case(rows: int, vocabulary: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, WIDTH, generator=generator, dtype=dtype)
    weight = torch.randn(vocabulary, WIDTH, generator=generator, dtype=dtype)
    bias = torch.randn(vocabulary, generator=generator, dtype=dtype)
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    return features.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), targets


def gradients(loss: Tensor, *parameters: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, parameters))


@settings(max_examples=40)
@given(
    rows=st.integers(1, 7),
    vocabulary=st.integers(1, 30),
    seed=st.integers(0, 2**31),
    smoothing=st.sampled_from([0.0, 0.1, 0.7]),
    with_bias=st.booleans(),
    hidden=st.integers(0, 7),
)
def test_loss_and_gradients_match_torch_cross_entropy(
    rows: int, vocabulary: int, seed: int, smoothing: float, with_bias: bool, hidden: int
) -> None:
    features, weight, bias, targets = case(rows, vocabulary, seed)
    targets[:hidden] = IGNORE_INDEX
    given_bias = bias if with_bias else None
    found = token_loss(features, weight, given_bias, targets, smoothing)
    logits = F.linear(features, weight, given_bias)
    wanted = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORE_INDEX)
    nll = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE_INDEX)
    torch.testing.assert_close(found.loss, wanted)
    torch.testing.assert_close(found.nll, nll.detach())
    assert not found.nll.requires_grad
    parameters = [features, weight, *([bias] if with_bias else [])]
    # A factor, as from a mean over tokens or a loss scaler.
    ours, theirs = gradients(found.loss * 0.3, *parameters), gradients(wanted * 0.3, *parameters)
    torch.testing.assert_close(ours, theirs)


def test_leading_dimensions_are_flattened() -> None:
    features, weight, bias, targets = case(12, 9, 0)
    flat = token_loss(features, weight, bias, targets)
    shaped = token_loss(features.reshape(3, 4, WIDTH), weight, bias, targets.reshape(3, 4))
    assert torch.equal(flat.loss, shaped.loss)


def test_gradient_is_not_computed_under_no_grad(monkeypatch: pytest.MonkeyPatch) -> None:
    features, weight, bias, targets = case(4, 6, 1)
    asked = []
    plain = module._to_gradient_

    def spy(*args: object) -> object:
        asked.append(args[-1])
        return plain(*args)

    monkeypatch.setattr(module, "_to_gradient_", spy)
    with torch.no_grad():
        token_loss(features, weight, bias, targets)
    token_loss(features, weight, bias, targets)
    assert asked == [False, True]


def test_only_inputs_requiring_grad_get_gradients() -> None:
    features, weight, bias, targets = case(4, 6, 2)
    loss = token_loss(features.detach(), weight, bias.detach(), targets).loss
    loss.backward()
    assert features.grad is None
    assert bias.grad is None
    assert weight.grad is not None


def test_ignored_rows_may_contain_nan() -> None:
    features, weight, bias, targets = case(4, 6, 3)
    with torch.no_grad():
        features[1] = math.nan
    targets[1] = IGNORE_INDEX
    found = token_loss(features, weight, bias, targets)
    assert found.loss.isfinite()
    rest = [0, 2, 3]
    others = token_loss(features[rest], weight, bias, targets[rest])
    torch.testing.assert_close(found.loss, others.loss)
    torch.testing.assert_close(gradients(found.loss, bias), gradients(others.loss, bias))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("to_gradient_", [module._to_gradient_, kernels.to_gradient_])
def test_non_finite_logits_give_non_finite_loss(
    to_gradient_: Callable[..., tuple[Tensor, Tensor]], value: float
) -> None:
    logits = torch.zeros(2, 10)
    logits[0, 4] = value
    losses, nlls = to_gradient_(logits, 10, torch.tensor([2, 2]), 0.1, IGNORE_INDEX, True)
    assert not losses[0].isfinite()
    assert not nlls[0].isfinite()
    assert losses[1].isfinite()


def test_smoothing_out_of_range_raises() -> None:
    for smoothing in (-0.1, 1.0):
        with pytest.raises(ValueError, match="smoothing must be at least 0 and below 1"):
            token_loss(*case(2, 3, 0), smoothing)


def test_autocast_uses_bf16_products_and_float32_softmax() -> None:
    features, weight, bias, targets = case(50, 300, 4, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = token_loss(features, weight, bias, targets, 0.1)
        wanted = F.cross_entropy(F.linear(features, weight, bias), targets, reduction="sum", label_smoothing=0.1)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, wanted, rtol=1e-5, atol=0)
    parameters = (features, weight, bias)
    for ours, theirs in zip(gradients(found.loss, *parameters), gradients(wanted, *parameters), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.01 * theirs.norm()


# the kernel


@pytest.mark.parametrize("vocabulary", [3, 4096, 9521, pytest.param(33_278, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_matches_torch_cross_entropy(vocabulary: int, smoothing: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    room = 5  # extra columns with arbitrary values, which are not part of the vocabulary
    logits = (30 * torch.randn(6, vocabulary + room, generator=generator)).to(DEVICE, dtype)
    targets = torch.randint(vocabulary, (6,), generator=generator).to(DEVICE)
    targets[3] = IGNORE_INDEX
    exact = logits[:, :vocabulary].double().requires_grad_()
    options = {"ignore_index": IGNORE_INDEX, "reduction": "none"}
    wanted = F.cross_entropy(exact, targets, label_smoothing=smoothing, **options)
    nll = F.cross_entropy(exact, targets, **options)
    [gradient] = torch.autograd.grad(wanted.sum(), exact)
    before = logits.clone()
    for asked in (False, True):
        assert torch.equal(logits, before), "left alone, unless a gradient is asked for"
        losses, nlls = kernels.to_gradient_(logits, vocabulary, targets, smoothing, IGNORE_INDEX, asked)
        torch.testing.assert_close(losses.double(), wanted.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(nlls.double(), nll.detach(), rtol=1e-5, atol=1e-5)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(logits[:, :vocabulary].double(), gradient, rtol=tolerance, atol=1e-6)
    assert not logits[:, vocabulary:].any()


@pytest.mark.parametrize("with_bias", [False, True])
def test_token_loss_with_kernel_matches_without(monkeypatch: pytest.MonkeyPatch, with_bias: bool) -> None:
    *leaves, targets = (tensor.detach().to(DEVICE) for tensor in case(7, 21, 5, torch.float32))
    features, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    targets[2] = IGNORE_INDEX
    parameters = [features, weight, *([bias] if with_bias else [])]
    given_bias = bias if with_bias else None
    monkeypatch.setattr(module, "_use_kernels", lambda tensor, dtype: False)
    plain = token_loss(features, weight, given_bias, targets, 0.1)
    wanted = gradients(0.5 * plain.loss, *parameters)
    monkeypatch.setattr(module, "_use_kernels", lambda tensor, dtype: True)
    found = token_loss(features, weight, given_bias, targets, 0.1)
    torch.testing.assert_close(found, plain)
    torch.testing.assert_close(gradients(0.5 * found.loss, *parameters), wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gpu_loss_and_gradients_are_close_to_float64(precision: str) -> None:
    features, weight, bias, targets = (tensor.detach().cuda() for tensor in case(300, 9521, 6, torch.float32))
    parameters = [tensor.requires_grad_() for tensor in (features, weight, bias)]
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        found = token_loss(*parameters, targets, 0.1)
    ours = gradients(found.loss / 300, *parameters)
    exact = [tensor.detach().double().requires_grad_() for tensor in parameters]
    loss = F.cross_entropy(F.linear(*exact), targets, label_smoothing=0.1, reduction="sum")
    theirs = gradients(loss / 300, *exact)
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    assert abs(found.loss.item() / loss.item() - 1) < tolerance
    for mine, wanted in zip(ours, theirs, strict=True):
        assert (mine.double() - wanted).norm() < tolerance * wanted.norm()


@given(
    rows=st.integers(1, 5),
    pieces=st.integers(1, 6),
    piece=st.integers(1, 8),
    width=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_split_k_product_matches_matmul(rows: int, pieces: int, piece: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(rows, pieces * piece, generator=generator, dtype=torch.float64)
    weight = torch.randn(pieces * piece, width, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(split_k_product(gradient, weight, pieces), gradient @ weight)
