"""Balanced neurons for any optimiser (bottom row of Figure 2)."""

import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from nero.optim.balance import project_all_


def constrained(
    params: Iterable[Any],
    base: Callable[..., Optimizer],
    lr: float | Tensor,
    mean: bool = True,
    norm: bool = True,
    project_at_start: bool = True,
    **settings: Any,
) -> Optimizer:
    """The optimiser `base(params, lr=lr, **settings)`, projecting every neuron at construction and after each step.

    params:            whatever torch's optimisers take: tensors, (name, tensor) pairs or groups
    base:              an optimiser class, or one with some settings given, as Hydra's `_partial_: true` makes it
    mean, norm:        the two halves of Nero's projection
    project_at_start:  False projects after each step only, as the paper's experiments did: the first gradient is then
                       of unbalanced weights, and what `base` measures at construction, such as Madam's bound, is of
                       the raw ones

    A copy or a pickle of the optimiser projects as well.
    """
    entries = [{**entry, "params": _listed(entry["params"])} if isinstance(entry, dict) else entry for entry in params]
    if project_at_start:
        # Before the optimiser is made: what it measures then, such as Madam's bound, belongs to the balanced weights.
        project_all_(_tensors(entries), mean=mean, norm=norm)
    return _with_projection(base(entries, lr=lr, **settings), _ProjectAfterStep(mean, norm))


@dataclass(frozen=True)
class _ProjectAfterStep:
    """The hook that keeps the neurons of an optimiser balanced."""

    mean: bool
    norm: bool

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        tensors = (param for group in optimizer.param_groups for param in group["params"])
        project_all_(tensors, mean=self.mean, norm=self.norm)


def _with_projection(optimizer: Optimizer, *projections: _ProjectAfterStep) -> Optimizer:
    for projection in projections:
        optimizer.register_step_post_hook(projection)
    # torch copies and pickles an optimiser without its hooks.
    copyreg.pickle(type(optimizer), _reduce)
    return optimizer


def _reduce(optimizer: Optimizer) -> tuple[Any, ...]:
    """How to copy or pickle an optimiser of a class that has been constrained, with its projection if it has one."""
    plain: Any = optimizer.__reduce_ex__(2)
    hooks = optimizer._optimizer_step_post_hooks.values()
    projections = [hook for hook in hooks if isinstance(hook, _ProjectAfterStep)]
    return (_revive, (type(optimizer), *projections), *plain[2:]) if projections else plain


def _revive(kind: type[Optimizer], *projections: _ProjectAfterStep) -> Optimizer:
    """An optimiser that still waits for its state, which leaves hooks as they are."""
    optimizer = kind.__new__(kind)
    optimizer._optimizer_step_post_hooks = OrderedDict()
    return _with_projection(optimizer, *projections)


def _listed(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


def _tensors(entries: Iterable[Any]) -> list[Tensor]:
    """The tensors among parameters, (name, parameter) pairs and groups of either."""
    tensors: list[Tensor] = []
    for entry in entries:
        if isinstance(entry, dict):
            tensors += _tensors(entry["params"])
        else:
            tensors.append(entry[1] if isinstance(entry, tuple) else entry)
    return tensors
