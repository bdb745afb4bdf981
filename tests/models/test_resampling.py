"""Convolutions combined with up- or downsampling, compared with the same torch operations in sequence."""

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nero.models.spectral import convolve_and_average, upsample, upsample_and_convolve


def plainly_upsampled(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(F.interpolate(x, scale_factor=2, mode="nearest"), weight, bias, padding=1)


def plainly_averaged(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.avg_pool2d(F.conv2d(x, weight, bias, padding=1), 2)


@given(
    images=st.integers(1, 3),
    channels=st.integers(1, 5),
    filters=st.integers(1, 5),
    height=st.integers(1, 4),
    width=st.integers(1, 4),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_resampled_convolutions_match_torch_in_outputs_and_gradients(
    images: int, channels: int, filters: int, height: int, width: int, with_bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    weight, bias = drawn(filters, channels, 3, 3), drawn(filters) if with_bias else None
    for ours, plainly, scale in (
        (upsample_and_convolve, plainly_upsampled, 1),
        (convolve_and_average, plainly_averaged, 2),
    ):
        x = drawn(images, channels, scale * height, scale * width)
        inputs = [x, weight, *([bias] if bias is not None else [])]
        results = [function(x, weight, bias) for function in (ours, plainly)]
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(result.square().sum(), inputs) for result in results]
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)


def test_upsample_and_convolve_under_autocast_is_close_to_float32() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 3, 4, 4), torch.randn(2, 3, 3, 3)
    exact = upsample_and_convolve(x, weight, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = upsample_and_convolve(x, weight, None)
    assert cast.dtype == torch.bfloat16
    torch.testing.assert_close(cast.float(), exact, rtol=0.02, atol=0.05)


@given(images=st.integers(1, 3), channels=st.integers(1, 5), height=st.integers(1, 4), width=st.integers(1, 4))
def test_upsample_matches_torch_in_values_and_gradients(images: int, channels: int, height: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, height, width, dtype=torch.float64, generator=generator).requires_grad_()
    grad = torch.randn(images, channels, 2 * height, 2 * width, dtype=torch.float64, generator=generator)
    ours, theirs = upsample(x), F.interpolate(x, scale_factor=2, mode="nearest")
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, grad)[0] for y in (ours, theirs)))
