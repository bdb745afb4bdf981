"""ImageNet (ILSVRC2012) under the data root: imagenet/{train,val}/<wnid>/*.JPEG, and instructions to get it.

It may not be redistributed, so nothing is fetched here. Another data set in the same layout is accepted, with a remark
that it is not ImageNet.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nero.data.images.folders import JPEG, ListedImages, absence, is_image, list_images, some
from nero.data.sources import MissingData, fetch_command

FOLDER = "imagenet"
CLASSES = 1_000


class Split(NamedTuple):
    """ImageNet's numbers for one split."""

    images: int
    fewest: int  # images of a class
    most: int
    archive: str


SPLITS = {
    "train": Split(1_281_167, fewest=732, most=1_300, archive="ILSVRC2012_img_train.tar"),
    "val": Split(50_000, fewest=50, most=50, archive="ILSVRC2012_img_val.tar"),
}

# First bytes of the formats with one of the suffixes. The suffix itself is unreliable: one training image of ImageNet
# is a PNG named JPEG.
PNG = b"\x89PNG\r\n\x1a\n"
OTHER_KINDS = (b"BM", b"II*\0", b"MM\0*", *(b"P%d" % number for number in range(1, 7)))
# Last bytes in which a JPEG's end marker is searched, since some programs write more after it. The marker cannot occur
# in the compressed image: there an FF is followed by 00 or by another marker.
TAIL = 4096
CHUNK = 500  # files that a thread checks before it reports


@dataclass(frozen=True)
class Survey:
    """What is in ImageNet's folder; problems are one line each."""

    train: ListedImages | None  # None if they cannot be listed
    val: ListedImages | None
    unusable: tuple[str, ...]  # why it cannot be trained on
    differences: tuple[str, ...] = ()  # how it differs from ImageNet, though it can be trained on
    strays: tuple[str, ...] = ()  # files that are skipped

    @property
    def problems(self) -> list[str]:
        return [*self.unusable, *self.differences, *self.strays]


def survey(data_root: Path | str) -> Survey:
    """List both splits and compare them with ImageNet; no file is opened."""
    folder = Path(data_root) / FOLDER
    if problem := absence(folder):
        return Survey(None, None, (problem,))
    listed: dict[str, ListedImages] = {}
    unusable: list[str] = []
    for split in SPLITS:
        try:
            listed[split] = list_images(folder / split)
        except ValueError as error:
            unusable.append(_flat(folder / split) or str(error))
        except OSError as error:
            unusable.append(f"{error.filename or folder / split} cannot be read: {error.strerror or error}")
    train, val = listed.get("train"), listed.get("val")
    if train is not None and val is not None and train.classes != val.classes:
        only = {"train": set(train.classes) - set(val.classes), "val": set(val.classes) - set(train.classes)}
        parts = [f"only in {split}: {some(sorted(names))}" for split, names in only.items() if names]
        unusable.append(f"{train.root} and {val.root} have different classes; {'; '.join(parts)}")
    differences = [line for images in listed.values() for line in _differences(images)]
    strays = [line for images in listed.values() for line in _strays(images)]
    return Survey(train, val, tuple(unusable), tuple(differences), tuple(strays))


def _flat(folder: Path) -> str | None:
    """The problem of a folder with images that are not sorted into class folders, or None if it is not one."""
    if not folder.is_dir() or not (flat := sum(is_image(path.name) for path in folder.iterdir() if not path.is_dir())):
        return None
    return (
        f"{folder} has {flat:,} images outside of class folders: rename it, and let"
        f" torchvision.datasets.ImageNet sort {SPLITS[folder.name].archive} into classes"
    )


def require(data_root: Path | str) -> tuple[ListedImages, ListedImages]:
    """The training and validation images; MissingData if they cannot be trained on. Other images are accepted."""
    found = survey(data_root)
    if found.unusable or found.train is None or found.val is None:
        more = f" (and {len(found.unusable) - 1} more)" if len(found.unusable) > 1 else ""
        how = f"for instructions run: {fetch_command('imagenet', data_root)}"
        raise MissingData(f"imagenet: {found.unusable[0]}{more}; {how}")
    return found.train, found.val


