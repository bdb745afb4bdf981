"""Ghost batch norm: batch norm over equal parts of a batch, independent of how many processes share the batch.

Distributed batch norm usually normalises over what each GPU holds, so that the number of GPUs changes what is computed:
the paper's ResNet-50 had 100 of 400 images on each of four. Here the number of parts is a setting of the network.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Normalises each part by its own statistics in training, and by running statistics of all parts in evaluation.

    parts:  equal parts of the whole batch, in the order of its images

    A process that holds whole parts needs no communication. Its running statistics are then of its own parts; their
    mean over processes is that of all parts. Where a part is split between processes (`divide`), they exchange sums.
    """

    def __init__(self, features: int, parts: int = 1, **settings: Any) -> None:
        super().__init__(features, **settings)
        self.parts = parts
        self.local_parts = parts  # parts that this process holds whole; 0 if processes exchange sums
        self.membership: Tensor | None = None  # [parts, local images]: 1 if the image is in the part

    def divide(self, begin: int, end: int, batch: int, ranks: int = 1) -> None:
        """Set which images this process gets: `begin` to `end` (exclusive) of batches of `batch` images.

        ranks:  processes that share the batch; unless each holds the same number of whole parts, all exchange sums
        """
        if not isinstance(self.parts, int) or self.parts < 1 or batch % self.parts:
            raise ValueError(f"a batch of {batch} images cannot be divided into {self.parts} equal parts")
        size = batch // self.parts
        if self.parts % ranks == 0 and begin % size == 0 and end % size == 0:
            self.local_parts, self.membership = (end - begin) // size, None
        else:
            part = torch.arange(begin, end) // size
            self.local_parts = 0
            # float64: GPUs never round its products to TF32.
            self.membership = F.one_hot(part, self.parts).T.to(self.weight.device, torch.float64)
            self.count = size

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.local_parts == 1:
            return super().forward(x)
        if self.local_parts == 0:
            return self._by_sums(x)
        # A compiler fuses the formula into few passes over x; in eager mode torch's own kernels are faster.
        return self._by_formula(x) if torch.compiler.is_compiling() else self._part_by_part(x)

    def _part_by_part(self, x: Tensor) -> Tensor:
        if len(x) % self.local_parts:
            raise ValueError(f"{len(x)} images cannot be divided into {self.local_parts} equal parts")
        means, variances = (torch.zeros(self.local_parts, self.num_features, device=x.device) for _ in range(2))
        parts = [
            F.batch_norm(part, means[i], variances[i], self.weight, self.bias, True, 1.0, self.eps)
            for i, part in enumerate(x.chunk(self.local_parts))
        ]
        self._track_(means, variances)
        return torch.cat(parts)

    def _by_formula(self, x: Tensor) -> Tensor:
        parts = x.detach().float().unflatten(0, (self.local_parts, -1))  # [parts, images, channels, height, width]
        variance, mean = torch.var_mean(parts, dim=(1, 3, 4), correction=0, keepdim=True)
        count = parts[0, :, 0].numel()
        self._track_(mean.flatten(1), variance.flatten(1) * (count / (count - 1)))
        return _Normalise.apply(x, self.weight, self.bias, mean, torch.rsqrt(variance + self.eps))

    @torch.compiler.disable
    def _by_sums(self, x: Tensor) -> Tensor:
        # Its gradients are summed over all processes as well: each loss depends on every summand.
        from torch.distributed.nn.functional import all_reduce

        assert self.membership is not None
        of_images = self.membership.T  # [local images, parts]
        count = self.count * x.shape[2] * x.shape[3]
        with torch.autocast(x.device.type, enabled=False):
            values = x.float()
            mean = all_reduce(self.membership @ values.sum((2, 3)).double()) / count
            centred = values - (of_images @ mean).float()[:, :, None, None]
            variance = all_reduce(self.membership @ centred.square().sum((2, 3)).double()) / count
            scale = (of_images @ torch.rsqrt(variance + self.eps)).float() * self.weight
            normed = centred * scale[:, :, None, None] + self.bias.reshape(-1, 1, 1)
        self._track_(mean, variance * (count / (count - 1)))
        return normed.to(x.dtype)

    @torch.no_grad()
    def _track_(self, means: Tensor, variances: Tensor) -> None:
        """Update the running statistics by the mean over parts of means and unbiased variances [parts, channels]."""
        assert self.momentum is not None
        for name, values in (("running_mean", means), ("running_var", variances)):
            running = self.get_buffer(name)
            running.lerp_(values.detach().mean(0).to(running.dtype), self.momentum)
        self.get_buffer("num_batches_tracked").add_(1)


class _Normalise(torch.autograd.Function):
    """(x - mean) * inverse * weight + bias for each part of x.

    Its own function, since autograd's backward pass of the formula reads x and its gradient more often than needed.
    mean, inverse:  mean and inverse deviation of each part [parts, 1, channels, 1, 1]; the gradient accounts for their
                    dependence on x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse)
        parts = x.float().unflatten(0, (len(mean), -1))
        shape = (-1, 1, 1)
        normed = (parts - mean) * (inverse * weight.reshape(shape)) + bias.reshape(shape)
        # A copy even if the dtype is the same: torch 2.11 compiles zero gradients for a function that returns a view.
        return normed.flatten(0, 1).to(x.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        centred = x.float().unflatten(0, (len(mean), -1)) - mean
        grad = grads[0].float().unflatten(0, (len(mean), -1))
        count, dims = centred[0, :, 0].numel(), (1, 3, 4)
        sums, products = grad.sum(dims, keepdim=True), (grad * centred).sum(dims, keepdim=True)
        projected = grad - sums / count - centred * (products * inverse.square() / count)
        x_grad = (projected * (inverse * weight.reshape(-1, 1, 1))).flatten(0, 1).to(x.dtype)
        return x_grad, (products * inverse).sum(0).flatten(), sums.sum(0).flatten(), None, None
