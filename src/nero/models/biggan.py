"""The class-conditional GAN of Figure 4, after BigGAN: spectral norm, self-attention, residual blocks.

The authors' class tables have 1,000 rows for CIFAR-10's ten classes, and so do these by default. Unused rows hardly
change, but they count in the mean and norm that Nero constrains (the neurons of the generator's embedding reach over
all rows) and in the largest singular value of spectral norm.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.spectral import Convolution, Embedding, Linear, SpectralLayers, Weights, upsample

CHUNKS, CHUNK = 4, 20  # z is split in chunks: one for the first layer, one for each block's conditional batch norms
Z = CHUNKS * CHUNK
EMBEDDING = 80  # width of a class's embedding in the generator
FIRST_SIDE = 4
OUTPUT_SCALE = 10.0  # factor of the discriminator's output
RUNNING = 0.001  # momentum of the running statistics of conditional batch norm


class Generator(nn.Module):
    """z [N, 80] and labels [N] -> images [N, 3, 32, 32] with pixels from -1 to 1.

    width:          channels of the last block; 64 in the paper
    rows:           of the class table
    norm_bias_std:  standard deviation of the last batch norm's initial biases; 0 starts them at zero
    """

    def __init__(self, width: int = 64, rows: int = 1000, norm_bias_std: float = 0.0) -> None:
        super().__init__()
        self.first_channels, self.rows = 4 * width, rows
        self.embedding = Linear(rows, EMBEDDING)
        self.first = Linear(CHUNK, FIRST_SIDE**2 * self.first_channels)
        self.block1 = UpBlock(4 * width, 4 * width)
        self.block2 = UpBlock(4 * width, 2 * width)
        self.attention = SelfAttention(2 * width)
        self.block3 = UpBlock(2 * width, width)
        self.norm = nn.BatchNorm2d(width)
        self.last = Convolution(width, 3)
        if norm_bias_std:
            nn.init.normal_(self.norm.bias, std=norm_bias_std)
        self.spectral = SpectralLayers(self)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        [weights] = self.spectral.normalised()
        first, *chunks = z.split(CHUNK, dim=1)
        embedded = self.embedding(one_hot(labels, self.rows, z.dtype), weights)
        condition1, condition2, condition3 = (torch.cat([embedded, chunk.to(embedded.dtype)], 1) for chunk in chunks)
        x = self.first(first, weights).unflatten(1, (self.first_channels, FIRST_SIDE, FIRST_SIDE))
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.block1(x, condition1, weights)
        x = self.attention(self.block2(x, condition2, weights), weights)
        x = self.block3(x, condition3, weights)
        return torch.tanh(self.last(F.relu(self.norm(x)), weights))


class UpBlock(nn.Module):
    """Doubles the image's side: two convolutions with conditional batch norm, and a shortcut."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.norm1 = ConditionalBatchNorm(channels)
        self.conv1 = Convolution(channels, filters, resample="up")
        self.norm2 = ConditionalBatchNorm(filters)
        self.conv2 = Convolution(filters, filters)
        self.shortcut = Convolution(channels, filters, kernel=1) if channels != filters else None

    def forward(self, x: Tensor, condition: Tensor, weights: Weights) -> Tensor:
        # A 1 x 1 convolution commutes with upsampling: before it, it is a quarter of the work.
        shortcut = upsample(x if self.shortcut is None else self.shortcut(x, weights))
        out = self.conv1(F.relu(self.norm1(x, condition, weights)), weights)
        return self.conv2(F.relu(self.norm2(out, condition, weights)), weights) + shortcut


