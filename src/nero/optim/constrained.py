"""Balanced neurons for any optimiser (bottom row of Figure 2)."""

from collections.abc import Callable, Iterable
from functools import partial
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
    **settings: Any,
) -> Optimizer:
    """The optimiser `base(params, lr=lr, **settings)`, projecting every neuron now and after each step.

    `mean` and `norm` are the two halves of Nero's projection. `params` may be whatever torch's optimisers take:
    tensors, (name, tensor) pairs or groups; `base` is an optimiser class, or one with some settings given, as Hydra's
    `_partial_: true` makes it.
    """
    entries = [{**entry, "params": _listed(entry["params"])} if isinstance(entry, dict) else entry for entry in params]
    # Before the optimiser is made: what it measures then, such as Madam's bound, belongs to the balanced weights.
    project_all_(_tensors(entries), mean=mean, norm=norm)
    optimizer = base(entries, lr=lr, **settings)
    optimizer.register_step_post_hook(partial(_project_after_step, mean=mean, norm=norm))
    return optimizer


def _project_after_step(optimizer: Optimizer, args: Any, kwargs: Any, *, mean: bool, norm: bool) -> None:
    tensors = (param for group in optimizer.param_groups for param in group["params"])
    project_all_(tensors, mean=mean, norm=norm)


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
