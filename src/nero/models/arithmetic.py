"""What matrix products are computed in."""

import torch
from torch import Tensor


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Autocast's dtype where it is on for the tensor's device, else the tensor's own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype
