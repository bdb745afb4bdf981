"""Tensors as rows of few matrices, so that one operation steps many tensors: small ones cost by their number."""

import math
import operator
from collections.abc import Hashable, Sequence
from itertools import chain

import torch
from torch import Tensor

from nero.optim.balance import compute_dtype, concatenate, copy_all_, fan_in, use_batches

LARGE = 2**16
"""Entries above which a tensor without neurons is stepped alone: copying it would cost more than it saves."""
SMALL = 2**14
"""Entries up to which neurons on a CPU are copied to be stepped together."""

State = dict[str, Tensor]


class Batch:
    """Tensors that make up one matrix [neurons, fan_in], or one vector of entries if `fan_in` is 0.

    Args:
        members: which of the parameters these are.
    """

    def __init__(self, members: list[int], params: Sequence[Tensor], neuron_dim: int, fan_in: int) -> None:
        self.members, self.fan_in, self.ndim = members, fan_in, 2 if fan_in else 1
        self.dims = [_memory_order(params[i], neuron_dim if fan_in else None) for i in members]

    def views(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The members among parameters, gradients or averages, with the dims of the batch where that takes no copy."""
        views = []
        for i, dims in zip(self.members, self.dims, strict=True):
            view = tensors[i] if dims is None else tensors[i].permute(dims)
            views.append(view.flatten(self.ndim - 1) if view.ndim != self.ndim and view.is_contiguous() else view)
        return views

    def join(self, views: Sequence[Tensor]) -> Tensor:
        """The matrix or vector. It shares the memory of a view without others."""
        return concatenate([view if view.ndim == self.ndim else view.flatten(self.ndim - 1) for view in views])


class Rows:
    """Tensors of one dtype and device as batches: matrices and, last, at most one vector.

    Numbers of the state have one entry for each row of the matrices and each entry of the vector. There are views of
    the state here, but none of parameters and gradients, which may move between steps.

    Args:
        members: numbers of the tensors: any with neurons, and without those up to LARGE; or a single one.
        params, states: parameters, not empty, and their state.
        neuron_dim: dim of the neurons of tensors that have any.
        foreach: put neurons of one fan-in into one matrix; by default on accelerators, and small tensors on a CPU.
    """

    def __init__(
        self,
        members: list[int],
        params: Sequence[Tensor],
        states: Sequence[State],
        neuron_dim: int | None,
        foreach: bool | None,
    ) -> None:
        first = params[members[0]]
        self.stored, self.dtype = first.dtype, compute_dtype(first.dtype)
        lists: dict[tuple[int, Hashable], list[int]] = {}
        for i in members:
            width = 0 if _has_entries(params[i], states[i]) else fan_in(params[i], neuron_dim or 0)
            small = foreach is None and params[i].numel() <= SMALL
            together = width == 0 or small or use_batches(foreach, first.device)
            lists.setdefault((width, None if together else i), []).append(i)
        widths = sorted(lists, key=lambda key: key[0] == 0)  # the vector is the last
        self.batches = [Batch(lists[key], params, neuron_dim or 0, key[0]) for key in widths]

        averages = [state["avg_sq"] for state in states]
        self.averages: list[Tensor] = []
        for batch in self.batches:
            self.averages += [averages[i] for i in batch.members] if batch.fan_in else batch.views(averages)
        self.sizes = [[averages[i].numel() for i in batch.members] for batch in self.batches]
        self.heights = [sum(sizes) for sizes in self.sizes]

        def repeated(key: str) -> list[Tensor]:
            """A number of the state of each tensor, for each row; that of a single one is broadcast."""
            ordered = chain.from_iterable(batch.members for batch in self.batches)
            values = [(states[i][key], averages[i].numel()) for i in ordered if key in states[i]]
            return [value if len(members) == 1 else value.expand(rows) for value, rows in values]

        self.steps, self.scales, self.gains = map(repeated, ("step", "scale", "gain"))
        self.lengths: list[Tensor] = []
        if any("norm" in states[i] for i in members):
            one = torch.ones((), dtype=self.dtype, device=first.device)
            for i in chain.from_iterable(batch.members for batch in self.batches if batch.fan_in):
                self.lengths.append(states[i].get("norm", one.expand(averages[i].shape)))
        roots = [math.sqrt(batch.fan_in) for batch in self.batches if batch.fan_in]
        filled = [
            torch.full((height,), root, dtype=self.dtype, device=first.device)
            for height, root in zip(self.heights, roots, strict=False)
        ]
        self.root_fan_in = concatenate(filled) if filled else torch.empty(0)

    def store_(self, views: Sequence[Sequence[Tensor]], joined: Sequence[Tensor]) -> None:
        """Copy results back into the views of each batch that were joined."""
        targets: list[Tensor] = []
        parts: list[Tensor] = []
        for own, sizes, batch in zip(views, self.sizes, joined, strict=True):
            if batch is not own[0]:
                targets += own
                parts += batch.split(sizes)
        copy_all_(targets, parts)

    def avg_sq(self) -> Tensor:
        """The running averages of all rows."""
        return concatenate([average if average.ndim == 1 else average.flatten() for average in self.averages])

    def store_averages_(self, avg_sq: Tensor) -> None:
        """Copy the running averages of all rows back into the state."""
        copy_all_(self.averages, avg_sq.split(list(chain.from_iterable(self.sizes))))


class RowLists:
    """All tensors of a param group as `Rows`, whose arguments these are."""

    def __init__(
        self, params: Sequence[Tensor], states: list[State], neuron_dim: int | None, foreach: bool | None
    ) -> None:
        self.known, self.settings = [*states, *_ends(states)], (neuron_dim, foreach)
        lists: dict[Hashable, list[int]] = {}
        for i, (param, state) in enumerate(zip(params, states, strict=True)):
            large = param.numel() > LARGE and _has_entries(param, state)
            lists.setdefault(i if large else (param.dtype, param.device), []).append(i)
        self.lists = [Rows(members, params, states, neuron_dim, foreach) for members in lists.values()]

    def holds(self, states: list[State], neuron_dim: int | None, foreach: bool | None) -> bool:
        """Whether this is still the state of the same parameters, in the same tensors."""
        found = [*states, *_ends(states)]
        same = len(found) == len(self.known) and all(map(operator.is_, found, self.known))
        return same and self.settings == (neuron_dim, foreach)


def _ends(states: list[State]) -> list[Tensor]:
    """The state of the first and the last parameter: all state moves together or not at all."""
    return [*states[0].values(), *states[-1].values()]


def _has_entries(param: Tensor, state: State) -> bool:
    """Whether a tensor has an average for each entry, and not for each neuron."""
    return state["avg_sq"].ndim == param.ndim


def _memory_order(tensor: Tensor, neuron_dim: int | None) -> tuple[int, ...] | None:
    """A permutation of the dims to the order of memory, the dim of the neurons first; None if they need none.

    The entries of a neuron may be listed in any order. In this one, flattening copies nothing, not even channels_last.
    """
    dims = sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True)
    if neuron_dim is not None:
        dims.remove(neuron_dim)
        dims.insert(0, neuron_dim)
    return None if dims == list(range(tensor.ndim)) else tuple(dims)
