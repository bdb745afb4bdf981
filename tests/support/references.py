"""Reference optimisers from the paper's pseudocode, in float64 and plain loops, and helpers for their tests.

This module does not import the package. A reference updates a list of arrays, given a list of gradients (or None).
"""

import copy
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

# Convolutions, linear layers, neurons with a fan-in of one, a weight of three dimensions, biases or gains, a scalar.
# Some shapes repeat, so that batched updates combine several tensors.
SHAPES: list[tuple[int, ...]] = [(8, 3, 3, 3), (5, 7), (6,), (8, 3, 3, 3), (4, 1), (9,), (5, 7), (5, 7), (2, 3, 4), ()]


# ---------------------------------------------------------------------------------------------------- references


def rows_of(w: np.ndarray) -> Iterator[np.ndarray]:
    """Views of the neurons of an array."""
    yield from w.reshape(w.shape[0], -1)


def norm_of(values: np.ndarray) -> float:
    return math.sqrt(math.fsum(float(value) ** 2 for value in values.ravel()))


def project(w: np.ndarray, mean: bool = True, norm: bool = True, growing: Sequence[bool] | None = None) -> None:
    """The last two lines of Algorithm 1, in place. A row of equal entries keeps its mean, or it would become zero.

    `growing` rows started at zero: their norm is at most one.
    """
    for i, row in enumerate(rows_of(w)):
        if mean and not all(value == row[0] for value in row):
            row -= math.fsum(row) / len(row)
        if norm and norm_of(row) > (1 if growing is not None and growing[i] else 0):
            row /= norm_of(row)


def has_neurons(w: np.ndarray) -> bool:
    return w.ndim >= 2 and math.prod(w.shape[1:]) != 1


class Nero:
    def __init__(self, params: list[np.ndarray], lr: float, beta: float, mean: bool = True, norm: bool = True):
        self.params, self.lr, self.beta, self.mean, self.norm = params, lr, beta, mean, norm
        self.avg_sq, self.scale, self.t = [], [], [0] * len(params)
        self.growing = [[norm_of(row) == 0 for row in rows_of(w)] if has_neurons(w) else None for w in params]
        for w in params:
            if has_neurons(w):
                project(w, mean, norm)
                sizes = [norm_of(row) for row in rows_of(w)]
            else:
                sizes = [abs(float(b)) for b in w.ravel()]
            self.scale.append(math.fsum(sizes) / len(sizes) or 0.01)
            self.avg_sq.append([0.0] * len(sizes))

    def step(self, grads: Sequence[np.ndarray | None]) -> None:
        for i, (w, g) in enumerate(zip(self.params, grads, strict=True)):
            if g is None:
                continue
            self.t[i] += 1
            neurons = rows_of(w) if has_neurons(w) else w.reshape(-1, 1)
            slopes = rows_of(g) if has_neurons(w) else g.reshape(-1, 1)
            for j, (neuron, slope) in enumerate(zip(neurons, slopes, strict=True)):
                self.avg_sq[i][j] = self.beta * self.avg_sq[i][j] + (1 - self.beta) * norm_of(slope) ** 2
                g_bar = math.sqrt(self.avg_sq[i][j]) / math.sqrt(1 - self.beta ** self.t[i])
                if g_bar > 0:
                    neuron -= self.lr * self.scale[i] / g_bar * slope
            if has_neurons(w):
                project(w, self.mean, self.norm, self.growing[i])


class LAMB:
    def __init__(
        self,
        params: list[np.ndarray],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        clamp_value: float,
        debias: bool = False,
    ):
        self.params, self.lr, self.betas, self.eps, self.clamp_value = params, lr, betas, eps, clamp_value
        self.debias, self.t = debias, [0] * len(params)
        self.m = [np.zeros_like(w) for w in params]
        self.v = [np.zeros_like(w) for w in params]

    def step(self, grads: Sequence[np.ndarray | None]) -> None:
        beta1, beta2 = self.betas
        for i, (w, g, m, v) in enumerate(zip(self.params, grads, self.m, self.v, strict=True)):
            if g is None:
                continue
            self.t[i] += 1
            m[...] = beta1 * m + (1 - beta1) * g
            v[...] = beta2 * v + (1 - beta2) * g * g
            of_m, of_v = (1 - beta1 ** self.t[i], 1 - beta2 ** self.t[i]) if self.debias else (1.0, 1.0)
            pairs = zip(m.ravel(), v.ravel(), strict=True)
            adam = np.array([mi / of_m / (math.sqrt(vi / of_v) + self.eps) for mi, vi in pairs])
            ratio = 1.0
            if norm_of(w) > 0 and norm_of(adam) > 0:
                ratio = min(norm_of(w), self.clamp_value) / norm_of(adam)
            w -= self.lr * ratio * adam.reshape(w.shape)


