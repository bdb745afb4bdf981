"""Translation from German to English: the Multi30k transformer (Figure 7, Table 1)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.data.text.buckets import bucketed, length_key, padded, padded_length, shuffled_buckets
from nero.data.text.parallel_text import PAD, Pairs, ParallelText, load_multi30k, toy_pairs
from nero.models.attention import EMPTY, take_tokens, token_indices
from nero.models.token_loss import TokenLoss, token_loss
from nero.tasks.base import NETWORK, BadSetting, Batch, Context, Prefetch, check_examples, check_positive
from nero.tasks.language_model import LanguageTask, embedded_sizes

EVALUATION_BATCH = 512  # sentences
SLOTS_PER_ROW = 4  # a batch's number of slots is a multiple of this times its rows


class Translation(LanguageTask):
    """Predict each next word of a translation, given the source and the words before.

    A batch is `batch_size` pairs, padded to one of few lengths, and the indices of its words in one of few numbers of
    slots, so that a step is captured for few shapes; padding changes neither loss nor gradients. The loss is the sum
    over a batch's words; smoothing is part of "train/perplexity".

    network:         called with the vocabulary size; a module from a source and a target [batch, length], and a pair
                     of the indices of their words (`nero.models.attention`), to features [slots, width], with their
                     `output_weight` [vocabulary, width]
    padded_lengths:  lengths that sentences are padded to; beyond the last, multiples of 16

    configs/task/multi30k_transformer.yaml describes the other settings.
    """

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
        check_positive(batch_size=batch_size, minimum_count=minimum_count, pool=pool)
        for length in padded_lengths:
            check_positive(padded_lengths=length)
        if isinstance(smoothing, bool) or not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:
            raise BadSetting(f"smoothing must be at least 0 and below 1, not {smoothing!r}")
        text = load_text(context, minimum_count, train_examples)
        self.place(context, network, text.vocabulary)
        self.streams = context.streams
        self.epochs, self.batch_size, self.pool, self.smoothing = epochs, batch_size, pool, smoothing
        self.padded_lengths = sorted(padded_lengths)
        self.train = _Sentences(text.train, self.device)
        validation = _Sentences(text.valid, self.device)
        groups = bucketed(range(len(text.valid)), validation.keys, EVALUATION_BATCH)
        self.validation = self._gather(validation, groups)
        self.validation_words = sum(len(target) - 1 for target in text.valid.target)
        self.steps_per_epoch = -(-len(text.train) // batch_size)
        self.prefetch = Prefetch(self._epoch_batches, epochs)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from self.prefetch.take(epoch)[start:]
        self.prefetch.prepare_after(epoch)

    def _epoch_batches(self, epoch: int) -> list[Batch]:
        generator = self.streams.generator("shuffle", epoch)
        return self._gather(self.train, shuffled_buckets(generator, self.train.keys, self.batch_size, self.pool))

    def _gather(self, sentences: "_Sentences", groups: Sequence[Sequence[int]]) -> list[Batch]:
        """Source and target of each group, with the indices of the words of both that the network attends to.

        Every batch has as many rows as the largest group, and one length for both sides.
        """
        rows = max(map(len, groups))
        numbers = np.array([[*group, *[sentences.blank] * (rows - len(group))] for group in groups])
        counts = [side[numbers] for side in sentences.counts]
        lengths = [padded_length(longest, self.padded_lengths) for longest in np.maximum(*counts).max(1).tolist()]
        # One number for both sides: fewer shapes, and a compiler that sees two equal sizes assumes they always are.
        step = SLOTS_PER_ROW * rows
        slots = [-(-words // step) * step for words in np.maximum(*(side.sum(1) for side in counts)).tolist()]
        # Indices are cloned: a compiler would specialise on the size of the tensor that they are a view of.
        return [
            (_to_length(source, length), _to_length(target, length + 1), *(side[:number].clone() for side in indices))
            for source, target, *indices, length, number in zip(
                *sentences.rows(numbers, lengths, max(slots)), lengths, slots, strict=True
            )
        ]

    def token_loss(self, batch: Batch, smoothing: float = 0.0) -> TokenLoss:
        source, target, source_indices, target_indices = batch
        features = self.network(source, target[:, :-1], (source_indices, target_indices))
        weight: Any = self.network.output_weight
        wanted = take_tokens(target[:, 1:], target_indices, PAD)
        return token_loss(features, weight, None, wanted, smoothing, ignore_index=PAD)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        loss = self.token_loss(batch, self.smoothing).loss
        self.meters.add_("loss", loss)
        self.meters.add_("count", (batch[-1] != EMPTY).sum())
        yield NETWORK, loss

    def validation_loss(self) -> float:
        """Ends of sentences included."""
        return self.mean_loss(self.validation, self.validation_words)


class _Sentences:
    """Pairs on the device, padded to the longest, and a last row that is all padding.

    counts:  for source and target, the words of each pair that the network attends to: all but a target's last
    """

    def __init__(self, pairs: Pairs[list[int]], device: torch.device) -> None:
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
        """Source and target of these rows [batches, rows], and the indices of their words in rows of these lengths."""
        both, device = torch.from_numpy(np.column_stack([numbers, lengths])), self._counts[0].device
        if device.type == "cuda":
            both = both.pin_memory()  # else the host would wait for all queued work of the device
        both = both.to(device, non_blocking=True)
        rows, length = both[:, :-1], both[:, -1]
        indices = [token_indices(counts[rows], length, slots) for counts in self._counts]
        return [text[rows] for text in self._texts] + indices


def _to_length(tokens: Tensor, length: int) -> Tensor:
    """Padded or cut to a length; only padding is cut."""
    missing = length - tokens.shape[1]
    return F.pad(tokens, (0, missing), value=PAD) if missing > 0 else tokens[:, :length].contiguous()


def load_text(context: Context, minimum_count: int, train_examples: int | None) -> ParallelText:
    """Multi30k under the data root, or pairs of the embedded grammar."""
    check_examples(train_examples)
    if context.data == "embedded":
        return toy_pairs(*embedded_sizes(train_examples), minimum_count)
    text = load_multi30k(context.data_root, minimum_count, train_examples)
    check_examples(train_examples, len(text.train))
    return text
