"""Base class of this package's optimisers: checked settings, state made at construction, no reads on the host."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from nero.optim.balance import batches
from nero.optim.gradients import check_gradient, is_frozen
from nero.optim.settings import check_rates, check_settings
from nero.optim.sharding import (
    Split,
    check_finite,
    check_sharded_alike,
    check_shards,
    is_sharded,
    local,
    local_gradient,
    split_of,
    zero_redundancy_groups,
)
from nero.optim.triton.pointer_tables import FusedGroup, TensorList, unavailable, use_kernels

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
Loss = TypeVar("Loss")


class Slot(NamedTuple):
    """A parameter, its gradient and its state; of a sharded one, the local parts, and how it is split."""

    param: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    split: Split | None = None


class CapturableOptimizer(Optimizer, ABC):
    """An optimiser whose step can be captured in a CUDA graph.

    All state lies in tensors on the parameter's device. A step only writes to them and reads no value on the host. For
    a graph to follow a changing learning rate, `lr` is a tensor with one element on the same device.

    State is made when a parameter is added, or before the first step of one that did not require a gradient then.

    Every setting is a key of the param groups. All optimisers here have `lr`, `maximize`, `foreach` and `capturable`;
    those with Triton kernels have `fused`.

    whole:           what a step needs whole: no shard may cut a neuron in two (see `check_shards`), and for "tensors"
                     processes communicate
    ranges:          the key of RANGES for each setting that is a number
    flags:           settings that are True or False
    optional_state:  keys of the state that have the shape of `avg_sq` and that not every parameter has
    kernels:         the tables and launches of the Triton kernels
    """

    whole: ClassVar[Literal["entries", "neurons", "tensors"]]
    ranges: ClassVar[dict[str, str]]
    flags: ClassVar[tuple[str, ...]] = ()
    optional_state: ClassVar[tuple[str, ...]] = ()
    kernels: ClassVar[type[TensorList]]

    def __init__(self, params: ParamsT, **settings: Any) -> None:
        self._fused: dict[int, FusedGroup] = {}  # by the number of the group; neither copied nor pickled
        self._without_state: list[tuple[Tensor, dict[str, Any]]] = []
        self._constructed = False
        super().__init__(params, settings)
        self._check_finite()
        # Only now that every group has been checked may parameters change.
        self._constructed = True
        for number in range(len(self.param_groups)):
            self._initialise_group(number)

    @abstractmethod
    def initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """The state of a new parameter beside its step count. May change the parameter."""

    def update_(self, number: int, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        """Step non-empty parameters of the `number`-th group. `lr` is a number or a 0-dim tensor."""
        for batch in batches([slot.param for slot in slots], group["foreach"]):
            self.update_batch_([slots[i] for i in batch], group, lr)

    def update_batch_(self, slots: list[Slot], group: dict[str, Any], lr: float | Tensor) -> None:
        """Step parameters of one dtype and device, for those who do not override `update_`."""
        raise NotImplementedError

    def check_settings(self, group: dict[str, Any]) -> None:
        """Raise ValueError for an invalid setting."""
        check_settings(group, self.ranges, self.flags)

    def check_parameter(self, param: Tensor, group: dict[str, Any]) -> None:
        """Raise ValueError or RuntimeError for a parameter that this optimiser does not support."""
        if param.dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise RuntimeError(f"{type(self).__name__} takes real parameters of {names}, not {param.dtype}")
        self.check_sharding(param, group)
        if group.get("fused") and (reason := unavailable(param.device)):
            raise RuntimeError(
                "`fused=True` requires all the params to be floating point Tensors of supported devices: "
                f"{reason}; leave out fused=True for the path without kernels"
            )

    def check_sharding(self, param: Tensor, group: dict[str, Any]) -> None:
        """Raise ValueError where shards cut what this optimiser needs whole."""
        check_shards(param, self.whole)

    @property
    def is_fused(self) -> bool:
        """Whether Triton kernels take the steps, outside of torch's compiler."""
        return all(map(use_kernels, self.param_groups))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self.check_settings(group)
            for place, param in self._places(len(self.param_groups) - 1):
                try:
                    self.check_parameter(param, group)
                except (ValueError, RuntimeError) as error:
                    raise type(error)(f"{error} ({place})") from None
            if self._constructed:
                self._check_finite(len(self.param_groups) - 1)
        except Exception:
            self.param_groups.pop()
            raise
        # A parameter that is listed twice, which torch warns of, is stepped once.
        if "param_names" in group:
            group["param_names"] = list(dict(zip(group["params"], group["param_names"], strict=True)).values())
        group["params"] = list(dict.fromkeys(group["params"]))
        if self._constructed:
            self._initialise_group(len(self.param_groups) - 1)

    def _places(self, number: int) -> Iterator[tuple[str, Tensor]]:
        """The parameters of the `number`-th group, and what to call each in errors."""
        group = self.param_groups[number]
        names = group.get("param_names", range(len(group["params"])))
        for param, name in zip(group["params"], names, strict=True):
            yield f"parameter {name!r} of group {number}, shape {tuple(param.shape)}", param

    def _check_finite(self, first: int = 0) -> None:
        """Raise ValueError for a weight of the groups from number `first` on that is NaN or infinite."""
        check_finite(chain.from_iterable(map(self._places, range(first, len(self.param_groups)))))

    def _initialise_group(self, number: int) -> None:
        group = self.param_groups[number]
        for param in group["params"]:
            if is_frozen(param):
                self._without_state.append((param, group))
            else:
                self.state[param] = self._fresh_state(param, group)
        if (owned_by_any := zero_redundancy_groups()) is not None:
            for param in owned_by_any[number]:
                if not is_frozen(param) and param not in self.state:
                    self._fresh_state(param, group)  # for what it does to the parameter; its process keeps the state

    @torch.no_grad()
    def _fresh_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        step = torch.zeros((), dtype=torch.float32, device=param.device)
        return {"step": step, **self.initial_state(param, group)}

    @torch.compiler.disable
    def _initialise_unfrozen(self) -> None:
        """Make the state of parameters that were frozen when they were added and now have a gradient."""
        waiting = []
        for param, group in self._without_state:
            if param.grad is None or is_frozen(param):
                waiting.append((param, group))
            elif param not in self.state:
                check_gradient(param.grad, type(self).__name__)
                self.state[param] = self._fresh_state(param, group)
        self._without_state = waiting

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every parameter that has a gradient; `closure` reevaluates the model and returns the loss."""
        capturable = torch.compiler.is_compiling() or all(group["capturable"] for group in self.param_groups)
        if not capturable and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{type(self).__name__} is being captured in a CUDA graph with capturable=False")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._without_state:
            self._initialise_unfrozen()
        # Every learning rate and every gradient is checked before the first parameter changes.
        if not torch.compiler.is_compiling():
            check_rates(self.param_groups)
        prepared = [self.prepare(number, group) for number, group in enumerate(self.param_groups)]
        for number, (launches, slots) in enumerate(prepared):
            for launch in launches:
                launch()
            if slots:
                self._update_(number, slots)
        return loss

    def prepare(self, number: int, group: dict[str, Any]) -> tuple[list[Callable[[], None]], list[Slot]]:
        """Check the gradients of the `number`-th group: launches of its kernels, and what these do not step."""
        params, launches = group["params"], []
        if self._without_state:
            params = [param for param in params if param in self.state]
        if use_kernels(group):
            fused = self._fused.get(number)
            if fused is None or not fused.holds(params):
                fused = self._fused[number] = FusedGroup(self.kernels, params, self.state, group, replaces=fused)
            params, launches = fused.rest, fused.prepare(group)
        return launches, [
            self.slot(param, group) for param in params if param.grad is not None and not is_frozen(param)
        ]

    def slot(self, param: Tensor, group: dict[str, Any]) -> Slot:
        """What a step of one parameter needs; RuntimeError for an unsupported gradient."""
        assert param.grad is not None
        check_gradient(param.grad, type(self).__name__)
        state = self.state[param]
        if is_sharded(param):
            state = {key: local(value) for key, value in state.items()}
        return Slot(local(param), local_gradient(param, param.grad), state, split_of(param))

    def _update_(self, number: int, slots: list[Slot]) -> None:
        """Increment the step counts of parameters of the `number`-th group, and step them."""
        group = self.param_groups[number]
        steps = [slot.state["step"] for slot in slots]
        if torch.compiler.is_compiling():
            # torch's compiler fails to order its loops among lists of tensors (torch._foreach_add_; 2.11, on a GPU).
            for step in steps:
                step.add_(1)
        else:
            torch._foreach_add_(steps, 1)
        # An empty part of a tensor still has to take part in sums over its parts.
        slots = [slot for slot in slots if slot.param.numel() > 0 or (slot.split and self.whole == "tensors")]
        if group["maximize"]:
            slots = [slot._replace(grad=-slot.grad) for slot in slots]
        lr = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
        if slots:
            self.update_(number, slots, group, lr)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_fused", {})
        self._constructed = True
        self._without_state = [
            (param, group) for group in self.param_groups for param in group["params"] if param not in self.state
        ]
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
        # The last hook before loading, so that it sees what hooks of the user return. torch keeps an entry of the state
        # as it is if its key is not the number of a parameter.
        hook = self.register_load_state_dict_pre_hook(lambda _, final: {**final, "state": self._load_state_(final)})
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        filled: dict[Tensor, float] = {}
        for group, rate in zip(self.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):
                value = float(group["lr"])
                # Groups that share a tensor keep sharing it unless different rates were saved.
                shared = filled.setdefault(rate, value) == value
                group["lr"] = (rate if shared else rate.clone()).fill_(value)
            elif isinstance(group["lr"], Tensor) and group["params"]:
                group["lr"] = group["lr"].to(group["params"][0].device)

    @torch.no_grad()
    def _load_state_(self, state_dict: StateDict) -> dict[Tensor, dict[str, Tensor]]:
        """Copy a saved state into that of each parameter; ValueError where it does not fit, before anything changes."""
        groups, saved_groups = self.param_groups, state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(saved["params"]) for saved in saved_groups]:
            return {}  # torch reports it
        matched = []
        some_saved = len(state_dict["state"]) > 0
        for group, saved_group in zip(groups, saved_groups, strict=True):
            settings = {**self.defaults, **saved_group}
            self.check_settings(settings)
            for param, name in zip(group["params"], saved_group["params"], strict=True):
                saved = state_dict["state"].get(name, {})
                if not saved and (some_saved or is_frozen(param)):
                    continue  # frozen when it was saved; torch.distributed.checkpoint omits frozen parameters as well
                own = self._with_optional(self.state.get(param, {}), saved)
                if _shapes(own) != _shapes(saved):
                    # A frozen parameter has no state. The loaded settings may need other state than those before.
                    own = self._with_optional(self._fresh_state(param.detach().clone(), settings), saved)
                if (shapes := _shapes(own)) != _shapes(saved):
                    kind = type(self).__name__
                    raise ValueError(f"the saved state of parameter {name} is not the {shapes} of {kind}")
                check_sharded_alike(own, saved)
                matched.append((param, own, saved))
        for param, own, saved in matched:
            for key, value in own.items():
                value.copy_(torch.as_tensor(saved[key]))
            state = self.state[param]
            if state.keys() != own.keys() or any(state[key] is not value for key, value in own.items()):
                for fused in self._fused.values():
                    fused.params.clear()  # the tables have addresses of the old state
            state.clear()
            state.update(own)
        return dict(self.state)

    def _with_optional(self, state: dict[str, Tensor], saved: dict[str, Any]) -> dict[str, Tensor]:
        """A copy of a state, with the same keys of `optional_state` as a saved one."""
        own = {key: value for key, value in state.items() if key in saved or key not in self.optional_state}
        if "avg_sq" in own:
            missing = [key for key in self.optional_state if key in saved and key not in own]
            own |= {key: torch.zeros_like(own["avg_sq"]) for key in missing}
        return own


def _shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(torch.as_tensor(value).shape) for key, value in state.items()}


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
