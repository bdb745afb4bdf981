"""Layers with spectral norm, compared with torch's parametrisation and with singular values."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import convert_conv2d_weight_memory_format
from torch.nn.utils.parametrizations import spectral_norm

from nero.models.spectral import (
    BIAS_STD,
    Convolution,
    Embedding,
    Linear,
    SpectralLayers,
    SpectralNorm,
    _is_matrix,
)

Layer = Linear | Convolution | Embedding
MAKERS: dict[str, tuple[Callable[[], Layer], Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: Linear(7, 5), lambda: nn.Linear(7, 5), (3, 7)),
    "convolution": (lambda: Convolution(4, 6, kernel=3), lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 5, 5)),
    "1 x 1": (lambda: Convolution(4, 6, kernel=1), lambda: nn.Conv2d(4, 6, 1), (2, 4, 5, 5)),
}


def made(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A layer in float64, with random weights far from orthogonal."""
    torch.manual_seed(seed)
    layer = make().double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return layer


def torch_equivalent(ours: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    """torch's layer with the same weight, bias and singular vectors."""
    theirs = make().double()
    theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias})
    theirs = spectral_norm(theirs)
    norm = theirs.parametrizations.weight[0]
    norm._u.copy_(ours.spectral_norm.u)
    v = ours.spectral_norm.v
    if ours.weight.ndim == 4:  # torch's vector has the channels first
        channels, height, width = ours.weight.shape[1:]
        v = v.reshape(height, width, channels).permute(2, 0, 1).flatten()
    norm._v.copy_(v)
    return theirs


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_layer_matches_torch_spectral_norm_in_training_and_evaluation(kind: str, last: bool) -> None:
    make, make_torchs, shape = MAKERS[kind]
    ours = made(make)
    theirs = torch_equivalent(ours, make_torchs)
    if last:
        convert_conv2d_weight_memory_format(ours, torch.channels_last)
    inputs = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        outputs = [layer(inputs) for layer in (ours, theirs)]
        torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
        weights = [ours.weight, theirs.parametrizations.weight.original]
        for layer, output, weight in zip((ours, theirs), outputs, weights, strict=True):
            layer.zero_grad()
            output.square().sum().backward()
            assert weight.grad is not None
        torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-10, atol=1e-10)
        with torch.no_grad():  # a step, so that the singular vectors change
            for weight in weights:
                weight -= 0.1 * weight.grad
    u = ours.spectral_norm.u.clone()
    torch.testing.assert_close(ours.eval()(inputs), theirs.eval()(inputs), rtol=1e-12, atol=1e-12)
    assert torch.equal(ours.spectral_norm.u, u), "evaluation moves nothing"


def test_power_iteration_finds_largest_singular_value() -> None:
    weight = torch.randn(6, 5, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = SpectralNorm(weight)
    for _ in range(500):
        normalised = norm(weight)
    torch.testing.assert_close(torch.linalg.matrix_norm(normalised.flatten(1), 2), torch.tensor(1.0).double())


def test_new_layer_starts_with_converged_power_iteration() -> None:
    torch.manual_seed(0)
    weight = torch.randn(30, 20)
    norm = SpectralNorm(weight).eval()
    true = torch.linalg.matrix_norm(weight, 2)
    assert float(torch.linalg.matrix_norm(norm(weight), 2)) == pytest.approx(1, rel=0.03)
    assert float(weight[0, 0] / norm(weight)[0, 0]) == pytest.approx(float(true), rel=0.03)


@pytest.mark.parametrize("kind", MAKERS)
def test_layers_start_orthogonal_with_small_biases(kind: str) -> None:
    torch.manual_seed(0)
    layer = MAKERS[kind][0]()
    matrix = layer.weight.flatten(1)
    short = matrix if len(matrix) <= matrix.shape[1] else matrix.T
    torch.testing.assert_close(short @ short.T, torch.eye(len(short)))
    wide = Linear(2, 5000)
    assert float(wide.bias.detach().std()) == pytest.approx(BIAS_STD, rel=0.1)
    assert abs(float(wide.bias.detach().mean())) < 0.001


def test_initialisation_uses_one_thread_and_restores_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], nn.init.orthogonal_

    def watched(weight: Tensor) -> Tensor:
        seen.append(torch.get_num_threads())
        return real(weight)

    monkeypatch.setattr(nn.init, "orthogonal_", watched)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for make in (lambda: Convolution(4, 6, kernel=3), lambda: Embedding(9, 4)):
            make()
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1]


