"""Base class of this package's optimisers: checked settings, state made at construction, no reads on the host."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from nero.optim.param_groups import check_gradient
from nero.optim.sharding import check_sharded_alike, is_sharded, local, local_gradient
from nero.optim.triton.pointer_tables import unavailable, use_kernels


@dataclass(slots=True, eq=False)
class Slot:
    """A parameter, its gradient and its state; of a sharded one, the local parts."""

    param: Tensor
    grad: Tensor
    state: dict[str, Tensor]


class CapturableOptimizer(Optimizer, ABC):
    """An optimiser whose step can be captured in a CUDA graph.

    All state lies in tensors on the parameter's device, made when the parameter is added. A step only writes to them
    and reads no value on the host. For a graph to follow a changing learning rate, `lr` is a tensor with one element on
    the same device.

    Every setting is a key of the param groups. All optimisers here have `lr`, `maximize`, `foreach` and `capturable`;
    those with Triton kernels have `fused`.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._fused: dict[Any, Any] = {}  # tables of the fused path; neither copied nor pickled
        super().__init__(params, defaults)

    @abstractmethod
    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a new parameter. May change the parameter."""

    @abstractmethod
    def update_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """Step non-empty parameters of one group, whose step counts have been incremented."""

    def check_settings(self, group: dict[str, Any]) -> None:
        """Raise ValueError for an invalid setting."""
        lr = group["lr"]
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(f"lr must have one element, not the shape {tuple(lr.shape)}")
        if not 0 <= float(lr) < math.inf:
            raise ValueError(f"lr must be finite and not negative, not {lr}")
        if group["foreach"] and group.get("fused"):
            raise ValueError("foreach and fused cannot both be true")

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        """Raise ValueError or RuntimeError for a parameter that this optimiser does not support."""
        if not param.is_floating_point():
            raise RuntimeError(f"{type(self).__name__} takes real floating point parameters, not {param.dtype}")
        if group.get("fused") and (reason := unavailable(param.device)):
            raise ValueError(f"fused=True: {reason}")

    @property
    def is_fused(self) -> bool:
        """Whether Triton kernels take the steps, outside of torch's compiler."""
        return all("fused" in group and use_kernels(group) for group in self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self.check_settings(group)
            for param in group["params"]:
                self.check_parameter(param, group)
        except Exception:
            self.param_groups.pop()
            raise
        # A parameter that is listed twice, which torch warns of, is stepped once.
        if "param_names" in group:
            group["param_names"] = list(dict(zip(group["params"], group["param_names"], strict=True)).values())
        group["params"] = list(dict.fromkeys(group["params"]))
        with torch.no_grad():
            for param in group["params"]:
                self.state[param] = self._fresh_state(param, group)

    def _fresh_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        step = torch.zeros((), dtype=torch.float32, device=param.device)
        return {"step": step, **self.initial_state(param, group)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every parameter that has a gradient; `closure` reevaluates the model and returns the loss."""
        capturable = torch.compiler.is_compiling() or all(group["capturable"] for group in self.param_groups)
        if not capturable and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{type(self).__name__} is being captured in a CUDA graph with capturable=False")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Every gradient is checked before the first parameter changes.
        for update in [self.prepare(number, group) for number, group in enumerate(self.param_groups)]:
            update()
        return loss

    def prepare(self, number: int, group: dict[str, Any]) -> Callable[[], None]:
        """Check the gradients of the `number`-th group; return the function that steps it."""
        return partial(self.update_all_, self.slots(group["params"]), group)

    def slots(self, params: list[Tensor]) -> list[Slot]:
        """The parameters that have a gradient; RuntimeError for an unsupported gradient."""
        slots = []
        for param in params:
            if param.grad is None:
                continue
            check_gradient(param.grad, type(self).__name__)
            slot = Slot(param, param.grad, self.state[param])
            if is_sharded(param):
                state = {key: local(value) for key, value in slot.state.items()}
                slot = Slot(local(param), local_gradient(param, param.grad), state)
            slots.append(slot)
        return slots

    def update_all_(self, slots: list[Slot], group: dict[str, Any]) -> None:
        """Increment the step counts of parameters of one group, and step them."""
        steps = [slot.state["step"] for slot in slots]
        if torch.compiler.is_compiling():
            # torch's compiler fails to order its loops among lists of tensors (torch._foreach_add_; 2.11, on a GPU).
            for step in steps:
                step.add_(1)
        elif steps:
            torch._foreach_add_(steps, 1)
        if slots := [slot for slot in slots if slot.param.numel() > 0]:
            self.update_(slots, group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_fused", {})
        # A pickle or a checkpoint from before a setting existed gets the setting's default.
        arguments = inspect.signature(type(self)).parameters.values()
        settings = {argument.name: argument.default for argument in arguments if argument.default is not argument.empty}
        self.defaults = {**settings, **self.defaults}
        for group in self.param_groups:
            for key in settings:
                group.setdefault(key, self.defaults[key])

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load settings and state into the existing tensors of the state and of `lr`.

        torch's own method would cast the state to the parameter's dtype, losing the float32 averages of parameters in
        half precision, and would replace tensors that a captured graph uses.
        """
        rates = [group["lr"] for group in self.param_groups]
        states = dict(self.state)
        loaded: dict[Tensor, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

        def take(_: Optimizer, final: StateDict) -> StateDict:
            loaded.update(self._match(final))
            return {**final, "state": {}}

        @torch.no_grad()
        def fill(_: Optimizer) -> None:
            for param, (own, saved) in loaded.items():
                for key, value in own.items():
                    value.copy_(torch.as_tensor(saved[key]))
                states[param].clear()
                states[param].update(own)
                self.state[param] = states[param]
            _place_lr_(self.param_groups, rates)

        # Run inside the hooks that a user may have registered: the last before loading, the first after it.
        hooks = [
            self.register_load_state_dict_pre_hook(take),
            self.register_load_state_dict_post_hook(fill, prepend=True),
        ]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _match(self, state_dict: StateDict) -> Iterator[tuple[Tensor, tuple[dict[str, Tensor], dict[str, Tensor]]]]:
        """For each parameter, tensors for its state and the saved ones; ValueError where they do not match."""
        # torch's method reports differing lengths.
        for group, saved_group in zip(self.param_groups, state_dict["param_groups"], strict=False):
            settings = {**self.defaults, **saved_group}
            self.check_settings(settings)
            for param, name in zip(group["params"], saved_group["params"], strict=False):
                own, saved = dict(self.state[param]), state_dict["state"].get(name, {})
                if not saved and not param.requires_grad:
                    saved = own  # torch.distributed.checkpoint omits frozen parameters
                if own.keys() != saved.keys():
                    # The loaded settings may need other state than those at construction.
                    own = self._fresh_state(param.detach().clone(), settings)
                shapes = {key: tuple(value.shape) for key, value in own.items()}
                if shapes != {key: tuple(torch.as_tensor(value).shape) for key, value in saved.items()}:
                    kind = type(self).__name__
                    raise ValueError(f"the saved state of parameter {name} is not the {shapes} of {kind}")
                check_sharded_alike(own, saved)
                yield param, (own, saved)


def _place_lr_(groups: list[dict[str, Any]], rates: list[float | Tensor]) -> None:
    """Write loaded learning rates into the tensors that the groups had for them, or move them to the parameters."""
    filled: dict[Tensor, float] = {}
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(rate, Tensor):
            value = float(group["lr"])
            # Groups that share a tensor keep sharing it unless different rates were saved.
            shared = filled.setdefault(rate, value) == value
            group["lr"] = (rate if shared else rate.clone()).fill_(value)
        elif isinstance(group["lr"], Tensor) and group["params"]:
            group["lr"] = group["lr"].to(group["params"][0].device)


def check_beta(name: str, beta: float) -> None:
    """Raise ValueError unless `beta` is an averaging constant, in [0, 1)."""
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), not {beta}")


def check_positive(group: dict[str, Any], *names: str) -> None:
    """Raise ValueError unless these settings are above zero."""
    for name in names:
        if not group[name] > 0:
            raise ValueError(f"{name} must be positive, not {group[name]}")


def scalar(lr: float | Tensor) -> float | Tensor:
    """`lr` as a number or a 0-dim tensor, which broadcasts, without reading it."""
    return lr.reshape(()) if isinstance(lr, Tensor) else lr


def running_average(average: Tensor, value: Tensor, beta: float) -> Tensor:
    """beta * average + (1 - beta) * value.

    Not torch.lerp, whose difference turns an average that has overflowed to infinity into NaN at the next step. An
    infinite average stops its entry, as the formula says.
    """
    return torch.add(beta * average, value, alpha=1 - beta)


def bias_correction(step: Tensor, beta: float) -> Tensor:
    """1 - beta^t: the share of a constant that a running average has taken in after t steps from zero."""
    # expm1, because in float32 1 - 0.999 keeps only four digits.
    return -torch.expm1(step * (math.log(beta) if beta > 0 else -math.inf))
