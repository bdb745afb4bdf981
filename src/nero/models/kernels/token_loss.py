"""Loss and gradient of a row of logits in one Triton program, which reads the row for its sum and then overwrites it.

The second read comes from the level-2 cache, so each logit is loaded from and stored to memory once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LONG_ROW = 16_384  # logits from which on a program takes larger blocks
LOWEST = tl.constexpr(-1e30)  # below any logit, but finite: a difference of infinities would be NaN


@triton.jit
def _row(
    logits, targets, losses, nlls, smoothing, ignore_index,
    VOCABULARY: tl.constexpr, COLUMNS: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * COLUMNS
    target = tl.load(targets + row)
    offsets = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        tl.store(nlls + row, 0.0)
        if GRADIENT:
            for first in range(0, COLUMNS, BLOCK):
                column = first + offsets
                tl.store(start + column, tl.zeros([BLOCK], logits.dtype.element_ty), mask=column < COLUMNS)
    else:
        # Online softmax: each lane keeps its greatest logit, and its sum of exponentials relative to that.
        greatest = tl.full([BLOCK], LOWEST, tl.float32)
        exponentials = tl.zeros([BLOCK], tl.float32)
        plain = tl.zeros([BLOCK], tl.float32)
        for first in range(0, VOCABULARY, BLOCK):
            column = first + offsets
            inside = column < VOCABULARY
            x = tl.load(start + column, mask=inside, other=LOWEST).to(tl.float32)
            higher = tl.maximum(greatest, x)
            exponentials = exponentials * tl.exp(greatest - higher) + tl.where(inside, tl.exp(x - higher), 0.0)
            plain += tl.where(inside, x, 0.0)
            greatest = higher
        top = tl.max(greatest, axis=0)
        total = top + tl.log(tl.sum(exponentials * tl.exp(greatest - top), axis=0))
        nll = total - tl.load(start + target).to(tl.float32)
        even = total - tl.sum(plain, axis=0) / VOCABULARY
        tl.store(nlls + row, nll)
        tl.store(losses + row, (1.0 - smoothing) * nll + tl.where(smoothing > 0.0, smoothing * even, 0.0))
        if GRADIENT:
            for first in range(0, COLUMNS, BLOCK):
                column = first + offsets
                x = tl.load(start + column, mask=column < VOCABULARY, other=LOWEST).to(tl.float32)
                wanted = smoothing / VOCABULARY + tl.where(column == target, 1.0 - smoothing, 0.0)
                slope = tl.where(column < VOCABULARY, tl.exp(x - total) - wanted, 0.0)
                tl.store(start + column, slope.to(logits.dtype.element_ty), mask=column < COLUMNS)


COMPILED = isinstance(_row, triton.JITFunction)  # False: interpreted (TRITON_INTERPRET=1), for tests


def to_gradient_(
    logits: Tensor, vocabulary: int, targets: Tensor, smoothing: float, ignore_index: int, gradient: bool
) -> tuple[Tensor, Tensor]:
    """`nero.models.token_loss._to_gradient_` for contiguous logits of at most 32 bits."""
    rows, columns = logits.shape
    block, warps = (4096, 16) if columns > LONG_ROW else (2048, 8)  # measured on an H200
    losses, nlls = torch.empty(2, rows, dtype=torch.float32, device=logits.device).unbind()
    if rows:
        with torch.cuda.device_of(logits):
            _row[(rows,)](
                logits, targets, losses, nlls, smoothing, ignore_index,
                VOCABULARY=vocabulary, COLUMNS=columns, GRADIENT=gradient, BLOCK=block, num_warps=warps,
            )  # fmt: skip
    return losses, nlls
