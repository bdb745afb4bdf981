"""Perplexities of a language model's checkpoint, measured by the run's own task."""

from nero.checkpoints.loading import Trained
from nero.tasks.language import perplexity
from nero.tasks.language_model import LanguageModelling


def perplexities(trained: Trained[LanguageModelling]) -> dict[str, float]:
    """Of validation, which is the run's "val/perplexity" when it was done, and of test, which no run looks at."""
    task = trained.task
    with trained.arithmetic():
        return {
            "validation": perplexity(task.loss_over(task.valid)),
            "test": perplexity(task.loss_over(task.test)),
        }
