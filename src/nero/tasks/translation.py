"""Translation from German to English: the Multi30k transformer (Figure 7, Table 1)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nero.data.text.buckets import bucketed, length_key, padded, padded_length, shuffled_buckets
from nero.data.text.parallel_text import PAD, Pairs, ParallelText, load_multi30k, toy_pairs
from nero.models.attention import EMPTY, take_tokens, token_indices
from nero.models.token_loss import TokenLoss, token_loss
from nero.tasks.base import NETWORK, BadSetting, Batch, Context, Meters, Task, check_whole
from nero.tasks.language import PERPLEXITY, build_network, embedded_sizes, language_metrics
from nero.tasks.prefetch import MadeAhead

EVALUATION_BATCH = 512  # sentences
WORDS_A_ROW = 4  # a batch's slots are a multiple of so many words for each of its rows


class Translation(Task):
    """Predict each next word of a translation, given the source and the words before.

    A batch is `batch_size` pairs, padded to one of few lengths, and the places of its words in few numbers of slots, so
    that a step is captured for few shapes; padding changes neither loss nor gradients. The loss is the sum over a
    batch's words. "train/perplexity" is that of the training loss, smoothing included, over the epoch's batches as they
    came: with dropout, each before its step.

    network:         called with the number of types, it gives a module that makes features [slots, width] of a source
                     and a target [batch, length] and a pair of the places of their words, as `nero.models.attention` has
                     them, and has the `output_weight` [types, width] of the features
    minimum_count:   how often a word must occur in its language's training text to be in the vocabulary
    smoothing:       label smoothing in training; validation has none
    pool:            batches out of which pairs of like length are put together; 1 draws them at random
    padded_lengths:  what sentences are padded to; beyond the last, multiples of 16
    train_examples:  pairs to train on; None for all
    """

    metric = PERPLEXITY

    def __init__(
        self,
        context: Context,
        network: Callable[..., nn.Module],
        epochs: int,
        batch_size: int,
        minimum_count: int,
        smoothing: float,
        pool: int,
        padded_lengths: Sequence[int],
        train_examples: int | None = None,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("minimum_count", minimum_count), ("pool", pool)):
            check_whole(name, value)
        for length in padded_lengths:
            check_whole("padded_lengths", length)
        if isinstance(smoothing, bool) or not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:
            raise BadSetting(f"smoothing must be from 0 to below 1, not {smoothing!r}")
        text = load_text(context, minimum_count, train_examples)
        self.device, self.streams = context.device, context.streams
        self.epochs, self.batch_size, self.pool, self.smoothing = epochs, batch_size, pool, smoothing
        self.padded_lengths = sorted(padded_lengths)
        self.vocabulary = text.vocabulary
        self.train = _Sentences(text.train, self.device)
        self.validation = self._gather(_Sentences(text.valid, self.device), _by_length(text.valid))
        self.validation_words = sum(len(target) - 1 for target in text.valid.target)
        self.steps_per_epoch = -(-len(text.train) // batch_size)
        self.network = build_network(network, len(self.vocabulary)).to(self.device)
        self.meters = Meters(self.device, sums=("loss", "count"))
        self._ready = MadeAhead(self._epoch_batches, epochs)

    def networks(self) -> dict[str, nn.Module]:
        return {NETWORK: self.network}

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from self._ready.take(epoch)[start:]
        self._ready.prepare_after(epoch)

    def _epoch_batches(self, epoch: int) -> list[Batch]:
        generator = self.streams.generator("shuffle", epoch)
        return self._gather(self.train, shuffled_buckets(generator, self.train.keys, self.batch_size, self.pool))

    def _gather(self, sentences: "_Sentences", groups: Sequence[Sequence[int]]) -> list[Batch]:
        """Source and target of each group, with the places of what is looked at in the one and the other.

        Every batch has as many rows as the largest group, and one length for both sides.
        """
        rows = max(map(len, groups))
        numbers = np.array([[*group, *[sentences.blank] * (rows - len(group))] for group in groups])
        counts = [side[numbers] for side in sentences.counts]
        lengths = [padded_length(longest, self.padded_lengths) for longest in np.maximum(*counts).max(1).tolist()]
        # One number for both sides: fewer shapes, and a compiler that sees two alike takes them to be so always.
        step = WORDS_A_ROW * rows
        slots = [-(-words // step) * step for words in np.maximum(*(side.sum(1) for side in counts)).tolist()]
        batches = [*sentences.rows(numbers, lengths, max(slots)), lengths, slots]
        # Places are copied out, or a compiler would look at the sizes of what they are a part of.
        return [
            (
                _to_length(source, length),
                _to_length(target, length + 1),
                in_source[:number].clone(),
                in_target[:number].clone(),
            )
            for source, target, in_source, in_target, length, number in zip(*batches, strict=True)
        ]

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        loss = self._loss(batch, self.smoothing).loss
        self.meters.add_("loss", loss)
        self.meters.add_("count", (batch[-1] != EMPTY).sum())
        yield NETWORK, loss

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        return language_metrics(sums["loss"] / max(sums["count"], 1.0), self.validation_loss())

    @torch.no_grad()
    def validation_loss(self) -> float:
        """Nats per word of the validation pairs, ends of sentences counted, with the network as it now stands."""
        self.network.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for batch in self.validation:
            total += self._loss(batch).nll
        self.network.train()
        return float(total) / self.validation_words

    def _loss(self, batch: Batch, smoothing: float = 0.0) -> TokenLoss:
        source, target, in_source, in_target = batch
        features = self.network(source, target[:, :-1], (in_source, in_target))
        weight: Any = self.network.output_weight
        return token_loss(
            features, weight, None, take_tokens(target[:, 1:], in_target, PAD), smoothing, ignore_index=PAD
        )


class _Sentences:
    """Pairs on the device, padded to the longest, and a last row that is all padding.

    counts:  for the source and for the target, how many of a pair's words are looked at: all but a target's last
    """

    def __init__(self, pairs: Pairs, device: torch.device) -> None:
        self.blank = len(pairs)
        source_lengths, target_lengths = [*map(len, pairs.source)], [*map(len, pairs.target)]
        self.keys = [*map(length_key, source_lengths, target_lengths)]
        self.counts = np.array([*source_lengths, 0]), np.array([*target_lengths, 1]) - 1
        self._counts = [torch.from_numpy(side).to(device) for side in self.counts]
        self._texts = [
            padded(side, rows=len(side) + 1, length=max(map(len, side))).to(device)
            for side in (pairs.source, pairs.target)
        ]

    def rows(self, numbers: np.ndarray, lengths: Sequence[int], slots: int) -> list[Tensor]:
        """Source and target of these rows [batches, rows], and the places of their words in rows of these lengths."""
        both, device = torch.from_numpy(np.column_stack([numbers, lengths])), self._counts[0].device
        if device.type == "cuda":
            both = both.pin_memory()  # else the host would wait for all that the device has yet to do
        both = both.to(device, non_blocking=True)
        rows, length = both[:, :-1], both[:, -1]
        places = [token_indices(counts[rows], length, slots) for counts in self._counts]
        return [text[rows] for text in self._texts] + places


def _by_length(pairs: Pairs) -> list[list[int]]:
    """All pairs in groups of like length, for evaluation."""
    keys = [*map(length_key, map(len, pairs.source), map(len, pairs.target))]
    return bucketed(range(len(pairs)), keys, EVALUATION_BATCH)


def _to_length(tokens: Tensor, length: int) -> Tensor:
    """Cut, or filled up with padding: what is cut is padding too."""
    missing = length - tokens.shape[1]
    return torch.nn.functional.pad(tokens, (0, missing), value=PAD) if missing > 0 else tokens[:, :length].contiguous()


def load_text(context: Context, minimum_count: int, train_examples: int | None) -> ParallelText:
    """Multi30k under the data root, or pairs of the embedded grammar in its place."""
    if train_examples is not None:
        check_whole("train_examples", train_examples)
    if context.data == "embedded":
        return toy_pairs(*embedded_sizes(train_examples), minimum_count)
    text = load_multi30k(context.data_root, minimum_count, train_examples)
    if train_examples is not None and train_examples > len(text.train):
        raise BadSetting(f"train_examples must be at most {len(text.train)}, not {train_examples}")
    return text
