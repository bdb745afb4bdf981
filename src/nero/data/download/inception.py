"""The weights of the Inception network that FID is measured with, named as torch-fidelity names them.

The same tensors come in several files: torch-fidelity's release, and a package that holds them as TorchScript. What is
checked is therefore a digest of the tensors, not of a file. Nothing here unpickles more than tensors.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nero.atomic import write_atomic
from nero.data.download.checked_file import DamagedData

if TYPE_CHECKING:  # torch takes seconds to load, and looking for files does not need it
    from torch import Tensor

FILE = "inception-fid.pth"
"""Where the weights lie under the data root."""

DIGEST = "d4e3e118bd273aef6848ce850542e317970b81f34dea99dd90463be77cbac59e"
"""Of the tensors that make features; see `digest`."""

# What makes the features of a layer. The classifier behind them and the count of training batches play no part.
PARTS = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
CLASSES, FEATURES = 1008, 2048

_STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
_A = "1x1 5x5_1 5x5_2 3x3dbl_1 3x3dbl_2 3x3dbl_3 _pool"
_B = "3x3 3x3dbl_1 3x3dbl_2 3x3dbl_3"
_C = "1x1 7x7_1 7x7_2 7x7_3 7x7dbl_1 7x7dbl_2 7x7dbl_3 7x7dbl_4 7x7dbl_5 _pool"
_D = "3x3_1 3x3_2 7x7x3_1 7x7x3_2 7x7x3_3 7x7x3_4"
_E = "1x1 3x3_1 3x3_2a 3x3_2b 3x3dbl_1 3x3dbl_2 3x3dbl_3a 3x3dbl_3b _pool"
_BLOCKS = dict(zip(("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c"),
                   (_A, _A, _A, _B, _C, _C, _C, _C, _D, _E, _E), strict=True))  # fmt: skip

LAYERS = (*_STEM, *(f"Mixed_{block}.branch{end}" for block, ends in _BLOCKS.items() for end in ends.split()))
"""The convolutions in the order of the network."""


def digest(weights: Mapping[str, "Tensor"]) -> str:
    """sha256 over names, shapes and values of all that makes features, in the order of the names."""
    found = hashlib.sha256()
    for name in sorted(_checked(weights)):
        tensor = weights[name]
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def load_weights(path: Path | str, expected: str = DIGEST) -> dict[str, "Tensor"]:
    """The state dict of torch-fidelity's Inception in a file, on the CPU.

    Only what was checked is taken from the file: the classifier is zero. DamagedData, one line, if it is not these
    weights; OSError if it cannot be read.
    """
    return _read(Path(path).read_bytes(), str(path), expected)


def as_file(weights: Mapping[str, "Tensor"]) -> bytes:
    """The content of a file that `load_weights` reads."""
    import torch

    file = io.BytesIO()
    torch.save(dict(weights), file)
    return file.getvalue()


def from_torchscript(content: bytes, layers: Sequence[str] = LAYERS) -> dict[str, "Tensor"]:
    """The weights in a TorchScript archive that has the same layers in the same order under names of its own.

    Each has weight, beta, mean and var; normalised values are shifted but not scaled. DamagedData if it does not fit.
    """
    import torch

    from nero.data.download.torchscript import read_tensors

    try:
        tensors = read_tensors(content)
        theirs = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
        weights = {}
        for layer, their in zip(layers, theirs, strict=True):
            mean = tensors[f"{their}.mean"]
            values = (tensors[f"{their}.weight"], torch.ones_like(mean), tensors[f"{their}.beta"], mean,
                      tensors[f"{their}.var"])  # fmt: skip
            weights.update({f"{layer}.{part}": value for part, value in zip(PARTS, values, strict=True)})
    except (ValueError, KeyError) as error:
        raise DamagedData(f"the TorchScript archive does not hold Inception's weights: {error}") from error
    return _completed(weights)


@dataclass(frozen=True)
class InceptionFile:
    """A file of Inception's weights, recognised by its tensors.

    path:   relative to the data root
    digest: of the tensors
    least:  bytes that the tensors alone take, and so the file at least
    limit:  bytes that no file of them has
    """

    path: str = FILE
    digest: str = DIGEST
    least: int = 87_280_000
    limit: int = 128 << 20

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def problem(self, root: Path, checksums: bool = False) -> str | None:
        """What is wrong with the copy under root, or None; without checksums only its existence and length count."""
        place = root / self.path
        if not place.is_file():
            return f"{place} is missing"
        length = place.stat().st_size
        if not self.least <= length <= self.limit:
            return f"{place} is damaged: {length:,} bytes, where the weights take {self.least:,}"
        if checksums:
            try:
                load_weights(place, self.digest)
            except DamagedData as error:
                return str(error)
        return None

    def put(self, root: Path, content: bytes) -> None:
        """Write the content in place, whole or not at all, once its tensors have passed their check."""
        _read(content, self.name, self.digest)
        place = root / self.path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, content)


def _read(content: bytes, name: str, expected: str) -> dict[str, "Tensor"]:
    import torch

    try:
        loaded: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    # torch documents none of what it raises on a file that is damaged, or that holds more than tensors.
    except Exception as error:
        raise DamagedData(f"{name} is damaged: no state dict can be read from it") from error
    if not isinstance(loaded, Mapping):
        raise DamagedData(f"{name} is damaged: it holds no state dict")
    weights = {key: loaded[key] for key in _checked(loaded)}
    usual = all(
        isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dtype == torch.float32
        for value in weights.values()
    )
    if not usual or digest(weights) != expected:
        raise DamagedData(f"{name} is damaged: these are not Inception's weights")
    return _completed(weights)


def _checked(names: Mapping[str, Any]) -> list[str]:
    return [name for name in names if isinstance(name, str) and name.endswith(tuple(f".{part}" for part in PARTS))]


def _completed(weights: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """With what torch-fidelity's network has beside, and features do not depend on."""
    import torch

    norms = [name.removesuffix(".weight") for name in weights if name.endswith(".bn.weight")]
    counts = {f"{norm}.num_batches_tracked": torch.tensor(0) for norm in norms}
    classifier = {"fc.weight": torch.zeros(CLASSES, FEATURES), "fc.bias": torch.zeros(CLASSES)}
    return {**weights, **counts, **classifier}
