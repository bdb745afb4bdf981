"""Classification of images that live on the device as uint8."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from nero.data.augmentation import Augmentation
from nero.data.images.arrays import ImageSet
from nero.tasks.base import NETWORK, Batch, Context, Meters, Task
from nero.tasks.shuffled_images import ShuffledImages, to_device

EVALUATION_BATCH = 2500


@dataclass(frozen=True)
class Score:
    """How well a network did over `count` images; `loss` is the mean cross entropy."""

    loss: float
    correct: float
    count: float

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    @property
    def error(self) -> float:
        return (self.count - self.correct) / self.count


class Classification(Task):
    """Minimise the cross entropy of one network over shuffled minibatches."""

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
        self.device = device = context.device
        self.epochs = epochs
        self.training = ShuffledImages(
            context, images.train_images, images.train_labels, batch_size, epochs, augmentation
        )
        self.steps_per_epoch = self.training.steps
        self.test_images, self.test_labels = to_device(images.test_images, device), images.test_labels.to(device)
        self.network = network.to(device)
        self.channels_last = context.machine.channels_last
        if self.channels_last:
            convert_conv2d_weight_memory_format(self.network, torch.channels_last)
        # Per channel, in units of a pixel's 0 to 255; grey images have no channel axis.
        shape = (-1, 1, 1)
        self.mean = (255 * torch.tensor(mean, device=device)).reshape(shape)
        self.std = (255 * torch.tensor(std, device=device)).reshape(shape)
        traces = {"train/accuracy": self.steps_per_epoch} if trace_accuracy else {}
        self.meters = Meters(device, sums=("loss", "correct", "count"), traces=traces)
        self.trace_accuracy = trace_accuracy

    def networks(self) -> dict[str, nn.Module]:
        return {NETWORK: self.network}

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

    def prepare(self, pixels: Tensor) -> Tensor:
        """uint8 images as the network takes them."""
        images = (pixels.to(torch.float32) - self.mean) / self.std
        return images if self.channels_last else images.contiguous()

    def evaluate(self) -> dict[str, float]:
        train, test = self.train_score(), self.test_score()
        return {
            "train/loss": train.loss,
            "train/accuracy": train.accuracy,
            "test/loss": test.loss,
            "test/accuracy": test.accuracy,
        }

    def train_score(self) -> Score:
        """Over the training batches as they came, each before its step."""
        sums = self.meters.read()
        count = max(sums["count"], 1.0)
        return Score(sums["loss"] / count, sums["correct"], count)

    @torch.no_grad()
    def test_score(self) -> Score:
        """Over the test images, with the network as it now stands."""
        self.network.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for pixels, labels in zip(
            self.test_images.split(EVALUATION_BATCH), self.test_labels.split(EVALUATION_BATCH), strict=True
        ):
            logits = self.network(self.prepare(pixels))
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            sums += torch.stack([loss.double(), (logits.argmax(dim=1) == labels).sum().double()])
        self.network.train()
        loss, correct = sums.tolist()
        return Score(loss / len(self.test_labels), correct, len(self.test_labels))
