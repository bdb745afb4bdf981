"""Classification by ResNet-50 from folders of JPEG files, on any number of GPUs: ImageNet (Figure 9), or CIFAR-10."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.data.images import imagenet
from nero.data.images.folders import ListedImages, list_images
from nero.data.images.jpeg_folders import cifar10_folders
from nero.data.images.loading import Decode, DeviceBatch, Faults, ImageStream, loaded
from nero.data.images.reading import IGNORED, MEAN, STD, Reader
from nero.data.synthetic.jpeg_folders import jpeg_folders
from nero.models.ghost_batch_norm import GhostBatchNorm2d
from nero.runs.slots import cores
from nero.tasks.base import (
    NETWORK,
    BadSetting,
    Batch,
    Context,
    Meters,
    Metric,
    build_network,
    check_examples,
    check_positive,
)
from nero.tasks.classification import ImageTask

IMAGES = ("imagenet", "cifar10")
EMBEDDED_TRAIN = 1_000
EVALUATION_BATCH = 250  # validation images per forward pass on each rank
# Processes that read images. Beside an H200 this many decode faster than nvJPEG does during training steps
# (results/tables/bench_imagenet.md); with fewer workers the GPU decodes.
MOST_WORKERS = 16
CACHED_SHARE = 0.25  # of a GPU's free memory: if the validation images fit into it, they are read once and cached


class ImageNet(ImageTask):
    """Top-1 error on the validation images; configs/task/imagenet_resnet50.yaml describes the settings.

    The network is called with num_classes=...; it is a module from [N, 3, image_size, image_size] to [N, classes].
    `images` says which are trained on: "imagenet", or "cifar10", which are written as JPEG files by the first run.
    `train_examples` are taken evenly from the classes, and an incomplete last batch is dropped.

    "train/error" is measured on the epoch's training batches: augmented, each before its step. Unreadable images are
    reported by name, counted ("train/skipped", "val/skipped") and ignored by the loss.
    """

    metric = Metric("val/error", "min", "top-1 error")
    splits_over_ranks = True

    def __init__(
        self,
        context: Context,
        network: Callable[..., nn.Module],
        epochs: int,
        batch_size: int,
        image_size: int = 224,
        resize: int = 256,
        train_examples: int | None = None,
        images: str = "imagenet",
    ) -> None:
        check_positive(batch_size=batch_size, image_size=image_size, resize=resize)
        if resize < image_size:
            raise BadSetting(f"resize must be at least image_size, {image_size}, not {resize}")
        self.device, self.ranks = context.device, context.ranks
        self.epochs, self.batch_size = epochs, batch_size
        self.image_size, self.resize = image_size, resize
        if images not in IMAGES:
            raise BadSetting(f"images must be {' or '.join(IMAGES)}, not {images}")
        train, self.val = _listed(context, images, train_examples)
        self.remarks = imagenet.remarks(train, self.val) if (context.data, images) == ("real", "imagenet") else ()
        wanted = train_examples or len(train)
        self.numbers = torch.arange(wanted) * len(train) // wanted  # at equal distances: images are sorted by class
        self.steps_per_epoch = len(self.numbers) // batch_size
        if self.steps_per_epoch == 0:
            raise BadSetting(f"batch_size must be at most {len(self.numbers)}, the number of images, not {batch_size}")
        self.workers = _workers(context)
        self.val_faults = Faults(self.val)
        part = self._part()
        numbers, streams = self.numbers, context.streams

        def order(epoch: int) -> tuple[Tensor, Tensor]:  # no method: a stream must not be in a reference cycle
            """The order of the images, and the seeds of their augmentation; the same on every rank."""
            places = torch.randperm(len(numbers), generator=streams.generator("shuffle", epoch))
            seeds = torch.randint(2**62, (int(numbers[-1]) + 1,), generator=streams.generator("augmentation", epoch))
            return numbers[places], seeds

        decoder = _decoder(context, image_size, self.workers)
        self.stream = ImageStream(
            train, image_size, order, batch_size, part, self.steps_per_epoch, epochs, self.device, self.workers, decoder
        )
        self.cached: list[DeviceBatch] | None = None
        self.classes = len(train.classes)
        self.place(context, build_network(network, num_classes=self.classes), MEAN, STD)
        for module in self.network.modules():
            if isinstance(module, GhostBatchNorm2d):
                try:
                    module.divide(part.start, part.stop, batch_size, self.ranks.size)
                except ValueError as error:
                    raise BadSetting(f"network.norm_parts: {error}") from error
        # A hook, so that it is compiled with the network.
        self.network.register_forward_pre_hook(lambda network, inputs: (self.prepare(inputs[0]),))
        self.parallel_network = self.network
        self.meters = Meters(self.device, sums=("loss", "correct", "count", "skipped"), ranks=self.ranks)
        self.begun = time.monotonic()
        self.waited = 0.0

    def _part(self) -> range:
        """The part of a batch that this rank has: the ranks in order, as equal as possible."""
        if self.batch_size < self.ranks.size:
            raise BadSetting(f"batch_size must be at least {self.ranks.size}, the number of ranks")
        ends = [self.batch_size * rank // self.ranks.size for rank in (self.ranks.rank, self.ranks.rank + 1)]
        return range(*ends)

    def spread(self, over_ranks: Callable[[nn.Module], nn.Module]) -> None:
        self.parallel_network = over_ranks(self.network)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        self.begun, self.waited = time.monotonic(), self.stream.waiting.read()
        return self.stream.batches(epoch, start)

    def after_training(self) -> None:
        self.stream.close()

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        pixels, labels = batch
        logits = self.parallel_network(pixels).float()
        total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        self.meters.add_("loss", total)
        self.meters.add_("correct", (logits.detach().argmax(dim=1) == labels).sum())
        self.meters.add_("count", (labels >= 0).sum())
        self.meters.add_("skipped", (labels < 0).sum())
        # So that the mean over ranks, whose parts may differ by an image, is the mean over the batch.
        yield NETWORK, total * (self.ranks.size / self.batch_size)

    def evaluate(self) -> dict[str, float]:
        seconds = time.monotonic() - self.begun
        sums = self.meters.read()
        count = max(sums["count"], 1.0)
        shares = torch.tensor([(self.stream.waiting.read() - self.waited) / seconds], dtype=torch.float64)
        self.ranks.sum_(shares)
        return {
            "train/loss": sums["loss"] / count,
            "train/error": 1 - sums["correct"] / count,
            "train/skipped": sums["skipped"],
            "train/waiting": float(shares) / self.ranks.size,
            **self._validate(),
        }

    @torch.no_grad()
    def _validate(self) -> dict[str, float]:
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.network.eval()
        for pixels, labels in self._validation_batches():
            logits = self.network(pixels).float()
            loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
            best = logits.topk(min(5, self.classes)).indices == labels[:, None]
            measured = [loss, best[:, 0].sum(), best.any(dim=1).sum(), (labels >= 0).sum()]
            sums += torch.stack([value.double() for value in measured])
        self.network.train()
        self.ranks.sum_(sums)
        loss, first, five, read = sums.tolist()
        count = max(read, 1.0)
        return {
            "val/loss": loss / count,
            "val/error": 1 - first / count,
            "val/top5_error": 1 - five / count,
            "val/skipped": len(self.val) - read,
        }

    def _validation_batches(self) -> Iterator[DeviceBatch]:
        """This rank's part of the validation images, cached on the GPU if they fit."""
        if self.cached is not None:
            yield from self.cached
            return
        mine = torch.arange(self.ranks.rank, len(self.val), self.ranks.size)
        # The same number on every rank: if the network is sharded, all of them must compute together.
        missing = -(-len(self.val) // self.ranks.size) - len(mine)
        mine = torch.cat([mine, torch.full((missing,), -1)])
        workers = min(self.workers, -(-len(mine) // EVALUATION_BATCH))
        reader = Reader(self.val, self.image_size, self.resize)
        bytes_needed = len(mine) * 3 * self.image_size**2
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0
        fits = bytes_needed < CACHED_SHARE * free
        cached = []
        requests = ([(number, 0) for number in part.tolist()] for part in mine.split(EVALUATION_BATCH))
        for batch in loaded(reader, requests, workers, self.device, self.val_faults):
            if fits:
                cached.append(batch)
            yield batch
        self.cached = cached if fits else None


def _listed(context: Context, images: str, train_examples: int | None) -> tuple[ListedImages, ListedImages]:
    """Training and validation images under the data root; CIFAR-10's and embedded ones are written there if missing."""
    check_examples(train_examples)
    if context.data == "embedded":
        train = EMBEDDED_TRAIN if train_examples is None else train_examples
        try:
            folders = jpeg_folders(context.data_root / "embedded", train, max(train // 5, 20))
        except ValueError as error:
            raise BadSetting(f"train_examples: {error}") from error
        return list_images(folders[0]), list_images(folders[1])
    if images == "cifar10":
        train_folder, val_folder = cifar10_folders(context.data_root)
        found = list_images(train_folder), list_images(val_folder)
    else:
        found = imagenet.require(context.data_root)
    check_examples(train_examples, len(found[0]))
    return found


def _workers(context: Context) -> int:
    """No workers for embedded images, of which there are few; else one for each of this rank's CPU cores."""
    if context.machine.workers is not None:
        return context.machine.workers
    if context.data == "embedded":
        return 0
    return max(1, min(MOST_WORKERS, cores() // context.ranks.local_size))


def _decoder(context: Context, size: int, workers: int) -> Decode | None:
    """The function that decodes on the device, or None if the workers decode."""
    device, where = context.device, context.machine.decode
    if where == "auto":
        where = "gpu" if device.type == "cuda" and workers < MOST_WORKERS else "cpu"
    if where == "gpu":
        from nero.data.images.gpu_decoding import decode_and_crop

        return partial(decode_and_crop, size=size, device=device)
    return None