def remarks(train: ListedImages, val: ListedImages) -> tuple[str, ...]:
    """What a run reports about these images, one line each; nothing if they are exactly ImageNet."""
    lines = [*_strays(train), *_strays(val)]
    if _differences(train) or _differences(val):
        sizes = (len(train), len(val), len(train.classes), len(val.classes))
        same = sizes == (SPLITS["train"].images, SPLITS["val"].images, CLASSES, CLASSES)
        lines.insert(0, f"not ImageNet: {summary(train, val)}{', but not its numbers in each class' if same else ''}")
    return tuple(lines)


def summary(train: ListedImages, val: ListedImages) -> str:
    return f"{len(train):,} training and {len(val):,} validation images in {len(train.classes):,} classes"


def explanation(data_root: Path | str) -> str:
    """How to get ImageNet: several lines, with commands to copy."""
    folder = Path(data_root) / FOLDER
    code = (
        "from torchvision.datasets import ImageNet;"
        f' [ImageNet({json.dumps(str(folder))}, split) for split in ("train", "val")]'
    )
    return f"""\
ImageNet cannot be downloaded freely, so nothing is fetched. To get it:
  1. Register at https://image-net.org and download these archives of ILSVRC2012 into {folder}:
       ILSVRC2012_img_train.tar  ILSVRC2012_img_val.tar  ILSVRC2012_devkit_t12.tar.gz
  2. Let torchvision sort them into train/ and val/, with a folder for each class. It needs scipy and as much space
     again as the archives, and leaves existing folders alone: remove one in which it was interrupted.
       pip install scipy
       python -c {shlex.quote(code)}
If you already have the folders train/ and val/ elsewhere, link to them:
       ln -s /where/it/is {shlex.quote(str(folder))}"""


def unreadable(
    images: ListedImages, log: Callable[[str], None] = lambda line: None, every: float = 10.0, threads: int = 8
) -> Iterator[str]:
    """One line for each file that is empty, does not begin like an image, or is a JPEG or PNG without its end.

    Only the first and last bytes are read, by several threads, since files may be on a network. `log` receives a line
    of progress `every` so many seconds.
    """
    split, total = images.root.name, len(images)
    reported = time.monotonic()

    def check(start: int) -> list[str]:
        faults = ((index, _fault(images.path(index))) for index in range(start, min(start + CHUNK, total)))
        return [f"{images.path(index)} {fault}" for index, fault in faults if fault]

    with ThreadPoolExecutor(threads) as pool:
        for number, lines in enumerate(pool.map(check, range(0, total, CHUNK)), start=1):
            yield from lines
            if time.monotonic() - reported >= every:
                reported = time.monotonic()
                log(f"{split}: checked {min(number * CHUNK, total):,} of {total:,} files")


def _differences(images: ListedImages) -> list[str]:
    split = SPLITS[images.root.name]
    lines = []
    if (len(images), len(images.classes)) != (split.images, CLASSES):
        lines.append(
            f"{images.root} has {len(images):,} images in {len(images.classes):,} classes"
            f" instead of {split.images:,} in {CLASSES:,}"
        )
    counts = zip(images.classes, np.bincount(images.labels).tolist(), strict=True)
    odd = [f"{name} ({count:,})" for name, count in counts if not split.fewest <= count <= split.most]
    if odd:
        right = f"{split.fewest:,}" if split.fewest == split.most else f"{split.fewest:,} to {split.most:,}"
        lines.append(f"{images.root} has classes of other than {right} images: {some(odd)}")
    return lines


def _strays(images: ListedImages) -> list[str]:
    """What is skipped: an image outside of the class folders may be there by mistake."""
    lines = []
    for kind, wanted in (("not an image by suffix", False), ("image outside of a class folder", True)):
        if names := [name for name in images.others if is_image(name) == wanted]:
            files = "file" if len(names) == 1 else "files"
            lines.append(f"{len(names):,} {files} in {images.root.name} skipped ({kind}): {some(names)}")
    return lines


def _fault(path: Path) -> str | None:
    """Why a file cannot be an image, judged by its first and last bytes, or None."""
    try:
        with path.open("rb", buffering=0) as file:
            head = file.read(16)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            tail = file.read(TAIL)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if not size:
        return "is empty"
    if head.startswith(JPEG):
        return None if b"\xff\xd9" in tail else "is a JPEG without its end"
    if head.startswith(PNG):
        return None if b"IEND" in tail else "is a PNG without its end"
    webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return None if webp or head.startswith(OTHER_KINDS) else f"does not begin like an image: {head[:8].hex(' ')}"
