"""Who judges generated images: Inception for real data, a stand-in for embedded data, nobody without Inception.

The statistics of the real images are worked out once and kept under the data root.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from nero.data.download import inception as inception_data
from nero.data.download.checked_file import DamagedData
from nero.data.images.arrays import ImageSet
from nero.data.sources import command
from nero.tasks.base import Context
from nero.tasks.fid import NoInception, Reference, StandIn, Statistics, cached_statistics, inception

BATCH = {"cuda": 250, "cpu": 50}
"""Images that Inception sees at once, each enlarged to 299 x 299 pixels; by the kind of device."""

ARITHMETIC = {"cuda": "cuda, TF32 with images, first and last weights whole", "cpu": "cpu"}
"""What kept statistics are told apart by, beside network and images."""


class Judge:
    """Distances of generated images from the training and the test images, by the features of one network.

    network:  uint8 [N, 3, H, W] -> features [N, d], on the device of the images
    name:     of a distance in the log, after the part of the data and a slash
    label:    of a distance in tables
    real:     the real images by part of the data (train, val), uint8
    folder:   where statistics of the real images are kept; None for nowhere
    tf32:     whether a GPU's convolutions are by TF32 products, whatever a run's are
    """

    def __init__(
        self,
        network: nn.Module,
        name: str,
        label: str,
        real: Mapping[str, Tensor],
        device: torch.device,
        folder: Path | None = None,
        tf32: bool = True,
    ) -> None:
        self.network, self.name, self.label = network.to(device), name, label
        self.real, self.device, self.folder, self.tf32 = real, device, folder, tf32

    def key(self, part: str) -> str:
        return f"{part}/{self.name}"

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        """By their keys, for batches of uint8 images."""
        statistics = self._statistics(images)
        return {self.key(part): reference.distance(statistics) for part, reference in self.references.items()}

    @cached_property
    def references(self) -> dict[str, Reference]:
        """What images are compared with, by part of the data; the first to ask waits."""
        return {part: Reference(self._of_real(part).to(self.device)) for part in self.real}

    def released(self) -> "Judge":
        """The same network, measuring FID as the code that the authors released does."""
        return Released(self)

    def _of_real(self, part: str) -> Statistics:
        real = self.real[part]
        if self.folder is None:
            return self._statistics([real])
        file = self.folder / f"{self.name}-statistics-{part}-{len(real)}.pt"
        digest = hashlib.sha256(real.contiguous().numpy().tobytes()).hexdigest()
        key = f"{type(self.network).__name__}, {ARITHMETIC[self.device.type]}, {digest}"

        def compute() -> Statistics:
            print(
                f"{self.label}: {len(real):,} real images are looked at, once, for {file}", file=sys.stderr, flush=True
            )
            return self._statistics([real])

        return cached_statistics(file, key, compute)

    def _statistics(self, images: Iterable[Tensor]) -> Statistics:
        small = (part.to(self.device) for batch in images for part in batch.split(BATCH[self.device.type]))
        with convolutions(self.tf32):
            return Statistics.of(self.network, small)


class Released(Judge):
    """FID as the authors' code takes it: of images that it wrote to files and read again.

    It writes them by torchvision's `save_image(..., normalize=True)`, which stretches each image, real or generated, to
    the full range of values. Its real images come flipped at random, and are as many of either part as there are test
    images.
    """

    def __init__(self, plain: Judge) -> None:
        count = len(plain.real["val"])
        real = {part: flipped_at_random(stretched(images[:count])) for part, images in plain.real.items()}
        name, label = f"{plain.name}_released", f"{plain.label} as released"
        super().__init__(plain.network, name, label, real, plain.device, plain.folder, plain.tf32)

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        return super().distances(stretched(batch) for batch in images)


def flipped_at_random(images: Tensor) -> Tensor:
    """Images [N, ..., width], each flipped left to right or not, by the same draws for every run."""
    flips = torch.rand(len(images), generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.where(flips[:, None, None, None], images.flip(-1), images)


def stretched(images: Tensor) -> Tensor:
    """uint8 images [N, ...], each with its darkest value at 0 and its brightest at 255; a single grey becomes black."""
    values = images.flatten(1).to(torch.float32)
    low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    scaled = (values - low) / (high - low).clamp(min=1e-5) * 255
    return (scaled + 0.5).to(torch.uint8).reshape(images.shape)


class NoJudge(Judge):
    """Stands where Inception cannot be had: it has names, and no distances."""

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label

    def released(self) -> Judge:
        return NoJudge(f"{self.name}_released", f"{self.label} as released")

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        return {}


def judge(context: Context, images: ImageSet) -> tuple[Judge, tuple[str, ...]]:
    """The judge that fits the data, and what is to be said of it."""
    real = {"train": images.train_images, "val": images.test_images}
    if context.data == "embedded":
        return Judge(StandIn(), "stand_in_fid", "stand-in FID", real, context.device), ()
    name, label = "fid", "FID"
    path = context.inception or context.data_root / inception_data.FILE
    try:
        if not path.is_file():
            how = f"get it with: {command('inception', context.data_root)}"
            raise NoInception(f"{path} is not there; {how}")
        network = inception(inception_data.load_weights(path))
    except (DamagedData, NoInception) as error:
        return NoJudge(name, label), (f"goes on without FID: {error}",)
    return Judge(network, name, label, real, context.device, folder=context.data_root), ()


@contextmanager
def convolutions(tf32: bool) -> Iterator[None]:
    """By TF32 products or not, whatever the arithmetic of the run, and chosen without a search.

    A search takes seconds for the many layers of Inception, and in TF32 found nothing faster than the default.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, cudnn.benchmark = tf32, False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before
