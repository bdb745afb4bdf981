"""The perceptron's layers as Triton kernels: in Triton's interpreter on any machine, compiled on a GPU."""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")
from nero.models import mlp
from nero.models.kernels import linear as linear_kernels
from nero.models.kernels.linear import COMPILED, Config, backward_layer, forward_layer

# The mode of a process is fixed when Triton is first imported.
interpreted = pytest.mark.skipif(COMPILED, reason="needs TRITON_INTERPRET=1")
compiled = pytest.mark.skipif(not COMPILED, reason="needs TRITON_INTERPRET=0")
DEVICE = "cuda" if COMPILED else "cpu"
# Some tests multiply infinity by zero, and numpy, which Triton's interpreter uses, warns about it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
DTYPES = (torch.float32, torch.bfloat16)
# Relative rounding error of a sum of products: tf32 has 10 mantissa bits, bfloat16 has 7.
ROUNDING = {torch.float32: 2**-10, torch.bfloat16: 2**-7}
# Smaller tiles than the kernel's default, so that a small layer has more than one tile.
SMALL = Config(neurons=16, examples=16, summed=16, warps=4, stages=3)
SHAPES = [(1, 1), (16, 16), (5, 17), (33, 31), (17, 48), (40, 70)]


@pytest.mark.skipif(os.environ.get("NERO_OTHER_MODE") == "1", reason="is the other mode")
def test_suite_passes_in_other_triton_mode() -> None:
    """Runs this file again in the other mode: interpreted, or compiled if it is interpreted here and there is a GPU."""
    if not COMPILED and not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    environment = os.environ | {"TRITON_INTERPRET": str(int(COMPILED)), "NERO_OTHER_MODE": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout
    assert " passed" in result.stdout


def rounded(x: Tensor) -> Tensor:
    """Round float32 to the nearest tf32, as the kernel does."""
    if x.dtype != torch.float32:
        return x
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32).where(x == x, x)


