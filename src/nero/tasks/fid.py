"""The Fréchet Inception distance (FID) of generated images from real ones, and who measures it.

A Gaussian is fitted to the features of each set of images (Inception's last pooled layer, 2048 numbers an image), and
FID is the squared Fréchet distance of the two Gaussians. The judge is Inception for real data, a stand-in for embedded
data, and none without Inception. Statistics of the real images are computed once and stored under the data root.
"""

import hashlib
import io
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from nero.atomic import write_atomic
from nero.data.download.files import INCEPTION_FILE, DamagedData
from nero.data.download.inception import load_weights
from nero.data.images.arrays import ImageSet
from nero.data.sources import fetch_command
from nero.models.inception import NoInception, StandIn, inception
from nero.tasks.base import Context

BATCH = {"cuda": 250, "cpu": 50}  # images per forward pass of Inception, by kind of device
ARITHMETIC = {"cuda": "cuda, TF32 with images, first and last weights whole", "cpu": "cpu"}  # in keys of statistics


@dataclass(frozen=True)
class Statistics:
    """The Gaussian of a set of images."""

    count: int  # number of images
    mean: Tensor  # of their features, float64 [d]
    covariance: Tensor  # of their features, float64 [d, d], divided by count - 1

    @classmethod
    def of(cls, features_of: Callable[[Tensor], Tensor], images: Iterable[Tensor]) -> "Statistics":
        """The statistics of batches of images, on the device of the features and without autocast."""
        batches = []
        for batch in images:
            with torch.no_grad(), torch.autocast(batch.device.type, enabled=False):
                batches.append(features_of(batch))
        count = sum(map(len, batches))
        if count < 2:
            raise ValueError(f"statistics need at least 2 images, not {count}")
        features = torch.cat(batches).to(torch.float64)
        return cls(count, features.mean(0), torch.atleast_2d(features.T.cov()))

    def to(self, device: torch.device | str) -> "Statistics":
        return Statistics(self.count, self.mean.to(device), self.covariance.to(device))

    @cached_property
    def root(self) -> Tensor:
        """The symmetric square root of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.T

    def distance(self, other: "Statistics") -> float:
        """FID: |μ₁ - μ₂|² + tr Σ₁ + tr Σ₂ - 2 tr (Σ₁ Σ₂)^½; NaN if the other statistics are not finite.

        With R = Σ₁^½ the last trace is that of (R Σ₂ R)^½, which is symmetric. torchmetrics takes the eigenvalues of
        Σ₁ Σ₂, which is not: the same number, several times slower.
        """
        other = other.to(self.mean.device)
        if not (other.mean.isfinite().all() and other.covariance.isfinite().all()):
            return math.nan
        shared = torch.linalg.eigvalsh(self.root @ other.covariance @ self.root).clamp(min=0).sqrt().sum()
        apart = (self.mean - other.mean).square().sum()
        spread = self.covariance.trace() + other.covariance.trace()
        return float((apart + spread - 2 * shared).clamp(min=0))  # rounding can make a distance of zero negative


def cached_statistics(path: Path, key: str, compute: Callable[[], Statistics]) -> Statistics:
    """The statistics stored at `path` for this key, on the CPU; else computed and stored.

    The key identifies all that they depend on: images, network, arithmetic. A damaged file or one with another key is
    replaced.
    """
    stored = _read(path, key)
    if stored is not None:
        return stored
    computed = compute().to("cpu")
    file = io.BytesIO()
    torch.save({"key": key, **vars(computed)}, file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _first_line(file.getvalue()) + file.getvalue())
    except OSError as error:
        warnings.warn(f"could not store the statistics of the images for the next run: {error}", stacklevel=2)
    return computed


def _read(path: Path, key: str) -> Statistics | None:
    """The statistics of an intact file with this key, else None."""
    try:
        first, newline, rest = path.read_bytes().partition(b"\n")
        if first + newline != _first_line(rest):
            return None
        state = torch.load(io.BytesIO(rest), map_location="cpu", weights_only=True)
        return Statistics(**state) if state.pop("key") == key else None
    except Exception:  # whatever is wrong with the file, its content can be computed again
        return None


def _first_line(rest: bytes) -> bytes:
    """The checksum of the rest of the file, since torch.load does not notice damage in a tensor."""
    return hashlib.sha256(rest).hexdigest().encode() + b"\n"


@dataclass(eq=False)
class Judge:
    """Distances of generated images from the training and the test images, by the features of one network."""

    network: nn.Module | None  # uint8 [N, 3, H, W] -> features [N, d]; None if nothing can be measured
    name: str  # of a distance in the log: "train/<name>" and "val/<name>"
    label: str  # of a distance in tables
    real: Mapping[str, Tensor]  # uint8 images by part of the data (train, val)
    device: torch.device
    folder: Path | None = None  # where statistics of the real images are stored; None for nowhere
    tf32: bool = True  # whether a GPU's convolutions use TF32, independent of the run's precision
    stretch: bool = False  # whether generated images are stretched to the full range of values first

    def key(self, part: str) -> str:
        return f"{part}/{self.name}"

    def released(self) -> "Judge":
        """The judge that measures FID as the authors' code does, on images that were written to files.

        It writes them with torchvision's `save_image(..., normalize=True)`, which stretches each image, real or
        generated, to the full range of values. Its real images are flipped at random, and each part has as many as
        there are test images.
        """
        count = len(self.real["val"])
        real = {part: flipped_at_random(stretched(images[:count])) for part, images in self.real.items()}
        return replace(self, name=f"{self.name}_released", label=f"{self.label} as released", real=real, stretch=True)

    def distances(self, images: Iterable[Tensor]) -> dict[str, float]:
        """The distances of batches of uint8 images, by key."""
        if self.network is None:
            return {}
        statistics = self._statistics(map(stretched, images) if self.stretch else images)
        return {self.key(part): reference.distance(statistics) for part, reference in self.references.items()}

    @cached_property
    def references(self) -> dict[str, Statistics]:
        """The statistics of the real images by part of the data, computed or loaded on first use."""
        return {part: self._of_real(part).to(self.device) for part in self.real}

    def _of_real(self, part: str) -> Statistics:
        real = self.real[part]
        if self.folder is None:
            return self._statistics([real])
        file = self.folder / f"{self.name}-statistics-{part}-{len(real)}.pt"
        digest = hashlib.sha256(real.contiguous().numpy().tobytes()).hexdigest()
        key = f"{type(self.network).__name__}, {ARITHMETIC[self.device.type]}, {digest}"

        def compute() -> Statistics:
            message = f"{self.label}: computing the statistics of {len(real):,} real images, once, for {file}"
            print(message, file=sys.stderr, flush=True)
            return self._statistics([real])

        return cached_statistics(file, key, compute)

    def _statistics(self, images: Iterable[Tensor]) -> Statistics:
        assert self.network is not None
        small = (part.to(self.device) for batch in images for part in batch.split(BATCH[self.device.type]))
        with convolutions(self.tf32):
            return Statistics.of(self.network.to(self.device), small)


def flipped_at_random(images: Tensor) -> Tensor:
    """Images [N, ..., width], each flipped left to right or not, the same way in every run."""
    flips = torch.rand(len(images), generator=torch.Generator().manual_seed(0)) < 0.5
    return torch.where(flips[:, None, None, None], images.flip(-1), images)


def stretched(images: Tensor) -> Tensor:
    """uint8 images [N, ...], each stretched from 0 to 255; one of a single grey becomes black."""
    values = images.flatten(1).to(torch.float32)
    low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    scaled = (values - low) / (high - low).clamp(min=1e-5) * 255
    return (scaled + 0.5).to(torch.uint8).reshape(images.shape)


def judge(context: Context, images: ImageSet) -> tuple[Judge, tuple[str, ...]]:
    """The judge for the data, and remarks on it."""
    real = {"train": images.train_images, "val": images.test_images}
    if context.data == "embedded":
        return Judge(StandIn(), "stand_in_fid", "stand-in FID", real, context.device), ()
    path = context.inception or context.data_root / INCEPTION_FILE
    network, remarks = None, []
    try:
        if not path.is_file():
            how = f"get it with: {fetch_command('inception', context.data_root)}"
            raise NoInception(f"{path} does not exist; {how}")
        network = inception(load_weights(path))
    except (DamagedData, NoInception) as error:
        remarks.append(f"FID is not measured: {error}")
    return Judge(network, "fid", "FID", real, context.device, folder=context.data_root), tuple(remarks)


@contextmanager
def convolutions(tf32: bool) -> Iterator[None]:
    """Convolutions with or without TF32, and without cudnn.benchmark.

    The benchmark takes seconds for the many layers of Inception and in TF32 found nothing faster than the default.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, cudnn.benchmark = tf32, False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before
