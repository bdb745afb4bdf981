"""ResNet-18 for images of 32 x 32 pixels: a 3 x 3 convolution as stem instead of a 7 x 7 one, and no max-pool."""

import torch.nn.functional as F
from torch import Tensor, nn

STAGES, BLOCKS = 4, 2  # residual blocks of each stage; a new stage doubles the filters and halves the image


class ResNet18(nn.Module):
    """Images [N, 3, 32, 32] -> logits [N, classes].

    width:      filters of the first stage; 64 in the paper
    fan_out:    whether convolutions start from Kaiming's normal distribution by fan-out, as the authors' do, instead of
                torch's default, whose weights are less than half as large in most layers
    stem_relu:  whether a ReLU follows the stem's batch norm; the paper's network has none
    """

    def __init__(self, classes: int = 10, width: int = 64, fan_out: bool = False, stem_relu: bool = True) -> None:
        super().__init__()
        self.stem_relu = stem_relu
        self.stem = nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, channels = [], width
        for number in range(STAGES * BLOCKS):
            filters = width * 2 ** (number // BLOCKS)
            blocks.append(Block(channels, filters, stride=filters // channels))
            channels = filters
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)
        if fan_out:
            kaiming_by_fan_out_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        if self.stem_relu:
            x = F.relu_(x)
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if (channels, stride) != (filters, 1):
            projection = nn.Conv2d(channels, filters, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu_(self.norm1(self.conv1(x)))
        return F.relu_(self.norm2(self.conv2(out)) + self.shortcut(x))


def kaiming_by_fan_out_(network: nn.Module) -> None:
    """Draw every convolution's weights from Kaiming's normal distribution by fan-out, as torchvision's networks do."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
