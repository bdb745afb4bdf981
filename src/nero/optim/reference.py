"""Algorithm 1 of the paper in plain torch: for reading, and the oracle of the tests.

`nero.optim.Nero` computes the same, faster, and has param groups, ablations and checkpoints.
"""

import torch
from torch import Tensor


class ReferenceNero:
    """Nero without options. A neuron is a slice along dim 0 of a tensor with two or more dims, if it has two entries.

    Entries of other tensors (biases, gains) follow the bias rule, one by one.
    """

    def __init__(self, params: list[Tensor], lr: float = 0.01, beta: float = 0.999, sigma_b: float = 0.01) -> None:
        self.params, self.lr, self.beta = params, lr, beta
        self.steps = [0 for _ in params]
        self.avg_sq = [torch.zeros(len(w), 1, dtype=w.dtype, device=w.device) for w in map(rows_of, params)]
        self.zero = [rows_of(w).norm(dim=1, keepdim=True) == 0 for w in params]  # these grow to norm one
        for w, zero in zip(params, self.zero, strict=True):
            project_(w, zero)
        # ‖w‖ and σ_b of Algorithm 1, fixed at the start: the mean neuron norm, the mean absolute value of biases.
        means = [rows_of(w).norm(dim=1).mean() for w in params]
        self.scales = [mean if mean > 0 else sigma_b for mean in means]

    @torch.no_grad()
    def step(self) -> None:
        for i, w in enumerate(self.params):
            if w.grad is None:
                continue
            self.steps[i] += 1
            g, avg_sq = rows_of(w.grad), self.avg_sq[i]
            avg_sq.mul_(self.beta).add_((1 - self.beta) * g.square().sum(dim=1, keepdim=True))
            g_bar = (avg_sq / (1 - self.beta ** self.steps[i])).sqrt()  # Adam's bias correction
            direction = torch.where(g_bar > 0, g / g_bar, 0.0)  # no step without a gradient
            w -= (self.lr * self.scales[i] * direction).view(w.shape)
            project_(w, self.zero[i])


def rows_of(tensor: Tensor) -> Tensor:
    """As a matrix [neurons, fan_in]; each bias is a row of one entry."""
    return tensor.detach().reshape(len(tensor), -1) if tensor.ndim >= 2 else tensor.detach().reshape(-1, 1)


@torch.no_grad()
def project_(w: Tensor, started_at_zero: Tensor) -> None:
    """Subtract each neuron's mean and divide by its norm; a constant neuron, which would vanish, keeps its mean."""
    rows = rows_of(w)
    if rows.shape[1] > 1:
        constant = (rows == rows[:, :1]).all(dim=1, keepdim=True)
        rows = torch.where(constant, rows, rows - rows.mean(dim=1, keepdim=True))
        norm = rows.norm(dim=1, keepdim=True)
        norm = torch.where(started_at_zero, norm.clamp(min=1), norm)
        w.copy_(torch.where(norm > 0, rows / norm, rows).view(w.shape))
