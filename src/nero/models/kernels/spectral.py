"""Power iterations of many matrices by three Triton kernels, instead of several kernels for each matrix.

The first multiplies the matrices by their right vectors; the second normalises the products and multiplies the
transposed matrices by them, in chunks of rows; the third adds up the chunks and normalises. All sums are taken in a
fixed order, so results are deterministic.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from nero.optim.triton.pointer_tables import address_table, tile_table

TILE_ROWS, TILE_COLUMNS = 8, 256  # tile of a program of the first kernel, which loops over the columns
CHUNK, BLOCK = 64, 64  # rows and columns of a program of the second kernel
LENGTH_TILE = tl.constexpr(1024)
ROWS, COLUMNS, FIRST_ROW, FIRST_COLUMN, FIRST_SUM = map(tl.constexpr, range(5))
FIELDS = tl.constexpr(5)


@triton.jit
def _matrix(addresses, shapes, number):
    """A pointer to a matrix, and its record in the table of shapes."""
    shape = shapes + number * FIELDS
    rows, columns = tl.load(shape + ROWS), tl.load(shape + COLUMNS)
    first_row, first_column = tl.load(shape + FIRST_ROW), tl.load(shape + FIRST_COLUMN)
    return tl.load(addresses + number).to(tl.pointer_type(tl.float32)), rows, columns, first_row, first_column


@triton.jit
def rows_kernel(tiles, addresses, shapes, v, products, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """products = matrix @ v, for a tile of rows."""
    number, tile = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
    matrix, rows, columns, first_row, first_column = _matrix(addresses, shapes, number)
    row = tile * HEIGHT + tl.arange(0, HEIGHT)
    total = tl.zeros((HEIGHT, WIDTH), dtype=tl.float32)
    start = 0
    while start < columns:  # not range: Triton's interpreter does not take a loaded bound
        column = start + tl.arange(0, WIDTH)
        factor = tl.load(v + first_column + column, mask=column < columns, other=0.0)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        total += factor[None, :] * tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
        start += WIDTH
    tl.store(products + first_row + row, tl.sum(total, 1), mask=row < rows)


@triton.jit
def columns_kernel(
    tiles, addresses, shapes, products, u, sums, eps, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """u = products / |products|; sums = u @ matrix, for a block of columns and a chunk of rows."""
    number, tile = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
    matrix, rows, columns, first_row, _ = _matrix(addresses, shapes, number)
    squares = tl.zeros((LENGTH_TILE,), dtype=tl.float32)
    start = 0
    while start < rows:
        place = start + tl.arange(0, LENGTH_TILE)
        product = tl.load(products + first_row + place, mask=place < rows, other=0.0)
        squares += product * product
        start += LENGTH_TILE
    length = tl.maximum(tl.sqrt_rn(tl.sum(squares, 0)), eps)
    blocks = tl.cdiv(columns, BLOCK)
    chunk, block = tile // blocks, tile % blocks
    row = chunk * CHUNK + tl.arange(0, CHUNK)
    column = block * BLOCK + tl.arange(0, BLOCK)
    own = tl.div_rn(tl.load(products + first_row + row, mask=row < rows, other=0.0), length)
    if block == 0:
        tl.store(u + first_row + row, own, mask=row < rows)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    total = own[:, None] * tl.load(matrix + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    first_sum = tl.load(shapes + number * FIELDS + FIRST_SUM)
    tl.store(sums + first_sum + chunk * columns + column, tl.sum(total, 0), mask=column < columns)


@triton.jit
def lengths_kernel(shapes, sums, v, sigma, eps, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """sigma = |sums|, added up over the chunks of a matrix of at most WIDTH columns; v = sums / sigma."""
    number = tl.program_id(0)
    shape = shapes + number * FIELDS
    rows, columns, first_sum = tl.load(shape + ROWS), tl.load(shape + COLUMNS), tl.load(shape + FIRST_SUM)
    column = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), dtype=tl.float32)
    chunk = 0
    while chunk * CHUNK < rows:
        total += tl.load(sums + first_sum + chunk * columns + column, mask=column < columns, other=0.0)
        chunk += 1
    length = tl.sqrt_rn(tl.sum(total * total, 0))
    tl.store(sigma + number, length)
    own = tl.div_rn(total, tl.maximum(length, eps))
    tl.store(v + tl.load(shape + FIRST_COLUMN) + column, own, mask=column < columns)


COMPILED = isinstance(rows_kernel, triton.JITFunction)  # False: interpreted (TRITON_INTERPRET=1), for tests


@cache
def _tables(shapes: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor, int]:
    """What tells programs their work: the shapes, the tiles of the first two kernels, and the number of sums."""
    records = []
    first_row = first_column = sums = 0
    for rows, columns in shapes:
        records.append([rows, columns, first_row, first_column, sums])
        first_row, first_column = first_row + rows, first_column + columns
        sums += triton.cdiv(rows, CHUNK) * columns
    return (
        torch.tensor(records, dtype=torch.int32).to(device),
        tile_table([triton.cdiv(rows, TILE_ROWS) for rows, _ in shapes], device),
        tile_table([triton.cdiv(rows, CHUNK) * triton.cdiv(columns, BLOCK) for rows, columns in shapes], device),
        sums,
    )


@torch.library.custom_op("nero::iterate", mutates_args=())
def iterate(matrices: list[Tensor], v: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """One power iteration of each matrix: their u, v and sigma, concatenated.

    matrices:  float32, stored row by row; tensors of any shape, whose first dimension is that of the rows
    v:         the right vectors to start from, concatenated
    """
    device = v.device
    shapes = tuple((len(matrix), matrix.numel() // len(matrix)) for matrix in matrices)
    shape_table, row_tiles, column_tiles, sum_count = _tables(shapes, device)
    rows = sum(shape[0] for shape in shapes)
    products, u, new = v.new_empty(rows), v.new_empty(rows), torch.empty_like(v)
    sums, sigma = v.new_empty(sum_count), v.new_empty(len(matrices))
    addresses = address_table([matrix.data_ptr() for matrix in matrices], device)
    width = triton.next_power_of_2(max(columns for _, columns in shapes))
    with torch.cuda.device_of(v):
        rows_kernel[(len(row_tiles),)](
            row_tiles, addresses, shape_table, v, products, HEIGHT=TILE_ROWS, WIDTH=TILE_COLUMNS
        )
        columns_kernel[(len(column_tiles),)](
            column_tiles, addresses, shape_table, products, u, sums, eps, CHUNK=CHUNK, BLOCK=BLOCK
        )
        lengths_kernel[(len(matrices),)](shape_table, sums, new, sigma, eps, CHUNK=CHUNK, WIDTH=width, num_warps=8)
    return u, new, sigma


@iterate.register_fake
def _(matrices: list[Tensor], v: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return v.new_empty(sum(len(matrix) for matrix in matrices)), torch.empty_like(v), v.new_empty(len(matrices))