def layer(batch: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, weight and bias of a layer; half of the inputs are zero, as after a ReLU."""
    generator = torch.Generator().manual_seed(1000 * batch + width)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((batch, width), (width, width), (width,)))
    weight = rounded(weight / math.sqrt(width))  # as tensor cores do; the kernel's own rounding has a separate test
    return rounded(x.relu()).to(DEVICE, dtype), weight.to(DEVICE, dtype), bias.to(DEVICE, dtype)


def forwards(x: Tensor, weight: Tensor, bias: Tensor, config: Config = SMALL) -> Tensor:
    out = torch.full_like(x, 7)
    forward_layer(x, weight, bias, out, config)
    return out


def backwards(delta: Tensor, weight: Tensor, below: Tensor, config: Config = SMALL) -> Tensor:
    out = torch.full_like(delta, 7)
    backward_layer(delta, weight, below, out, config)
    return out


def formula_forwards(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.ops.aten.elu(x.double() @ weight.double().T + bias.double(), 0.0, math.sqrt(2))


def formula_backwards(delta: Tensor, weight: Tensor, below: Tensor) -> Tensor:
    return torch.ops.aten.elu_backward(delta.double() @ weight.double(), 0.0, math.sqrt(2), 1.0, True, below.double())


def assert_close(found: Tensor, expected: Tensor) -> None:
    rounding = ROUNDING[found.dtype]
    # The absolute tolerance is for sums close to zero; their terms are about one.
    torch.testing.assert_close(found.double(), expected, rtol=rounding, atol=1e-4, equal_nan=True)


def in_this_mode(function):
    """Mark a test as needing a GPU if kernels are compiled; interpreted kernels run on any machine."""
    return pytest.mark.gpu(function) if COMPILED else function


@in_this_mode
@pytest.mark.parametrize("config", [SMALL, linear_kernels.FORWARDS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "width"), SHAPES)
def test_forward_and_backward_match_reference(batch: int, width: int, dtype: torch.dtype, config: Config) -> None:
    x, weight, bias = layer(batch, width, dtype)
    assert_close(forwards(x, weight, bias, config), formula_forwards(x, weight, bias))
    delta = rounded(torch.randn(x.shape, generator=torch.Generator().manual_seed(0))).to(x)
    assert_close(backwards(delta, weight, x, config), formula_backwards(delta, weight, x))


@in_this_mode
def test_kernels_do_not_write_outside_output() -> None:
    x, weight, bias = layer(5, 17, torch.float32)
    around = torch.full((7, 17), 7.0, device=DEVICE)
    forward_layer(x, weight, bias, around[1:6], SMALL)
    backward_layer(x, weight, x, around[1:6], SMALL)
    assert (around[[0, 6]] == 7).all()
    assert (around[1:6] != 7).all()


@in_this_mode
@pytest.mark.parametrize("dtype", DTYPES)
def test_non_finite_values_propagate_as_in_torch_elu(dtype: torch.dtype) -> None:
    special = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    # The layer passes one input on. Each row has only one special value, because inf - inf is NaN.
    x = torch.zeros(len(special), 16)
    x[:, 3] = torch.tensor(special)
    weight, bias = torch.zeros(16, 16), torch.zeros(16)
    weight[3, 3] = 1
    x, weight, bias = (tensor.to(DEVICE, dtype) for tensor in (x, weight, bias))
    assert_close(forwards(x, weight, bias), formula_forwards(x, weight, bias))
    # No NaN outputs: torch's derivative there is NaN on a CPU but not on a GPU. The deltas would be NaN anyway.
    for value in (0.0, -0.0, 2.0, math.inf):
        outputs = torch.full_like(x, value)
        assert_close(backwards(x, weight, outputs), formula_backwards(x, weight, outputs))


@in_this_mode
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, -1])
@pytest.mark.parametrize("where", ["x", "weight", "bias"])
def test_nan_with_any_bit_pattern_propagates(where: str, bits: int) -> None:
    x, weight, bias = layer(4, 20, torch.float32)
    tensor = {"x": x, "weight": weight, "bias": bias}[where]
    tensor.view(torch.int32).view(-1)[0] = bits
    nans = formula_forwards(x, weight, bias).isnan()
    assert nans.any()
    assert torch.equal(forwards(x, weight, bias).isnan(), nans)


@in_this_mode
def test_float32_is_rounded_to_nearest_tf32_not_truncated() -> None:
    eye, zero = torch.eye(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    weight = torch.rand(16, 16, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected = rounded(math.sqrt(2) * rounded(weight))
    assert not torch.equal(rounded(weight), weight)
    assert torch.equal(forwards(eye, weight, zero), expected.T)
    assert torch.equal(backwards(eye, weight, eye + 1), expected)
    assert torch.equal(rounded(expected), expected)


# ---------------------------------------------------------------------------------------------------- the network


def network(depth: int, width: int, batch: int) -> tuple[mlp.MLP, Tensor, Tensor]:
    """A network, an input and its classes."""
    torch.manual_seed(depth)
    return (
        mlp.MLP(depth, width, 10).to(DEVICE),
        torch.randn(batch, width).to(DEVICE),
        torch.randint(10, (batch,)).to(DEVICE),
    )


def step(model: nn.Module, x: Tensor, classes: Tensor, bf16: bool = False) -> list[Tensor]:
    """The loss, then the gradient of each parameter."""
    model.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=bf16, cache_enabled=False):
        logits = model(x)
    loss = nn.functional.cross_entropy(logits.to(x.dtype), classes)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def errors(found: list[Tensor], expected: list[Tensor]) -> Tensor:
    """Relative error of each tensor as a vector: single entries may depend on the sign of a sum close to zero."""
    return torch.stack([(a.double() - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)])


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernel functions that are called, in order."""
    names: list[str] = []
    for name in ("forward_layer", "backward_layer"):
        original = getattr(linear_kernels, name)

        def record(*args, name=name, original=original) -> None:
            names.append(name)
            original(*args)

        monkeypatch.setattr(linear_kernels, name, record)
    return names


@interpreted
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("depth", [2, 5])
def test_mlp_with_kernels_matches_plain_mlp(
    monkeypatch: pytest.MonkeyPatch, launches: list[str], depth: int, bf16: bool
) -> None:
    model, x, classes = network(depth, 20, 6)
    expected = [tensor.double() for tensor in step(model, x, classes)]
    x.requires_grad_()
    monkeypatch.setattr(mlp, "_use_kernels", lambda x, dtype: True)
    assert errors(step(model, x, classes, bf16), expected).max() < (0.05 if bf16 else 0.005)
    assert x.grad.isfinite().all()
    assert launches == ["forward_layer"] * (depth - 1) + ["backward_layer"] * (depth - 2)


@interpreted
def test_non_contiguous_weight_falls_back_to_torch(monkeypatch: pytest.MonkeyPatch, launches: list[str]) -> None:
    model, x, classes = network(3, 20, 6)
    model.layers[1].weight.data = model.layers[1].weight.data.t().contiguous().t()
    monkeypatch.setattr(mlp, "_use_kernels", lambda x, dtype: True)
    step(model, x, classes)
    assert launches == []


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("tf32")
def test_kernels_are_not_used_on_cpu(launches: list[str]) -> None:
    torch.manual_seed(0)
    model, x = mlp.MLP(3, 20, 10), torch.randn(6, 20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x).sum().backward()
    model(x).sum().backward()
    assert launches == []


@pytest.mark.usefixtures("tf32")
def test_kernels_are_used_only_where_tensor_cores_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "_has_kernels", lambda device: True)

    class OnGPU(Tensor):
        is_cuda = True

    x = torch.zeros(250, 784).as_subclass(OnGPU)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert mlp._use_kernels(x, dtype)
    assert not mlp._use_kernels(x, torch.float64)
    assert not mlp._use_kernels(x[:0], torch.float32)
    assert not mlp._use_kernels(torch.zeros(2500, 784).as_subclass(OnGPU), torch.float32)
    torch.set_float32_matmul_precision("highest")
    assert not mlp._use_kernels(x, torch.float32)
    assert mlp._use_kernels(x, torch.bfloat16)


