"""ImageNet (ILSVRC2012) as it lies under the data root, and what to do where it does not.

    imagenet/{train,val}/<wnid>/*.JPEG

Nobody may hand it on, so nothing is fetched here. Another data set in the same layout can be trained on: it is said not
to be ImageNet, and not refused.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nero.data.images.folders import JPEG, ListedImages, absence, is_image, list_images, some
from nero.data.sources import MissingData, command

FOLDER = "imagenet"
CLASSES = 1_000


@dataclass(frozen=True)
class Split:
    """What ImageNet has in one split: images in all, the fewest and the most of one class, and their archive's name."""

    images: int
    fewest: int
    most: int
    archive: str


SPLITS = {
    "train": Split(1_281_167, fewest=732, most=1_300, archive="ILSVRC2012_img_train.tar"),
    "val": Split(50_000, fewest=50, most=50, archive="ILSVRC2012_img_val.tar"),
}

# How a file of each kind that has one of the suffixes begins. The suffix itself says little: one training image of
# ImageNet is a PNG that is called JPEG.
PNG = b"\x89PNG\r\n\x1a\n"
OTHER_KINDS = (b"BM", b"II*\0", b"MM\0*", *(b"P%d" % number for number in range(1, 7)))
# Bytes at the end among which a JPEG's end marker is looked for: some cameras and programs write more after it. In the
# compressed image it cannot occur: there an FF is followed by 00 or by another marker.
TAIL = 4096
CHUNK = 500  # files that a thread looks at before it reports


def split_folder(data_root: Path | str, split: str) -> Path:
    """The folder of "train" or "val", whether it is there or not."""
    return Path(data_root) / FOLDER / split


@dataclass(frozen=True)
class Survey:
    """What lies where ImageNet belongs; problems are one line each.

    train, val:   None where they cannot be listed
    unusable:     why nothing can be trained on it
    differences:  what is otherwise than in ImageNet, though it can be trained on
    strays:       files that are skipped
    """

    train: ListedImages | None
    val: ListedImages | None
    unusable: tuple[str, ...]
    differences: tuple[str, ...]
    strays: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        return [*self.unusable, *self.differences, *self.strays]


def survey(data_root: Path | str) -> Survey:
    """List both splits and compare them with ImageNet; no file is opened."""
    if problem := absence(Path(data_root) / FOLDER):
        return Survey(None, None, (problem,), (), ())
    listed: dict[str, ListedImages] = {}
    unusable: list[str] = []
    for split in SPLITS:
        found = _listed(split_folder(data_root, split), SPLITS[split])
        if isinstance(found, ListedImages):
            listed[split] = found
        else:
            unusable.append(found)
    train, val = listed.get("train"), listed.get("val")
    if train is not None and val is not None and train.classes != val.classes:
        only = {"train": set(train.classes) - set(val.classes), "val": set(val.classes) - set(train.classes)}
        parts = [f"only in {split}: {some(sorted(names))}" for split, names in only.items() if names]
        unusable.append(f"{train.root} and {val.root} have different classes; {'; '.join(parts)}")
    return Survey(
        train=train,
        val=val,
        unusable=tuple(unusable),
        differences=tuple(line for split, images in listed.items() for line in _differences(images, SPLITS[split])),
        strays=tuple(line for images in listed.values() for line in _strays(images)),
    )


def problems(data_root: Path | str) -> list[str]:
    """One line for each way in which what is under the data root is not ImageNet, or holds files that are skipped."""
    return survey(data_root).problems


def require(data_root: Path | str) -> tuple[ListedImages, ListedImages]:
    """The training and the validation images; MissingData in one line if they cannot be trained on.

    Other counts or classes than ImageNet's are no reason: what is to be said of them, `remarks` says.
    """
    found = survey(data_root)
    if found.unusable or found.train is None or found.val is None:
        more = f" (and {len(found.unusable) - 1} more)" if len(found.unusable) > 1 else ""
        raise MissingData(f"imagenet: {found.unusable[0]}{more}; how to get it says: {command('imagenet', data_root)}")
    return found.train, found.val


