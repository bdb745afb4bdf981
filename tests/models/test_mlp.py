"""The perceptrons of Figure 3."""

import copy
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nero.models.mlp import MLP, ReparameterisedMLP, normalise, scaled_relu


def test_scaled_relu_equals_formula_bitwise_with_gradient() -> None:
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


def test_scaled_relu_preserves_second_moment() -> None:
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    assert scaled_relu(x).square().mean().item() == pytest.approx(1, abs=0.02)


def test_normalise_matches_equation_4_and_is_scale_invariant() -> None:
    raw = torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for row, out in zip(raw, normalise(raw), strict=True):
        centred = row - sum(row) / 9
        torch.testing.assert_close(out, centred / math.sqrt(sum(centred**2)))
    torch.testing.assert_close(normalise(100 * raw), normalise(raw))


def test_parameter_shapes_are_those_of_the_paper() -> None:
    deep = [tuple(p.shape) for p in MLP(100, 784, 10).parameters()]
    assert deep == [(784, 784), (784,)] * 99 + [(10, 784), (10,)]
    raw = [tuple(p.shape) for p in ReparameterisedMLP(5, 784, 10, sigma=1).parameters()]
    assert raw == [(784, 784)] * 4 + [(10, 784)]


@pytest.mark.parametrize("sigma", [1, 100])
def test_sigma_scales_raw_weights_but_not_output(sigma: float) -> None:
    torch.manual_seed(0)
    network = ReparameterisedMLP(5, 784, 10, sigma)
    assert network.raw[0].std().item() == pytest.approx(sigma, rel=0.01)
    torch.manual_seed(0)
    twin = ReparameterisedMLP(5, 784, 10, 1.0)
    x = torch.randn(3, 28, 28)
    torch.testing.assert_close(network(x), twin(x), rtol=1e-3, atol=1e-4)


def plain(network: MLP, x: Tensor) -> Tensor:
    """The network's formula, layer by layer."""
    *hidden, last = network.layers
    x = x.flatten(1)
    for layer in hidden:
        x = math.sqrt(2) * F.relu(layer(x))
    return last(x)


def case(depth: int = 3, width: int = 16, batch: int = 5, dtype: torch.dtype = torch.float64) -> tuple[MLP, Tensor]:
    """A network and an input for it."""
    torch.manual_seed(depth)
    return MLP(depth, width, 4).to(dtype), torch.randn(batch, width, dtype=dtype)


