"""Images written as JPEG files in ImageNet's layout, <folder>/<name>/{train,val}/<class>/<number>.jpg: CIFAR-10's."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from torch import Tensor

from nero.data.images.arrays import load_cifar10

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")  # in label order
FORMAT = 1  # increased when other files are written, so that old ones are not reused
QUALITY = 95


def cifar10_folders(data_root: Path) -> tuple[Path, Path]:
    """The folders of CIFAR-10's training and test images, written under the data root if missing, in about 20 seconds.

    MissingData if CIFAR-10 is needed and absent.
    """

    place = data_root / f"cifar10-jpeg-v{FORMAT}"
    if not place.is_dir():
        images = load_cifar10(data_root)  # before any folder is created

        def make(folder: Path) -> None:
            _write(folder / "train", images.train_images, images.train_labels)
            _write(folder / "val", images.test_images, images.test_labels)

        create(place, make)
    return place / "train", place / "val"


def create(place: Path, make: Callable[[Path], None]) -> None:
    """Create a folder, filled by `make`, atomically.

    Several processes can call this at once, and one that is killed leaves at most a hidden folder.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent, ignore_cleanup_errors=True) as scratch:
        # The scratch folder itself cannot be renamed into place: only its owner may enter it.
        made = Path(scratch) / place.name
        make(made)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():  # otherwise another process was first
                raise


def _write(place: Path, images: Tensor, labels: Tensor) -> None:
    """images: uint8 [N, 3, 32, 32]; labels: indices into CIFAR10."""
    for name in CIFAR10:
        (place / name).mkdir(parents=True)
    pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
    for number, (image, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        Image.fromarray(image).save(place / CIFAR10[label] / f"{number:05d}.jpg", quality=QUALITY)
