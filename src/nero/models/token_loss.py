"""Cross entropy over a large vocabulary, from features to a sum over tokens, with one copy of the logits in memory.

Logits are by far the largest tensor of a language model. Here they are written once by the output layer and turned in
place into their own gradient while the loss is taken; what is left for the backward pass are two matrix products.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nero.models.arithmetic import product_dtype
from nero.models.kernels.compiled import are_compiled

NO_TARGET = -1
"""The target of a token that does not count."""

ALIGNMENT = 8
"""Tensor cores are fed 16 bytes at a time. A vocabulary that no such piece divides (9,521 types, or 33,278) takes them
three times as long, so that on a GPU logits get columns to fill up the last piece."""


PIECE = 512
"""Columns that the rows' gradient is summed over at once in float32 or TF32. cuBLAS sums over all of them, tens of
thousands, on too few of a GPU's multiprocessors: in pieces it took 0.63 of the time on an H200 that
was not idle otherwise. In bf16 it needs no help."""


class TokenLoss(NamedTuple):
    """Sums over the tokens that count."""

    loss: Tensor  # what is minimised
    surprise: Tensor  # the negative log likelihood alone, without smoothing: what perplexity is made of; no gradient


def token_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    ignored: int = NO_TARGET,
) -> TokenLoss:
    """Cross entropy of softmax(features @ weight.T + bias), as F.cross_entropy with reduction="sum" defines it.

    features:   [..., width]; weight [vocabulary, width]; bias [vocabulary] or None; targets [...]
    smoothing:  share of each target's weight that is spread evenly over the vocabulary
    ignored:    targets of this value do not count

    On a GPU the work on logits is one Triton kernel. Products are in autocast's dtype where it is on; the softmax never
    in less than float32.
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be from 0 to below 1, not {smoothing}")
    rows = features.reshape(-1, features.shape[-1])
    gradient = torch.is_grad_enabled()  # inside of the function it never is
    return TokenLoss(*_TokenLoss.apply(rows, weight, bias, targets.reshape(-1), smoothing, ignored, gradient))


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        ignored: int,
        gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        device = rows.device.type
        dtype = product_dtype(weight)
        vocabulary = len(weight)
        columns = _columns(vocabulary, dtype) if _use_kernels(rows, dtype) else vocabulary
        x, w = rows.to(dtype), _with_rows(weight, columns, dtype)
        with torch.autocast(device, enabled=False):
            logits = torch.mm(x, w.t()) if bias is None else torch.addmm(_with_rows(bias, columns, dtype), x, w.t())
            needs = gradient and any(ctx.needs_input_grad)
            losses, surprises = _to_gradient_(logits, vocabulary, targets, smoothing, ignored, needs)
        if needs:
            ctx.save_for_backward(x, w, logits)
            ctx.vocabulary = vocabulary
            ctx.kinds = rows.dtype, weight.dtype, None if bias is None else bias.dtype
        surprise = surprises.sum()
        ctx.mark_non_differentiable(surprise)
        return losses.sum(), surprise

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, w, gradient = ctx.saved_tensors
        for_rows, for_weight, for_bias = ctx.kinds
        needs_rows, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        # The factor goes to what is small, never over the gradient of the logits.
        factor = grad.to(x.dtype)
        return (
            (_product(gradient, w) * factor).to(for_rows) if needs_rows else None,
            torch.mm(gradient.t(), x * factor)[: ctx.vocabulary].to(for_weight) if needs_weight else None,
            gradient.sum(dim=0, dtype=for_bias)[: ctx.vocabulary] * grad if needs_bias else None,
            None,
            None,
            None,
            None,
        )


def _columns(vocabulary: int, dtype: torch.dtype) -> int:
    """Of the logits on a GPU."""
    unit = PIECE if dtype == torch.float32 else ALIGNMENT
    return -(-vocabulary // unit) * unit


def _product(gradient: Tensor, weight: Tensor) -> Tensor:
    """gradient @ weight, summed over pieces of the vocabulary where that is faster."""
    pieces, rest = divmod(len(weight), PIECE)
    if rest or gradient.dtype != torch.float32 or not gradient.is_cuda:
        return torch.mm(gradient, weight)
    return by_pieces(gradient, weight, pieces)


def by_pieces(gradient: Tensor, weight: Tensor, pieces: int) -> Tensor:
    """gradient [rows, columns] @ weight [columns, width] as a sum of so many products, without a copy of either."""
    parts = gradient.unflatten(1, (pieces, -1)).transpose(0, 1)
    return torch.bmm(parts, weight.unflatten(0, (pieces, -1))).sum(dim=0)


def _with_rows(tensor: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The tensor in this dtype, with as many rows, those that it has not being zero."""
    missing = rows - len(tensor)
    if not missing:
        return tensor.to(dtype)
    longer = tensor.new_empty(rows, *tensor.shape[1:], dtype=dtype)
    longer[:-missing].copy_(tensor)
    longer[-missing:].zero_()
    return longer


def _to_gradient_(
    logits: Tensor, vocabulary: int, targets: Tensor, smoothing: float, ignored: int, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and surprise of each row; logits [rows, columns] become the loss's gradient if that is asked for.

    Columns beyond the vocabulary have no part in the loss; their gradient is zero.
    """
    if _use_kernels(logits, logits.dtype):
        from nero.models.kernels import token_loss as token_loss_kernels

        return token_loss_kernels.to_gradient_(logits, vocabulary, targets, smoothing, ignored, gradient)
    counts = targets != ignored
    places = targets.where(counts, 0)[:, None]
    exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    total = exact.logsumexp(dim=1)
    surprises = total - exact.gather(1, places).squeeze(1)
    losses = surprises
    if smoothing:
        losses = (1 - smoothing) * surprises + smoothing * (total - exact.mean(dim=1))
    # Not a product: a row that does not count may hold anything, even NaN.
    losses, surprises = losses.where(counts, 0.0), surprises.where(counts, 0.0)
    if gradient:
        exact.sub_(total[:, None]).exp_()
        if smoothing:
            exact.sub_(smoothing / vocabulary)
        exact.scatter_add_(1, places, exact.new_full(places.shape, smoothing - 1))
        exact.masked_fill_(~counts[:, None], 0.0)
        if exact is not logits:
            logits.copy_(exact)
    return losses, surprises


def _use_kernels(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether `token_loss_kernels` takes logits of this dtype where the tensor is."""
    return tensor.is_cuda and dtype != torch.float64 and are_compiled("nero.models.kernels.token_loss")