def gradients(network: MLP, x: Tensor, forward: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
    """Gradients of the summed sines of the logits with respect to each parameter, then to x."""
    network.zero_grad()
    x.grad = None
    forward(x).sin().sum().backward()
    return [parameter.grad for parameter in network.parameters()] + [x.grad]


def assert_gradients_match_formula(network: MLP, x: Tensor, **tolerances: float) -> None:
    found, expected = (gradients(network, x, f) for f in (network, lambda x: plain(network, x)))
    assert [g is None for g in found] == [g is None for g in expected]
    for ours, theirs in zip(found, expected, strict=True):
        if ours is not None:
            torch.testing.assert_close(ours, theirs, **tolerances)


def launched(step: Callable[[], object]) -> tuple[Counter[str], int]:
    """Counts of a step's operations, without views and allocations, and the size of its largest tensor."""
    counts: Counter[str] = Counter()
    sizes = [0]

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if not (func.is_view or "empty" in func.name()):
                counts[func.overloadpacket.__name__] += 1
            sizes.extend(tensor.numel() for tensor in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(tensor))
            return out

    with Record():
        step()
    return counts, max(sizes)


@pytest.mark.parametrize("x_needs", [False, True])
@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize(("depth", "width"), [(1, 9), (2, 9), (3, 1), (3, 16), (7, 25)])
def test_mlp_matches_layer_by_layer_formula(depth: int, width: int, batch: int, x_needs: bool) -> None:
    network, x = case(depth, width, batch)
    torch.testing.assert_close(network(x), plain(network, x), rtol=1e-12, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(network(x), plain(network, x), rtol=1e-12, atol=1e-15)
    assert_gradients_match_formula(network, x.requires_grad_(x_needs), rtol=1e-12, atol=1e-15)


def test_images_are_flattened() -> None:
    network, x = case()
    torch.testing.assert_close(network(x.reshape(5, 4, 4)), network(x))
    transposed = torch.randn(16, 5, dtype=torch.float64).t()
    assert_gradients_match_formula(network, transposed, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("x_needs", [False, True])
@pytest.mark.parametrize(
    "frozen", ["layers.0.", "layers.1.weight", "layers.2.bias", "weight", "bias", "layers.3", "layers"]
)
def test_frozen_parameters_get_no_gradient_and_do_not_affect_others(frozen: str, x_needs: bool) -> None:
    network, x = case(4)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(frozen not in name)
    x.requires_grad_(x_needs)
    if x_needs or frozen != "layers":
        assert_gradients_match_formula(network, x, rtol=1e-12, atol=1e-15)
    else:
        assert not network(x).requires_grad


def test_gradients_accumulate_until_zeroed() -> None:
    network, x = case(4)
    once = [g.clone() for g in gradients(network, x, network)[:-1]]
    loss = network(x).sin().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    for parameter, grad in zip(network.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 3 * grad, rtol=1e-12, atol=1e-15)
    network.zero_grad(set_to_none=False)
    network(x).sin().sum().backward()
    torch.testing.assert_close([p.grad for p in network.parameters()], once, rtol=1e-12, atol=1e-15)
    # They share one storage, but each can be changed independently.
    network.layers[1].weight.grad.mul_(2)
    torch.testing.assert_close(network.layers[1].weight.grad, 2 * once[2], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close([network.layers[i].weight.grad for i in (0, 2)], [once[0], once[4]])
    assert_gradients_match_formula(network, x, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("bf16", [False, True])
def test_gradients_are_slices_of_the_batched_results(bf16: bool) -> None:
    network, x = case(5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        loss = network(x).sum()
    loss.backward()
    for grads in (
        [layer.weight.grad for layer in network.layers[:-1]],
        [layer.bias.grad for layer in network.layers[:-1]],
    ):
        starts = [grad.data_ptr() for grad in grads]
        assert starts == [starts[0] + i * 4 * grads[0].numel() for i in range(4)]
        assert len({grad.untyped_storage().data_ptr() for grad in grads}) == 1
        assert all(grad.is_contiguous() for grad in grads)


@pytest.mark.parametrize("bf16", [False, True])
def test_each_extra_layer_adds_four_operations(bf16: bool) -> None:
    def step(depth: int) -> Counter[str]:
        network, x = case(depth, dtype=torch.float32)

        def both_ways() -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
                loss = network(x).sum()
            loss.backward()

        return launched(both_ways)[0]

    assert step(8) - step(7) == {"addmm": 1, "elu_": 1, "elu_backward": 1, "mm": 1}


def test_no_grad_forward_makes_no_tensor_larger_than_one_output() -> None:
    network, x = case(6, width=16, batch=100)
    with torch.no_grad():
        assert launched(lambda: network(x))[1] == x.numel()
    assert launched(lambda: network(x))[1] > x.numel()


@pytest.mark.parametrize("x_needs", [False, True])
def test_bf16_autocast_matches_plain_layers(x_needs: bool) -> None:
    network, x = case(4, dtype=torch.float32)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)

    def ours(x: Tensor) -> Tensor:
        with autocast:
            return network(x)

    def theirs(x: Tensor) -> Tensor:
        with autocast:
            return plain(network, x)

    assert ours(x).dtype == theirs(x).dtype == torch.bfloat16
    torch.testing.assert_close(ours(x), theirs(x), rtol=0.02, atol=0.02)
    x.requires_grad_(x_needs)
    for found, expected in zip(gradients(network, x, ours), gradients(network, x, theirs), strict=True):
        if expected is None:
            assert found is None
            continue
        assert found.dtype == torch.float32
        assert (found - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.parametrize("where", ["x", "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"])
@pytest.mark.parametrize("bf16", [False, True])
def test_nan_in_input_or_any_parameter_reaches_logits(where: str, bf16: bool) -> None:
    network, x = case(4, dtype=torch.float32)
    with torch.no_grad():
        (x if where == "x" else network.get_parameter(where)).view(-1)[0] = math.nan
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        assert network(x)[0].isnan().all()
        with torch.no_grad():
            assert network(x)[0].isnan().all()


def test_mlp_compiles_to_one_graph() -> None:
    network, x = case(3)
    expected = gradients(network, x, network)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    found = gradients(network, x, compiled)
    torch.testing.assert_close(found[:-1], expected[:-1], rtol=1e-12, atol=1e-15)


def test_deepcopy_shares_no_gradient_storage() -> None:
    network, x = case(3)
    expected = gradients(network, x, network)
    twin = copy.deepcopy(network)
    assert list(twin.state_dict()) == [f"layers.{i}.{kind}" for i in range(3) for kind in ("weight", "bias")]
    torch.testing.assert_close(gradients(twin, x, twin)[:-1], expected[:-1], rtol=1e-12, atol=1e-15)
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        assert ours.grad.untyped_storage().data_ptr() != theirs.grad.untyped_storage().data_ptr()


def test_double_backward_raises() -> None:
    network, x = case(3)
    (grad,) = torch.autograd.grad(network(x).sum(), network.layers[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
