"""Folders of images in the layout of torchvision's ImageFolder, `<root>/<class>/**/<file>`, listed without opening any.

Classes, labels and order are ImageFolder's. A list of a million Python strings would not stay shared with forked
workers: each look at a string writes its reference count, and so copies the page it lies on. Here all names are one
buffer of bytes, and numpy holds where each begins.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# torchvision.datasets.folder.IMG_EXTENSIONS, for those who do without torchvision, which takes seconds to import.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

JPEG = b"\xff\xd8\xff"
"""How a JPEG file begins, whatever it is called."""


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The images of one split.

    root:     the split's folder, that of the class folders
    classes:  names of the class folders, sorted; a class's label is its place here
    labels:   int64 [N]
    others:   files that are not listed, by their names relative to root, sorted: no images by their suffix, or beside
              the class folders instead of in one
    text:     names of the images relative to root, one after the other, in the file system's encoding
    offsets:  int64 [N + 1]: image i's name is text[offsets[i] : offsets[i + 1]]
    """

    root: Path
    classes: tuple[str, ...]
    labels: np.ndarray
    others: tuple[str, ...]
    text: bytes
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The image's path relative to root, with forward slashes."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        return os.fsdecode(self.text[int(self.offsets[index]) : int(self.offsets[index + 1])])

    def path(self, index: int) -> Path:
        """Where the image lies."""
        return self.root / self.name(index)

    def counts(self) -> np.ndarray:
        """How many images each class has, int64 [classes]."""
        return np.bincount(self.labels, minlength=len(self.classes))


def list_images(root: Path | str) -> ListedImages:
    """All images under the class folders of root; ValueError in one line if there is no class, or one has no image.

    Links are followed. Nothing is asked of the file system about single files, so that ImageNet takes seconds.
    """
    root = Path(root)
    classes, others = _top(root)
    if not classes:
        raise ValueError(f"{root} has no class folders" + (f", only files: {some(others)}" if others else ""))
    start = len(os.path.join(root, ""))
    parts: list[bytes] = []
    lengths: list[np.ndarray] = []
    counts = []
    for class_name in classes:
        listed: list[bytes] = []
        # Whole folders are sorted by their paths, as ImageFolder does: sorting by names would mix a folder's files with
        # those of the folders in it.
        walk = os.walk(os.path.join(root, class_name), onerror=_refuse, followlinks=True)
        for folder, _, files in sorted(walk, key=lambda found: found[0]):
            inside = folder[start:].replace(os.sep, "/")
            for file in sorted(files):
                if is_image(file):
                    listed.append(os.fsencode(f"{inside}/{file}"))
                else:
                    others.append(f"{inside}/{file}")
        parts.append(b"".join(listed))
        lengths.append(np.fromiter(map(len, listed), np.int64, len(listed)))
        counts.append(len(listed))
    if empty := [name for name, count in zip(classes, counts, strict=True) if not count]:
        raise ValueError(f"{root} has class folders without an image: {some(empty)}")
    return ListedImages(
        root=root,
        classes=tuple(classes),
        labels=np.repeat(np.arange(len(classes), dtype=np.int64), counts),
        others=tuple(sorted(others)),
        text=b"".join(parts),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
    )


def is_image(name: str) -> bool:
    """Whether a file's suffix, in whichever case, is one that ImageFolder takes."""
    return name.lower().endswith(SUFFIXES)


def absence(folder: Path) -> str | None:
    """Why there is no such folder, in one line, or None if there is."""
    if folder.is_dir():
        return None
    if folder.exists():
        return f"{folder} is not a folder"
    return f"{folder} is a link that leads nowhere" if folder.is_symlink() else f"{folder} is missing"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names, for a message of one line."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _top(root: Path) -> tuple[list[str], list[str]]:
    """The names of the folders in root, and of the files, each sorted."""
    if problem := absence(root):
        raise ValueError(problem)
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(root) as entries:
        for entry in entries:
            (folders if entry.is_dir() else files).append(entry.name)
    return sorted(folders), sorted(files)


def _refuse(error: OSError) -> None:
    """A folder that cannot be read would otherwise pass for an empty one."""
    raise error
