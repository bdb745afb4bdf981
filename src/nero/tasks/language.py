"""What language tasks share: what they measure, how their networks are built, how much embedded text they have."""

import math
from collections.abc import Callable

from torch import nn

from nero.tasks.base import BadSetting, Metric

PERPLEXITY = Metric("val/perplexity", "min", "perplexity")
EMBEDDED_TRAIN = 4000  # sentences or pairs
EMBEDDED_SHARE = 10  # of them for each one to validate on


def perplexity(loss: float) -> float:
    """The exponential of a mean negative log likelihood in nats; infinite where a float cannot hold it."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def language_metrics(train_loss: float, val_loss: float) -> dict[str, float]:
    """Losses per token and their perplexities, as every language task logs them."""
    return {
        "train/loss": train_loss,
        "train/perplexity": perplexity(train_loss),
        "val/loss": val_loss,
        "val/perplexity": perplexity(val_loss),
    }


def build_network(network: Callable[..., nn.Module], vocabulary: int) -> nn.Module:
    """The network for so many types; what it says of a setting becomes one line."""
    try:
        return network(vocabulary)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadSetting(f"network: {str(error).splitlines()[0]}") from error


def embedded_sizes(train_examples: int | None) -> tuple[int, int]:
    """How many embedded sentences to train and to validate on."""
    train = EMBEDDED_TRAIN if train_examples is None else train_examples
    return train, max(train // EMBEDDED_SHARE, 10)
