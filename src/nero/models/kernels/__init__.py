"""Triton kernels of the networks, and the conditions under which they are used."""

from functools import cache
from importlib import import_module

import torch
from torch import Tensor


@cache
def are_compiled(module: str) -> bool:
    """Whether a module's kernels are compiled for NVIDIA GPUs: False if Triton is missing or interprets them."""
    try:
        return bool(import_module(module).COMPILED) and torch.version.hip is None
    except ImportError:
        return False


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's if it is enabled for the tensor's device, else the tensor's own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
