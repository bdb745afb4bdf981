"""MNIST and CIFAR-10 as tensors of bytes, read from the official files without unpickling anything."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nero.data.sources import require

CIFAR_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class ImageSet:
    """A labelled image data set, small enough to be held whole."""

    train_images: Tensor  # uint8, 0 to 255; [N, height, width] if grey, [N, 3, height, width] if coloured
    train_labels: Tensor  # int64 class numbers [N], from 0 to classes - 1
    test_images: Tensor
    test_labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        parts = {"training": (self.train_images, self.train_labels), "test": (self.test_images, self.test_labels)}
        for part, (images, labels) in parts.items():
            if len(images) != len(labels):
                raise ValueError(f"{len(images)} {part} images but {len(labels)} labels")
            if ((labels < 0) | (labels >= self.classes)).any():
                raise ValueError(f"a {part} label is not a class number from 0 to {self.classes - 1}")

    def first(self, train: int | None) -> "ImageSet":
        """With the first `train` training images only; None for all."""
        return replace(self, train_images=self.train_images[:train], train_labels=self.train_labels[:train])


def load_mnist(root: Path | str) -> ImageSet:
    """60,000 training and 10,000 test images of handwritten digits, grey, 28 x 28; MissingData if absent."""
    from torchvision.datasets.mnist import read_image_file, read_label_file  # slow to import

    def read(part: str) -> tuple[Tensor, Tensor]:
        stem = Path(root, "MNIST", "raw", part)
        return read_image_file(f"{stem}-images-idx3-ubyte"), read_label_file(f"{stem}-labels-idx1-ubyte")

    require("mnist", root)
    return ImageSet(*read("train"), *read("t10k"), classes=10)


def load_cifar10(root: Path | str) -> ImageSet:
    """50,000 training and 10,000 test photographs of 10 kinds of thing, 3 x 32 x 32; MissingData if absent."""
    require("cifar10", root)
    folder = Path(root, "cifar-10-batches-bin")
    train = read_cifar_records(*(folder / f"data_batch_{number}.bin" for number in range(1, 6)))
    return ImageSet(*train, *read_cifar_records(folder / "test_batch.bin"), classes=10)


def read_cifar_records(*paths: Path) -> tuple[Tensor, Tensor]:
    """Images (uint8 [N, 3, 32, 32]) and labels (int64 [N]) of files of CIFAR-10's binary version."""
    length = 1 + int(np.prod(CIFAR_SHAPE))  # of a record: its label, then its pixels
    parts = []
    for path in paths:
        data = np.fromfile(path, np.uint8)
        if not data.size or data.size % length:
            raise ValueError(f"{path} has {data.size:,} bytes, which is no multiple of a record's {length:,}")
        parts.append(data.reshape(-1, length))
    records = torch.from_numpy(np.concatenate(parts))
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0].long()
