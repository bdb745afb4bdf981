"""Crops and resizes images of different sizes by torch's antialiased bilinear filter: one Triton kernel.

Each program computes a tile. It reads the filter's taps directly from the decoded image, rows and columns in one pass;
neighbouring pixels share them through the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 16, 32  # output pixels of a tile: a warp reads along a row
FIELDS = tl.constexpr(6)  # of an image in the table


@triton.jit
def _triangles(place, length, SIZE: tl.constexpr):
    """Along one axis, for output pixels: the triangle's centre in the input, its first input pixel, the number of input
    pixels that it covers at most, and its slope."""
    scale = length.to(tl.float32) / SIZE
    reach = tl.maximum(scale, 1.0)
    # A tile may extend over the edge: results there are not stored, but the reads must be valid.
    middle = (tl.minimum(place, SIZE - 1).to(tl.float32) + 0.5) * scale
    first = tl.maximum((middle - reach + 0.5).to(tl.int32), 0)
    return middle, first, 2 * ((length + SIZE - 1) // SIZE) + 1, 1.0 / reach


@triton.jit
def _level(total, weights):
    """The average as one of 256 levels, rounded to nearest."""
    return tl.minimum((total / weights + 0.5).to(tl.int32), 255).to(tl.uint8)


@triton.jit
def _crop(table, result, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    ACROSS: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS
    DOWN: tl.constexpr = (SIZE + ROWS - 1) // ROWS
    PIXELS: tl.constexpr = ROWS * COLUMNS
    image = tl.program_id(0) // (ACROSS * DOWN)
    tile = tl.program_id(0) % (ACROSS * DOWN)
    record = table + image * FIELDS
    pixels = tl.load(record).to(tl.pointer_type(tl.uint8))
    channel_stride = tl.load(record + 1)
    row_stride = tl.load(record + 2)
    column_stride = tl.load(record + 3)
    height = tl.load(record + 4).to(tl.int32)
    width = tl.load(record + 5).to(tl.int32)

    # One dimension, so that Triton assigns neighbours in a row to neighbouring threads.
    lane = tl.arange(0, PIXELS)
    row = tile // ACROSS * ROWS + lane // COLUMNS
    column = tile % ACROSS * COLUMNS + lane % COLUMNS
    row_middle, first_row, row_taps, row_slope = _triangles(row, height, SIZE)
    column_middle, first_column, column_taps, column_slope = _triangles(column, width, SIZE)
    red = tl.zeros([PIXELS], tl.float32)
    green = tl.zeros([PIXELS], tl.float32)
    blue = tl.zeros([PIXELS], tl.float32)
    weights = tl.zeros([PIXELS], tl.float32)
    i = row_taps * 0
    while i < row_taps:  # not a range, whose bounds Triton's interpreter needs in advance
        y = first_row + i
        row_weight = tl.maximum(1.0 - tl.abs(y.to(tl.float32) + 0.5 - row_middle) * row_slope, 0.0)
        start = pixels + y.to(tl.int64) * row_stride
        j = column_taps * 0
        while j < column_taps:
            x = first_column + j
            weight = row_weight * tl.maximum(1.0 - tl.abs(x.to(tl.float32) + 0.5 - column_middle) * column_slope, 0.0)
            inside = (y < height) & (x < width)
            weight = tl.where(inside, weight, 0.0)
            place = start + x.to(tl.int64) * column_stride
            red += weight * tl.load(place, mask=inside, other=0).to(tl.float32)
            green += weight * tl.load(place + channel_stride, mask=inside, other=0).to(tl.float32)
            blue += weight * tl.load(place + 2 * channel_stride, mask=inside, other=0).to(tl.float32)
            weights += weight
            j += 1
        i += 1

    stored = (row < SIZE) & (column < SIZE)
    pixel = result + (image.to(tl.int64) * (SIZE * SIZE) + row * SIZE + column) * 3
    tl.store(pixel, _level(red, weights), mask=stored)
    tl.store(pixel + 1, _level(green, weights), mask=stored)
    tl.store(pixel + 2, _level(blue, weights), mask=stored)


COMPILED = isinstance(_crop, triton.JITFunction)  # else it is interpreted (TRITON_INTERPRET=1), for tests


def crop_and_resize(table: Tensor, size: int) -> Tensor:
    """uint8 [n, 3, size, size] in channels_last format, on the table's device.

    table: int64 [n, 6]: pointer to a window's first pixel; strides of channels, rows and columns in bytes; the window's
           height and width. Nothing is checked here.
    """
    result = torch.empty(len(table), size, size, 3, dtype=torch.uint8, device=table.device)
    tiles = triton.cdiv(size, ROWS) * triton.cdiv(size, COLUMNS)
    if len(table):
        with torch.cuda.device_of(table):
            _crop[(len(table) * tiles,)](table, result, SIZE=size, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4)
    return result.permute(0, 3, 1, 2)