def remarks(train: ListedImages, val: ListedImages) -> tuple[str, ...]:
    """What a run on these images has to say of them, one line each; nothing if they are ImageNet and nothing else."""
    lines = [*_strays(train), *_strays(val)]
    if _differences(train, SPLITS["train"]) or _differences(val, SPLITS["val"]):
        in_all = (len(train), len(val), len(train.classes), len(val.classes))
        same = in_all == (SPLITS["train"].images, SPLITS["val"].images, CLASSES, CLASSES)
        lines.insert(0, f"not ImageNet: {summary(train, val)}{', but not its numbers in each class' if same else ''}")
    return tuple(lines)


def summary(train: ListedImages, val: ListedImages) -> str:
    """How much there is, in words."""
    return f"{len(train):,} training and {len(val):,} validation images in {len(train.classes):,} classes"


def explanation(data_root: Path | str) -> str:
    """How to get ImageNet to where it belongs under the data root: several lines, with commands to copy."""
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
     again as the archives, and leaves a folder alone that is there: remove one in which it was cut off.
       pip install scipy
       python -c {shlex.quote(code)}
If the folders train/ and val/ are elsewhere already, a link does:
       ln -s /where/it/is {shlex.quote(str(folder))}"""


def unreadable(
    images: ListedImages, say: Callable[[str], None] = lambda line: None, every: float = 10.0, threads: int = 8
) -> Iterator[str]:
    """One line for each file that is empty, begins like no image, or is a JPEG or PNG without its end.

    Only the first and last bytes of a file are read, and no image is decoded. `say` receives a line of progress `every`
    so many seconds. Files wait for the disk, most of all over a network, which is what the threads are for.
    """
    split, total = images.root.name, len(images)
    reported = time.monotonic()

    def look(start: int) -> list[str]:
        places = ((index, _fault(images.path(index))) for index in range(start, min(start + CHUNK, total)))
        return [f"{images.path(index)} {fault}" for index, fault in places if fault]

    with ThreadPoolExecutor(threads) as pool:
        for number, lines in enumerate(pool.map(look, range(0, total, CHUNK)), start=1):
            yield from lines
            if time.monotonic() - reported >= every:
                reported = time.monotonic()
                say(f"{split}: looked at {min(number * CHUNK, total):,} of {total:,} files")


def _listed(folder: Path, split: Split) -> ListedImages | str:
    """The images of a split, or why they cannot be listed."""
    try:
        return list_images(folder)
    except ValueError as error:
        if flat := _images_in(folder):
            return (
                f"{folder} holds {flat:,} images in no class folder: rename it, and let torchvision.datasets.ImageNet"
                f" sort {split.archive} into classes"
            )
        return str(error)
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror or error}"


def _images_in(folder: Path) -> int:
    """How many images lie in the folder itself."""
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(is_image(entry.name) and not entry.is_dir() for entry in entries)


def _differences(images: ListedImages, split: Split) -> list[str]:
    lines = []
    if (len(images), len(images.classes)) != (split.images, CLASSES):
        lines.append(
            f"{images.root} has {len(images):,} images in {len(images.classes):,} classes"
            f" instead of {split.images:,} in {CLASSES:,}"
        )
    counts = zip(images.classes, images.counts().tolist(), strict=True)
    odd = [f"{name} ({count:,})" for name, count in counts if not split.fewest <= count <= split.most]
    if odd:
        right = f"{split.fewest:,}" if split.fewest == split.most else f"{split.fewest:,} to {split.most:,}"
        lines.append(f"{images.root} has classes of other than {right} images: {some(odd)}")
    return lines


def _strays(images: ListedImages) -> list[str]:
    """What is skipped, of which an image beside the class folders may be meant to be there."""
    under = images.root.name
    lines = []
    if files := [name for name in images.others if not is_image(name)]:
        words = f"file under {under} is no image by its suffix"
        if len(files) > 1:
            words = f"files under {under} are no images by their suffix"
        lines.append(f"{len(files):,} {words}, and skipped: {some(files)}")
    if outside := [name for name in images.others if is_image(name)]:
        words = f"image under {under} is" if len(outside) == 1 else f"images under {under} are"
        lines.append(f"{len(outside):,} {words} in no class folder, and skipped: {some(outside)}")
    return lines


def _fault(path: Path) -> str | None:
    """Why a file cannot be an image, from its first and last bytes; None if nothing speaks against it."""
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
    return None if webp or head.startswith(OTHER_KINDS) else f"begins like no image: {head[:8].hex(' ')}"