def test_embedding_looks_up_normalised_table() -> None:
    torch.manual_seed(0)
    table = Embedding(9, 4).eval()
    labels = torch.tensor([3, 8, 3])
    one_hot = torch.nn.functional.one_hot(labels, 9).float()
    torch.testing.assert_close(table(one_hot), table.spectral_norm(table.weight)[labels])
    assert len(list(table.parameters())) == 1


@pytest.mark.parametrize("kind", MAKERS)
def test_spectral_norm_is_float32_under_autocast(kind: str) -> None:
    torch.manual_seed(0)
    layer = MAKERS[kind][0]()
    with torch.no_grad():
        layer.weight.normal_()
    again = copy.deepcopy(layer)
    plain = layer.spectral_norm(layer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = again.spectral_norm(again.weight)
    assert cast.dtype == torch.float32
    assert torch.equal(cast, plain)
    assert torch.equal(again.spectral_norm.u, layer.spectral_norm.u)


def test_backward_after_second_forward_is_unaffected() -> None:
    torch.manual_seed(0)
    layer = Linear(7, 5)
    with torch.no_grad():
        layer.weight.normal_()
    inputs = torch.randn(3, 7)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(inputs).sum().backward()
    alone = layer.weight.grad
    layer.load_state_dict(state)
    layer.weight.grad = None
    first = layer(inputs)
    layer(inputs)
    first.sum().backward()
    assert torch.equal(layer.weight.grad, alone)


@pytest.mark.parametrize("kind", MAKERS)
def test_compiled_layer_matches_eager_layer(kind: str) -> None:
    make, _, shape = MAKERS[kind]
    plain, compiled = made(make), made(make)
    compiled.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    inputs = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        for layer in (plain, compiled):
            layer.zero_grad()
            layer(inputs).square().sum().backward()
        torch.testing.assert_close(compiled.weight.grad, plain.weight.grad, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(compiled.spectral_norm.v, plain.spectral_norm.v, rtol=1e-12, atol=1e-12)


def network(seed: int = 0) -> nn.Sequential:
    """Layers of several kinds and sizes, some with more rows or columns than one kernel program handles."""
    torch.manual_seed(seed)
    layers = (Linear(7, 5), Convolution(8, 70, kernel=3), Convolution(70, 3, kernel=1), Embedding(130, 9), Linear(1, 1))
    own = nn.Sequential(*layers)
    convert_conv2d_weight_memory_format(own, torch.channels_last)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.normal_()
    return own


def passed(own: nn.Sequential, weights: list[Tensor | None] | None) -> list[Tensor]:
    return [layer.normalised(weights) for layer in own]


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on a CPU as well, in Triton's interpreter."""
    monkeypatch.setattr(SpectralLayers, "_fits", lambda layers: layers.layers[0].training)


@pytest.mark.parametrize("passes", [1, 2])
def test_grouped_power_iteration_matches_layer_by_layer(by_kernels: None, passes: int) -> None:
    one_by_one, at_once = network(), network()
    group = SpectralLayers(at_once)
    group.has_kernels = True
    for _ in range(2):
        expected = [passed(one_by_one, None) for _ in range(passes)]
        found = [passed(at_once, weights) for weights in group.normalised(passes)]
        for own, weights in ((one_by_one, expected), (at_once, found)):
            own.zero_grad()
            sum((weight * weight.detach().cos()).sum() for each in weights for weight in each).backward()
        for layer, other, *weights in zip(one_by_one, at_once, *expected, *found, strict=True):
            for plain, own in zip(weights[:passes], weights[passes:], strict=True):
                torch.testing.assert_close(own, plain, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(other.weight.grad, layer.weight.grad, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(other.spectral_norm.u, layer.spectral_norm.u, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(other.spectral_norm.v, layer.spectral_norm.v, rtol=1e-5, atol=1e-6)
        with torch.no_grad():  # the same step for both, so that only the last iteration can differ
            for layer, other in zip(one_by_one, at_once, strict=True):
                layer.weight -= 0.1 * layer.weight.grad
                other.load_state_dict(layer.state_dict())


def test_zero_matrix_gives_zero_vectors_not_nan(by_kernels: None) -> None:
    own = network()
    nn.init.zeros_(own[1].weight)
    group = SpectralLayers(own)
    group.has_kernels = True
    group.normalised()
    assert float(own[1].spectral_norm.u.abs().sum()) == float(own[1].spectral_norm.v.abs().sum()) == 0.0
    assert float(own[0].spectral_norm.u.norm()) == pytest.approx(1)


def test_grouped_normalisation_is_off_without_kernels_and_in_evaluation(by_kernels: None) -> None:
    own = network()
    group = SpectralLayers(own)
    group.has_kernels = False
    assert group.normalised(2) == [None, None]
    group.has_kernels = True
    own.eval()
    assert group.normalised() == [None]


def test_is_matrix_rejects_unsupported_memory_layouts() -> None:
    own = network()
    assert _is_matrix(own[1].weight)
    assert not _is_matrix(own[1].weight.contiguous())
    assert not _is_matrix(own[0].weight.T)


@pytest.mark.parametrize(
    ("misfit", "change"),
    [
        (None, {}),
        ("on a CPU", {"device": "cpu"}),
        ("in float64", {"dtype": torch.float64}),
        ("channels first", {"memory_format": torch.contiguous_format}),
        ("in evaluation", {}),
    ],
)
def test_one_unsupported_layer_disables_grouped_normalisation(misfit: str | None, change: dict) -> None:
    """Uses fake tensors, which have a device but no memory, so that no GPU is needed."""
    wanted = {"device": "cuda", "dtype": torch.float32, "memory_format": torch.channels_last}
    with FakeTensorMode():
        own = nn.Sequential(Convolution(8, 5, kernel=3), Convolution(8, 5, kernel=3))
        for layer, settings in zip(own, (wanted, wanted | change), strict=True):
            layer.weight = nn.Parameter(torch.empty(layer.weight.shape, **settings))
        own[1].train(misfit != "in evaluation")
        assert SpectralLayers(own)._fits() == (misfit is None)


def test_compiled_grouped_layers_match_eager(by_kernels: None) -> None:
    class Together(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Linear(7, 5), Linear(5, 6)
            self.spectral = SpectralLayers(self)
            self.spectral.has_kernels = True

        def forward(self, x: Tensor) -> Tensor:
            outputs = [self.second(self.first(x, weights), weights) for weights in self.spectral.normalised(2)]
            return torch.cat(outputs)

    torch.manual_seed(0)
    plain = Together()
    compiled = copy.deepcopy(plain)
    compiled.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    inputs = torch.randn(3, 7)
    for _ in range(2):
        for own in (plain, compiled):
            own.zero_grad()
            own(inputs).square().sum().backward()
        torch.testing.assert_close(compiled.first.weight.grad, plain.first.weight.grad)
        torch.testing.assert_close(compiled.second.spectral_norm.v, plain.second.spectral_norm.v)


@pytest.mark.gpu
def test_grouped_power_iteration_can_be_captured_in_cuda_graph() -> None:
    own = network().to("cuda")
    convert_conv2d_weight_memory_format(own, torch.channels_last)
    alone = copy.deepcopy(own)
    group = SpectralLayers(own)
    assert group.has_kernels
    assert group._fits()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        group.normalised()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        [weights] = group.normalised()
    graph.replay()
    for _ in range(2):
        expected = passed(alone, None)
    for layer, other, weight, plain in zip(own, alone, weights or [], expected, strict=True):
        torch.testing.assert_close(weight, plain, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(layer.spectral_norm.v, other.spectral_norm.v, rtol=1e-5, atol=1e-6)
