"""Batch norm over parts of a batch, whoever holds them.

Where a batch is spread over GPUs, batch norm usually sees what lies on its own: the paper's ResNet-50 had 100 of 400
images on each of four. How many there are then changes what is computed. Here the number of parts is a setting of the
network, and parts are the same images however many processes share the batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PartedBatchNorm2d(nn.BatchNorm2d):
    """Statistics of equal parts of the batch in training; running ones, of all parts together, in evaluation.

    parts:  of the whole batch, in the order of its images

    A process that holds whole parts, as all of them are for a process alone, needs nothing of the others, but running
    statistics are then of its own parts: their mean over the processes is that of all parts. Where a part is split
    between processes (`divide`), they exchange sums.
    """

    def __init__(self, features: int, parts: int = 1, **settings: Any) -> None:
        super().__init__(features, **settings)
        self.parts = parts
        self.own = parts  # parts that this process holds whole; 0 where it exchanges sums
        self.membership: Tensor | None = None  # [parts, own images], 1 for an image in a part

    def divide(self, begin: int, end: int, batch: int, ranks: int = 1) -> None:
        """From now on this process gets the images `begin` to `end` (exclusive) of batches of `batch` images.

        ranks:  processes that share the batch; unless each has as many whole parts, all of them exchange sums, also one
                that happens to hold whole parts
        """
        if not isinstance(self.parts, int) or self.parts < 1 or batch % self.parts:
            raise ValueError(f"a batch of {batch} images is no {self.parts} equal parts")
        size = batch // self.parts
        if self.parts % ranks == 0 and begin % size == 0 and end % size == 0:
            self.own, self.membership = (end - begin) // size, None
        else:
            part = torch.arange(begin, end) // size
            self.own = 0
            # In float64, in which no GPU rounds products as it does in TF32.
            self.membership = F.one_hot(part, self.parts).T.to(self.weight.device, torch.float64)
            self.count = size

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.own == 1:
            return super().forward(x)
        if self.own == 0:
            return self._by_sums(x)
        # A compiler fuses what the formula takes into few passes over x; without one, torch's own kernels are quicker.
        return self._by_formula(x) if torch.compiler.is_compiling() else self._part_by_part(x)

    def _part_by_part(self, x: Tensor) -> Tensor:
        if len(x) % self.own:
            raise ValueError(f"{len(x)} images are no {self.own} equal parts")
        means, variances = (torch.zeros(self.own, self.num_features, device=x.device) for _ in range(2))
        parts = [
            F.batch_norm(part, means[i], variances[i], self.weight, self.bias, True, 1.0, self.eps)
            for i, part in enumerate(x.chunk(self.own))
        ]
        self._track_(means, variances)
        return torch.cat(parts)

    def _by_formula(self, x: Tensor) -> Tensor:
        parts = x.detach().float().unflatten(0, (self.own, -1))  # [parts, images, channels, height, width]
        variance, mean = torch.var_mean(parts, dim=(1, 3, 4), correction=0, keepdim=True)
        count = parts[0, :, 0].numel()
        self._track_(mean.flatten(1), variance.flatten(1) * (count / (count - 1)))
        normed: Tensor = _Normalised.apply(x, self.weight, self.bias, mean, torch.rsqrt(variance + self.eps))
        return normed

    @torch.compiler.disable
    def _by_sums(self, x: Tensor) -> Tensor:
        assert self.membership is not None
        whose = self.membership.T  # [own images, parts]
        pixels = x.shape[2] * x.shape[3]
        with torch.autocast(x.device.type, enabled=False):
            values = x.float()
            count = self.count * pixels
            mean = _sum_over_ranks(self.membership @ values.sum((2, 3)).double()) / count
            centred = values - (whose @ mean).float()[:, :, None, None]
            variance = _sum_over_ranks(self.membership @ centred.square().sum((2, 3)).double()) / count
            scale = (whose @ torch.rsqrt(variance + self.eps)).float() * self.weight
            normed = centred * scale[:, :, None, None] + self.bias.reshape(-1, 1, 1)
        self._track_(mean, variance * (count / (count - 1)))
        return normed.to(x.dtype)

    @torch.no_grad()
    def _track_(self, means: Tensor, variances: Tensor) -> None:
        """Move the running statistics by the mean over parts of theirs, [parts, channels]; variances are unbiased."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(means.detach().mean(0).to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variances.detach().mean(0).to(self.running_var.dtype), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


class _Normalised(torch.autograd.Function):
    """Each part of x less its mean and over its deviation, then times weight plus bias.

    By hand, since what autograd makes of the formula goes more often over x and its gradient than is needed.
    mean, inverse:  of each part, [parts, 1, channels, 1, 1]; the gradient knows that they depend on x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        parts = x.float().unflatten(0, (len(mean), -1))
        shape = (-1, 1, 1)
        normed = (parts - mean) * (inverse * weight.reshape(shape)) + bias.reshape(shape)
        # A copy also where the dtype is the same: where a function gives a view, torch 2.11 compiles gradients of zero.
        return normed.flatten(0, 1).to(x.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        centred = x.float().unflatten(0, (len(mean), -1)) - mean
        grad = grads[0].float().unflatten(0, (len(mean), -1))
        count, over = centred[0, :, 0].numel(), (1, 3, 4)
        sums, products = grad.sum(over, keepdim=True), (grad * centred).sum(over, keepdim=True)
        along = grad - sums / count - centred * (products * inverse.square() / count)
        own = (along * (inverse * weight.reshape(-1, 1, 1))).flatten(0, 1).to(x.dtype)
        return own, (products * inverse).sum(0).flatten(), sums.sum(0).flatten(), None, None


class _SumOverRanks(torch.autograd.Function):
    """The sum over all processes. Each loss depends on every summand, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total)
        return total


def _sum_over_ranks(x: Tensor) -> Tensor:
    result: Tensor = _SumOverRanks.apply(x)
    return result
