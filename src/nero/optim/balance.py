"""Balanced neurons (Section 3.1): weights that sum to zero and have Euclidean norm one.

A neuron is a slice of a tensor with two or more dims along one of them, by default along dim 0: a row of a linear
weight, a filter of a convolution, a row of an embedding. Tensors with fewer dims have no neurons, nor have those whose
slices have one entry each, such as gains of shape [channels, 1, 1].

Nothing here reads a tensor's values on the host, so a projection can be captured in a CUDA graph.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from nero.optim.sharding import check_shards, local


def neuron_mean(weight: Tensor, neuron_dim: int = 0) -> Tensor:
    """Mean of each neuron's weights; zero for a balanced neuron."""
    rows = _neurons(weight, neuron_dim)
    return rows.mean(-1) if rows.numel() else rows.new_zeros(rows.shape[0])


def neuron_norm(weight: Tensor, neuron_dim: int = 0) -> Tensor:
    """Euclidean norm of each neuron's weights; one for a balanced neuron."""
    rows = _neurons(weight, neuron_dim)
    if rows.numel() == 0:
        return rows.new_zeros(rows.shape[0])
    unit = _magnitude(rows)
    return unit.squeeze(-1) * _row_norm(rows / unit)


def project(
    rows: Tensor,
    mean: bool = True,
    norm: bool = True,
    dtype: torch.dtype | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """The nearest balanced neurons to a batch of weight vectors [..., fan_in] (last two lines of Algorithm 1).

    A row that already meets the constraints to the precision of `dtype` is returned bit for bit, so projecting twice
    is projecting once. A row that is constant to within rounding, such as every row of fan-in one, would vanish with
    its mean: it keeps its mean and is only normalised. A row of zeros stays as it is.

    Args:
        rows: the weight vectors.
        mean: subtract each row's mean.
        norm: divide each row by its Euclidean norm.
        dtype: to whose precision the result is rounded; by default that of `rows`.
        lengths: norm of each row of the result [...] in place of one; where negative, its largest norm.
    """
    dtype = dtype or rows.dtype
    return project_unrounded(rows, mean, norm, slack(dtype), lengths).to(dtype)


def project_unrounded(rows: Tensor, mean: bool, norm: bool, tolerance: float, lengths: Tensor | None = None) -> Tensor:
    """`project` in the dtype to compute in, given the `slack` of the dtype that the result is for."""
    rows = rows.to(compute_dtype(rows.dtype))
    if rows.numel() == 0 or not (mean or norm):
        return rows

    # Squares of 1e-30 and 1e30 leave the range of float32. Dividing by a power of two costs no rounding.
    unit = _magnitude(rows)
    scaled, unit = rows / unit, unit.squeeze(-1)
    if not mean:
        _, factor = _keep_and_factor(None, _row_norm(scaled), tolerance, lengths, unit)
        return scaled * factor.unsqueeze(-1)

    row_mean = scaled.mean(-1, keepdim=True)
    centred = scaled - row_mean
    # The rounding error of a large mean can exceed a small residual's tolerance; the second pass removes it.
    centred -= centred.mean(-1, keepdim=True)
    # The part of the row along the vector of ones has length |mean| * sqrt(fan_in).
    off_centre, rest = row_mean.squeeze(-1).abs() * math.sqrt(rows.shape[-1]), _row_norm(centred)
    if norm:
        keep, factor = _keep_and_factor(off_centre, rest, tolerance, lengths, unit)
    else:
        keep, factor = torch.minimum(off_centre, rest) <= tolerance * torch.hypot(off_centre, rest), unit
    of_scaled, of_centred = (factor.masked_fill(other, 0).unsqueeze(-1) for other in (~keep, keep))
    # Each row is a multiple of `scaled` or of `centred`, in one pass over all rows; `unit * scaled` is the old row.
    return centred.mul_(of_centred).addcmul_(scaled, of_scaled)


def row_moments(rows: Tensor, mean: bool) -> tuple[Tensor | None, Tensor]:
    """The mean of each row [..., fan_in], if `mean`, and the sum of squares of what remains without it."""
    if not mean:
        return None, squared_norm(rows)
    if rows.device.type == "cpu" or torch.compiler.is_compiling():
        row_mean = rows.mean(-1, keepdim=True)
        return row_mean.squeeze(-1), (rows - row_mean).square_().sum(-1)
    # One pass over the rows. With this correction, the sum of squares is divided by one.
    squares, row_mean = torch.var_mean(rows, dim=-1, correction=rows.shape[-1] - 1)
    return row_mean, squares


def project_turned_(
    matrices: Sequence[Tensor],
    moments: Sequence[tuple[Tensor | None, Tensor]],
    root_fan_in: Tensor,
    tolerance: float,
    lengths: Tensor | None = None,
) -> None:
    """`project` with a norm, in place and in few operations: for rows whose squares are in the range of their dtype.

    Args:
        matrices: [neurons, fan_in], in the dtype to compute in.
        moments: `row_moments` of each; where they have a mean, it is subtracted.
        root_fan_in: square root of the fan-in of each row of all matrices.
        tolerance: the `slack` of the dtype that the result is for.
        lengths: as for `project`, for all rows.
    """
    means = [row_mean for row_mean, _ in moments if row_mean is not None]
    rest = concatenate([squares for _, squares in moments]).sqrt()
    shift = concatenate(means) if means else None
    off_centre = None if shift is None else (root_fan_in * shift).abs()
    keep, factor = _keep_and_factor(off_centre, rest, tolerance, lengths)
    heights = [len(rows) for rows in matrices]
    shifts = shift.masked_fill(keep, 0).unsqueeze(-1).split(heights) if shift is not None else ()
    factors = factor.unsqueeze(-1).split(heights)
    for i, rows in enumerate(matrices):
        if shifts:
            rows.sub_(shifts[i])
        rows.mul_(factors[i])


def round_stochastically(values: Tensor) -> Tensor:
    """float32 rounded to bfloat16, up or down with probabilities that make the expected value exact."""
    bits = values.contiguous().view(torch.int32)
    noise = torch.randint(0, 1 << 16, values.shape, dtype=torch.int32, device=values.device)
    rounded = ((bits + noise) & -(1 << 16)).view(torch.float32)
    # The noise must not turn infinity into NaN.
    return torch.where(values.isfinite(), rounded, values).to(torch.bfloat16)


def project_(
    weight: Tensor, mean: bool = True, norm: bool = True, *, neuron_dim: int | None = 0, mask: Tensor | None = None
) -> Tensor:
    """Balance the neurons of one tensor in place (see `project`); a tensor without neurons does not change.

    `mask`, of the same shape, is zero where the tensor was pruned: entries there are set to zero, and the constraints
    apply to the others.
    """
    if mask is None:
        project_all_([weight], mean=mean, norm=norm, foreach=False, neuron_dim=neuron_dim)
    elif has_neurons(weight, neuron_dim):
        rows, kept = (neurons_first(tensor.detach(), neuron_dim).flatten(1) for tensor in (weight, mask))
        kept = (kept != 0).to(compute_dtype(weight.dtype))
        rows = rows * kept
        for _ in range(2 if mean else 0):  # the second time for the rounding error of a large mean
            rows = (rows - rows.sum(1, keepdim=True) / kept.sum(1, keepdim=True).clamp(min=1)) * kept
        rows = project(rows, mean=False, norm=norm, dtype=weight.dtype)
        target = neurons_first(weight.detach(), neuron_dim)
        target.copy_(rows.view(target.shape))
    return weight


@torch.no_grad()
def project_all_(
    tensors: Iterable[Tensor],
    mean: bool = True,
    norm: bool = True,
    foreach: bool | None = None,
    *,
    neuron_dim: int | None = 0,
) -> None:
    """Balance the neurons of many tensors in place.

    `foreach` projects neurons of one fan-in as one batch; by default on accelerators only.
    """
    if not (mean or norm):
        return
    weights = []
    for tensor in tensors:
        neurons = has_neurons(tensor, neuron_dim)
        check_shards(tensor, "neurons" if neurons else "entries", neuron_dim)
        if neurons and (own := local(tensor)).numel() > 0:
            weights.append(neurons_first(own.detach(), neuron_dim))
    for batch in batches(weights, foreach, [fan_in(weight) for weight in weights]):
        views = [stored_view(weights[i]) for i in batch]
        split_(views, project(concatenate([view.flatten(1) for view in views]), mean=mean, norm=norm))


def use_batches(foreach: bool | None, device: torch.device) -> bool:
    """Whether to update tensors on this device together; by default not on a CPU, where it only costs copies."""
    return device.type != "cpu" if foreach is None else foreach


def batches(tensors: Sequence[Tensor], foreach: bool | None, keys: Sequence[Hashable] | None = None) -> list[list[int]]:
    """The indices of tensors of one dtype, device and key, to be updated together; each alone without `foreach`."""
    lists: dict[Hashable, list[int]] = {}
    for i, tensor in enumerate(tensors):
        key = None if keys is None else keys[i]
        name = (tensor.dtype, tensor.device, key) if use_batches(foreach, tensor.device) else i
        lists.setdefault(name, []).append(i)
    return list(lists.values())


def fan_in(tensor: Tensor, neuron_dim: int = 0) -> int:
    """Number of entries of each neuron."""
    return math.prod(tensor.shape[:neuron_dim]) * math.prod(tensor.shape[neuron_dim:][1:])


def has_neurons(tensor: Tensor, neuron_dim: int | None = 0) -> bool:
    """Whether a tensor has neurons: two or more dims, and slices of more than one entry, which would be gains."""
    return neuron_dim is not None and tensor.ndim >= 2 and fan_in(tensor, neuron_dim) != 1


def neurons_first(tensor: Tensor, neuron_dim: int | None) -> Tensor:
    """A view with the dim of the neurons in front."""
    return tensor.movedim(neuron_dim, 0) if neuron_dim else tensor


def stored_view(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """A view whose dims after the first have the memory order of `like`, by default of the tensor itself.

    The entries of a neuron may be listed in any order. In this one, flattening copies nothing, not even channels_last.
    """
    if tensor.ndim < 3:
        return tensor
    strides = (tensor if like is None else like).stride()
    return tensor.permute(0, *sorted(range(1, tensor.ndim), key=strides.__getitem__, reverse=True))


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """torch.cat along dim 0; a single tensor is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def split_(targets: Sequence[Tensor], batch: Tensor) -> None:
    """Copy the entries of a batch back into the tensors that were concatenated."""
    copy_all_(targets, batch.reshape(-1).split([target.numel() for target in targets]))


def copy_all_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source, which has as many entries, into its target."""
    pairs = zip(sources, targets, strict=True)
    sources = [new if new.shape == old.shape else new.view(old.shape) for new, old in pairs]
    if torch.compiler.is_compiling():
        # For torch._foreach_copy_, torch's compiler generates code that reads a target again after writing it where
        # something else was computed from it too (2.11, on a GPU).
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
    elif targets:
        torch._foreach_copy_(list(targets), sources)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)


def slack(dtype: torch.dtype) -> float:
    """Largest relative deviation from a constraint that counts as meeting it.

    Storing a row in its dtype moves it by up to half an eps. The rest allows for sums computed in float32 or wider:
    most are good to one eps, but where one entry outweighs thousands of others, the norm was off by 8 eps on a CPU and
    by nearly 20 on a GPU.
    """
    return torch.finfo(dtype).eps + 32 * torch.finfo(compute_dtype(dtype)).eps


def row_norm(rows: Tensor) -> Tensor:
    """Norm of each row [..., fan_in], in one pass; `squared_norm` is more exact on a CPU."""
    if torch.compiler.is_compiling():
        return _row_norm(rows)
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norm


def squared_norm(rows: Tensor) -> Tensor:
    """Sum of squares of each row [..., fan_in]."""
    if rows.device.type == "cpu" or torch.compiler.is_compiling():
        # torch.linalg.vector_norm sums sequentially on a CPU: at a fan-in of 5,000 it is off by 6 eps, by 40 where one
        # entry outweighs the others, and this by at most 3. And torch's compiler wrongly takes it for the identity at
        # a fan-in of one; this it fuses into one pass as well.
        return rows.square().sum(-1)
    # One pass over the rows, without a copy of their squares.
    norm: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return norm.square()


def _neurons(weight: Tensor, neuron_dim: int) -> Tensor:
    """The tensor as [neurons, fan_in], in the dtype to compute in."""
    if weight.ndim < 2:
        raise ValueError(f"a tensor with neurons has two or more dims, not the shape {tuple(weight.shape)}")
    return stored_view(neurons_first(weight, neuron_dim)).flatten(1).to(compute_dtype(weight.dtype))


def _magnitude(rows: Tensor) -> Tensor:
    """For each row, the power of two at or below its largest absolute value; one for a row of zeros."""
    largest = torch.linalg.vector_norm(rows, math.inf, dim=-1, keepdim=True)
    mantissa = torch.frexp(largest).mantissa  # in [1/2, 1)
    return torch.where(largest == 0, 1.0, largest / (2 * mantissa))


def _keep_and_factor(
    off_centre: Tensor | None, rest: Tensor, tolerance: float, lengths: Tensor | None, unit: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Whether a row keeps its mean, and the factor that brings it to the norm that it should have (see `project`).

    Args:
        off_centre: norm of the part of each row along the vector of ones; None keeps all means.
        rest: norm of the remainder.
        unit: what the rows have been divided by, by default one.
    """
    size = rest if off_centre is None else torch.hypot(off_centre, rest)
    keep = settled = _has_length(size if unit is None else unit * size, lengths, tolerance)
    if off_centre is not None:
        limit = tolerance * size
        # A row changes entirely or not at all: rescaling a row that is only just centred could bring it outside the
        # tolerance, and a second projection would change it again. Without its mean, a constant row would be rounding
        # noise, or a zero that no multiplicative step can revive. Such a row of norm one gets twice the tolerance:
        # rounding it to norm one may have moved it across the border.
        settled = settled & (torch.minimum(off_centre, rest / 2) <= limit)
        keep = settled | (rest <= limit)
        rest = torch.where(keep, size, rest)
    nonzero = functional.threshold(rest, 0, 1)  # keeps NaN
    if lengths is None:
        factor = nonzero.reciprocal()
    else:
        factor = lengths.abs() / nonzero
        factor = torch.where(lengths < 0, factor.clamp(max=1.0 if unit is None else unit), factor)
    return keep, factor.masked_fill(settled, 1) if unit is None else torch.where(settled, unit, factor)


def _has_length(size: Tensor, lengths: Tensor | None, tolerance: float) -> Tensor:
    """Whether rows of norms `size` [...] have the norm that they should have (see `project`)."""
    if lengths is None:
        return (size - 1).abs() <= tolerance
    wanted = lengths.abs()
    fits = torch.where(lengths < 0, size <= wanted * (1 + tolerance), (size - wanted).abs() <= tolerance * wanted)
    return fits | (size == 0)


def _row_norm(rows: Tensor) -> Tensor:
    return squared_norm(rows).sqrt()
