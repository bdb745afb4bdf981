"""Perplexities of a language model's checkpoint, measured by the run's own task."""

from nero.data.corpus import blocks, streams
from nero.decoding.trained import Trained
from nero.tasks.language import perplexity
from nero.tasks.language_model import LanguageModelling, load_corpus


def perplexities(trained: Trained[LanguageModelling]) -> dict[str, float]:
    """Of validation, which is the run's "val/perplexity" when it was done, and of test, which no run looks at."""
    task, settings = trained.task, trained.settings
    test = load_corpus(trained.context, settings.get("train_examples")).test.to(trained.context.device)
    (inputs, targets), rest = blocks(streams(test, settings["evaluation_batch"]), settings["block"])
    cut = [(inputs.flatten(0, 1), targets.flatten(0, 1)), *([rest] if rest else [])]
    kept = task.validation
    with trained.arithmetic():
        found = {"validation": perplexity(task.validation_loss())}
        try:
            task.validation = cut
            found["test"] = perplexity(task.validation_loss())
        finally:
            task.validation = kept
    return found
