"""Beam search for batches of sentences, with a decoder that caches keys and values."""

from itertools import count
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nero.data.text.parallel_text import BEGIN, END, PAD
from nero.models.attention import attend, split_heads
from nero.models.translator import Attention, DecoderLayer, Translator, normalise

NEVER = [PAD, BEGIN]  # tokens that no translation contains


class Decoder(Protocol):
    """What `search` needs of a decoder.

    step:  newest token of each hypothesis [sentences, hypotheses] -> logits [sentences, hypotheses, vocabulary]
    keep:  continue with sentences [n] and, for each, with hypotheses [n, hypotheses]; both are indices
    """

    def step(self, words: Tensor) -> Tensor: ...
    def keep(self, sentences: Tensor, rows: Tensor) -> None: ...


@torch.no_grad()
def search(decoder: Decoder, longest: Tensor, beam: int = 5, alpha: float = 0.6) -> list[list[int]]:
    """Find the best translation of each sentence, without BEGIN and END.

    The score of a translation is its log probability / (words + 1)**alpha. Each step keeps the `beam` most probable
    continuations over all hypotheses of a sentence. A sentence stops when no running hypothesis can beat its best
    finished one. A beam of 1 is greedy decoding. PAD and BEGIN are never chosen; the probabilities of the other tokens
    are not renormalised.

    Args:
        longest: maximum number of words of each translation [sentences]
    """
    if beam < 1 or alpha < 0:
        raise ValueError(f"beam must be at least 1 and alpha at least 0, not {beam} and {alpha}")
    sentences, device = len(longest), longest.device
    found: list[list[int]] = [[] for _ in range(sentences)]
    # For each running sentence: its index, and its best finished translation.
    indices = torch.arange(sentences, device=device)
    best = torch.empty((sentences, 0), dtype=torch.int64, device=device)
    best_words, best_score = torch.zeros_like(indices), torch.full((sentences,), -torch.inf, device=device)
    # Hypotheses [sentences, rows, tokens] and their log probabilities; minus infinity for finished ones.
    prefix = torch.full((sentences, 1, 1), BEGIN, device=device)
    score = torch.zeros((sentences, 1), device=device)
    for length in count(1):  # of the new hypotheses, with END and without BEGIN
        following = F.log_softmax(decoder.step(prefix[:, :, -1]).float(), dim=-1)
        types = following.shape[-1]
        following[..., NEVER] = -torch.inf
        is_word = torch.arange(types, device=device) != END
        following.masked_fill_((longest < length)[:, None, None] & is_word, -torch.inf)

        candidates = (score[:, :, None] + following).flatten(1)
        score, chosen = candidates.topk(min(beam, candidates.shape[1]))
        row, word = chosen // types, chosen % types
        prefix = torch.cat([prefix.gather(1, row[:, :, None].expand(-1, -1, length)), word[:, :, None]], dim=2)

        ended = word == END
        value, place = (score / length**alpha).masked_fill(~ended, -torch.inf).max(dim=1)
        better = value > best_score
        best_score, best_words = torch.where(better, value, best_score), torch.where(better, length - 1, best_words)
        newest = prefix[torch.arange(len(indices), device=device), place, 1:]
        best = torch.where(better[:, None], newest, F.pad(best, (0, 1)))

        score = score.masked_fill(ended, -torch.inf)
        # An upper bound of any later score: log probabilities never rise, and the largest length helps the most.
        running = score.amax(dim=1) / (longest + 1) ** alpha > best_score
        stopped, kept = (~running).nonzero().flatten(), running.nonzero().flatten()
        finished = zip(indices[stopped].tolist(), best_words[stopped].tolist(), best[stopped].tolist(), strict=True)
        for index, size, tokens in finished:
            found[index] = tokens[:size]
        if not len(kept):
            break
        decoder.keep(kept, row[kept])
        indices, longest, best, best_words = (x[kept] for x in (indices, longest, best, best_words))
        best_score, prefix, score = (x[kept] for x in (best_score, prefix, score))
    return found


class CachedDecoder:
    """Decodes hypotheses for `source` [sentences, tokens] one token per step.

    `step` equals `Translator.decode` at the last position. All hypotheses of a sentence share the keys and values of
    its source.

    memory:  for each layer, keys and values of the source [sentences, heads, tokens, size]
    past:    for each layer, those of the tokens so far [sentences, hypotheses, heads, tokens, size]
    """

    def __init__(self, network: Translator, source: Tensor) -> None:
        self.network, self.mask, self.length = network, network.mask(source), 0
        self.layers = [layer for layer in network.decoder if isinstance(layer, DecoderLayer)]
        encoded = network.encode(source)
        self.memory = [_keys_and_values(encoded, layer.to_source) for layer in self.layers]
        self.past: list[list[Tensor]] = [[] for _ in self.layers]

    def step(self, words: Tensor) -> Tensor:
        network = self.network
        x = network.positions[self.length] + network.scale * network.embedding.weight[words]
        x = normalise(x) if network.normalise_input else x
        for number, layer in enumerate(self.layers):
            own, cross = layer.attention, layer.to_source
            single = x.flatten(0, 1).unsqueeze(1)
            newest = [part.unflatten(0, words.shape) for part in _keys_and_values(single, own)]
            past = self.past[number]
            self.past[number] = [torch.cat(pair, dim=3) for pair in zip(past, newest, strict=True)] if past else newest
            keys, values = (part.flatten(0, 1) for part in self.past[number])
            x = normalise(x + own.merge(attend(_heads(own.query(single), own), keys, values, 0.0).view(x.shape)))
            keys, values = self.memory[number]
            x = normalise(x + cross.merge(attend(_heads(cross.query(x), cross), keys, values, 0.0, self.mask)))
            x = layer.feed_forward(x)
        self.length += 1
        return F.linear(x, network.output_weight)

    def keep(self, sentences: Tensor, rows: Tensor) -> None:
        self.mask = self.mask[sentences]
        self.memory = [[part[sentences] for part in layer] for layer in self.memory]
        self.past = [[part[sentences[:, None], rows] for part in layer] for layer in self.past]


def _keys_and_values(x: Tensor, attention: Attention) -> list[Tensor]:
    return [_heads(project(x), attention) for project in (attention.key, attention.value)]


def _heads(x: Tensor, attention: Attention) -> Tensor:
    return split_heads(x, attention.heads, 1)[0]
