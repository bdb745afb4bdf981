"""Whether Triton kernels can be used."""

from functools import cache
from importlib import import_module

import torch


@cache
def are_compiled(module: str) -> bool:
    """Whether the kernels of a module are compiled for NVIDIA GPUs: not where Triton is missing or interprets them."""
    try:
        return bool(import_module(module).COMPILED) and torch.version.hip is None
    except ImportError:
        return False
