import math
from collections.abc import Callable, Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nero.models.mlp import MLP
from nero.models.resnet import ResNet18
from nero.models.vgg import VGG11
from nero.optim import project
from nero.theory import activations
from nero.theory.activations import LayerActivations, measure_activations, predicted_moments

FEATURES, NEURONS, EXAMPLES = 24, 6, 40_000
SPARSITY = 0.05


def normal(generator: torch.Generator) -> Tensor:
    return torch.randn(EXAMPLES, FEATURES, generator=generator, dtype=torch.float64)


def uniform(generator: torch.Generator) -> Tensor:
    return math.sqrt(12) * (torch.rand(EXAMPLES, FEATURES, generator=generator, dtype=torch.float64) - 0.5)


def sparse(generator: torch.Generator) -> Tensor:
    """Standardised sparse inputs: before scaling, one in twenty is one and the others are zero."""
    ones = torch.rand(EXAMPLES, FEATURES, generator=generator, dtype=torch.float64) < SPARSITY
    return (ones.double() - SPARSITY) / math.sqrt(SPARSITY * (1 - SPARSITY))


# Distributions of independent inputs with mean 0 and variance 1, and their excess kurtosis.
DRAWS: dict[Callable[[torch.Generator], Tensor], float] = {
    normal: 0.0,
    uniform: -1.2,
    sparse: (1 - 6 * SPARSITY * (1 - SPARSITY)) / (SPARSITY * (1 - SPARSITY)),
}


def drawn_weight(seed: int, balanced: bool) -> Tensor:
    weight = torch.randn(NEURONS, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return project(weight) if balanced else 0.3 * weight + 0.1


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.weight = nn.Parameter(weight)
    return layer


def outputs(weight: Tensor, x: Tensor) -> list[LayerActivations]:
    """Measurements of each neuron as a layer of its own, so that every quantile is that neuron's moment."""
    return [measure_activations(linear(row.unsqueeze(0)), x.split(7000))[0] for row in weight]


def assert_moments(weight: Tensor, x: Tensor, mean: Tensor, variance: Tensor, excess: Tensor) -> None:
    """Check moments within five standard errors; `excess` is the excess kurtosis of each neuron's output."""
    for neuron, measured in enumerate(outputs(weight, x)):
        true_mean, true_variance = mean[neuron].item(), variance[neuron].item()
        error = math.sqrt(true_variance / len(x))
        assert measured.mean["median"] == pytest.approx(true_mean, abs=5 * error)
        error = true_variance * math.sqrt((2 + excess[neuron].item()) / len(x))
        assert measured.variance["median"] == pytest.approx(true_variance, abs=5 * error)


def excess_of(weight: Tensor, kurtosis: float) -> Tensor:
    """Excess kurtosis of the outputs: fourth cumulants of the inputs add with the weights' fourth powers."""
    return kurtosis * weight.pow(4).sum(-1) / weight.square().sum(-1).square()


# ----------------------------------------------------------------------------------------------- claim of Section 3.1


@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0, 100.0])
@pytest.mark.parametrize(("draw", "kurtosis"), DRAWS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_balanced_neurons_standardise_uncorrelated_inputs_of_any_mean(draw, kurtosis, mean):
    weight = drawn_weight(seed=1, balanced=True)
    x = mean + draw(torch.Generator().manual_seed(0))
    assert_moments(weight, x, torch.zeros(NEURONS), torch.ones(NEURONS), excess_of(weight, kurtosis))


# Hypothesis repeats the same examples; among many random ones, some would be off by five standard errors.
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32), mean=st.floats(-1000, 1000), draw=st.sampled_from(list(DRAWS)))
def test_any_balanced_neurons_standardise_inputs_of_any_mean(seed, mean, draw):
    weight = drawn_weight(seed, balanced=True)
    x = mean + draw(torch.Generator().manual_seed(5))
    assert_moments(weight, x, torch.zeros(NEURONS), torch.ones(NEURONS), excess_of(weight, DRAWS[draw]))


