"""The tensors of a TorchScript archive, read as data: none of the code in it is compiled or run."""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """The parameters and buffers by name, in the order of the module; ValueError if this is no such archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            top = archive.namelist()[0].partition("/")[0]
            module = _Reader(archive, top).load()
        return dict(_tensors(module))
    # What an unpickler raises on damaged input is not documented, and is of every kind.
    except Exception as error:
        raise ValueError(f"no TorchScript archive of plain tensors: {str(error) or type(error).__name__}") from error


class _Module:
    """Whatever class the archive names: only its attributes count."""


class _Reader(pickle.Unpickler):
    """Builds tensors, lists and attributes; no other class or function that a pickle may name is ever looked up."""

    def __init__(self, archive: zipfile.ZipFile, top: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{top}/data.pkl")))
        self._archive = archive
        self._top = top

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("__torch__."):
            return _Module
        known = {
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch.FloatStorage": torch.float32,
            "torch.jit._pickle.build_intlist": list,
            "collections.OrderedDict": OrderedDict,
        }
        if f"{module}.{name}" not in known:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return known[f"{module}.{name}"]

    def persistent_load(self, saved: Any) -> Tensor:
        """The flat tensor that a storage's entry, ("storage", type, key, device, length), speaks of."""
        _, dtype, key, _, length = saved
        return torch.frombuffer(bytearray(self._archive.read(f"{self._top}/data/{key}")), dtype=dtype, count=length)


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return storage.as_strided(size, stride, offset).contiguous()


def _tensors(module: _Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            yield prefix + name, value
        elif isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
