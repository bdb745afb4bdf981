"""Algorithm 1 of the paper in plain torch: for reading, and the oracle of the tests.

`nero.optim.Nero` computes the same, faster, and has param groups, ablations and checkpoints.
"""

import torch
from torch import Tensor


class ReferenceNero:
    """Nero without options. A neuron is a slice along dim 0 of a tensor with two or more dims.

    Entries of tensors with fewer dims (biases, gains) follow the bias rule, one by one.
    """

    def __init__(self, params: list[Tensor], lr: float = 0.01, beta: float = 0.999, sigma_b: float = 0.01) -> None:
        self.params, self.lr, self.beta = params, lr, beta
        self.steps = [0 for _ in params]
        self.avg_sq = [torch.zeros(len(w), 1, dtype=w.dtype, device=w.device) for w in map(rows_of, params)]
        for w in params:
            project_(w)
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
            project_(w)


def rows_of(tensor: Tensor) -> Tensor:
    """As a matrix [neurons, fan_in]; each bias is a row of one entry."""
    return tensor.detach().reshape(len(tensor), -1) if tensor.ndim >= 2 else tensor.detach().reshape(-1, 1)


@torch.no_grad()
def project_(w: Tensor) -> None:
    """Subtract each neuron's mean and divide by its norm; a constant neuron, which would vanish, keeps its mean."""
    if w.ndim >= 2:
        rows = rows_of(w)
        constant = (rows == rows[:, :1]).all(dim=1, keepdim=True)
        rows = torch.where(constant, rows, rows - rows.mean(dim=1, keepdim=True))
        norm = rows.norm(dim=1, keepdim=True)
        w.copy_(torch.where(norm > 0, rows / norm, rows).view(w.shape))
