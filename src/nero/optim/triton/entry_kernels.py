"""Tiles of a tensor in memory, for kernels that go through tensors entry by entry."""

import triton
import triton.language as tl

from nero.optim.triton import entry_tables as tables

# A kernel sees only those globals that are constexpr. Columns of the table of tensors, in the order of `entry_tables`.
WEIGHT, AVERAGE, OTHER, STEP, COUNT, ALIGNED, FIRST_TILE, TILES = map(tl.constexpr, range(8))
COLUMNS = tl.constexpr(tables.COLUMNS)
NONE = tl.constexpr("")


@triton.jit
def is_full(record, tile, TILE: tl.constexpr):
    """Whether a tile is full and aligned, so that every thread can move 16 bytes at a time and needs no mask."""
    return (tl.load(record + ALIGNED) != 0) & ((tile + 1).to(tl.int64) * TILE <= tl.load(record + COUNT))


@triton.jit
def entries(address, tile, dtype: tl.constexpr, TILE: tl.constexpr, FULL: tl.constexpr):
    """Pointers to the entries of a tile of the tensor at an address."""
    if FULL:
        # Another value than the address, so that its declared alignment applies here only.
        base = tl.multiple_of((address // 16 * 16).to(tl.pointer_type(dtype)), 16)
    else:
        base = address.to(tl.pointer_type(dtype))
    return base + tile.to(tl.int64) * TILE + tl.arange(0, TILE)


@triton.jit
def within(record, tile, TILE: tl.constexpr):
    """Which entries of a tile are within the tensor."""
    return tl.arange(0, TILE) < tl.load(record + COUNT) - tile.to(tl.int64) * TILE


@triton.jit
def read(pointers, inside, FULL: tl.constexpr, POLICY: tl.constexpr = NONE):
    """The entries of a tile in float32, zero outside of the tensor."""
    if FULL:
        return tl.load(pointers, eviction_policy=POLICY).to(tl.float32)
    else:
        return tl.load(pointers, mask=inside, other=0.0, eviction_policy=POLICY).to(tl.float32)


@triton.jit
def write(pointers, values, inside, FULL: tl.constexpr, POLICY: tl.constexpr = NONE):
    values = values.to(pointers.dtype.element_ty)
    if FULL:
        tl.store(pointers, values, eviction_policy=POLICY)
    else:
        tl.store(pointers, values, mask=inside, eviction_policy=POLICY)
