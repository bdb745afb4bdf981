#!/usr/bin/env python3
"""Bytes of optimiser state for the networks of the paper, after one step on a CPU.

    python -m benchmarks.state_memory [--sets resnet50 pong] [--out results/tables/state_memory.md]

The default is every set but `billion`, which needs about 25 GB.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.optim import SGD, Adam, Optimizer

from benchmarks.parameter_sets import PARAMETER_SETS, Shape
from benchmarks.tables import column_heads
from nero.atomic import write_atomic
from nero.optim import LAMB, Nero
from nero.plans.config import ROOT
from nero.report.tables.sheets import markdown_line

OPTIMISERS: dict[str, Callable[..., Optimizer]] = {
    "Nero": Nero,
    "SGD": partial(SGD, lr=0.01),
    "SGD, momentum": partial(SGD, lr=0.01, momentum=0.9),
    "Adam": Adam,
    "LAMB": partial(LAMB, betas=(0.9, 0.999)),
    "LAMB, β₁ = 0": partial(LAMB, betas=(0.0, 0.999)),
}
CAPTION = (
    "Bytes of all tensors in `optimizer.state` after one step in float32, with step counters and scales, without "
    "parameters and gradients. Made by `benchmarks/state_memory.py`."
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [name for name in PARAMETER_SETS if name != "billion"]
    parser.add_argument("--sets", nargs="+", choices=list(PARAMETER_SETS), default=default, metavar="SET")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "tables" / "state_memory.md", metavar="FILE")
    options = parser.parse_args(arguments)
    text = table(options.sets)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(options.out, text.encode())
    print(text, end="")


def table(names: Sequence[str]) -> str:
    """Markdown with a row per parameter set."""
    head = ["network", "tensors", "parameters", "bytes of parameters", *OPTIMISERS, "Nero / Adam"]
    lines = ["# Optimiser state in bytes", "", *column_heads(head, numbers=range(1, len(head)))]
    for name in names:
        shapes, parameters = PARAMETER_SETS[name].shapes(), PARAMETER_SETS[name].parameters()
        state = {optimiser: state_bytes(make, shapes) for optimiser, make in OPTIMISERS.items()}
        counts = [len(shapes), parameters, 4 * parameters, *state.values()]
        share = f"{100 * state['Nero'] / state['Adam']:.3f} %"
        lines.append(markdown_line([name, *(f"{count:,}" for count in counts), share]))
    networks = [f"- {name}: {PARAMETER_SETS[name].description}" for name in names]
    return "\n".join([*lines, "", CAPTION, "", *networks, ""])


def state_bytes(make: Callable[..., Optimizer], shapes: Sequence[Shape]) -> int:
    """Bytes of all state tensors of an optimiser of float32 parameters after its first step."""
    params = [torch.ones(shape) for shape in shapes]  # not zeros, whose neurons have further state
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer = make(params)
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values()]
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))


if __name__ == "__main__":
    main()
