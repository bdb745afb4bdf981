"""Word-level language modelling: the Wikitext-2 transformer (Figure 6, Table 1); and what language tasks share."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nero.data.text.corpus import Block, Corpus, blocks, grammar_corpus, load_wikitext2, streams
from nero.data.text.vocabulary import Vocabulary
from nero.models.token_loss import TokenLoss, token_loss
from nero.tasks.base import (
    NETWORK,
    BadSetting,
    Batch,
    Context,
    Meters,
    Metric,
    Task,
    build_network,
    check_examples,
    check_positive,
)

EMBEDDED_TRAIN = 4000  # sentences or pairs
EMBEDDED_RATIO = 10  # training sentences for each one to validate on
EVALUATION_TOKENS = 7000  # per forward pass: some thousands keep a GPU busy, and their logits take a gigabyte


def perplexity(loss: float) -> float:
    """The exponential of a mean negative log likelihood in nats; infinite on overflow."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def embedded_sizes(train_examples: int | None) -> tuple[int, int]:
    """How many embedded sentences to train and to validate on."""
    train = EMBEDDED_TRAIN if train_examples is None else train_examples
    return train, max(train // EMBEDDED_RATIO, 10)


class LanguageTask(Task):
    """A task whose metric is the perplexity of a network that is made for the size of a vocabulary.

    "train/perplexity" is measured on the epoch's training batches: with dropout, each before its step.
    """

    metric = Metric("val/perplexity", "min", "perplexity")
    vocabulary: Vocabulary

    def place(self, context: Context, network: Callable[..., nn.Module], vocabulary: Vocabulary) -> None:
        self.device, self.vocabulary = context.device, vocabulary
        self.network = build_network(network, len(vocabulary)).to(self.device)
        self.meters = Meters(self.device, sums=("loss", "count"))

    @abstractmethod
    def token_loss(self, batch: Batch) -> TokenLoss: ...

    @abstractmethod
    def validation_loss(self) -> float:
        """Nats per word of the validation text."""

    @torch.no_grad()
    def mean_loss(self, batches: Iterable[Batch], words: int) -> float:
        """Nats per word of batches that have this many."""
        self.network.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in batches:
            total += self.token_loss(batch).nll
        self.network.train()
        return float(total) / words

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        losses = {"train": sums["loss"] / max(sums["count"], 1.0), "val": self.validation_loss()}
        metrics: dict[str, float] = {}
        for part, loss in losses.items():
            metrics |= {f"{part}/loss": loss, f"{part}/perplexity": perplexity(loss)}
        return metrics


class LanguageModelling(LanguageTask):
    """Predict each next word of a text, from at most `block` words of context.

    The text is cut into `batch_size` parallel streams. A batch is the next `block` words of each, the last one what is
    left, so every epoch has the same batches.

    network:           called with the vocabulary size; a module from tokens [batch, length] to features
                       [batch, length, width] with the linear layer `output` for logits
    evaluation_batch:  streams of the validation text, and of the test text, which training never uses
    train_examples:    lines to train on; None for all
    """

    def __init__(
        self,
        context: Context,
        network: Callable[..., nn.Module],
        epochs: int,
        batch_size: int,
        block: int,
        evaluation_batch: int,
        train_examples: int | None = None,
    ) -> None:
        check_positive(batch_size=batch_size, block=block, evaluation_batch=evaluation_batch)
        corpus = load_corpus(context, train_examples)
        self.place(context, network, corpus.vocabulary)
        self.epochs = epochs

        def cut(name: str, text: Tensor, count: int) -> tuple[Block, Block | None]:
            try:
                return blocks(streams(text.to(self.device), count), block)
            except ValueError as error:
                raise BadSetting(f"{name}: {error}") from error

        (self.inputs, self.targets), self.rest = cut("batch_size", corpus.train, batch_size)
        self.valid, self.test = (
            _as_list(cut("evaluation_batch", text, evaluation_batch)) for text in (corpus.valid, corpus.test)
        )
        self.steps_per_epoch = len(self.inputs) + (self.rest is not None)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from zip(self.inputs[start:], self.targets[start:], strict=True)
        if self.rest is not None:
            yield self.rest

    def token_loss(self, batch: Batch) -> TokenLoss:
        tokens, targets = batch
        output: Any = self.network.output
        return token_loss(self.network(tokens), output.weight, output.bias, targets)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        count = batch[1].numel()
        loss = self.token_loss(batch).loss
        self.meters.add_("loss", loss)
        self.meters.add_("count", float(count))
        yield NETWORK, loss / count

    def validation_loss(self) -> float:
        return self.loss_over(self.valid)

    def loss_over(self, text: list[Block]) -> float:
        """Nats per word of a text, `valid` or `test`."""
        batches = (
            batch
            for block in text
            for batch in zip(*(side.split(max(EVALUATION_TOKENS // side.shape[1], 1)) for side in block), strict=True)
        )
        return self.mean_loss(batches, sum(targets.numel() for _, targets in text))


def load_corpus(context: Context, train_examples: int | None) -> Corpus:
    """Wikitext-2 under the data root, or sentences of the embedded grammar."""
    check_examples(train_examples)
    if context.data == "embedded":
        return grammar_corpus(*embedded_sizes(train_examples))
    return load_wikitext2(context.data_root, train_examples)


def _as_list(cut: tuple[Block, Block | None]) -> list[Block]:
    """The blocks of all streams as one batch: they are independent, so evaluation can split them anywhere."""
    (inputs, targets), rest = cut
    return [(inputs.flatten(0, 1), targets.flatten(0, 1)), *([rest] if rest else [])]
