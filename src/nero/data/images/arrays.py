"""MNIST and CIFAR-10 as tensors of bytes, read from the official files without unpickling anything."""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nero.data.sources import require

CIFAR_SHAPE = (3, 32, 32)
# The third byte of an idx file's magic number; values are big-endian.
IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


@dataclass(frozen=True)
class ImageSet:
    """A labelled image data set, small enough to be held whole.

    train_images, test_images:  uint8, 0 to 255; [N, height, width] if grey, [N, 3, height, width] if coloured
    train_labels, test_labels:  int64 class numbers [N], from 0 to classes - 1
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        for part, images, labels in (
            ("training", self.train_images, self.train_labels),
            ("test", self.test_images, self.test_labels),
        ):
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} {part} images but {len(labels)} labels")
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
                raise ValueError(f"a {part} label is not a class number from 0 to {self.classes - 1}")

    def first(self, train: int | None) -> "ImageSet":
        """With the first `train` training images only; None for all."""
        return replace(self, train_images=self.train_images[:train], train_labels=self.train_labels[:train])


def read_idx(path: Path | str) -> np.ndarray:
    """The array in an (uncompressed) idx file, the format of MNIST; ValueError if it is not one or not whole."""
    data = Path(path).read_bytes()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES:
        raise ValueError(f"{path} is not an idx file: it begins with {data[:4].hex(' ') or 'nothing'}")
    dtype, dimensions = np.dtype(IDX_TYPES[data[2]]), data[3]
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise ValueError(f"{path} ends within its header: {len(data)} of {start} bytes")
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise ValueError(f"{path} has {len(data):,} bytes instead of {expected:,} for shape {shape}")
    # astype copies: the result is writable and in the machine's byte order.
    return np.frombuffer(data, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def read_cifar_records(path: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8 [N, 3, 32, 32]) and labels (int64 [N]) of one file of CIFAR-10's binary version."""
    record = 1 + prod(CIFAR_SHAPE)
    data = np.fromfile(path, np.uint8)
    if not data.size or data.size % record:
        raise ValueError(f"{path} has {data.size:,} bytes, which is no multiple of a record's {record:,}")
    records = data.reshape(-1, record)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise ValueError(f"{path} has the label {labels.max()}: not a file of CIFAR-10's binary version")
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), labels


def load_mnist(root: Path | str) -> ImageSet:
    """60,000 training and 10,000 test images of handwritten digits, grey, 28 x 28; MissingData if absent."""
    require("mnist", root)
    raw = Path(root) / "MNIST" / "raw"
    arrays = [
        torch.from_numpy(read_idx(raw / f"{part}-{kind}-ubyte"))
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]
    train_images, train_labels, test_images, test_labels = arrays
    return ImageSet(train_images, train_labels.long(), test_images, test_labels.long(), classes=10)


def load_cifar10(root: Path | str) -> ImageSet:
    """50,000 training and 10,000 test photographs of 10 kinds of thing, 3 x 32 x 32; MissingData if absent."""
    require("cifar10", root)
    folder = Path(root) / "cifar-10-batches-bin"
    batches = [read_cifar_records(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    test_images, test_labels = read_cifar_records(folder / "test_batch.bin")
    return ImageSet(
        train_images=torch.from_numpy(np.concatenate([images for images, _ in batches])),
        train_labels=torch.from_numpy(np.concatenate([labels for _, labels in batches])),
        test_images=torch.from_numpy(np.ascontiguousarray(test_images)),
        test_labels=torch.from_numpy(test_labels),
        classes=10,
    )
