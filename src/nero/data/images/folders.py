"""Lists folders of images in the layout of torchvision's ImageFolder, `<root>/<class>/**/<file>`, without opening any.

Classes, labels and order are ImageFolder's.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# torchvision.datasets.folder.IMG_EXTENSIONS; importing torchvision takes seconds.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

JPEG = b"\xff\xd8\xff"  # the first bytes of a file


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The images of one split, with paths relative to `root`.

    `names` is no list of strings: reading one changes its reference count, so that forked workers would soon have
    copied the memory of a million of them.
    """

    root: Path  # the folder of the class folders
    classes: tuple[str, ...]  # names of the class folders, sorted; a label is an index into them
    labels: np.ndarray  # int64 [N]
    names: np.ndarray  # bytes [N]
    others: tuple[str, ...]  # skipped files, sorted: not images by their suffix, or outside of the class folders

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, index: int) -> str:
        """The image's path relative to root."""
        if index < 0:
            raise IndexError(f"image {index} of {len(self)}")
        return os.fsdecode(self.names[index])

    def path(self, index: int) -> Path:
        return self.root / self.name(index)


def list_images(root: Path | str) -> ListedImages:
    """All images under the class folders of root; ValueError if there is no class, or one has no image.

    Links are followed. No single file is queried, so that ImageNet takes seconds.
    """

    def fail(error: OSError) -> None:  # else a folder that cannot be read would be skipped
        raise error

    root = Path(root)
    if problem := absence(root):
        raise ValueError(problem)
    with os.scandir(root) as entries:
        is_folder = {entry.name: entry.is_dir() for entry in entries}
    classes = sorted(name for name in is_folder if is_folder[name])
    others = sorted(name for name in is_folder if not is_folder[name])
    if not classes:
        raise ValueError(f"{root} has no class folders" + (f", only files: {some(others)}" if others else ""))
    start = len(os.path.join(root, ""))
    images: list[list[str]] = []
    for class_name in classes:
        images.append([])
        # Folders are sorted by their paths, as in ImageFolder: sorting files by name would mix folders.
        walk = os.walk(os.path.join(root, class_name), onerror=fail, followlinks=True)
        for folder, _, files in sorted(walk, key=lambda found: found[0]):
            for file in sorted(files):
                (images[-1] if is_image(file) else others).append(f"{folder[start:]}/{file}")
    if empty := [name for name, found in zip(classes, images, strict=True) if not found]:
        raise ValueError(f"{root} has class folders without an image: {some(empty)}")
    return ListedImages(
        root=root,
        classes=tuple(classes),
        labels=np.repeat(np.arange(len(classes)), [len(found) for found in images]),
        names=np.array([os.fsencode(name) for found in images for name in found]),
        others=tuple(sorted(others)),
    )


def is_image(name: str) -> bool:
    """Whether ImageFolder accepts a file's suffix."""
    return name.lower().endswith(SUFFIXES)


def absence(folder: Path) -> str | None:
    """Why the folder does not exist, or None."""
    if folder.is_dir():
        return None
    if folder.exists():
        return f"{folder} is not a folder"
    return f"{folder} is a broken link" if folder.is_symlink() else f"{folder} is missing"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few of many names, for a message."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
