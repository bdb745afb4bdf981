"""The perceptrons of Figure 3: L - 1 square layers and an output layer, with a scaled ReLU between them."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nero.models.kernels import are_compiled, product_dtype

# alpha and scale with which ELU is the scaled ReLU. F.elu does not expose the scale. One kernel each way instead of two
# matters for a network of 100 small layers.
_ALPHA, _SCALE = 0.0, math.sqrt(2.0)
# Entries of a layer's outputs up to which the Triton kernels are used. The paper's layers have 196,000 and leave a GPU
# idle; much larger ones keep it busy, and cuBLAS is then faster than small tiles.
_MOST_OUTPUTS = 2**19

Chain = tuple[list[tuple[Tensor, Tensor | None]], Callable[[Tensor], Tensor], float]
"""A perceptron in its parts: weight and bias of each layer, the activation between them and its greatest slope."""


def scaled_relu(x: Tensor) -> Tensor:
    """sqrt(2) * max(0, x): keeps the second moment of a symmetric input (appendix A)."""
    return torch.ops.aten.elu(x, _ALPHA, _SCALE)


def normalise(raw: Tensor) -> Tensor:
    """Equation 4: each row less its mean, divided by its norm."""
    centred = raw - raw.mean(dim=1, keepdim=True)
    return centred / centred.norm(dim=1, keepdim=True)


class _SquareLayers(torch.autograd.Function):
    """x through equal square layers, each followed by the scaled ReLU, for training.

    Takes x [batch, width], all weights [width, width], then all biases [width]. The gradients of weights and biases
    are computed after the whole chain, by one batched product and one sum over all layers: one layer of the paper's
    network is too small to fill a GPU. The gradients are slices of those two results.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        dtype = product_dtype(x)
        weights, biases = _cast(parameters[:depth], dtype), _cast(parameters[depth:], dtype)
        kernels = _use_kernels(x, dtype) and all(map(Tensor.is_contiguous, (*weights, *biases)))
        outputs = x.new_empty(depth + 1, *x.shape, dtype=dtype)  # x, then the output of each layer
        outputs[0].copy_(x)
        if kernels:
            from nero.models.kernels import linear
        for layer in zip(outputs[:-1], weights, biases, outputs[1:], strict=True):
            if kernels:
                linear.forward_layer(*layer)
            else:
                below, weight, bias, out = layer
                torch.addmm(bias, below, weight.t(), out=out)
                # Not torch._addmm_activation, which fuses both: cuBLASLt's ReLU does not promise to keep NaN, without
                # which the loss would not show that a run has diverged.
                torch.ops.aten.elu_(out, _ALPHA, _SCALE)
        ctx.save_for_backward(outputs, *weights)
        ctx.dtype, ctx.kernels = parameters[0].dtype, kernels
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        outputs, *weights = ctx.saved_tensors
        depth = len(weights)
        needs_x, *needs = ctx.needs_input_grad
        deltas = torch.empty_like(outputs[1:])  # gradients of each layer's pre-activations
        _activation_backward(grad, outputs[depth], deltas[-1])
        if ctx.kernels:
            from nero.models.kernels import linear
        for i in reversed(range(1, depth)):
            if ctx.kernels:
                linear.backward_layer(deltas[i], weights[i], outputs[i], deltas[i - 1])
            else:
                torch.mm(deltas[i], weights[i], out=deltas[i - 1])
                _activation_backward(deltas[i - 1], outputs[i], deltas[i - 1])
        grads: list[Tensor | None] = [None] * (2 * depth)
        if any(needs[:depth]):
            grads[:depth] = torch.bmm(deltas.mT, outputs[:-1]).to(ctx.dtype).unbind()
        if any(needs[depth:]):
            grads[depth:] = deltas.sum(dim=1, dtype=ctx.dtype).unbind()
        return torch.mm(deltas[0], weights[0]) if needs_x else None, *grads


def _activation_backward(grad: Tensor, output: Tensor, out: Tensor) -> None:
    """The gradient of the pre-activations, given that of the activation's output; out may be grad."""
    torch.ops.aten.elu_backward.grad_input(grad, _ALPHA, _SCALE, 1.0, True, output, grad_input=out)


def _use_kernels(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the Triton kernels compute layers of x [batch, width]: never in full float32, they use tensor cores."""
    allows_tf32 = torch.get_float32_matmul_precision() != "highest"
    tensor_cores = allows_tf32 if dtype == torch.float32 else dtype in (torch.bfloat16, torch.float16)
    return x.is_cuda and tensor_cores and 0 < x.numel() <= _MOST_OUTPUTS and _has_kernels(x.device)


@cache
def _has_kernels(device: torch.device) -> bool:
    """Whether Triton is installed and this GPU is of the kind that the kernels were written and measured for."""
    return are_compiled("nero.models.kernels.linear") and torch.cuda.get_device_capability(device) == (9, 0)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """The tensors in this dtype; conversions are one batched copy."""
    if all(tensor.dtype == dtype for tensor in tensors):
        return tensors
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies


class MLP(nn.Module):
    """`depth` linear layers with biases and torch's default initialisation.

    Training computes the hidden layers together without calling them, so hooks on them do not run.
    """

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width if i < depth - 1 else classes) for i in range(depth))

    def compiled_parts(self) -> Sequence[nn.Module] | None:
        """Nothing where training uses our own kernels: a compiler's take nearly twice as long."""
        return [] if _use_kernels(next(self.parameters())[:1], torch.float32) else None

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.layers
        # _SquareLayers keeps every output, which only a backward pass needs; a compiler finds fusions of its own.
        if hidden and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            weights, biases = [layer.weight for layer in hidden], [layer.bias for layer in hidden]
            return last(_SquareLayers.apply(x, *weights, *biases))
        for layer in hidden:
            x = scaled_relu(layer(x))
        return last(x)

    def perceptron(self) -> Chain:
        layers = [(layer.get_parameter("weight"), layer.get_parameter("bias")) for layer in self.layers]
        return [*layers], scaled_relu, _SCALE


class ReparameterisedMLP(nn.Module):
    """`depth` layers without biases whose weights are `normalise(raw)`, raw drawn from N(0, sigma^2)."""

    def __init__(self, depth: int, width: int, classes: int, sigma: float) -> None:
        super().__init__()
        rows = [width] * (depth - 1) + [classes]
        self.raw = nn.ParameterList(nn.Parameter(sigma * torch.randn(fan_out, width)) for fan_out in rows)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        *hidden, last = self.raw
        for raw in hidden:
            x = scaled_relu(F.linear(x, normalise(raw)))
        return F.linear(x, normalise(last))

    @torch.no_grad()
    def balance_(self) -> None:
        """Replace the raw weights by the normalised ones: the same function, now as a balanced network."""
        for raw in self.raw:
            raw.copy_(normalise(raw))

    def perceptron(self) -> Chain:
        """The parts of the network once it is balanced."""
        return [(raw, None) for raw in self.raw], scaled_relu, _SCALE