class Madam:
    def __init__(self, params: list[np.ndarray], lr: float, beta: float, g_bound: float = 10.0, p_scale: float = 3.0):
        self.params, self.lr, self.beta, self.g_bound = params, lr, beta, g_bound
        self.bound = [p_scale * norm_of(w) / math.sqrt(w.size) for w in params]
        self.avg_sq = [np.zeros(w.size) for w in params]
        self.t = [0] * len(params)

    def step(self, grads: Sequence[np.ndarray | None]) -> None:
        for i, (w, g) in enumerate(zip(self.params, grads, strict=True)):
            if g is None:
                continue
            self.t[i] += 1
            entries, slopes = w.reshape(-1), g.reshape(-1)
            for j in range(w.size):
                self.avg_sq[i][j] = self.beta * self.avg_sq[i][j] + (1 - self.beta) * slopes[j] ** 2
                if self.avg_sq[i][j] == 0:
                    continue
                g_bar = math.sqrt(self.avg_sq[i][j]) / math.sqrt(1 - self.beta ** self.t[i])
                relative = max(-self.g_bound, min(self.g_bound, slopes[j] / g_bar))
                new = entries[j] * math.exp(-self.lr * float(np.sign(entries[j])) * relative)
                entries[j] = max(-self.bound[i], min(self.bound[i], new))


# --------------------------------------------------------------------------------------- helpers of the tests


ANY_STEP: dict[str, st.SearchStrategy[Any]] = {
    "seed": st.integers(0, 2**32),
    "shape": st.lists(st.integers(1, 6), max_size=4).map(tuple),
    "lr": st.floats(1e-4, 0.5),
    "foreach": st.booleans(),
}
"""Hypothesis strategies for the arguments of one optimiser step."""


