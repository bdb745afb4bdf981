"""Tests of the MNIST and CIFAR-10 readers."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from nero.data.download.files import CheckedFile
from nero.data.images.arrays import ImageSet, load_cifar10, load_mnist, read_cifar_records
from nero.data.sources import DATASETS, Dataset, MissingData
from support.real_data import root_with


def idx_bytes(array: np.ndarray) -> bytes:
    """The idx file of an array of bytes, written independently of the reader."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def install(monkeypatch: pytest.MonkeyPatch, root: Path, name: str, contents: dict[str, bytes]) -> None:
    """Register `contents` as the files of a data set and write them."""
    files = tuple(CheckedFile.of(path, content) for path, content in contents.items())
    monkeypatch.setitem(DATASETS, name, Dataset(files, origins=()))
    for file in files:
        file.put(root, contents[file.path])


def mnist_files(train: int, test: int, side: int = 5) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {}
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, side, side), np.uint8)
        files[f"MNIST/raw/{part}-images-idx3-ubyte"] = idx_bytes(images)
        files[f"MNIST/raw/{part}-labels-idx1-ubyte"] = idx_bytes(rng.integers(0, 10, count, np.uint8))
    return files


def test_load_mnist_matches_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "mnist", mnist_files(train=12, test=7))
    ours = load_mnist(tmp_path)
    for train, images, labels in (
        (True, ours.train_images, ours.train_labels),
        (False, ours.test_images, ours.test_labels),
    ):
        theirs = torchvision.datasets.MNIST(tmp_path, train=train)
        assert torch.equal(images, theirs.data)
        assert torch.equal(labels, theirs.targets)
        assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert ours.classes == 10


def test_load_mnist_raises_when_image_and_label_counts_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = mnist_files(train=12, test=7)
    files["MNIST/raw/train-labels-idx1-ubyte"] = idx_bytes(np.zeros(11, np.uint8))
    install(monkeypatch, tmp_path, "mnist", files)
    with pytest.raises(ValueError, match="12 training images but 11 labels"):
        load_mnist(tmp_path)


@pytest.mark.parametrize(
    "damage", [b"\x1f\x8b\x08\x00", b"\x00\x00\x0a\x03", b"\x00\x00\x08\x03" + b"\xff" * 12, b"\0" * 20]
)
def test_load_mnist_refuses_a_file_with_another_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes
) -> None:
    """The file has the right length, so `require` accepts it."""
    files = mnist_files(train=12, test=7)
    whole = files["MNIST/raw/t10k-images-idx3-ubyte"]
    files["MNIST/raw/t10k-images-idx3-ubyte"] = damage + whole[len(damage) :]
    install(monkeypatch, tmp_path, "mnist", files)
    with pytest.raises((AssertionError, RuntimeError, KeyError, ValueError)):
        load_mnist(tmp_path)


@pytest.mark.parametrize(("load", "name"), [(load_mnist, "mnist"), (load_cifar10, "cifar10")])
def test_missing_data_error_names_download_command(load: object, name: str, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=f"nero data {name} --root"):
        load(tmp_path)  # type: ignore[operator]


def cifar_record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar_records_are_label_then_colour_planes(tmp_path: Path) -> None:
    pixels = bytes(i % 251 for i in range(3072))
    (tmp_path / "batch.bin").write_bytes(cifar_record(7, 1, 2, 3) + bytes([9]) + pixels)
    images, labels = read_cifar_records(tmp_path / "batch.bin")
    assert labels.tolist() == [7, 9]
    assert images.shape == (2, 3, 32, 32)
    assert [set(plane.flatten().tolist()) for plane in images[0]] == [{1}, {2}, {3}]
    assert images[1, 2, 31, 5] == pixels[2 * 1024 + 31 * 32 + 5]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "0 bytes"), (cifar_record(1, 0, 0, 0)[:-1], "3,072 bytes")],
)
def test_bad_cifar_records_raise(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "batch.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_cifar_records(tmp_path / "batch.bin")


def test_load_cifar10_concatenates_batches_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {
        f"cifar-10-batches-bin/data_batch_{n}.bin": cifar_record(n, n, 0, 0) + cifar_record(n + 1, 0, n, 0)
        for n in (3, 1, 5, 2, 4)
    }
    files["cifar-10-batches-bin/test_batch.bin"] = cifar_record(8, 0, 0, 255)
    install(monkeypatch, tmp_path, "cifar10", files)
    images = load_cifar10(tmp_path)
    assert images.train_labels.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert images.train_images[::2, 0, 0, 0].tolist() == [1, 2, 3, 4, 5]
    assert images.test_labels.tolist() == [8]
    assert images.test_images.shape == (1, 3, 32, 32)
    assert (images.train_images.dtype, images.train_labels.dtype) == (torch.uint8, torch.int64)


def test_load_cifar10_refuses_a_label_that_is_no_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    files = {f"cifar-10-batches-bin/{name}.bin": cifar_record(10, 0, 0, 0) for name in names}
    install(monkeypatch, tmp_path, "cifar10", files)
    with pytest.raises(ValueError, match="a training label is not a class number"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("label", [-1, 3])
def test_image_set_rejects_label_out_of_range(label: int) -> None:
    images = torch.zeros(1, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="a test label is not a class number from 0 to 2"):
        ImageSet(images, torch.tensor([0]), images, torch.tensor([label]), classes=3)


@pytest.mark.data
def test_real_mnist() -> None:
    mnist = load_mnist(root_with("mnist"))
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert mnist.test_images.shape == (10_000, 28, 28)
    # The mean and standard deviation that are commonly used to normalise MNIST.
    pixels = mnist.train_images.double() / 255
    assert (round(pixels.mean().item(), 4), round(pixels.std().item(), 4)) == (0.1307, 0.3081)
    assert mnist.train_labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert mnist.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.data
def test_real_cifar10() -> None:
    cifar = load_cifar10(root_with("cifar10"))
    assert cifar.train_images.shape == (50_000, 3, 32, 32)
    means = cifar.train_images.sum(dim=(0, 2, 3), dtype=torch.int64).double() / (50_000 * 1024 * 255)
    assert [round(mean, 4) for mean in means.tolist()] == [0.4914, 0.4822, 0.4465]
    assert cifar.train_labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert cifar.train_labels.bincount().tolist() == [5000] * 10
    assert cifar.test_labels.bincount().tolist() == [1000] * 10
