"""Which parameters a step changes: those with a gradient that are not frozen."""

import torch
from torch import Tensor, nn


def is_frozen(param: Tensor) -> bool:
    """Whether this is a module's parameter that does not require a gradient, whatever its `grad` still holds.

    A plain tensor is not frozen: whoever adds one sets its gradient by hand.
    """
    return not param.requires_grad and isinstance(param, nn.Parameter)


def check_gradient(grad: Tensor, optimizer: str) -> None:
    """Raise RuntimeError for a sparse or complex gradient."""
    if grad.layout != torch.strided or grad.is_complex():
        raise RuntimeError(f"{optimizer} does not support {'complex' if grad.is_complex() else 'sparse'} gradients")
