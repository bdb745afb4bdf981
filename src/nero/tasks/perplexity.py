"""What language tasks measure."""

import math

from nero.tasks.base import Metric

PERPLEXITY = Metric("val/perplexity", "min", "perplexity")


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