@pytest.mark.parametrize(("draw", "kurtosis"), DRAWS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_unbalanced_neurons_have_predicted_moments(draw, kurtosis):
    weight = drawn_weight(seed=1, balanced=False)
    x = 0.7 + 2 * draw(torch.Generator().manual_seed(0))
    mean, variance = 0.7 * weight.sum(-1), 4 * weight.square().sum(-1)
    assert_moments(weight, x, mean, variance, excess_of(weight, kurtosis))
    assert mean.abs().max() > 1  # means near zero would test nothing
    torch.testing.assert_close(predicted_moments(weight, 0.7, 4.0), (mean, variance))


@pytest.mark.parametrize("correlation", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("balanced", [True, False])
def test_correlated_inputs_keep_zero_mean_but_reduce_variance_if_balanced(correlation, balanced):
    """The inputs are correlated by a shared factor, which cancels in the output of a centred neuron."""
    weight = drawn_weight(seed=1, balanced=balanced)
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(EXAMPLES, 1, generator=generator, dtype=torch.float64)
    x = 0.7 + math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * normal(generator)
    sums, squares = weight.sum(-1), weight.square().sum(-1)
    variance = (1 - correlation) * squares + correlation * sums.square()
    assert_moments(weight, x, 0.7 * sums, variance, torch.zeros(NEURONS))
    if balanced:
        torch.testing.assert_close(variance, torch.full_like(variance, 1 - correlation))
        layer = measure_activations(linear(weight), [x])[0]
        assert layer.predicted_variance["median"] == pytest.approx(1, abs=0.1)
        assert layer.variance["max"] < layer.predicted_variance["min"]


@pytest.mark.parametrize("shape", [(5, 7), (4, 3, 3, 3), (3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_predicted_moments_are_computed_in_float64(shape, dtype):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    mean, variance = predicted_moments(weight, 1.5, 0.25)
    rows = weight.double().numpy().reshape(shape[0], -1)
    np.testing.assert_allclose(mean.numpy(), 1.5 * rows.sum(-1), rtol=1e-12)
    np.testing.assert_allclose(variance.numpy(), 0.25 * (rows**2).sum(-1), rtol=1e-12)


# ------------------------------------------------------------------------------ comparison with float64 references


def convolved(x: np.ndarray, layer: nn.Conv2d) -> np.ndarray:
    """Convolution without the bias, computed pixel by pixel."""
    weight = layer.weight.detach().numpy()
    (stride, _), (padding, _), (dilation, _) = layer.stride, layer.padding, layer.dilation
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    filters, per_group, size, _ = weight.shape
    reach = dilation * (size - 1) + 1
    rows, columns = ((length - reach) // stride + 1 for length in x.shape[2:])
    y = np.zeros((len(x), filters, rows, columns))
    for f in range(filters):
        first = f // (filters // layer.groups) * per_group
        for i in range(rows):
            for j in range(columns):
                top, left = i * stride, j * stride
                window = x[:, first : first + per_group, top : top + reach : dilation, left : left + reach : dilation]
                y[:, f, i, j] = (window * weight[f]).sum((1, 2, 3))
    return y


def expected(name: str, layer: nn.Linear | nn.Conv2d, x: np.ndarray, y: np.ndarray) -> dict:
    """Reference record of a layer from all its inputs x and outputs y, with features last."""
    x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    rows = layer.weight.detach().double().numpy().reshape(y.shape[-1], -1)
    mean, variance = x.mean(0).mean(), x.var(0).mean()
    return {
        "name": name,
        "input_mean": mean,
        "input_variance": variance,
        "mean": five(y.mean(0)),
        "variance": five(y.var(0)),
        "predicted_mean": five(mean * rows.sum(1)),
        "predicted_variance": five(variance * (rows**2).sum(1)),
    }


def five(values: np.ndarray) -> dict[str, float]:
    shares = {"min": 0, "low": 0.05, "median": 0.5, "high": 0.95, "max": 1}
    return {name: float(np.quantile(values, share)) for name, share in shares.items()}


def assert_same(measured: dict, reference: dict, rel: float = 1e-9) -> None:
    assert measured.keys() == reference.keys()
    for name, value in reference.items():
        if isinstance(value, dict):
            assert_same(measured[name], value, rel)
        elif isinstance(value, str):
            assert measured[name] == value
        else:
            assert measured[name] == pytest.approx(value, rel=rel, abs=1e-12), name


def parts(x: Tensor) -> Iterator[Tensor]:
    """Batches of unequal size, one of them empty."""
    yield from x.split([3, 1, 0, len(x) - 4])


def test_convolutional_network_matches_numpy_reference():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 5),
        nn.ReLU(inplace=True),
        nn.Linear(5, 3, bias=False),
    ).double()
    x = 2 + 3 * torch.randn(9, 3, 7, 7, dtype=torch.float64)

    references, value = [], x.numpy()
    for name, layer in network.named_children():
        if isinstance(layer, nn.Conv2d):
            y = convolved(value, layer)
            references.append(expected(name, layer, np.moveaxis(value, 1, -1), np.moveaxis(y, 1, -1)))
            value = y + layer.bias.detach().numpy()[:, None, None]
        elif isinstance(layer, nn.Linear):
            y = value @ layer.weight.detach().numpy().T
            references.append(expected(name, layer, value, y))
            value = y if layer.bias is None else y + layer.bias.detach().numpy()
        elif isinstance(layer, nn.ReLU):
            value = np.maximum(value, 0)
        else:
            value = value.reshape(len(value), -1)
    np.testing.assert_allclose(network(x).detach().numpy(), value, rtol=1e-9)

    measured = measure_activations(network, parts(x))
    assert [layer.name for layer in measured] == ["0", "2", "5", "7"]
    for layer, reference in zip(measured, references, strict=True):
        assert_same(asdict(layer), reference)


@pytest.mark.parametrize("training", [True, False])
def test_every_layer_of_mlp_is_measured(training):
    """In training mode, `MLP` does not call its hidden layers as modules."""
    torch.manual_seed(0)
    network = MLP(4, 12, 5).train(training)
    x = torch.randn(30, 1, 3, 4)
    measured = measure_activations(network, parts(x))
    value = x.flatten(1).double().numpy()
    for number, (layer, seen) in enumerate(zip(network.layers, measured, strict=True)):
        y = value @ layer.weight.detach().double().numpy().T
        assert_same(asdict(seen), expected(f"layers.{number}", layer, value, y), rel=1e-4)
        value = math.sqrt(2) * np.maximum(y + layer.bias.detach().double().numpy(), 0)


@pytest.mark.parametrize(
    ("make", "layers"), [(lambda: VGG11(width=2, hidden=6), 11), (lambda: ResNet18(width=2), 21)], ids=["VGG", "ResNet"]
)
def test_in_place_activations_do_not_affect_measurements(make, layers):
    torch.manual_seed(0)
    network = make().eval()
    x = torch.rand(5, 3, 32, 32)
    kept: dict[str, list[np.ndarray]] = {}

    def keep(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            bias = 0 if module.bias is None else module.bias.detach().double().numpy()
            last = [value.detach().double().numpy().copy() for value in (args[0], output)]
            x, y = last if isinstance(module, nn.Linear) else [np.moveaxis(value, 1, -1) for value in last]
            kept[name] = [x, y - bias]

        return hook

    modules = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    handles = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()

    measured = measure_activations(network.to(memory_format=torch.channels_last), x.split(2))
    assert len(measured) == layers == len(modules)
    for layer, (name, module) in zip(measured, modules.items(), strict=True):
        assert_same(asdict(layer), expected(name, module, *kept[name]), rel=2e-4)


def test_sequence_positions_are_pooled():
    layer = nn.Linear(4, 3, dtype=torch.float64)
    x = torch.randn(6, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = measure_activations(layer, [x])[0]
    assert_same(asdict(whole), expected("", layer, x.numpy(), x.numpy() @ layer.weight.detach().numpy().T))
    for batches in (x, x.flatten(0, 1), x.flatten(0, 1).split(7)):  # single sequences, single tokens, 7 tokens each
        assert_same(asdict(measure_activations(layer, batches)[0]), asdict(whole))


def test_convolution_of_single_images_matches_their_batch():
    layer = nn.Conv2d(2, 3, 3, dtype=torch.float64)
    x = torch.randn(6, 2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_same(asdict(measure_activations(layer, x)[0]), asdict(measure_activations(layer, [x])[0]))


# -------------------------------------------------------------------------------------------- numerical accuracy


def test_variance_is_accurate_for_large_mean():
    weight = project(torch.randn(4, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)) + 0.5
    x = 1e8 + torch.randn(3000, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layer = measure_activations(linear(weight), x.split(170))[0]
    exact = (x - 1e8).numpy()  # exact in float64
    assert layer.input_variance == pytest.approx(exact.var(0).mean(), rel=1e-9)
    # Outputs near 8e8 are only accurate to about 1e-7.
    assert layer.variance["max"] == pytest.approx((exact @ weight.numpy().T).var(0).max(), rel=1e-6)
    naive = x.square().mean(0) - x.mean(0).square()
    assert (naive - x.var(0, correction=0)).abs().max() > 1e-3


def test_batches_with_distant_means_are_merged_accurately():
    layer = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x[:100] += 1000
    y = x.numpy() @ layer.weight.detach().numpy().T
    assert_same(asdict(measure_activations(layer, x.split([100, 250, 50]))[0]), expected("", layer, x.numpy(), y))


def test_large_batches_are_processed_in_chunks(monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 2))
    x = torch.randn(20, 3, 5, 5)
    whole = measure_activations(network, [x])
    monkeypatch.setattr(activations, "_MOST_ENTRIES", 200)
    for one, other in zip(whole, measure_activations(network, [x]), strict=True):
        assert_same(asdict(one), asdict(other))


def test_half_precision_is_summed_in_float64():
    layer = nn.Linear(8, 4, bias=False).bfloat16()
    x = (100 + torch.randn(5000, 8, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.no_grad():
        y = layer(x).double().numpy()
    assert_same(asdict(measure_activations(layer, x.split(5000))[0]), expected("", layer, x.double().numpy(), y))


def test_non_finite_activations_propagate():
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    measured = measure_activations(network, [torch.tensor([[1.0, math.nan, 2.0]])])
    assert all(math.isnan(layer.variance["median"]) and math.isnan(layer.mean["max"]) for layer in measured)


# -------------------------------------------------------------------------------------------- no side effects


class Fussy(nn.Module):
    """Network that calls one layer twice, once by keyword, leaves one unused, and fails on NaN inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.twice = nn.Linear(4, 4)
        self.frozen = nn.BatchNorm1d(4).eval()
        self.once = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        if x.isnan().any():
            raise ArithmeticError("not a number")
        return self.once(self.frozen(self.twice(input=self.twice(x))))


def fussy() -> Fussy:
    torch.manual_seed(0)
    return Fussy().double()


def assert_untouched(network: Fussy) -> None:
    assert network.training
    assert not network.frozen.training
    assert network.once[0].training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    assert network.frozen.num_batches_tracked == 0


def test_repeated_calls_are_pooled_and_uncalled_layers_omitted():
    network = fussy()
    x = torch.randn(10, 4, dtype=torch.float64)
    twice, once = measure_activations(network, parts(x))
    assert_untouched(network)
    assert (twice.name, once.name) == ("twice", "once.1")
    first = network.twice(x).detach()
    second = network.twice(first).detach()
    y = torch.cat([first, second]) - network.twice.bias.detach()
    assert_same(asdict(twice), expected("twice", network.twice, torch.cat([x, first]).numpy(), y.numpy()))
    # Dropout is off, and batch norm uses its running statistics.
    value = second / math.sqrt(1 + network.frozen.eps)
    y = value @ network.once[1].weight.detach().T
    assert_same(asdict(once), expected("once.1", network.once[1], value.numpy(), y.numpy()))


def test_exception_leaves_network_unchanged():
    network = fussy()
    with pytest.raises(ArithmeticError):
        measure_activations(network, [torch.randn(3, 4).double(), torch.full((3, 4), math.nan).double()])
    assert_untouched(network)

    def broken() -> Iterator[Tensor]:
        yield torch.randn(3, 4).double()
        raise OSError("no more data")

    with pytest.raises(OSError, match="no more data"):
        measure_activations(network, broken())
    assert_untouched(network)
    assert torch.is_grad_enabled()


def test_no_batches_or_no_layers_give_empty_result():
    assert measure_activations(fussy(), []) == []
    assert measure_activations(nn.ReLU(), [torch.zeros(3)]) == []


def test_existing_forward_hooks_do_not_affect_measurements():
    layer = nn.Linear(4, 3, dtype=torch.float64)
    x = torch.randn(6, 4, dtype=torch.float64)
    plain = measure_activations(layer, [x])
    layer.register_forward_hook(lambda module, args, output: output * 100)
    assert measure_activations(layer, [x]) == plain
    assert len(layer._forward_hooks) == 1


@pytest.mark.gpu
def test_gpu_measurements_match_cpu():
    torch.manual_seed(0)
    network = VGG11(width=2, hidden=6).double()
    x = torch.rand(5, 3, 32, 32).double()
    on_cpu = measure_activations(network, x.split(2))
    on_gpu = measure_activations(network.cuda(), x.cuda().split(2))
    for one, other in zip(on_cpu, on_gpu, strict=True):
        assert_same(asdict(one), asdict(other))
