"""The two MNIST experiments of Figure 3."""

from math import inf

from nero.data.images.arrays import load_mnist
from nero.data.synthetic.digits import digits
from nero.models import mlp
from nero.tasks.base import Context, Metric, check_positive, check_range
from nero.tasks.classification import Classification, load_images

MEAN, STD = (0.1307,), (0.3081,)
WIDTH, CLASSES = 28 * 28, 10


class DeepMLP(Classification):
    """Figure 3 (right): can the optimiser train a perceptron of 100 layers at all?"""

    metric = Metric("train/accuracy", "max", "training accuracy")

    def __init__(
        self, context: Context, epochs: int, batch_size: int, depth: int, train_examples: int | None = None
    ) -> None:
        check_positive(depth=depth)
        images = load_images(context, train_examples, real=load_mnist, embedded=digits)
        super().__init__(context, images, mlp.MLP(depth, WIDTH, CLASSES), MEAN, STD, epochs, batch_size)


class ReparameterisedMLP(Classification):
    """Figure 3 (left): how much does the scale of the raw weights matter when the forward pass normalises them?"""

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
        check_positive(depth=depth)
        check_range(0, inf, sigma=sigma)
        network = mlp.ReparameterisedMLP(depth, WIDTH, CLASSES, sigma)
        images = load_images(context, train_examples, real=load_mnist, embedded=digits)
        super().__init__(context, images, network, MEAN, STD, epochs, batch_size, trace_accuracy=True)
