"""Compile the kernels for a GPU that need not be there: `python compile_kernels.py nvidia cuda 90 32`.

The first word is a backend of Triton; the others are the target. Prints what was compiled, or why nothing could be.
"""

import sys
from itertools import product
from typing import Any

import triton
from triton import language as tl
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nero.optim.triton.lamb_kernels import lamb_kernel
from nero.optim.triton.lamb_launch import LAMBTensors
from nero.optim.triton.madam_kernels import madam_kernel
from nero.optim.triton.madam_launch import MadamTensors
from nero.optim.triton.nero_kernels import nero_kernel
from nero.optim.triton.nero_launch import ALIGNED, ENTRIES, LONG, NARROW, WIDE

TABLES = {
    "items": "*i32",
    "tiles": "*i32",
    "tensors": "*i64",
    "grads": "*i64",
    "totals": "*fp64",
    "states": "*i32",
    "arrivals": "*i32",
    "long_arrivals": "*i32",
    "held": "i32",
    "patience": "i32",
}


def compile_kernel(kernel: Any, target: GPUTarget, warps: int, sums: str, **constants: Any) -> None:
    types = {**TABLES, "sums": sums, "lr": "*fp32" if constants["LR_IN_TENSOR"] else "fp32"}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "fp32") for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    triton.compile(ASTSource(kernel, signature, places, aligned), target=target, options={"num_warps": warps})
    print(kernel.__name__, {name: str(value) for name, value in constants.items()})


def main(backend: str, name: str, architecture: str, warp_size: str) -> None:
    if backend not in backends:
        print(f"missing: {backend}")
        return
    target = GPUTarget(name, int(architecture) if architecture.isdigit() else architecture, int(warp_size))
    for dtype, option in product((tl.float32, tl.bfloat16), (False, True)):
        common: dict[str, Any] = {"DTYPE": dtype, "LR_IN_TENSOR": option}
        compile_kernel(madam_kernel, target, MadamTensors.warps, "", TILE=MadamTensors.tile, **common)
        momentum = {"MOMENTUM": not option, "DEBIAS": option}
        compile_kernel(lamb_kernel, target, LAMBTensors.warps, "*fp32", TILE=LAMBTensors.tile, **momentum, **common)
        for size, kinds in ((NARROW, (4, 6 + ALIGNED, 11 + ALIGNED, ENTRIES)), (WIDE, (13, 12 + ALIGNED, LONG))):
            switches = {"LENGTHS": option, "MEAN": not option, "NORM": True, "STOCHASTIC": option}
            bits = sum(1 << kind for kind in kinds)
            if dtype == tl.float32:
                switches["STOCHASTIC"] = False
            compile_kernel(nero_kernel, target, size.warps, "*fp64", TILE=size.tile, KINDS=bits, **switches, **common)


main(*sys.argv[1:])
