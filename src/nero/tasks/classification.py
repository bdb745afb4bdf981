"""Classification of images that live on the device as uint8."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.data.images import ImageSet
from nero.tasks.base import Batch, Context, Meters, Task

EVALUATION_BATCH = 2500
NETWORK = "network"


class Classification(Task):
    """Minimise the cross entropy of one network over shuffled minibatches.

    A batch is the indices of its images: images are gathered, augmented and normalised inside the step, where they can
    be captured with the rest of it. A last, smaller batch is kept.
    """

    def __init__(
        self,
        context: Context,
        images: ImageSet,
        network: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        epochs: int,
        batch_size: int,
        trace_accuracy: bool = False,
    ) -> None:
        device = context.device
        self.device, self.streams = device, context.streams
        self.epochs, self.batch_size = epochs, batch_size
        self.train_images, self.train_labels = images.train_images.to(device), images.train_labels.to(device)
        self.test_images, self.test_labels = images.test_images.to(device), images.test_labels.to(device)
        self.steps_per_epoch = -(-len(self.train_labels) // batch_size)
        self.network = network.to(device)
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
        # Drawn on the CPU, so that the order is the same on every device.
        order = torch.randperm(len(self.train_labels), generator=self.streams.generator("shuffle", epoch))
        for indices in order.to(self.device).split(self.batch_size)[start:]:
            yield (indices,)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        (indices,) = batch
        labels = self.train_labels[indices]
        logits = self.network(self.prepare(self.train_images[indices]))
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
        return (pixels.to(torch.float32) - self.mean) / self.std

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy over the epoch's training batches as they came, and over the test set as it now stands."""
        sums = self.meters.read()
        count = max(sums["count"], 1.0)
        loss, accuracy = self._test()
        return {
            "train/loss": sums["loss"] / count,
            "train/accuracy": sums["correct"] / count,
            "test/loss": loss,
            "test/accuracy": accuracy,
        }

    @torch.no_grad()
    def _test(self) -> tuple[float, float]:
        self.network.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for pixels, labels in zip(
            self.test_images.split(EVALUATION_BATCH), self.test_labels.split(EVALUATION_BATCH), strict=True
        ):
            logits = self.network(self.prepare(pixels))
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            sums += torch.stack([loss.double(), (logits.argmax(dim=1) == labels).sum().double()])
        self.network.train()
        loss, correct = (sums / len(self.test_labels)).tolist()
        return loss, correct
