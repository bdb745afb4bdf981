"""The images of a task: real ones, or embedded ones in their place."""

from collections.abc import Callable
from pathlib import Path

from nero.data.images.arrays import ImageSet
from nero.tasks.base import BadSetting, Context, check_whole

EMBEDDED_TRAIN = 10_000


def load_images(
    context: Context,
    train_examples: int | None,
    real: Callable[[Path], ImageSet],
    embedded: Callable[..., ImageSet],
) -> ImageSet:
    """The real images under the data root, or embedded ones in their place; `train_examples` of them to train on."""
    if train_examples is not None:
        check_whole("train_examples", train_examples)
    if context.data == "embedded":
        train = EMBEDDED_TRAIN if train_examples is None else train_examples
        return embedded(train=train, test=max(train // 5, 100))
    images = real(context.data_root)
    if train_examples is not None and train_examples > len(images.train_labels):
        raise BadSetting(f"train_examples must be at most {len(images.train_labels)}, not {train_examples}")
    return images.first(train_examples)
