"""Classification of images that are kept on the device as uint8."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from nero.data.augmentation import Augmentation
from nero.data.images.arrays import ImageSet
from nero.tasks.base import NETWORK, Batch, Context, Meters, Prefetch, Task, check_examples, check_positive

EMBEDDED_TRAIN = 10_000
EVALUATION_BATCH = 2500


def load_images(
    context: Context, train_examples: int | None, real: Callable[[Path], ImageSet], embedded: Callable[..., ImageSet]
) -> ImageSet:
    """The real images under the data root, or embedded ones; `train_examples` of them to train on."""
    check_examples(train_examples)
    if context.data == "embedded":
        train = EMBEDDED_TRAIN if train_examples is None else train_examples
        return embedded(train=train, test=max(train // 5, 100))
    images = real(context.data_root)
    check_examples(train_examples, len(images.train_labels))
    return images.first(train_examples)


def to_device(images: Tensor, device: torch.device) -> Tensor:
    """Colour images in channels-last format: the three bytes of a pixel are moved together."""
    moved = images.to(device)
    return moved.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else moved


class ShuffledImages:
    """Batches of (images, labels), each image once an epoch; a last, smaller batch is included.

    An epoch's images are shuffled and augmented all at once on the device: as bytes they take little memory, and one
    pass over all of them costs less than one per batch. A batch is a slice.
    """

    def __init__(
        self, context: Context, images: ImageSet, batch_size: int, epochs: int, augmentation: Augmentation | None = None
    ) -> None:
        check_positive(batch_size=batch_size)
        self.streams, self.batch_size, self.augmentation = context.streams, batch_size, augmentation
        self.images = to_device(images.train_images, context.device)
        self.labels = images.train_labels.to(context.device)
        self.steps = -(-len(self.labels) // batch_size)
        self.prefetch = Prefetch(self._epoch_data, epochs)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.prefetch.take(epoch)
        yield from list(zip(images.split(self.batch_size), labels.split(self.batch_size), strict=True))[start:]
        self.prefetch.prepare_after(epoch)

    def _epoch_data(self, epoch: int) -> tuple[Tensor, Tensor]:
        """All images in the epoch's order, augmented, and their labels."""
        # Drawn on the CPU, so that the numbers are the same on every device; and all before any transfer, since that
        # waits for the device's queued work.
        count = len(self.labels)
        order = torch.randperm(count, generator=self.streams.generator("shuffle", epoch))
        if self.augmentation is None:
            order = order.to(self.labels.device)
            return self.images[order], self.labels[order]
        draws = self.augmentation.draw(count, self.streams.generator("augmentation", epoch))
        return self.augmentation(self.images, order, draws), self.labels[order.to(self.labels.device)]


class ImageTask(Task):
    """A task of one network that takes normalised images."""

    def place(self, context: Context, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Move the network to the device; mean and std are those of the images' colours, from 0 to 1."""
        self.device, self.network = context.device, network.to(context.device)
        self.channels_last = context.machine.channels_last
        if self.channels_last:
            convert_conv2d_weight_memory_format(self.network, torch.channels_last)
        # Per channel, in units of a pixel's 0 to 255; grey images have no channel axis.
        self.mean, self.std = (
            (255 * torch.tensor(values, device=self.device)).reshape(-1, 1, 1) for values in (mean, std)
        )

    def prepare(self, pixels: Tensor) -> Tensor:
        """uint8 images as the network takes them."""
        images = (pixels.to(torch.float32) - self.mean) / self.std
        return images if self.channels_last else images.contiguous()


class Classification(ImageTask):
    """Minimise the cross entropy of one network over shuffled minibatches.

    Training metrics are measured on the epoch's training batches: augmented, with dropout, each before its step.
    """

    test_part = "test"  # the name of the test images in the log
    share = "accuracy"  # which share of the images is logged: "accuracy" or "error"

    def __init__(
        self,
        context: Context,
        images: ImageSet,
        network: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        epochs: int,
        batch_size: int,
        augmentation: Augmentation | None = None,
        trace_accuracy: bool = False,
    ) -> None:
        self.place(context, network, mean, std)
        self.epochs = epochs
        self.training = ShuffledImages(context, images, batch_size, epochs, augmentation)
        self.steps_per_epoch = self.training.steps
        self.test_images = to_device(images.test_images, self.device)
        self.test_labels = images.test_labels.to(self.device)
        traces = {"train/accuracy": self.steps_per_epoch} if trace_accuracy else {}
        self.meters = Meters(self.device, sums=("loss", "correct", "count"), traces=traces)
        self.trace_accuracy = trace_accuracy

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return self.training.batches(epoch, start)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        pixels, labels = batch
        logits = self.network(self.prepare(pixels))
        loss = F.cross_entropy(logits, labels)
        correct = (logits.detach().argmax(dim=1) == labels).sum()
        self.meters.add_("loss", loss * len(labels))
        self.meters.add_("correct", correct)
        self.meters.add_("count", float(len(labels)))
        if self.trace_accuracy:
            self.meters.append_("train/accuracy", correct / len(labels))
        yield NETWORK, loss

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        scores = {"train": (sums["loss"], sums["correct"], max(sums["count"], 1.0)), self.test_part: self.test_score()}
        metrics = {}
        for part, (loss, correct, count) in scores.items():
            metrics[f"{part}/loss"] = loss / count
            metrics[f"{part}/{self.share}"] = (correct if self.share == "accuracy" else count - correct) / count
        return metrics

    @torch.no_grad()
    def test_score(self) -> tuple[float, float, int]:
        """Sum of the cross entropy, correct answers and number of the test images."""
        self.network.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        batches = zip(self.test_images.split(EVALUATION_BATCH), self.test_labels.split(EVALUATION_BATCH), strict=True)
        for pixels, labels in batches:
            logits = self.network(self.prepare(pixels))
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            sums += torch.stack([loss.double(), (logits.argmax(dim=1) == labels).sum().double()])
        self.network.train()
        loss, correct = sums.tolist()
        return loss, correct, len(self.test_labels)
