"""Write text with a trained language model."""

import argparse
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from nero.checkpoints.loading import Trained, run_command
from nero.checkpoints.options import Unusable
from nero.data.text.corpus import END_OF_LINE
from nero.data.text.vocabulary import Vocabulary
from nero.tasks.language_model import LanguageModelling, perplexity

UNKNOWN = "<unk>"


def run(options: argparse.Namespace) -> int:
    """The command, with the options of `nero.cli.trained`; gives its exit status."""
    return run_command(options, LanguageModelling, _generate)


def _generate(trained: Trained[LanguageModelling], options: argparse.Namespace) -> None:
    task = trained.task
    if options.words:
        prompt, unknown = known_words(options.prompt, task.vocabulary)
        if unknown:
            print(f"not in the vocabulary, read as {UNKNOWN}: {' '.join(unknown)}", file=sys.stderr)
        start, block = task.vocabulary.encode([END_OF_LINE, *prompt]), trained.identity["task"]["block"]
        sampling = options.temperature, options.top_k, options.seed
        ids = continuation(task.network, start, options.words, block, *sampling)
        with trained.autocast():
            words = task.vocabulary.decode(list(tqdm(ids, total=options.words, unit=" words", disable=None)))
        print(as_lines([*prompt, *words]))
    if options.evaluate:
        for name, part in (("validation", task.valid), ("test", task.test)):
            with trained.autocast():
                print(f"{name} perplexity {perplexity(task.loss_over(part)):.2f}")


@torch.no_grad()
def continuation(
    network: nn.Module,
    start: Sequence[int],
    words: int,
    block: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> Iterator[int]:
    """Yield `words` ids that follow `start`, each sampled given the last `block` ids.

    Args:
        temperature: divides the logits; 0 takes the most probable word
        top_k: sample from the k most probable words only; 0 for all
    """
    if not start:
        raise ValueError("start must have at least one word")
    network.eval()
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(seed)  # on the CPU: a seed means the same on every device
    text = list(start)
    for _ in range(words):
        features = network(torch.tensor([text[-block:]], device=device))
        logits = network.get_submodule("output")(features[0, -1]).cpu()
        text.append(sample(logits, temperature, top_k, generator))
        yield text[-1]


def sample(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """Sample an index of `logits` [vocabulary]."""
    if temperature == 0:
        return int(logits.argmax())
    largest, indices = logits.double().topk(min(top_k, len(logits)) if top_k else len(logits))
    # The largest logit becomes 0 first: no temperature, however low, makes it infinite.
    probabilities = ((largest - largest[0]) / temperature).softmax(dim=0)
    return int(indices[torch.multinomial(probabilities, 1, generator=generator)])


def known_words(prompt: str, vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """The words of the prompt with <unk> for unknown ones, and the unknown ones; Unusable if there is no <unk>."""
    words = prompt.split()
    unknown = [word for word in words if word not in vocabulary.ids]
    if unknown and UNKNOWN not in vocabulary.ids:
        raise Unusable(f"{unknown[0]!r} is not in the vocabulary of {len(vocabulary):,} words, which has no {UNKNOWN}")
    return [word if word in vocabulary.ids else UNKNOWN for word in words], unknown


def as_lines(words: Sequence[str]) -> str:
    """Join words with spaces; <eos> ends a line."""
    text = " ".join("\n" if word == END_OF_LINE else word for word in words)
    return "\n".join(line.strip(" ") for line in text.split("\n"))
