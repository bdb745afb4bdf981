"""Word-level language modelling: the Wikitext-2 transformer (Figure 6, Table 1)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nero.data.text.corpus import Block, Corpus, blocks, grammar_corpus, load_wikitext2, streams
from nero.models.token_loss import TokenLoss, token_loss
from nero.tasks.base import NETWORK, BadSetting, Batch, Context, Meters, Task, check_whole
from nero.tasks.language import PERPLEXITY, build_network, embedded_sizes, language_metrics

EVALUATION_TOKENS = 7000  # at once: some thousands keep a GPU busy, and their logits take a gigabyte


class LanguageModelling(Task):
    """Predict each next word of a text, from no more than `block` words back.

    The text is cut into `batch_size` streams side by side; a batch is the next `block` words of each, a last one what
    is left of them. So the batches are the same in every epoch. "train/perplexity" is taken over the epoch's batches as
    they came: with dropout, each before its step.

    network:           called with the number of types, it gives a module that makes features [batch, length, width] of
                       tokens [batch, length], and has the linear layer `output` on top of them
    evaluation_batch:  streams of the validation text, and of the test text, which no run looks at
    train_examples:    lines to train on; None for all
    """

    metric = PERPLEXITY

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
        for name, value in (("batch_size", batch_size), ("block", block), ("evaluation_batch", evaluation_batch)):
            check_whole(name, value)
        corpus = load_corpus(context, train_examples)
        self.epochs, self.vocabulary = epochs, corpus.vocabulary
        cut = partial(_cut, block=block, device=context.device)
        (self.inputs, self.targets), self.rest = cut("batch_size", corpus.train, batch_size)
        self.valid, self.test = (
            _together(cut("evaluation_batch", text, evaluation_batch)) for text in (corpus.valid, corpus.test)
        )
        self.steps_per_epoch = len(self.inputs) + (self.rest is not None)
        self.network = build_network(network, len(self.vocabulary)).to(context.device)
        self.meters = Meters(context.device, sums=("loss", "count"))

    def networks(self) -> dict[str, nn.Module]:
        return {NETWORK: self.network}

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from zip(self.inputs[start:], self.targets[start:], strict=True)
        if self.rest is not None:
            yield self.rest

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        tokens, targets = batch
        loss = self._loss(tokens, targets).loss
        self.meters.add_("loss", loss)
        self.meters.add_("count", float(targets.numel()))
        yield NETWORK, loss / targets.numel()

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        return language_metrics(sums["loss"] / max(sums["count"], 1.0), self.loss_over(self.valid))

    @torch.no_grad()
    def loss_over(self, text: list[Block]) -> float:
        """Nats per word of a text, `valid` or `test`, with the network as it now stands."""
        self.network.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.inputs.device)
        for inputs, targets in text:
            rows = max(EVALUATION_TOKENS // inputs.shape[1], 1)
            for tokens, wanted in zip(inputs.split(rows), targets.split(rows), strict=True):
                total += self._loss(tokens, wanted).nll
        self.network.train()
        return float(total) / sum(targets.numel() for _, targets in text)

    def _loss(self, tokens: Tensor, targets: Tensor) -> TokenLoss:
        output: Any = self.network.output
        return token_loss(self.network(tokens), output.weight, output.bias, targets)


def _together(cut: tuple[Block, Block | None]) -> list[Block]:
    """Blocks of all streams side by side: none knows of any other, so that they can be taken in any number."""
    (inputs, targets), rest = cut
    return [(inputs.flatten(0, 1), targets.flatten(0, 1)), *([rest] if rest else [])]


def load_corpus(context: Context, train_examples: int | None) -> Corpus:
    """Wikitext-2 under the data root, or sentences of the embedded grammar in its place."""
    if train_examples is not None:
        check_whole("train_examples", train_examples)
    if context.data == "embedded":
        return grammar_corpus(*embedded_sizes(train_examples))
    return load_wikitext2(context.data_root, train_examples)


def _cut(name: str, tokens: Tensor, count: int, block: int, device: torch.device) -> tuple[Block, Block | None]:
    try:
        return blocks(streams(tokens.to(device), count), block)
    except ValueError as error:
        raise BadSetting(f"{name}: {error}") from error
