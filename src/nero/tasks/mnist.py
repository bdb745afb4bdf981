"""The two MNIST experiments of Figure 3."""

from nero.data.images import ImageSet, load_mnist
from nero.data.synthetic import digits
from nero.models import mlp
from nero.tasks.base import Context, Metric
from nero.tasks.classification import Classification

MEAN, STD = (0.1307,), (0.3081,)
WIDTH, CLASSES = 28 * 28, 10
EMBEDDED_TRAIN = 10_000


def load_images(context: Context, train_examples: int | None) -> ImageSet:
    """MNIST, or the embedded digits in its place; the first `train_examples` of its training images."""
    if context.data == "embedded":
        train = train_examples or EMBEDDED_TRAIN
        return digits(train=train, test=max(train // 5, 100))
    return load_mnist(context.data_root).first(train_examples)


class DeepMLP(Classification):
    """Figure 3 (right): can the optimiser train a perceptron of 100 layers at all?"""

    metric = Metric("train/accuracy", "max", "training accuracy")

    def __init__(
        self, context: Context, epochs: int, batch_size: int, depth: int, train_examples: int | None = None
    ) -> None:
        network = mlp.MLP(depth, WIDTH, CLASSES)
        super().__init__(context, load_images(context, train_examples), network, MEAN, STD, epochs, batch_size)


class ReparameterisedMLP(Classification):
    """Figure 3 (left): how far does the scale of the raw weights matter when the forward pass normalises them?"""

    metric = Metric("train/accuracy", "max", "training accuracy")

    def __init__(
        self,
        context: Context,
        epochs: int,
        batch_size: int,
        depth: int,
        sigma: float,
        train_examples: int | None = None,
    ) -> None:
        network = mlp.ReparameterisedMLP(depth, WIDTH, CLASSES, sigma)
        images = load_images(context, train_examples)
        super().__init__(context, images, network, MEAN, STD, epochs, batch_size, trace_accuracy=True)
