"""CIFAR-10 classification: VGG-11 (Figures 1, 2 and 5, Tables 1 and 2) and ResNet-18 (Figure 5, Table 1)."""

from torch import nn

from nero.data.augmentation import Augmentation
from nero.data.images import ImageSet, load_cifar10
from nero.data.synthetic import shapes
from nero.tasks.base import Context, Metric
from nero.tasks.classification import Classification

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
EMBEDDED_TRAIN = 10_000


def load_images(context: Context, train_examples: int | None) -> ImageSet:
    """CIFAR-10, or the embedded shapes in its place; the first `train_examples` of its training images."""
    if context.data == "embedded":
        train = train_examples or EMBEDDED_TRAIN
        return shapes(train=train, test=max(train // 5, 100))
    return load_cifar10(context.data_root).first(train_examples)


class CIFAR10(Classification):
    """Top-1 error; the test images serve for validation, as in the paper.

    network, augmentation:  any module that gives [N, 10] for [N, 3, 32, 32], and how training images are varied

    "train/error" is counted over the epoch's batches as they came: augmented, with dropout, each before its step.
    """

    metric = Metric("val/error", "min", "top-1 error")

    def __init__(
        self,
        context: Context,
        network: nn.Module,
        augmentation: Augmentation,
        epochs: int,
        batch_size: int,
        train_examples: int | None = None,
    ) -> None:
        images = load_images(context, train_examples)
        super().__init__(context, images, network, MEAN, STD, epochs, batch_size, augmentation)

    def evaluate(self) -> dict[str, float]:
        train, test = self.train_score(), self.test_score()
        return {"train/loss": train.loss, "train/error": train.error, "val/loss": test.loss, "val/error": test.error}
