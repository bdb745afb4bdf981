"""`nero.optim.reference` in float64, with the interface of the references in `support.references`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nero.optim.reference import ReferenceNero
from support import references


class PlainNero:
    def __init__(self, params: Sequence[Tensor], lr: float, beta: float) -> None:
        self._tensors = [param.detach().double().cpu().clone() for param in params]
        self._optimizer = ReferenceNero(self._tensors, lr, beta)

    @property
    def params(self) -> list[np.ndarray]:
        return references.as_arrays(self._tensors)

    def step(self, grads: Sequence[np.ndarray | None]) -> None:
        for tensor, grad in zip(self._tensors, grads, strict=True):
            tensor.grad = None if grad is None else torch.from_numpy(grad)
        self._optimizer.step()
