"""Lists folders of images in the layout of torchvision's ImageFolder, `<root>/<class>/**/<file>`, without opening any.

Classes, labels and order are ImageFolder's. A list of a million Python strings would not stay shared with forked
workers, since reading a string changes its reference count and so copies its memory page. Here all names are one bytes
object, with their offsets in a numpy array.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# torchvision.datasets.folder.IMG_EXTENSIONS; importing torchvision takes seconds.
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

JPEG = b"\xff\xd8\xff"
"""The first bytes of a JPEG file."""


@dataclass(frozen=True, eq=False)
class ListedImages:
    """The images of one split.

    root:     the folder of the class folders
    classes:  names of the class folders, sorted; a label is an index into them
    labels:   int64 [N]
    others:   skipped files relative to root, sorted: not images by their suffix, or outside of the class folders
    text:     names of the images relative to root, concatenated, in the file system's encoding
    offsets:  int64 [N + 1]: the name of image i is text[offsets[i] : offsets[i + 1]]
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
        return self.root / self.name(index)

    def counts(self) -> np.ndarray:
        """Images of each class, int64 [classes]."""
        return np.bincount(self.labels, minlength=len(self.classes))


def list_images(root: Path | str) -> ListedImages:
    """All images under the class folders of root; ValueError if there is no class, or one has no image.

    Links are followed. No single file is queried, so that ImageNet takes seconds.
    """
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
    parts: list[bytes] = []
    lengths: list[np.ndarray] = []
    counts = []
    for class_name in classes:
        listed: list[bytes] = []
        # Folders are sorted by their paths, as in ImageFolder: sorting files by name would mix folders.
        walk = os.walk(os.path.join(root, class_name), onerror=_reraise, followlinks=True)
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


def _reraise(error: OSError) -> None:
    """A folder that cannot be read would otherwise be skipped."""
    raise error
