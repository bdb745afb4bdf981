"""Param groups by role: what each parameter of a network is, and along which dim its neurons lie."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.parametrize import ParametrizationList

from nero.optim.nero import Nero

WITH_NEURONS = ("neurons", "embeddings", "head")
ROLES = (*WITH_NEURONS, "gains", "biases", "unconstrained")
# Names of a network's children that produce its output, where the network does not say which does.
HEAD_NAMES = ("lm_head", "head", "heads", "classifier", "fc", "score", "output", "out")
GAIN_WORDS = ("scale", "gamma", "gain")
BIAS_WORDS = ("bias", "beta")


class ParamGroups(list[dict[str, Any]]):
    """Param groups that print as a table; `every_parameter` is the table of all parameters."""

    def __repr__(self) -> str:
        rows = [("role", "neuron dim", "settings", "tensors", "parameters", "example")]
        tensors = parameters = 0
        for group in self:
            named = _named(group)
            size = sum(param.numel() for _, param in named)
            tensors, parameters = tensors + len(named), parameters + size
            rows.append((*_words(group), f"{len(named):,}", f"{size:,}", named[0][0]))
        rows.append(("total", "", "", f"{tensors:,}", f"{parameters:,}", ""))
        return _aligned(rows, right=(3, 4))

    def every_parameter(self) -> str:
        """A table with a line for each parameter."""
        rows = [("parameter", "shape", "role", "neuron dim", "settings")]
        rows += [(name, str([*param.shape]), *_words(group)) for group in self for name, param in _named(group)]
        return _aligned(rows)


def param_groups(
    model: nn.Module, overrides: Mapping[str, str | Mapping[str, Any]] | None = None, **roles: Mapping[str, Any]
) -> ParamGroups:
    """The parameters of a model sorted into param groups by what they are, for `Nero`. Print them as a table.

    | role | parameters | steps |
    | --- | --- | --- |
    | `neurons` | weights of linear, bilinear, convolutional and recurrent layers and of attention | neuron by neuron |
    | `embeddings` | weights of `Embedding` and `EmbeddingBag` | row by row |
    | `head` | the weight of the layer that produces the output | neuron by neuron |
    | `gains` | weights of norm layers, gains of weight norm, other factors such as layer scale | entry by entry |
    | `biases` | parameters and embeddings with "bias" or "beta" in their name, of any shape | entry by entry |
    | `unconstrained` | everything else | entry by entry |

    Neurons lie along dim 0, except in `Conv1D` of transformers and in transposed convolutions, where they lie along
    dim 1 (along dim 0 in a depthwise one; with other groups no dim has them, and the layer is unconstrained). A tied
    parameter counts for the module that has it first. Spectral norm and weight norm, old and new, are seen through.

    A weight of a module of unknown type has neurons along dim 0 if the module has the attributes `in_features` and
    `out_features` and the weight the shape [out_features, in_features]. Others are unconstrained: a step along the
    wrong dim would silently balance what is no neuron, and the table shows them.

    The head is what `model.get_output_embeddings()` returns (transformers). Without that it is the last layer within
    each child that is called lm_head, head, heads, classifier, fc, score, output or out. Without these it is the last
    layer of a chain: of a `Sequential` or `ModuleList`, or the model's last child. Wrappers with a single child do not
    count. A head that is tied to an embedding is among the embeddings.

    Args:
        model: the network. Its frozen parameters are sorted like others.
        overrides: for names that match a pattern, such as `"*.router.weight"`, another role or further settings; a dict
            may also have the key "role". Later patterns have precedence.
        **roles: settings for all parameters of a role.

    Returns:
        A list of dicts with "params" as (name, parameter) pairs, "role", and settings that are not Nero's defaults.

    Examples:
        >>> groups = param_groups(model, {"*.router.weight": "unconstrained"}, head={"mean": False, "norm": False})
        >>> print(groups)
        >>> optimizer = Nero(groups, lr=0.01)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"param_groups takes a model, such as param_groups(model), not {type(model).__name__}")
    overrides = {} if overrides is None else overrides
    for name, settings in roles.items():
        _check_role(name)
        _check_settings(settings)
    for override in overrides.values():
        _check_role(override if isinstance(override, str) else override.get("role", "neurons"))
        _check_settings({} if isinstance(override, str) else {key: override[key] for key in override if key != "role"})

    heads, sorted_params, seen = _heads(model), [], set[int]()
    for path, module in model.named_modules():
        for name, param in module.named_parameters(recurse=False):
            if id(param) not in seen:
                seen.add(id(param))
                full_name = f"{path}.{name}" if path else name
                sorted_params.append((full_name, param, *_sort(model, path, module, name, param, heads)))
    names = [name for name, *_ in sorted_params]
    for pattern in overrides:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"the pattern {pattern!r} matches no parameter{_nearest(pattern, names, 0.3)}")

    groups: dict[Any, dict[str, Any]] = {}
    for name, param, role, dim in sorted_params:
        own: dict[str, Any] = {}
        for pattern, override in overrides.items():
            if fnmatchcase(name, pattern):
                own |= {"role": override} if isinstance(override, str) else override
        role = own.pop("role", role)
        dim = (dim or 0) if role in WITH_NEURONS else None
        settings = {**({} if dim == 0 else {"neuron_dim": dim}), **roles.get(role, {}), **own}
        key = (ROLES.index(role), tuple(sorted(settings.items())))
        groups.setdefault(key, {"params": [], "role": role, **settings})["params"].append((name, param))
    there = sorted({group["role"] for group in groups.values()}, key=ROLES.index)
    for role in roles:
        if role not in there:
            raise ValueError(
                f"no parameter has the role {role!r}, only {', '.join(there)}; `overrides` gives a role to parameters "
                f"by their names{_nearest(role, names, 0.3)}"
            )
    # By role; groups of one role in the order of their first parameters.
    return ParamGroups(group for _, group in sorted(groups.items(), key=lambda item: item[0][0]))


