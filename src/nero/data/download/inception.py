"""The weights of the Inception network that FID is measured with, under torch-fidelity's names.

Several files have the same tensors: torch-fidelity's release, and a package with a TorchScript archive. So a digest of
the tensors is checked, not of a file. Nothing but tensors is unpickled.
"""

import hashlib
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nero.data.download.files import INCEPTION_DIGEST, DamagedData

# The classifier behind the features and the counts of training batches have no influence on them.
PARTS = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
CLASSES, FEATURES = 1008, 2048


@cache
def layer_names() -> list[str]:
    """The convolutions in the order of the network, which is torchvision's."""
    from torchvision.models import Inception3  # slow to import

    with torch.device("meta"):
        network = Inception3(aux_logits=False, init_weights=False)
    return [name.removesuffix(".conv") for name, _ in network.named_modules() if name.endswith(".conv")]


def digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, shapes and values of all tensors that features depend on, sorted by name."""
    found = hashlib.sha256()
    for name in sorted(_feature_names(weights)):
        tensor = weights[name]
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def load_weights(path: Path | str, expected: str = INCEPTION_DIGEST) -> dict[str, Tensor]:
    """The state dict of torch-fidelity's Inception in a file, on the CPU, with a classifier of zeros.

    Raises DamagedData if these are other weights, OSError if the file cannot be read.
    """
    try:
        return check_weights(Path(path).read_bytes(), expected)
    except DamagedData as error:
        raise DamagedData(f"{path} is damaged: {error}") from error


def check_weights(content: bytes, expected: str) -> dict[str, Tensor]:
    """The same of the content of a file, which the message then does not name."""
    try:
        loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        weights = {key: loaded[key] for key in _feature_names(loaded)}
    # torch does not document what it raises for a damaged file, or one that has more than tensors.
    except Exception as error:
        raise DamagedData("no state dict can be read from it") from error
    plain = all(
        isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dtype == torch.float32
        for value in weights.values()
    )
    if not plain or digest(weights) != expected:
        raise DamagedData("these are not Inception's weights")
    return _completed(weights)


def to_bytes(weights: Mapping[str, Tensor]) -> bytes:
    """The content of a file that `load_weights` reads."""
    file = io.BytesIO()
    torch.save(dict(weights), file)
    return file.getvalue()


def from_torchscript(content: bytes, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
    """The weights in a TorchScript archive that has the same layers in the same order under other names.

    Each layer has weight, beta, mean and var: normalised values are shifted but not scaled. DamagedData if it has not.
    """
    try:
        tensors = read_tensors(content)
        theirs = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
        weights = {}
        for layer, their in zip(layers or layer_names(), theirs, strict=True):
            weight, beta, mean, var = (tensors[f"{their}.{part}"] for part in ("weight", "beta", "mean", "var"))
            values = (weight, torch.ones_like(mean), beta, mean, var)
            weights.update({f"{layer}.{part}": value for part, value in zip(PARTS, values, strict=True)})
    except (ValueError, KeyError) as error:
        raise DamagedData(f"the TorchScript archive does not have Inception's weights: {error}") from error
    return _completed(weights)


def _feature_names(names: Mapping[str, Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and name.endswith(tuple(f".{part}" for part in PARTS))]


def _completed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the entries of torch-fidelity's network that features do not depend on."""
    norms = [name.removesuffix(".weight") for name in weights if name.endswith(".bn.weight")]
    counts = {f"{norm}.num_batches_tracked": torch.tensor(0) for norm in norms}
    classifier = {"fc.weight": torch.zeros(CLASSES, FEATURES), "fc.bias": torch.zeros(CLASSES)}
    return {**weights, **counts, **classifier}


# ------------------------------------------------------------------------------------------------------- TorchScript


def read_tensors(content: bytes) -> dict[str, Tensor]:
    """Parameters and buffers of a TorchScript archive by name, in the module's order; none of its code is run.

    Raises ValueError if this is no such archive.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            module = _Unpickler(archive, top=archive.namelist()[0].partition("/")[0]).load()
        return dict(_tensors(module))
    # What an unpickler raises for damaged input is not documented, and of every kind.
    except Exception as error:
        raise ValueError(f"no TorchScript archive of plain tensors: {str(error) or type(error).__name__}") from error


class _Module:
    """Stands for every class that the archive names: only attributes matter."""


class _Unpickler(pickle.Unpickler):
    """Builds tensors, lists and attributes; any other class or function that a pickle names is refused."""

    def __init__(self, archive: zipfile.ZipFile, top: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{top}/data.pkl")))
        self._archive, self._top = archive, top

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "torch._utils._rebuild_tensor_v2": lambda storage, offset, size, stride, *_: storage.as_strided(
                size, stride, offset
            ).contiguous(),
            "torch.FloatStorage": torch.float32,
            "torch.jit._pickle.build_intlist": list,
            "collections.OrderedDict": OrderedDict,
        }
        found = _Module if module.startswith("__torch__.") else known.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"it has a {module}.{name}")
        return found

    def persistent_load(self, saved: Any) -> Tensor:
        """The flat tensor of a storage, which is saved as ("storage", type, key, device, length)."""
        _, dtype, key, _, length = saved
        return torch.frombuffer(bytearray(self._archive.read(f"{self._top}/data/{key}")), dtype=dtype, count=length)


def _tensors(module: _Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(module).items():
        if isinstance(value, _Module):
            yield from _tensors(value, f"{prefix}{name}.")
        elif hasattr(value, "as_strided"):
            yield prefix + name, value
