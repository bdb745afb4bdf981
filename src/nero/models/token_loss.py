"""Cross entropy over a large vocabulary, from features to a sum over tokens, with one copy of the logits in memory.

Logits are by far the largest tensor of a language model. The output layer writes them once, and the loss turns them in
place into their own gradient. The backward pass is then two matrix products.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nero.models.kernels import are_compiled, product_dtype

IGNORE_INDEX = -1  # the target of a token that does not count

# Tensor cores take 16 bytes at a time. A vocabulary that this does not divide (9,521 or 33,278 types) is three times as
# slow, so on a GPU the logits are padded with columns.
ALIGNMENT = 8
# Columns per product in the features' gradient in float32 or TF32. cuBLAS sums over tens of thousands of columns on too
# few of a GPU's multiprocessors; split-K took 0.63 of the time on an H200. bf16 needs no help.
SPLIT = 512


class TokenLoss(NamedTuple):
    """Sums over the tokens that count."""

    loss: Tensor  # to be minimised
    nll: Tensor  # negative log likelihood without label smoothing, for perplexities; has no gradient


def token_loss(
    features: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float = 0.0,
    ignore_index: int = IGNORE_INDEX,
) -> TokenLoss:  # fmt: skip
    """Cross entropy of softmax(features @ weight.T + bias), as F.cross_entropy with reduction="sum" defines it.

    features:      [..., width]; weight [vocabulary, width]; bias [vocabulary] or None; targets [...]
    smoothing:     label smoothing: the share of each target that is spread evenly over the vocabulary
    ignore_index:  targets of this value do not count

    On a GPU one Triton kernel works on the logits. Products are in autocast's dtype if it is enabled, the softmax in
    float32 at least.
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be at least 0 and below 1, not {smoothing}")
    rows = features.reshape(-1, features.shape[-1])
    gradient = torch.is_grad_enabled()  # it never is inside the function
    return TokenLoss(*_TokenLoss.apply(rows, weight, bias, targets.reshape(-1), smoothing, ignore_index, gradient))


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
        ignore_index: int, gradient: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype, vocabulary = product_dtype(weight), len(weight)
        unit = 1
        if _use_kernels(rows, dtype):
            unit = SPLIT if dtype == torch.float32 else ALIGNMENT
        columns = -(-vocabulary // unit) * unit
        x, w = rows.to(dtype), _pad_rows(weight, columns, dtype)
        with torch.autocast(rows.device.type, enabled=False):
            logits = torch.mm(x, w.t()) if bias is None else torch.addmm(_pad_rows(bias, columns, dtype), x, w.t())
            needs = gradient and any(ctx.needs_input_grad)
            losses, nlls = _to_gradient_(logits, vocabulary, targets, smoothing, ignore_index, needs)
        if needs:
            ctx.save_for_backward(x, w, logits)
            ctx.vocabulary = vocabulary
            ctx.dtypes = rows.dtype, weight.dtype, None if bias is None else bias.dtype
        nll = nlls.sum()
        ctx.mark_non_differentiable(nll)
        return losses.sum(), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, w, gradient = ctx.saved_tensors
        rows_dtype, weight_dtype, bias_dtype = ctx.dtypes
        needs_rows, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        parts, rest = divmod(len(w), SPLIT)
        if rest or gradient.dtype != torch.float32 or not gradient.is_cuda:
            parts = 1
        factor = grad.to(x.dtype)  # applied to small tensors, never to the gradient of the logits
        return (
            (split_k_product(gradient, w, parts) * factor).to(rows_dtype) if needs_rows else None,
            torch.mm(gradient.t(), x * factor)[: ctx.vocabulary].to(weight_dtype) if needs_weight else None,
            gradient.sum(dim=0, dtype=bias_dtype)[: ctx.vocabulary] * grad if needs_bias else None,
            *[None] * 4,
        )


def split_k_product(gradient: Tensor, weight: Tensor, parts: int) -> Tensor:
    """gradient [rows, columns] @ weight [columns, width] as a sum of `parts` products, without a copy of either."""
    if parts == 1:
        return torch.mm(gradient, weight)
    split = gradient.unflatten(1, (parts, -1)).transpose(0, 1)
    return torch.bmm(split, weight.unflatten(0, (parts, -1))).sum(dim=0)


def _pad_rows(tensor: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The tensor in this dtype, with rows of zeros appended."""
    if len(tensor) == rows:
        return tensor.to(dtype)
    padded = tensor.new_empty(rows, *tensor.shape[1:], dtype=dtype)
    padded[: len(tensor)].copy_(tensor)
    padded[len(tensor) :].zero_()
    return padded


def _to_gradient_(
    logits: Tensor, vocabulary: int, targets: Tensor, smoothing: float, ignore_index: int, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Loss and negative log likelihood of each row; with `gradient`, logits [rows, columns] become the loss's gradient.

    Columns beyond the vocabulary do not count; their gradient is zero.
    """
    if _use_kernels(logits, logits.dtype):
        from nero.models.kernels.token_loss import to_gradient_

        return to_gradient_(logits, vocabulary, targets, smoothing, ignore_index, gradient)
    counts = targets != ignore_index
    columns = targets.where(counts, 0)[:, None]
    exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    total = exact.logsumexp(dim=1)
    nlls = total - exact.gather(1, columns).squeeze(1)
    losses = nlls
    if smoothing:
        losses = (1 - smoothing) * nlls + smoothing * (total - exact.mean(dim=1))
    # Not a product: a row that does not count may hold anything, even NaN.
    losses, nlls = losses.where(counts, 0.0), nlls.where(counts, 0.0)
    if gradient:
        exact.sub_(total[:, None]).exp_()
        if smoothing:
            exact.sub_(smoothing / vocabulary)
        exact.scatter_add_(1, columns, exact.new_full(columns.shape, smoothing - 1))
        exact.masked_fill_(~counts[:, None], 0.0)
        if exact is not logits:
            logits.copy_(exact)
    return losses, nlls


def _use_kernels(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether the Triton kernels take logits of this dtype on the tensor's device."""
    return tensor.is_cuda and dtype != torch.float64 and are_compiled("nero.models.kernels.token_loss")