def draw(seed: int, shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Normally distributed tensors, with the same values in every dtype up to rounding."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def parameters(
    seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu", shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[Tensor]:
    """Leaf tensors of the given shapes, some in channels_last or stored transposed, and one bias zero."""
    params = [tensor.to(device) for tensor in draw(seed, shapes, dtype)]
    for i, tensor in enumerate(params):
        if tensor.ndim == 4 and i % 2:
            params[i] = tensor.contiguous(memory_format=torch.channels_last)
        if tensor.ndim == 2 and i % 2:
            params[i] = tensor.t().contiguous().t()
        if tensor.shape == (9,):
            tensor.zero_()
    return [tensor.requires_grad_() for tensor in params]


def as_arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [tensor.detach().double().cpu().contiguous().numpy().copy() for tensor in tensors]


def set_gradients(params: Sequence[Tensor], seed: int) -> list[np.ndarray | None]:
    """Give most parameters a random gradient, zero in its first row or entry; the others get None."""
    grads: list[np.ndarray | None] = []
    shapes = [tuple(param.shape) for param in params]
    for i, (param, grad) in enumerate(zip(params, draw(seed, shapes, torch.float64), strict=True)):
        if grad.ndim:
            grad[0] = 0
        if (seed + i) % 7 == 3:
            param.grad = None
        elif seed % 2:
            param.grad = torch.empty_like(param).copy_(grad).detach()
        else:  # not in the memory layout of the parameter
            param.grad = grad.to(param.device, param.dtype)
        grads.append(None if param.grad is None else as_arrays([param.grad])[0])
    return grads


def assert_follows(params: Sequence[Tensor], reference: Any, optimizer: Optimizer, steps: int = 4) -> None:
    """Step both with the same gradients; they must agree up to rounding at every step."""
    tolerance = {"rtol": 1e-11, "atol": 1e-12} if params[0].dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    for t in range(steps):
        reference.step(set_gradients(params, seed=100 + t))
        optimizer.step()
        for param, expected in zip(params, reference.params, strict=True):
            np.testing.assert_allclose(as_arrays([param])[0], expected, **tolerance, err_msg=f"{param.shape} at {t}")


def run(params: Sequence[Tensor], optimizer: Optimizer, steps: range) -> None:
    for t in steps:
        set_gradients(params, seed=t)
        optimizer.step()


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Assert that the tensors are equal bit for bit."""
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b), f"largest difference {(a - b).abs().max()} in {tuple(a.shape)}"


def assert_resumes(make: Callable[[list[Tensor]], Optimizer], dtype: torch.dtype = torch.float32) -> None:
    """A run that is saved and loaded halfway must end exactly like the uninterrupted run."""
    params = parameters(dtype=dtype)
    optimizer = make(params)
    run(params, optimizer, range(5))
    saved, weights = copy.deepcopy(optimizer.state_dict()), [param.detach().clone() for param in params]
    run(params, optimizer, range(5, 10))

    resumed = parameters(seed=1, dtype=dtype)
    other = make(resumed)
    before = {id(value) for state in other.state.values() for value in state.values()}
    with torch.no_grad():
        for param, weight in zip(resumed, weights, strict=True):
            param.copy_(weight)
    other.load_state_dict(saved)
    assert before == {id(value) for state in other.state.values() for value in state.values()}
    run(resumed, other, range(5, 10))
    assert_same(resumed, params)
    for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert mine.keys() == theirs.keys()
        for key in mine:
            assert mine[key].dtype == theirs[key].dtype
            assert torch.equal(mine[key], theirs[key]), key


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 2, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


def loss_of(model: nn.Module, seed: int) -> Tensor:
    inputs = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = (model(inputs) - 1).square().mean()
    return loss


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for t in steps:
        optimizer.zero_grad()
        loss_of(model, seed=t).backward()
        optimizer.step()


def on_disk(value: Any) -> Any:
    """The value after `torch.save` and `torch.load(weights_only=True)`."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def values(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def copy_into_(tensors: list[Tensor], others: list[Tensor]) -> None:
    with torch.no_grad():
        for tensor, other in zip(tensors, others, strict=True):
            tensor.copy_(other)


class NoHostReads(TorchDispatchMode):
    """Fails on every operation that brings a tensor's value to the host."""

    BANNED = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in self.BANNED, f"{func.name()} reads a value on the host"
        return func(*args, **(kwargs or {}))


def assert_reads_nothing(make: Callable[[list[Tensor], Tensor], Optimizer]) -> None:
    """A step with a tensor learning rate must read no value on the host and create no new state tensors."""
    params = parameters()
    optimizer = make(params, torch.tensor(0.01))
    tensors = {id(value) for entries in optimizer.state.values() for value in entries.values()}
    for t in range(2):
        set_gradients(params, seed=t)
        with NoHostReads():
            optimizer.step()
    assert {id(value) for entries in optimizer.state.values() for value in entries.values()} == tensors


def assert_captures(make: Callable[[list[Tensor], Tensor], Optimizer]) -> None:
    """Five replays of a captured step with changing learning rates must equal five eager steps."""
    ends = []
    for capture in (False, True):
        params = parameters(device="cuda")
        lr = torch.tensor(0.01, device="cuda")
        optimizer = make(params, lr)
        for param, grad in zip(params, draw(2), strict=True):
            param.grad = torch.empty_like(param).copy_(grad).detach()
        step: Callable[[], Any] = optimizer.step
        if capture:
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph):
                step()
            step = graph.replay
        else:
            step()
        for t in range(5):
            lr.fill_(0.01 * (t + 1))
            for i, param in enumerate(params):
                assert param.grad is not None
                param.grad.mul_(0.9 + 0.1 * (i % 3))
            step()
        ends.append([param.detach().cpu() for param in params])
    for eager, captured in zip(*ends, strict=True):
        torch.testing.assert_close(captured, eager, rtol=0, atol=0)
        assert bool(captured.isfinite().all())
