"""The perceptrons of Figure 3."""

import math

import pytest
import torch
import torch.nn.functional as F

from nero.models.mlp import MLP, ReparameterisedMLP, normalise, scaled_relu


def test_scaled_relu_is_the_papers_to_the_bit_forwards_and_backwards() -> None:
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30, -math.inf, math.inf])
    x = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(0)), special])
    ours, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = scaled_relu(ours), math.sqrt(2) * F.relu(plain)
    assert torch.equal(out, expected)
    weights = torch.randn(len(x), generator=torch.Generator().manual_seed(1))
    out.backward(weights)
    expected.backward(weights)
    assert torch.equal(ours.grad, plain.grad)
    assert scaled_relu(torch.tensor(math.nan)).isnan()


def test_scaled_relu_keeps_the_second_moment() -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert scaled_relu(x).square().mean().item() == pytest.approx(1, abs=0.02)


def test_normalise_is_equation_4_and_does_not_see_the_scale() -> None:
    raw = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for row, out in zip(raw, normalise(raw), strict=True):
        centred = row - sum(row) / 9
        torch.testing.assert_close(out, centred / math.sqrt(sum(centred**2)))
    torch.testing.assert_close(normalise(100 * raw), normalise(raw))


def test_the_papers_shapes() -> None:
    deep = [tuple(p.shape) for p in MLP(100, 784, 10).parameters()]
    assert deep == [(784, 784), (784,)] * 99 + [(10, 784), (10,)]
    raw = [tuple(p.shape) for p in ReparameterisedMLP(5, 784, 10, sigma=1).parameters()]
    assert raw == [(784, 784)] * 4 + [(10, 784)]


@pytest.mark.parametrize("sigma", [1, 100])
def test_raw_weights_have_standard_deviation_sigma_and_the_function_does_not_depend_on_it(sigma: float) -> None:
    torch.manual_seed(0)
    network = ReparameterisedMLP(5, 784, 10, sigma)
    assert network.raw[0].std().item() == pytest.approx(sigma, rel=0.01)
    torch.manual_seed(0)
    twin = ReparameterisedMLP(5, 784, 10, 1.0)
    x = torch.randn(3, 28, 28)
    torch.testing.assert_close(network(x), twin(x), rtol=1e-3, atol=1e-4)


def test_a_network_is_its_layers_in_order() -> None:
    torch.manual_seed(0)
    network, x = MLP(3, 16, 4), torch.randn(5, 4, 4)
    first, second, last = network.layers
    expected = last(math.sqrt(2) * F.relu(second(math.sqrt(2) * F.relu(first(x.flatten(1))))))
    torch.testing.assert_close(network(x), expected)