def _sort(
    model: nn.Module, path: str, module: nn.Module, name: str, param: Tensor, heads: Sequence[nn.Module]
) -> tuple[str, int | None]:
    """The role of a parameter, and the dim of its neurons."""
    is_direct = True  # not the argument of an unknown parametrisation
    if isinstance(module, ParametrizationList):
        # fc.parametrizations.weight.original is fc.weight; weight norm has original0, a gain, and original1.
        owner, _, tensor = path.rpartition("parametrizations.")
        path, name = owner.removesuffix("."), tensor + {"original0": "_g", "original1": "_v"}.get(name, "")
        is_direct = {type(step).__name__ for step in module.children()} <= {"_SpectralNorm", "_WeightNorm"}
        module = model.get_submodule(path)
    elif isinstance(module, nn.ParameterList | nn.ParameterDict):
        name = path.rpartition(".")[2]
    plain = name.removesuffix("_orig").removesuffix("_v")  # of spectral norm and of weight norm
    is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if any(word in name.lower() for word in BIAS_WORDS) or (is_embedding and "bias" in path.rpartition(".")[2].lower()):
        return "biases", None
    if is_embedding and plain == "weight":
        return "embeddings", 0
    if is_direct and (dim := _neuron_dim(module, plain)) is not None:
        return "head" if module in heads else "neurons", dim
    if name == "weight":
        is_gain = param.ndim < 2 or "norm" in type(module).__name__.lower()
    else:
        is_gain = name.endswith("_g") or any(word in name.lower() for word in GAIN_WORDS)
    return "gains" if is_gain else "unconstrained", None


def _neuron_dim(module: nn.Module, name: str) -> int | None:
    """The dim along which the neurons of a module's tensor of this name lie; None if it has none."""
    if isinstance(module, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
        return 0 if "weight" in name and name != "weight" else None
    if name != "weight":
        return None
    if isinstance(module, _ConvTransposeNd):
        if module.groups == 1:
            return 1
        return 0 if module.groups == module.in_channels == module.out_channels else None
    if isinstance(module, nn.Linear | nn.Bilinear | _ConvNd):
        return 0
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # transformers.pytorch_utils
        return 1
    sizes = [getattr(module, attribute, None) for attribute in ("out_features", "in_features")]
    return 0 if [*getattr(getattr(module, "weight", None), "shape", [])] == sizes else None


def _heads(model: nn.Module) -> list[nn.Module]:
    """The layers that produce the model's output, as the docstring of `param_groups` says."""
    while True:
        output = getattr(model, "get_output_embeddings", lambda: None)()
        if isinstance(output, nn.Module):
            return _last_layers([output])
        if _neuron_dim(model, "weight") is not None:
            return [model]
        children = {name: child for name, child in model.named_children() if any(True for _ in child.parameters())}
        if len(children) != 1 or isinstance(model, nn.Sequential | nn.ModuleList):
            break
        [model] = children.values()
    if named := [child for name, child in children.items() if name in HEAD_NAMES]:
        return _last_layers(named)
    last = [*children.values()][-1:]
    while last and isinstance(last[0], nn.Sequential | nn.ModuleList):
        last = [child for child in last[0] if any(True for _ in child.parameters())][-1:]
    return [layer for layer in last if _neuron_dim(layer, "weight") is not None]


def _last_layers(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The last layer of neurons within each of the modules."""
    chains = ([layer for layer in module.modules() if _neuron_dim(layer, "weight") is not None] for module in modules)
    return [layers[-1] for layers in chains if layers]


def _defaults() -> dict[str, Any]:
    """Nero's settings and their defaults."""
    arguments = inspect.signature(Nero).parameters.values()
    return {"neuron_dim": 0} | {argument.name: argument.default for argument in arguments if argument.name != "params"}


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}{_nearest(role, ROLES)}; there are {', '.join(ROLES)}")


def _check_settings(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in _defaults():
            raise ValueError(f"Nero has no setting {key!r}{_nearest(key, _defaults())}")


def _nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    close = get_close_matches(word, list(known), cutoff=cutoff)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def _named(group: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The (name, parameter) pairs of a group; an optimiser that gets it stores them as two lists."""
    return [*zip(group["param_names"], group["params"], strict=True)] if "param_names" in group else group["params"]


def _words(group: dict[str, Any]) -> tuple[str, str, str]:
    """Role, neuron dim, and the other settings that are not Nero's defaults."""
    dim = group.get("neuron_dim", 0)
    defaults = _defaults() | {"mean": group.get("norm", True) != "initial", "neuron_dim": dim}
    settings = [f"{key}={value!r}" for key, value in group.items() if value not in (None, defaults.get(key, value))]
    return group["role"], "-" if dim is None else str(dim), ", ".join(settings)


def _aligned(rows: Sequence[tuple[str, ...]], right: Sequence[int] = ()) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            word.rjust(width) if place in right else word.ljust(width)
            for place, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
