"""How convolutions start, where it is not torch's default."""

from torch import nn


def kaiming_by_fan_out_(network: nn.Module) -> None:
    """Draw every convolution's weights from Kaiming's normal distribution by fan-out, as torchvision's networks do."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
