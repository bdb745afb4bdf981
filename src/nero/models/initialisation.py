"""How layers start, where it is not torch's default."""

import torch
from torch import Tensor, nn


def kaiming_by_fan_out_(network: nn.Module) -> None:
    """Draw every convolution's weights from Kaiming's normal distribution by fan-out, as torchvision's networks do."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def orthogonal_(weight: Tensor) -> None:
    """As `nn.init.orthogonal_`, by one thread.

    The decomposition behind it is of small matrices: several threads take ten times as long where other processes want
    the cores as well.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        nn.init.orthogonal_(weight)
    finally:
        torch.set_num_threads(threads)
