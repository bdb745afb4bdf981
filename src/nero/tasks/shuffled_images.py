"""Training images that live on the device as uint8, in an order and variation of their own each epoch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from nero.data.augmentation import Augmentation
from nero.tasks.base import Context, check_whole
from nero.tasks.prefetch import MadeAhead


class ShuffledImages:
    """Batches of (images, labels), each image once an epoch; a last, smaller batch is kept.

    An epoch's images are gathered in their order, and augmented, all at once where they live: as bytes they take little
    room, and one pass over all of them costs less than one per batch. A batch is a slice of them with its labels.
    """

    def __init__(
        self,
        context: Context,
        images: Tensor,
        labels: Tensor,
        batch_size: int,
        epochs: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        check_whole("batch_size", batch_size)
        self.streams, self.batch_size, self.augmentation = context.streams, batch_size, augmentation
        self.images, self.labels = to_device(images, context.device), labels.to(context.device)
        self.steps = -(-len(labels) // batch_size)
        self.ready = MadeAhead(self._epoch_data, epochs)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        images, labels = self.ready.take(epoch)
        yield from list(zip(images.split(self.batch_size), labels.split(self.batch_size), strict=True))[start:]
        self.ready.prepare_after(epoch)

    def _epoch_data(self, epoch: int) -> tuple[Tensor, Tensor]:
        """All images in the epoch's order, augmented, and their labels."""
        # Drawn on the CPU, so that the numbers are the same on every device; and all of them before any is sent to the
        # device, since sending waits until the device has done what it was asked for before.
        count = len(self.labels)
        order = torch.randperm(count, generator=self.streams.generator("shuffle", epoch))
        if self.augmentation is None:
            order = order.to(self.labels.device)
            return self.images[order], self.labels[order]
        draws = self.augmentation.draw(count, self.streams.generator("augmentation", epoch))
        return self.augmentation(self.images, order, draws), self.labels[order.to(self.labels.device)]


def to_device(images: Tensor, device: torch.device) -> Tensor:
    """Coloured images with the three bytes of a pixel side by side: a pixel is moved whole."""
    moved = images.to(device)
    return moved.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else moved
