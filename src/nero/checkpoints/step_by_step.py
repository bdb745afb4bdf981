"""A translator's decoder one word at a time: what earlier words were made into is kept, not made again."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nero.models.attention import attend, split_heads
from nero.models.translator import Attention, DecoderLayer, Translator, normalise


class CachedDecoder:
    """Hypotheses of translations of `source` [sentences, S], one word longer with each step.

    A step gives what `Translator.decode` gives for the last position. All hypotheses of a sentence share what is kept
    of it, and they stand beside each other as the queries of one attention to it.
    """

    def __init__(self, network: Translator, source: Tensor) -> None:
        self.network, self.mask, self.length = network, network.mask(source), 0
        memory = network.encode(source)
        self.layers = [_Layer(layer, memory) for layer in network.decoder if isinstance(layer, DecoderLayer)]

    def step(self, words: Tensor) -> Tensor:
        """Logits [sentences, rows, types] of what follows `words` [sentences, rows], the newest of each hypothesis."""
        network = self.network
        embedded = network.embedding.weight[words]
        x = network.positions[self.length] + network.scale * embedded
        x = normalise(x) if network.normalise_input else x
        for layer in self.layers:
            x = layer.step(x, self.mask)
        self.length += 1
        return F.linear(x, network.output_weight)

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with these sentences [n] and, of each, with these of its hypotheses [n, rows]; one may come twice."""
        self.mask = self.mask[sentences]
        for layer in self.layers:
            layer.keep(sentences, rows)


class _Layer:
    """A decoder's layer with its keys and values: of the source [sentences, heads, S, size], and of the words so far.

    own_keys, own_values:  [sentences, rows, heads, words, size]
    """

    def __init__(self, layer: DecoderLayer, memory: Tensor) -> None:
        self.layer = layer
        to_source = layer.to_source
        self.keys, self.values = (_heads(linear(memory), to_source) for linear in (to_source.key, to_source.value))
        self.own_keys: Tensor | None = None
        self.own_values: Tensor | None = None

    def step(self, x: Tensor, mask: Tensor) -> Tensor:
        sentences, rows, width = x.shape
        own, to_source = self.layer.attention, self.layer.to_source
        single = x.reshape(sentences * rows, 1, width)
        query, key, value = (_heads(linear(single), own) for linear in (own.query, own.key, own.value))
        keys, values = key.unflatten(0, (sentences, rows)), value.unflatten(0, (sentences, rows))
        if self.own_keys is not None and self.own_values is not None:
            keys, values = torch.cat([self.own_keys, keys], dim=3), torch.cat([self.own_values, values], dim=3)
        self.own_keys, self.own_values = keys, values
        mixed = attend(query, keys.flatten(0, 1), values.flatten(0, 1), 0.0)
        x = normalise(x + own.merge(mixed.view(x.shape)))
        mixed = attend(_heads(to_source.query(x), to_source), self.keys, self.values, 0.0, mask)
        return self.layer.feed_forward(normalise(x + to_source.merge(mixed)))

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        self.keys, self.values = self.keys[sentences], self.values[sentences]
        if self.own_keys is not None and self.own_values is not None:
            self.own_keys = self.own_keys[sentences[:, None], rows]
            self.own_values = self.own_values[sentences[:, None], rows]


def _heads(x: Tensor, attention: Attention) -> Tensor:
    return split_heads(x, attention.heads, 1)[0]
