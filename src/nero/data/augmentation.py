"""Random crop, flip and rotation of a whole batch as one index map, from each new pixel to its source.

For the same parameters the result equals, byte for byte, torchvision's RandomCrop, RandomHorizontalFlip and
RandomRotation in sequence on PIL images, which the paper's code used. Only integers are involved (PIL rotates in fixed
point), so GPU and CPU agree.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 10_000  # images at once: bounds the memory, at about 30 bytes per pixel
ONE = 1 << 16  # of PIL's fixed point


@dataclass(frozen=True)
class Draws:
    """Random parameters of N images, on the CPU."""

    top: Tensor  # int64, the crop's corner in the padded image
    left: Tensor
    flipped: Tensor  # bool
    angles: Tensor  # float64, degrees counter-clockwise


@dataclass(frozen=True)
class Augmentation:
    """Crop after padding by black pixels on each side, flip half of the images, rotate by up to `degrees`.

    Corners that rotate into view are black; pixels are interpolated by nearest neighbour.
    """

    padding: int = 0
    flip: bool = False
    degrees: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise ValueError(f"padding must be a non-negative integer, not {self.padding!r}")
        if not isinstance(self.flip, bool):
            raise ValueError(f"flip must be true or false, not {self.flip!r}")
        if isinstance(self.degrees, bool) or not isinstance(self.degrees, int | float) or not 0 <= self.degrees <= 180:
            raise ValueError(f"degrees must be from 0 to 180, not {self.degrees!r}")

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        """Parameters for `count` images. The same numbers are drawn whichever parts are switched off."""
        corners = torch.randint(2 * self.padding + 1, (2, count), generator=generator)
        chances = torch.rand(count, generator=generator)
        turns = torch.rand(count, generator=generator).double()
        return Draws(
            top=corners[0],
            left=corners[1],
            flipped=(chances < 0.5) & self.flip,
            angles=self.degrees * (2 * turns - 1),
        )

    def __call__(self, images: Tensor, which: Tensor, draws: Draws) -> Tensor:
        """images[which], uint8 [N, channels, side, side], augmented by one entry of `draws` each.

        The result has the memory format of `images`; channels_last is fastest. `which` and `draws` are on the CPU or on
        the device of the images.
        """
        channels, side, width = images.shape[1:]
        if side != width:
            raise ValueError(f"images must be square, not {side} x {width}")
        pixels = images.permute(0, 2, 3, 1).reshape(-1, channels)  # no copy if channels_last
        numbers, turns = (tensor.to(images.device) for tensor in _numbers(draws, self.padding, side))
        which = which.to(images.device)
        result = torch.empty(len(which), side * side, channels, dtype=images.dtype, device=images.device)
        for start in range(0, len(which), CHUNK):
            part = slice(start, start + CHUNK)
            places, inside = _map(side, numbers[:, part], turns[:, part])
            places += which[part, None] * side**2
            torch.mul(pixels[places], inside[:, :, None], out=result[part])
        shaped = result.view(-1, side, side, channels).permute(0, 3, 1, 2)
        last = images.is_contiguous(memory_format=torch.channels_last)
        return shaped if last else shaped.contiguous()


def _numbers(draws: Draws, padding: int, side: int) -> tuple[Tensor, Tensor]:
    """Draws as integers: [3, N] of (down, right, flipped), [6, N] of PIL's fixed-point rotation matrix."""
    moves = torch.stack([draws.top - padding, draws.left - padding, draws.flipped.long()])
    # As in PIL, in float64: the matrix from new to old coordinates about the centre, to 15 decimals; then its value at
    # the centre of the first pixel, in 65,536ths.
    radians = -torch.deg2rad(draws.angles)
    cos, sin = radians.cos().round(decimals=15), radians.sin().round(decimals=15)
    middle = side / 2
    right = cos * -middle + sin * -middle + middle
    down = -sin * -middle + cos * -middle + middle
    matrix = [cos, sin, right + cos * 0.5 + sin * 0.5, -sin, cos, down + -sin * 0.5 + cos * 0.5]
    return moves.int(), torch.stack([(number * ONE + 0.5).floor() for number in matrix]).int()


def _map(side: int, moves: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """For each pixel of each new image, [N, side * side]: its source index (int64), and whether it has one."""
    along = torch.arange(side, dtype=torch.int32, device=moves.device)
    x, y = along.repeat(side), along.repeat_interleave(side)
    xx, xy, x0, yx, yy, y0 = turns[:, :, None]
    down, right, flipped = moves[:, :, None]
    column = (xx * x + xy * y + x0) >> 16
    row = (yx * x + yy * y + y0) >> 16
    inside = (column >= 0) & (column < side) & (row >= 0) & (row < side)
    column = torch.where(flipped.bool(), side - 1 - column, column) + right
    row = row + down
    inside &= (column >= 0) & (column < side) & (row >= 0) & (row < side)
    return torch.where(inside, row * side + column, 0).long(), inside