@compiled
@pytest.mark.gpu
class TestOnAGPU:
    @pytest.fixture(autouse=True)
    def _hopper(self) -> None:
        if not mlp._has_kernels(torch.device("cuda", torch.cuda.current_device())):
            pytest.skip("needs a GPU of compute capability 9.0")

    @pytest.mark.usefixtures("tf32")
    @pytest.mark.parametrize("bf16", [False, True])
    @pytest.mark.parametrize(("width", "batch"), [(784, 250), (784, 17), (100, 250), (77, 33)])
    def test_loss_and_gradients_are_as_accurate_as_torch(
        self, monkeypatch: pytest.MonkeyPatch, launches: list[str], width: int, batch: int, bf16: bool
    ) -> None:
        model, x, classes = network(10, width, batch)
        exact = step(copy.deepcopy(model).double(), x.double(), classes)
        assert launches == []
        ours = errors(step(model, x, classes, bf16), exact)
        assert launches == ["forward_layer"] * 9 + ["backward_layer"] * 8
        monkeypatch.setattr(mlp, "_use_kernels", lambda x, dtype: False)
        theirs = errors(step(model, x, classes, bf16), exact)
        assert len(launches) == 17
        assert ours.max() < 0.3
        if (width, batch) == (784, 250):  # for other sizes torch may avoid tensor cores and be more accurate
            assert (ours < 1.5 * theirs + (1e-2 if bf16 else 1e-3)).all()

    def test_full_float32_does_not_use_the_kernels(self, launches: list[str]) -> None:
        torch.set_float32_matmul_precision("highest")
        step(*network(3, 784, 250))
        assert launches == []

    @pytest.mark.usefixtures("tf32")
    def test_captured_step_equals_eager_step_bitwise(self) -> None:
        model, x, classes = network(20, 784, 250)
        expected = step(model, x, classes)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(model, x, classes)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step(model, x, classes)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)

    @pytest.mark.usefixtures("tf32")
    def test_signal_norm_is_preserved_over_a_hundred_layers(self) -> None:
        model, x, _ = network(100, 784, 250)
        for layer in model.layers:
            nn.init.normal_(layer.weight, std=1 / math.sqrt(784))
            nn.init.zeros_(layer.bias)
        ratio = model(x).norm().double() / copy.deepcopy(model).double()(x.double()).norm()
        assert ratio.item() == pytest.approx(1, abs=0.01)
