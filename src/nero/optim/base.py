"""What the optimisers of this package have in common: checked settings, state made at construction, no host reads."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

__all__ = [
    "CapturableOptimizer",
    "ParamsT",
    "bias_correction",
    "check_beta",
    "check_lr",
    "gradient",
    "running_average",
    "scalar",
]


class CapturableOptimizer(Optimizer, ABC):
    """An optimiser whose step can be captured in a CUDA graph.

    All state lies in tensors on the parameter's device, made when the parameter is added; a step only writes into them
    and reads no value on the host. For a graph to follow a changing learning rate, `lr` is a tensor with one element on
    the same device.
    """

    @abstractmethod
    def check_settings(self, group: dict[str, Any]) -> None:
        """Raise ValueError for a setting that makes no sense."""

    @abstractmethod
    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a parameter that has not been stepped. May change the parameter."""

    @abstractmethod
    def update_(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """One step of parameters of one group, none of them empty, all of them with a gradient."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in group["params"]:
            if not param.is_floating_point():
                self.param_groups.pop()
                raise RuntimeError(f"{type(self).__name__} takes real floating point parameters, not {param.dtype}")
        with torch.no_grad():
            for param in group["params"]:
                self.state[param] = self.initial_state(param, group)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step of every parameter that has a gradient; `closure` reevaluates the model and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Every gradient is checked before the first parameter moves.
        ready = [(self._with_gradient(group), group) for group in self.param_groups]
        for params, group in ready:
            if params:
                self.update_(params, group)
        return loss

    def _with_gradient(self, group: dict[str, Any]) -> list[Tensor]:
        params = [param for param in group["params"] if param.grad is not None]
        for param in params:
            if param.grad.layout != torch.strided or param.grad.is_complex():
                kind = "complex" if param.grad.is_complex() else "sparse"
                raise RuntimeError(f"{type(self).__name__} does not support {kind} gradients")
        return [param for param in params if param.numel() > 0]

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over settings and state; the tensors of the state, and of `lr`, stay the same objects.

        torch's own method would cast the state to the parameter's dtype, losing the float32 averages of parameters in
        half precision, and would put new tensors where a captured graph knows the old ones.
        """
        params = list(chain.from_iterable(group["params"] for group in self.param_groups))
        names = list(chain.from_iterable(group["params"] for group in state_dict["param_groups"]))
        for name, param in zip(names, params, strict=False):  # torch's method reports differing lengths
            saved, own = state_dict["state"].get(name, {}), self.state[param]
            shapes = {key: tuple(value.shape) for key, value in own.items()}
            if shapes != {key: tuple(torch.as_tensor(value).shape) for key, value in saved.items()}:
                raise ValueError(f"the saved state of parameter {name} is not the {shapes} of {type(self).__name__}")
        state = {param: self.state[param] for param in params}
        rates = [group["lr"] for group in self.param_groups]
        super().load_state_dict(state_dict)
        for name, param in zip(names, params, strict=True):
            for key, value in state[param].items():
                value.copy_(state_dict["state"][name][key])
            self.state[param] = state[param]
        for group, rate in zip(self.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):
                group["lr"] = rate.copy_(torch.as_tensor(group["lr"]).reshape(rate.shape))


def check_lr(lr: float | Tensor) -> None:
    """Raise ValueError unless `lr` is one finite number, zero or more."""
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr must have one element, not the shape {tuple(lr.shape)}")
    if not 0 <= float(lr) < math.inf:
        raise ValueError(f"lr must be finite and not negative, not {lr}")


def check_beta(name: str, beta: float) -> None:
    """Raise ValueError unless `beta` is an averaging constant, in [0, 1)."""
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), not {beta}")


def gradient(param: Tensor) -> Tensor:
    """The gradient of a parameter that is known to have one."""
    assert param.grad is not None
    return param.grad


def scalar(lr: float | Tensor) -> float | Tensor:
    """`lr` as something that broadcasts over anything, unread."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def running_average(average: Tensor, value: Tensor, beta: float) -> Tensor:
    """beta * average + (1 - beta) * value.

    Not torch.lerp, whose difference turns an average that has overflowed to infinity into NaN at the next step.
    Infinite, it holds its entry still, as the formula says.
    """
    return torch.add(beta * average, value, alpha=1 - beta)


def bias_correction(step: Tensor, beta: float) -> Tensor:
    """1 - beta^t: what a running average that started at zero has seen of a constant after `step` steps."""
    # expm1, because in float32 1 - 0.999 keeps only four digits.
    return -torch.expm1(step * (math.log(beta) if beta > 0 else -math.inf))
