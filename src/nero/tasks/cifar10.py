"""CIFAR-10 classification: VGG-11 (Figures 1, 2 and 5, Tables 1 and 2) and ResNet-18 (Figure 5, Table 1)."""

from torch import nn

from nero.data.augmentation import Augmentation
from nero.data.images.arrays import load_cifar10
from nero.data.synthetic.shapes import shapes
from nero.tasks.base import Context, Metric
from nero.tasks.classification import Classification, load_images

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class CIFAR10(Classification):
    """Top-1 error; the test images serve for validation, as in the paper.

    network:       any module from [N, 3, 32, 32] to [N, 10]
    augmentation:  of the training images; None for none
    """

    test_part, share = "val", "error"
    metric = Metric("val/error", "min", "top-1 error")

    def __init__(
        self,
        context: Context,
        network: nn.Module,
        augmentation: Augmentation | None,
        epochs: int,
        batch_size: int,
        train_examples: int | None = None,
    ) -> None:
        images = load_images(context, train_examples, real=load_cifar10, embedded=shapes)
        super().__init__(context, images, network, MEAN, STD, epochs, batch_size, augmentation)
