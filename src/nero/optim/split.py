"""Several optimisers for one network, each for the parameters that a rule selects."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nero.optim.param_groups import ROLES, param_groups
from nero.optim.settings import check_flag

RULES = ("roles", "names", "ndim")
KEYS = ("optim", *RULES, "as_matrices", "lr_factor")


class Split(Optimizer):
    """Several optimisers as one: a step steps them all, and one state dict holds all of their states.

    A parameter belongs to the first part whose rules it satisfies, and every parameter must belong to one. A part
    without parameters is left out.

    Args:
        model: the network.
        parts: a list of dicts with

            - `optim`: an optimiser class, or a partial of one, as Hydra's `_partial_: true` makes it;
            - `roles`: the roles of its parameters in `nero.param_groups`, such as `["neurons"]`;
            - `names`: patterns for their names, such as `["layers.*.weight"]`;
            - `ndim`: their number of dims;
            - `as_matrices`: whether the optimiser sees a tensor of more than two dims as a matrix with a row for each
              entry of dim 0 (filters, for optimisers of matrices); default False;
            - `lr_factor`: its learning rate is this times `lr`; default 1.

            All rules are optional: a part without any takes all parameters that are left.
        lr: learning rate.

    Examples:
        >>> muon = {"optim": torch.optim.Muon, "roles": ["neurons"], "as_matrices": True}
        >>> optimizer = Split(model, [muon, {"optim": torch.optim.AdamW}], lr=0.001)
    """

    def __init__(self, model: nn.Module, parts: Iterable[Mapping[str, Any]], lr: float | Tensor) -> None:
        parts = list(parts)
        for number, part in enumerate(parts, 1):
            _check(part, f"part {number}")
        chosen = _assign(model, parts)
        self.parts: list[Optimizer] = []
        self._matrices: list[tuple[Tensor, Tensor]] = []  # (as its optimiser sees it, parameter)
        for part, params in zip(parts, chosen, strict=True):
            if params:
                seen = [self._seen(param) if part.get("as_matrices") else param for param in params]
                make: Callable[..., Optimizer] = part["optim"]
                self.parts.append(make(seen, lr=lr * part.get("lr_factor", 1.0)))
        super().__init__([param for params in chosen for param in params], {"lr": lr})
        self._params: list[Tensor] = self.param_groups[0]["params"]
        self._share_groups()

    def _seen(self, param: Tensor) -> Tensor:
        if param.ndim < 3:
            return param
        matrix = nn.Parameter(_as_matrix(param.detach(), param), param.requires_grad)
        if matrix.data_ptr() != param.data_ptr():
            raise ValueError(
                f"a parameter of shape {[*param.shape]} and strides {param.stride()} is no matrix in memory"
            )
        self._matrices.append((matrix, param))
        return matrix

    def _share_groups(self) -> None:
        """Make the groups of all parts those of this optimiser: whoever sets a learning rate here sets it there."""
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for matrix, param in self._matrices:
            matrix.grad = None if param.grad is None else _as_matrix(param.grad, param)
        for part in self.parts:
            part.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for matrix, _ in self._matrices:
            matrix.grad = None
        for param in self._params:
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.detach_().zero_()

    def train(self) -> None:
        """Call `train` of the parts that have it."""
        for part in self.parts:
            getattr(part, "train", lambda: None)()

    def eval(self) -> None:
        """Call `eval` of the parts that have it."""
        for part in self.parts:
            getattr(part, "eval", lambda: None)()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_params"):
            raise RuntimeError("Split takes no further param groups: add them to one of its parts")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The states of all parts, with their parameters counted through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for part in self.parts:
            saved = part.state_dict()
            state |= {first + number: values for number, values in saved["state"].items()}
            groups += [{**group, "params": [first + n for n in group["params"]]} for group in saved["param_groups"]]
            first += sum(len(group["params"]) for group in saved["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"loaded state dict has {len(groups)} param groups, and Split has {len(self.param_groups)}"
            )
        first = 0
        for part in self.parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            last = first + sum(len(group["params"]) for group in own)
            part.load_state_dict(
                {
                    "state": {n - first: values for n, values in state_dict["state"].items() if first <= n < last},
                    "param_groups": [{**group, "params": [n - first for n in group["params"]]} for group in own],
                }
            )
            first = last
        self._share_groups()

    def __getstate__(self) -> dict[str, Any]:
        own = {"parts": self.parts, "_matrices": self._matrices, "_params": self._params}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for matrix, param in self._matrices:  # a copy of both would not share memory
            matrix.data = _as_matrix(param.detach(), param)


def _check(part: Mapping[str, Any], where: str) -> None:
    if unknown := [key for key in part if key not in KEYS]:
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}; there are: {', '.join(KEYS)}")
    check_flag(f"as_matrices of {where}", part.get("as_matrices", False))
    if not callable(part.get("optim")):
        raise ValueError(f"{where} needs 'optim', an optimiser class, not {part.get('optim')!r}")
    if unknown := [role for role in part.get("roles") or () if role not in ROLES]:
        raise ValueError(f"{where}: there is no role {unknown[0]!r}; there are: {', '.join(ROLES)}")


def _assign(model: nn.Module, parts: Sequence[Mapping[str, Any]]) -> list[list[Tensor]]:
    """The parameters of each part."""
    chosen: list[list[Tensor]] = [[] for _ in parts]
    with_role = [(name, param, group["role"]) for group in param_groups(model) for name, param in group["params"]]
    places = {param: place for place, param in enumerate(model.parameters())}
    for name, param, role in sorted(with_role, key=lambda entry: places[entry[1]]):
        taken = next(
            (params for part, params in zip(parts, chosen, strict=True) if _takes(part, name, param, role)), None
        )
        if taken is None:
            raise ValueError(
                f"no part takes {name}, of shape {[*param.shape]} and role {role}; end with one without rules"
            )
        taken.append(param)
    return chosen


def _takes(part: Mapping[str, Any], name: str, param: Tensor, role: str) -> bool:
    return (
        role in part.get("roles", (role,))
        and any(fnmatchcase(name, pattern) for pattern in part.get("names", ("*",)))
        and param.ndim == part.get("ndim", param.ndim)
    )


def _as_matrix(tensor: Tensor, like: Tensor) -> Tensor:
    """A row for each entry of dim 0; columns in the order in which `like` has them in memory, so that it is a view."""
    strides = like.stride()
    order = sorted(range(1, like.ndim), key=lambda dim: -strides[dim])
    return tensor.permute(0, *order).reshape(len(tensor), -1)
