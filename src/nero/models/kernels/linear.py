"""A hidden layer of the perceptron as one Triton kernel each way: a matrix product with the activation fused in.

A layer of Figure 3's network (batch 250, width 784) takes a GPU a few microseconds, mostly waiting for memory. Small
tiles, about one per multiprocessor, shorten that, and so does programmatic dependent launch: the next kernel starts
early, prefetches its weights while this one computes, and waits only for this one's outputs.

Tensor cores truncate a float32 to the 10 bits of TF32. Over a hundred layers that would shrink the signal by seven per
cent, so weights are rounded to nearest before the product, and so are a layer's outputs, the next layer's operand.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

SCALE = tl.constexpr(math.sqrt(2.0))
LINE = 128  # bytes of a line of the level-2 cache


class Config(NamedTuple):
    """The tile of outputs that a program computes, neurons by examples, and its launch settings."""

    neurons: int
    examples: int
    summed: int  # inputs of a neuron in one block of the sum
    warps: int
    stages: int  # of the software pipeline


# For batch 250 and width 784 on an H200: 104 tiles, of which two (this layer's and the next's) fit a multiprocessor.
# Constants, because autotuning cannot be captured in a CUDA graph and may choose differently the next time.
FORWARDS = Config(neurons=64, examples=32, summed=32, warps=4, stages=6)
BACKWARDS = Config(neurons=64, examples=32, summed=64, warps=4, stages=4)


@triton.jit
def _prefetch(weight, ENTRIES: tl.constexpr, SHARE: tl.constexpr):
    """Prefetch this program's share of the weights, counted in lines, into the level-2 cache."""
    PER_LINE: tl.constexpr = 1024 // weight.dtype.element_ty.primitive_bitwidth
    program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    entry = tl.minimum((program * SHARE + tl.arange(0, SHARE)) * PER_LINE, ENTRIES - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [weight + entry], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _to_tf32(x, COMPILED: tl.constexpr):
    """Round to nearest, ties away from zero; a NaN stays one."""
    if COMPILED:
        CODE: tl.constexpr = "cvt.rna.tf32.f32 $0, $1;"
        rounded = tl.inline_asm_elementwise(CODE, "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        rounded = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    return rounded


@triton.jit(do_not_specialize=["batch"])
def layer_kernel(
    x, weight, other, out, batch, WIDTH: tl.constexpr, FORWARD: tl.constexpr, COMPILED: tl.constexpr,
    SHARE: tl.constexpr, NEURONS: tl.constexpr, EXAMPLES: tl.constexpr, SUMMED: tl.constexpr,
):  # fmt: skip
    """One layer, forward or backward, from x [batch, WIDTH] to out of the same shape.

    other:     forward the bias [WIDTH]; backward the output of the layer below [batch, WIDTH]
    COMPILED:  whether this runs on a GPU, not in Triton's interpreter
    SHARE:     lines of the weights that each program prefetches; 0 without dependent launch
    """
    ROUNDED: tl.constexpr = x.dtype.element_ty == tl.float32
    AFTER_A_NEURON: tl.constexpr = WIDTH if FORWARD else 1  # strides of the weights
    AFTER_AN_INPUT: tl.constexpr = 1 if FORWARD else WIDTH
    if SHARE > 0:
        _prefetch(weight, WIDTH * WIDTH, SHARE)
        gdc_wait()  # above this line nothing is read that the previous layer writes
        gdc_launch_dependents()  # not earlier: launches would pile up and share the multiprocessors unevenly
    neuron = tl.program_id(0) * NEURONS + tl.arange(0, NEURONS)
    example = tl.program_id(1) * EXAMPLES + tl.arange(0, EXAMPLES)
    # The product is transposed: tensor cores take their left operand, here the weights, from registers, where it can be
    # rounded and may come from rows or columns; the right one must be contiguous along the sum.
    total = tl.zeros((NEURONS, EXAMPLES), dtype=tl.float32)
    for start in range(0, WIDTH, SUMMED):
        k = start + tl.arange(0, SUMMED)
        entry = neuron[:, None] * AFTER_A_NEURON + k[None, :] * AFTER_AN_INPUT
        w = tl.load(weight + entry, mask=(neuron[:, None] < WIDTH) & (k[None, :] < WIDTH), other=0.0)
        inputs = x + example[None, :] * WIDTH + k[:, None]
        v = tl.load(inputs, mask=(example[None, :] < batch) & (k[:, None] < WIDTH), other=0.0)
        if ROUNDED:
            w = _to_tf32(w, COMPILED)
        elif not COMPILED:  # the interpreter cannot multiply bfloat16
            w, v = w.to(tl.float32), v.to(tl.float32)
        total = tl.dot(w, v, total, input_precision="tf32")
    total = tl.trans(total)
    at = example[:, None] * WIDTH + neuron[None, :]
    inside = (example[:, None] < batch) & (neuron[None, :] < WIDTH)
    # torch's elu and its derivative with alpha 0; the comparisons keep NaN.
    if FORWARD:
        total += tl.load(other + neuron, mask=neuron < WIDTH, other=0.0).to(tl.float32)[None, :]
        total = tl.where(total <= 0, 0.0, total * SCALE)
    else:
        below = tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
        total *= tl.where(below <= 0, below, SCALE)
    if ROUNDED:
        total = _to_tf32(total, COMPILED)
    tl.store(out + at, total, mask=inside)


COMPILED = isinstance(layer_kernel, triton.JITFunction)  # False: interpreted (TRITON_INTERPRET=1), for tests


def forward_layer(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, config: Config = FORWARDS) -> None:
    """out = sqrt(2) * max(0, x @ weight.T + bias)"""
    _launch(x, weight, bias, out, True, config)


def backward_layer(delta: Tensor, weight: Tensor, below: Tensor, out: Tensor, config: Config = BACKWARDS) -> None:
    """The gradient of the pre-activations of the layer whose output is `below`, from that of the layer above it."""
    _launch(delta, weight, below, out, False, config)


def _launch(x: Tensor, weight: Tensor, other: Tensor, out: Tensor, forward: bool, config: Config) -> None:
    batch, width = x.shape
    grid = (triton.cdiv(width, config.neurons), triton.cdiv(batch, config.examples))
    share = triton.next_power_of_2(triton.cdiv(weight.nbytes, LINE * grid[0] * grid[1])) if COMPILED else 0
    options: dict[str, Any] = {"launch_pdl": True} if COMPILED else {}
    with torch.cuda.device_of(x):
        layer_kernel[grid](
            x, weight, other, out, batch, WIDTH=width, FORWARD=forward, COMPILED=COMPILED, SHARE=share,
            NEURONS=config.neurons, EXAMPLES=config.examples, SUMMED=config.summed,
            num_warps=config.warps, num_stages=config.stages, **options,
        )  # fmt: skip
