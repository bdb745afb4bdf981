"""Balanced neurons for any optimiser (bottom row of Figure 2)."""

import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, filterfalse
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from nero.optim.balance import project_all_
from nero.optim.gradients import is_frozen
from nero.optim.settings import check_flag
from nero.optim.sharding import check_finite, zero_redundancy_groups


def constrained(
    params: Iterable[Any],
    base: Callable[..., Optimizer],
    lr: float | Tensor,
    mean: bool = True,
    norm: bool = True,
    project_at_start: bool = True,
    **settings: Any,
) -> Optimizer:
    """The optimiser `base(params, lr=lr, **settings)`, with every neuron projected at the start and after each step.

    A copy or a pickle of the optimiser projects as well. A parameter that does not require a gradient is not touched.

    Args:
        params: as for torch's optimisers: tensors, (name, tensor) pairs or groups.
        base: an optimiser class, or a partial of one, as Hydra's `_partial_: true` makes it.
        lr: learning rate of `base`.
        mean: subtract each neuron's mean.
        norm: divide each neuron by its norm.
        project_at_start: False projects after each step only, as the paper's experiments did. The first gradient is
            then taken at unbalanced weights, and `base` is constructed with them.

    Examples:
        >>> optimizer = constrained(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    """
    for name, value in {"mean": mean, "norm": norm, "project_at_start": project_at_start}.items():
        check_flag(name, value)
    entries = [{**entry, "params": _listed(entry["params"])} if isinstance(entry, dict) else entry for entry in params]
    if project_at_start:
        # Before `base` is constructed: what it measures then, such as Madam's bound, is of the balanced weights.
        groups = (entry["params"] if isinstance(entry, dict) else [entry] for entry in entries)
        members = [member if isinstance(member, tuple) else (None, member) for member in chain.from_iterable(groups)]
        tensors = [tensor for _, tensor in members]
        check_finite(
            (f"parameter {i if name is None else repr(name)}, shape {tuple(tensor.shape)}", tensor)
            for i, (name, tensor) in enumerate(members)
        )
        tensors += chain.from_iterable(zero_redundancy_groups() or [])
        project_all_(filterfalse(is_frozen, dict.fromkeys(tensors)), mean=mean, norm=norm)
    return _with_projections(base(entries, lr=lr, **settings), _ProjectAfterStep(mean, norm))


def _listed(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


@dataclass(frozen=True)
class _ProjectAfterStep:
    """A step hook that projects the neurons of an optimiser."""

    mean: bool
    norm: bool

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        tensors = (param for group in optimizer.param_groups for param in group["params"])
        project_all_(filterfalse(is_frozen, tensors), mean=self.mean, norm=self.norm)


def _with_projections(optimizer: Optimizer, *projections: _ProjectAfterStep) -> Optimizer:
    for projection in projections:
        optimizer.register_step_post_hook(projection)
    # torch copies and pickles an optimiser without its hooks.
    copyreg.pickle(type(optimizer), _reduce)
    return optimizer


def _reduce(optimizer: Optimizer) -> tuple[Any, ...]:
    """How to copy or pickle an optimiser of a class that has been constrained, with its projections if it has any."""
    plain: Any = optimizer.__reduce_ex__(2)
    hooks = optimizer._optimizer_step_post_hooks.values()
    projections = [hook for hook in hooks if isinstance(hook, _ProjectAfterStep)]
    return (_revive, (type(optimizer), *projections), *plain[2:]) if projections else plain


def _revive(kind: type[Optimizer], *projections: _ProjectAfterStep) -> Optimizer:
    """An optimiser with its projections, before its state is set (which keeps hooks)."""
    optimizer = kind.__new__(kind)
    optimizer._optimizer_step_post_hooks = OrderedDict()
    return _with_projections(optimizer, *projections)
