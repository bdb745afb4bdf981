"""Tests of images written in ImageNet's layout, embedded ones and CIFAR-10's: contents, and atomic creation."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nero.data.images import jpeg_folders as images_module
from nero.data.images.arrays import ImageSet
from nero.data.images.folders import list_images
from nero.data.images.jpeg_folders import CIFAR10, cifar10_folders
from nero.data.sources import MissingData
from nero.data.synthetic import jpeg_folders as module
from nero.data.synthetic.jpeg_folders import NAMES, jpeg_folders
from nero.data.synthetic.shapes import shapes


def contents(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file under a folder, by relative path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_each_split_has_all_named_classes(tmp_path: Path) -> None:
    train, val = jpeg_folders(tmp_path, 57, 20)
    assert train.parent == val.parent
    assert (train.name, val.name, train.parent.parent) == ("train", "val", tmp_path)
    for folder, count in ((train, 57), (val, 20)):
        listed = list_images(folder)
        assert len(listed) == count
        assert listed.classes == tuple(sorted(NAMES))
        assert listed.others == ()
        assert np.ptp(np.bincount(listed.labels)) <= 1
    assert {"disc", "ring", "star"} < set(NAMES)


def test_images_are_the_drawn_shapes_at_varying_sizes(tmp_path: Path) -> None:
    """Reduced to 32 x 32 pixels, each image equals the drawn one of the same class up to JPEG and resampling."""
    train, val = jpeg_folders(tmp_path, 100, 30, seed=3)
    drawn = shapes(3, 100, 30)
    sizes = []
    for folder, images, labels in (
        (train, drawn.train_images, drawn.train_labels),
        (val, drawn.test_images, drawn.test_labels),
    ):
        for path in folder.glob("*/*.jpg"):
            number = int(path.stem)
            assert path.parent.name == NAMES[int(labels[number])]
            with Image.open(path) as image:
                assert (image.format, image.mode) == ("JPEG", "RGB")
                sizes.append(image.size)
                small = np.asarray(image.resize((32, 32), Image.Resampling.BOX), np.float32)
            original = images[number].permute(1, 2, 0).numpy().astype(np.float32)
            # JPEG and resampling remove the noise; different images differ by more than 35 on average.
            assert np.abs(small - original).mean() < 20
    sides = np.array(sizes)
    assert sides.min() == 40
    assert sides.max() == 64
    ratios = sides[:, 0] / sides[:, 1]
    assert ratios.min() < 0.75
    assert ratios.max() > 1.33


def test_images_are_determined_by_seed(tmp_path: Path) -> None:
    first, again, other = (
        contents(jpeg_folders(tmp_path / place, 30, 10, seed)[0].parent)
        for place, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    assert not set(first.values()) & set(other.values())


def test_different_arguments_use_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [(20, 10, 0), (21, 10, 0), (20, 11, 0), (20, 10, 1)]
    places = {jpeg_folders(tmp_path, *each)[0] for each in arguments}
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    places.add(jpeg_folders(tmp_path, *arguments[0])[0])
    assert len(places) == 5
    assert len(list(tmp_path.iterdir())) == 5


def test_existing_folder_is_reused_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = jpeg_folders(tmp_path, 20, 10)
    (train / "disc" / "own.jpg").touch()
    monkeypatch.setattr(module, "_make", lambda *arguments: pytest.fail("made again"))
    assert jpeg_folders(tmp_path, 20, 10)[0] == train
    assert (train / "disc" / "own.jpg").exists()


@pytest.mark.slow
def test_concurrent_processes_produce_one_complete_folder(tmp_path: Path) -> None:
    """Both processes write all images and wait for each other before they rename their folder."""
    code = (
        "import sys, time; from pathlib import Path; from nero.data.synthetic import jpeg_folders as module\n"
        "folder, own, other = map(Path, sys.argv[1:])\n"
        "make = module._make\n"
        "def meet(*arguments):\n"
        "    make(*arguments); own.touch()\n"
        "    while not other.exists(): time.sleep(0.01)\n"
        "module._make = meet\n"
        "print(module.jpeg_folders(folder, 40, 20)[0])\n"
    )
    folder, flags = tmp_path / "data", [tmp_path / "first", tmp_path / "second"]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), *map(str, order)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for order in (flags, flags[::-1])
    ]
    outcomes = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0], outcomes
    assert outcomes[0][0] == outcomes[1][0]
    assert [path.name for path in folder.iterdir()] == [Path(outcomes[0][0].decode().strip()).parent.name]
    alone = jpeg_folders(tmp_path / "alone", 40, 20)[0].parent
    assert contents(next(folder.iterdir())) == contents(alone)


def test_kill_during_creation_leaves_no_incomplete_dataset(tmp_path: Path) -> None:
    """The process is killed after the training images; the partial folder that it leaves must be ignored."""
    code = (
        "import os, signal, sys; from pathlib import Path; from nero.data.synthetic import jpeg_folders as module\n"
        "write = module._write\n"
        "def last(place, *rest):\n"
        "    write(place, *rest); os.kill(os.getpid(), signal.SIGKILL)\n"
        "module._write = last\n"
        "module.jpeg_folders(Path(sys.argv[1]), 40, 20)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode < 0
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".")
    assert len(list(left.rglob("*.jpg"))) == 40
    train, val = jpeg_folders(tmp_path, 40, 20)
    assert contents(train.parent) == contents(jpeg_folders(tmp_path / "alone", 40, 20)[0].parent)
    assert len(list_images(val)) == 20


def test_failed_creation_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(place: Path, *arguments: object) -> None:
        (place / "train").mkdir(parents=True)
        raise OSError("no space left")

    monkeypatch.setattr(module, "_make", full)
    with pytest.raises(OSError, match="no space left"):
        jpeg_folders(tmp_path, 20, 10)
    assert list(tmp_path.iterdir()) == []


def test_created_folders_have_default_permissions(tmp_path: Path) -> None:
    train, _ = jpeg_folders(tmp_path, 20, 10)
    plain = tmp_path / "plain"
    plain.mkdir()
    assert {path.stat().st_mode for path in (train.parent, train, train / "disc")} == {plain.stat().st_mode}


@pytest.mark.parametrize(("train", "val"), [(9, 10), (10, 9), (-1, 10)])
def test_fewer_images_than_classes_raises(tmp_path: Path, train: int, val: int) -> None:
    with pytest.raises(ValueError, match="do not fill 10 classes"):
        jpeg_folders(tmp_path, train, val)
    assert list(tmp_path.iterdir()) == []


def test_cifar10_is_written_once_with_its_labels_and_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smooth images, which JPEG at this quality keeps to a few grey levels; each file's class is its image's label."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(30, 3, 4, 4, generator=generator) * 255
    pixels = torch.nn.functional.interpolate(coarse, size=32, mode="bilinear").to(torch.uint8)
    labels = torch.arange(30) * 7 % 10
    made = ImageSet(pixels[:20], labels[:20], pixels[20:], labels[20:], classes=10)
    monkeypatch.setattr(images_module, "load_cifar10", lambda root: made)
    folders = cifar10_folders(tmp_path)
    for folder, images, numbers in zip(folders, (pixels[:20], pixels[20:]), (labels[:20], labels[20:]), strict=True):
        listed = list_images(folder)
        assert listed.classes == CIFAR10
        assert len(listed) == len(images)
        for index in range(len(listed)):
            number = int(Path(listed.name(index)).stem)
            assert listed.labels[index] == numbers[number]
            with Image.open(listed.path(index)) as image:
                assert (image.format, image.size) == ("JPEG", (32, 32))
                read = torch.from_numpy(np.array(image)).permute(2, 0, 1)
            assert (read.float() - images[number].float()).abs().mean() < 3
    monkeypatch.setattr(images_module, "load_cifar10", lambda root: pytest.fail("written again"))
    assert cifar10_folders(tmp_path) == folders


def test_missing_cifar10_is_named_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"^cifar10: .*nero data"):
        cifar10_folders(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
