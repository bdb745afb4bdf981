"""A class-conditional GAN on CIFAR-10 (Figure 4, Table 1), measured by FID."""

import io
from collections.abc import Iterator

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from nero.data.augmentation import Augmentation
from nero.data.images.arrays import load_cifar10
from nero.data.synthetic.shapes import shapes
from nero.models.biggan import Z
from nero.tasks.base import BadSetting, Batch, Context, Meters, Metric, Task, check_positive
from nero.tasks.classification import ShuffledImages, load_images
from nero.tasks.fid import judge

GENERATOR, DISCRIMINATOR = "generator", "discriminator"
PLAIN, RELEASED = "plain", "released"  # FID of images as they are, and as the authors' code measures it
GRID_ROWS = 8  # of the picture of samples, which has a column for each class
JPEG_QUALITY = 90  # without chroma subsampling: a third of the size of PNG without a visible difference
SAMPLE_BATCH = 1000


class ConditionalGAN(Task):
    """Hinge losses without their constants; one step of the discriminator, then one of the generator.

    generator:      from z [N, 80] and labels [N] to images [N, 3, 32, 32] with pixels from -1 to 1
    discriminator:  from images and labels to scores [N]; takes `passes` as well if split_passes: then real and
                    generated images go through it separately, with a power iteration of its spectral norms each

    configs/task/cifar10_cgan.yaml describes the other settings. The last epoch always has a FID. It uses as many
    samples as there are test images, with their labels. Both kinds are logged: "val/fid" against the test images and
    "train/fid" against the training images; "val/fid_released" and "train/fid_released" likewise (see
    `fid.Judge.released`). For embedded data a small network replaces Inception, and the keys name it.
    """

    def __init__(
        self,
        context: Context,
        generator: nn.Module,
        discriminator: nn.Module,
        augmentation: Augmentation | None,
        epochs: int,
        batch_size: int,
        fid_every: int,
        train_examples: int | None = None,
        fid: str = "plain",
        split_passes: bool = False,
    ) -> None:
        check_positive(fid_every=fid_every)
        if fid not in (PLAIN, RELEASED):
            raise BadSetting(f"fid must be {PLAIN} or {RELEASED}, not {fid!r}")
        self.device, self.streams = context.device, context.streams
        self.epochs, self.fid_every, self.split_passes = epochs, fid_every, split_passes
        images = load_images(context, train_examples, real=load_cifar10, embedded=shapes)
        self.training = ShuffledImages(context, images, batch_size, epochs, augmentation)
        self.steps_per_epoch = self.training.steps
        self.generator, self.discriminator = generator.to(self.device), discriminator.to(self.device)
        for network in self.networks().values():
            convert_conv2d_weight_memory_format(network, torch.channels_last)
        plain, self.remarks = judge(context, images)
        self.judges = {PLAIN: plain, RELEASED: plain.released()}
        self.metric = Metric(self.judges[fid].key("val"), "min", plain.label)
        self.labels = images.test_labels.to(self.device)
        self.grid_labels = torch.arange(images.classes, device=self.device).repeat(GRID_ROWS)
        self.grid_z = torch.randn(len(self.grid_labels), Z, generator=self.streams.generator("samples shown"))
        self.meters = Meters(self.device, sums=("discriminator", "generator", "count"))
        self.ended = epochs  # an evaluation before any batch is one of a finished run
        self.picture: bytes | None = None

    def networks(self) -> dict[str, nn.Module]:
        return {GENERATOR: self.generator, DISCRIMINATOR: self.discriminator}

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        self.ended = epoch + 1
        return self.training.batches(epoch, start)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        pixels, labels = batch
        count = len(labels)
        with torch.no_grad():
            fake = self.generator(self._z(count), labels)
        # Without batch norm in the discriminator, images of a batch do not influence each other.
        both = torch.cat([fake, self.prepare(pixels).to(fake.dtype)])
        passes = {"passes": 2} if self.split_passes else {}
        fake_scores, real_scores = self.discriminator(both, labels.repeat(2), **passes).chunk(2)
        loss = fake_scores.clamp(min=-1).mean() - real_scores.clamp(max=1).mean()
        self.meters.add_("discriminator", loss * count)
        yield DISCRIMINATOR, loss
        self.discriminator.requires_grad_(False)
        try:
            loss = -self.discriminator(self.generator(self._z(count), labels), labels).mean()
            self.meters.add_("generator", loss * count)
            self.meters.add_("count", float(count))
            yield GENERATOR, loss
        finally:
            self.discriminator.requires_grad_(True)

    def _z(self, count: int) -> Tensor:
        return torch.randn(count, Z, device=self.device)

    def prepare(self, pixels: Tensor) -> Tensor:
        """uint8 images as the discriminator takes them: from -1 to 1."""
        return pixels.to(torch.float32) / 127.5 - 1

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        count = max(sums["count"], 1.0)
        metrics = {"train/d_loss": sums["discriminator"] / count, "train/g_loss": sums["generator"] / count}
        self.picture = None
        if self.ended % self.fid_every and self.ended < self.epochs:
            return metrics
        z = torch.randn(len(self.labels), Z, generator=self.streams.generator("samples judged", self.ended))
        samples = list(self.samples(z, self.labels))
        for each in self.judges.values():
            metrics |= each.distances(samples)
        [shown] = self.samples(self.grid_z, self.grid_labels)
        self.picture = to_jpeg(grid(shown.cpu(), rows=GRID_ROWS))
        return metrics

    def pictures(self) -> dict[str, bytes]:
        return {"samples.jpg": self.picture} if self.picture is not None else {}

    @torch.no_grad()
    def samples(self, z: Tensor, labels: Tensor) -> Iterator[Tensor]:
        """Batches of uint8 images of the generator for z [N, 80] and labels [N]."""
        self.generator.eval()
        try:
            for some_z, some_labels in zip(z.split(SAMPLE_BATCH), labels.split(SAMPLE_BATCH), strict=True):
                images = self.generator(some_z.to(self.device), some_labels)
                yield ((images.to(torch.float32) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
        finally:
            self.generator.train()


def grid(images: Tensor, rows: int) -> Tensor:
    """uint8 [N, 3, side, side], row after row, as one image [rows * side, columns * side, 3]."""
    channels, height, width = images.shape[1:]
    shaped = images.reshape(rows, -1, channels, height, width)
    return shaped.permute(0, 3, 1, 4, 2).reshape(rows * height, -1, channels)


def to_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.contiguous().numpy())


def to_jpeg(pixels: Tensor) -> bytes:
    """A uint8 image [height, width, 3] as the bytes of a file."""
    file = io.BytesIO()
    to_image(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return file.getvalue()
