"""The arithmetic of a run: fp32 (the paper's), tf32 matrix products on a GPU, or bf16 autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def set_precision(precision: str) -> None:
    """Set all of torch's process-wide switches, whatever an earlier run has set."""
    exact = precision == "fp32"
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context for forward passes."""
    if precision != "bf16":
        return nullcontext()
    # No weight cache: a cached copy from an eager step would be stale inside a captured one.
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