class ConditionalBatchNorm(nn.Module):
    """Batch norm whose gain (about one) and bias are linear in the class's embedding and a chunk of z."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, momentum=RUNNING, affine=False)
        self.gain = Linear(EMBEDDING + CHUNK, channels)
        self.bias = Linear(EMBEDDING + CHUNK, channels)

    def forward(self, x: Tensor, condition: Tensor, weights: Weights) -> Tensor:
        gain, bias = (layer(condition, weights)[:, :, None, None] for layer in (self.gain, self.bias))
        return self.norm(x) * (1 + gain) + bias


class SelfAttention(nn.Module):
    """Each pixel attends to the max-pooled pixels; a residual connection without a learnt gain."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels % 8:
            raise ValueError(f"self-attention needs a multiple of 8 channels, not {channels}: a width that 4 divides")
        self.query = Convolution(channels, channels // 8, kernel=1)
        self.key = Convolution(channels, channels // 8, kernel=1)
        self.value = Convolution(channels, channels // 2, kernel=1)
        self.output = Convolution(channels // 2, channels, kernel=1)

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        query = self.query(x, weights).flatten(2)
        key, value = (F.max_pool2d(layer(x, weights), 2).flatten(2) for layer in (self.key, self.value))
        attention = (query.transpose(1, 2) @ key).softmax(dim=-1)  # [N, pixels, pixels / 4]
        mixed = value @ attention.transpose(1, 2).to(value.dtype)
        return x + self.output(mixed.unflatten(2, x.shape[2:]), weights)


class Discriminator(nn.Module):
    """Images [N, 3, 32, 32] and labels [N] -> scores [N]: how real each image looks for its class.

    width:  channels of the first block; 64 in the paper
    rows:   of the class table
    """

    def __init__(self, width: int = 64, rows: int = 1000) -> None:
        super().__init__()
        self.rows = rows
        self.block1 = DiscriminatorBlock(3, width, first=True)
        self.block2 = DiscriminatorBlock(width, 2 * width)
        self.attention = SelfAttention(2 * width)
        self.block3 = DiscriminatorBlock(2 * width, 4 * width)
        self.block4 = DiscriminatorBlock(4 * width, 4 * width, down=False)
        self.score = Linear(4 * width, 1)
        self.classes = Embedding(rows, 4 * width)
        self.spectral = SpectralLayers(self)

    def forward(self, images: Tensor, labels: Tensor, passes: int = 1) -> Tensor:
        """passes: the number of equal parts of the batch that are passed one by one, with a power iteration each."""
        # Here, so that a compiler sees all passes together: a later one changes the singular vectors in place, before
        # the backward pass of an earlier one has used them.
        parts = zip(images.chunk(passes), labels.chunk(passes), self.spectral.normalised(passes), strict=True)
        return torch.cat([self._scores(*part) for part in parts])

    def _scores(self, images: Tensor, labels: Tensor, weights: Weights) -> Tensor:
        x = self.attention(self.block2(self.block1(images, weights), weights), weights)
        x = self.block4(self.block3(x, weights), weights)
        x = F.relu(x).mean(dim=(2, 3), dtype=self.score.weight.dtype)
        # Not in bf16, whose eight bits are few for scores: what counts is their differences.
        with torch.autocast(x.device.type, enabled=False):
            projection = (x * self.classes(one_hot(labels, self.rows, x.dtype), weights)).sum(dim=1)
            return OUTPUT_SCALE * (self.score(x, weights).squeeze(1) + projection)


class DiscriminatorBlock(nn.Module):
    """Two convolutions and a shortcut.

    first:  whether the input is an image, which gets no ReLU
    down:   whether to halve the image's side by averaging; else input and output have the same shape
    """

    def __init__(self, channels: int, filters: int, first: bool = False, down: bool = True) -> None:
        super().__init__()
        self.first = first
        self.conv1 = Convolution(channels, filters)
        self.conv2 = Convolution(filters, filters, resample="down" if down else None)
        self.shortcut = Convolution(channels, filters, kernel=1) if down else None

    def forward(self, x: Tensor, weights: Weights) -> Tensor:
        out = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x), weights)), weights)
        # A 1 x 1 convolution commutes with averaging: after it, it is a quarter of the work.
        return out + (x if self.shortcut is None else self.shortcut(F.avg_pool2d(x, 2), weights))


def one_hot(labels: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """[N, rows] by a comparison, which a compiler fuses with what follows; torch's own writes int64 first."""
    return (labels[:, None] == torch.arange(rows, device=labels.device)).to(dtype)
