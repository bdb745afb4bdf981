"""The translation transformer (Figure 7): encoder and decoder with layer norm after each part, and no gains."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.arithmetic import product_dtype
from nero.models.attention import attend, padding_mask, sinusoidal_positions, split_heads
from nero.models.packed_attention import attend_packed
from nero.models.packing import Packing, packing, take

EPSILON = 1e-6  # of the layer norms

Side = Packing | Tensor | None
"""How one side's words stand: packed, or in rows, with what hides their padding if anything has to."""


class Translator(nn.Module):
    """Features [batch, T, width] for source tokens [batch, S] and the target's tokens so far [batch, T].

    Given the places of those tokens of either side that count, as `nero.models.packing` has them, no padding is
    computed on, and the features are those of the target's places alone: [slots, width].

    vocabulary:       number of types, of both languages together
    width:            of the features; a head has `width / heads`
    inner:            width of the hidden layer of each feed-forward part
    layers:           of the encoder, and of the decoder
    scale_embedding:  whether embeddings are multiplied by the root of the width before positions are added
    normalise_input:  whether a layer norm follows them
    padding:          the token that fills up a sentence: no other sees it
    longest:          most positions of a sentence
    fused:            whether attention of words without padding is by kernels where there are any

    Embeddings of either language and the output are one matrix: logits are features @ output_weight.T. With the paper's
    settings 121 tensors: that matrix, six layers of eight, six of twelve.
    """

    positions: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int = 512,
        heads: int = 8,
        inner: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
        scale_embedding: bool = False,
        normalise_input: bool = True,
        padding: int = 0,
        longest: int = 512,
        fused: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} is no multiple of {heads} heads")
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, inner, dropout, fused) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, inner, dropout, fused) for _ in range(layers))
        self.dropout, self.padding, self.normalise_input = dropout, padding, normalise_input
        self.scale = math.sqrt(width) if scale_embedding else 1.0
        self.register_buffer("positions", sinusoidal_positions(longest, width), persistent=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)

    @property
    def output_weight(self) -> Tensor:
        return self.embedding.weight

    def compiled_parts(self) -> Sequence[nn.Module]:
        """What torch.compile is to see one by one: six like layers take as long to compile as one."""
        return [*self.encoder, *self.decoder]

    def forward(self, source: Tensor, target: Tensor, places: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if places is None:
            return self.decode(target, self.encode(source), self.mask(source))
        # One look-up for both: on the way back one matrix of the vocabulary's size is filled, not two.
        sides = [*zip((source, target), places, strict=True)]
        embedded = self._embed(torch.cat([take(tokens, where, self.padding) for tokens, where in sides]))
        parts = embedded.split([len(where) for where in places])
        x, y = (self._enter(part, where % tokens.shape[1]) for part, (tokens, where) in zip(parts, sides, strict=True))
        of_source, of_target = (packing(where, *tokens.shape) for tokens, where in sides)
        return self._decode(y, self._encode(x, of_source), of_source, of_target)

    def mask(self, source: Tensor) -> Tensor:
        """What hides a source's padding."""
        return padding_mask(source == self.padding, product_dtype(self.embedding.weight))

    def encode(self, source: Tensor) -> Tensor:
        """The memory [batch, S, width] that a decoder looks at, beside `mask(source)`."""
        return self._encode(self._enter(self._embed(source)), self.mask(source))

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Features of every position of the target so far."""
        return self._decode(self._enter(self._embed(target)), memory, mask)

    def _embed(self, tokens: Tensor) -> Tensor:
        # Not F.embedding, whose backward pass sorts; this one's is a plain sum into rows. Padding needs no rule of its
        # own: nobody sees it, so that no gradient comes back to it.
        return self.embedding.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)

    def _enter(self, embedded: Tensor, where: Tensor | None = None) -> Tensor:
        """Add positions: those given, or one after the other along the last dim but one."""
        positions = self.positions[: embedded.shape[1]] if where is None else self.positions.index_select(0, where)
        x = torch.add(positions, embedded, alpha=self.scale)
        x = F.dropout(x, self.dropout, self.training)
        return normalise(x) if self.normalise_input else x

    def _encode(self, x: Tensor, source: Side) -> Tensor:
        for layer in self.encoder:
            x = layer(x, source)
        return x

    def _decode(self, x: Tensor, memory: Tensor, source: Side, target: Side = None) -> Tensor:
        for layer in self.decoder:
            x = layer(x, memory, source, target)
        return x


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward part; each part's result is added to what it was given, then normalised."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, fused)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, source: Side) -> Tensor:
        return self.feed_forward(self.attention.to_itself(x, source))


class DecoderLayer(nn.Module):
    """As an encoder's, with attention to the source between the two parts."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, fused)
        self.to_source = Attention(width, heads, dropout, fused)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, memory: Tensor, source: Side, target: Side) -> Tensor:
        # The target's padding comes after all that counts: that no position looks ahead hides it.
        x = self.attention.to_itself(x, target, causal=True)
        return self.feed_forward(self.to_source.to_memory(x, target, memory, source))


class Attention(nn.Module):
    """Attention without biases, dropout on its weights and on what it adds, then layer norm."""

    def __init__(self, width: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width, bias=False) for _ in range(4))

    def to_itself(self, x: Tensor, side: Side, causal: bool = False) -> Tensor:
        weights = torch.cat([self.query.weight, self.key.weight, self.value.weight])  # one product instead of three
        all_three = F.linear(x, weights)
        if isinstance(side, Packing):
            return self._add(x, attend_packed(all_three, None, side, side, self.heads, self._rate, causal, self.fused))
        query, key, value = split_heads(all_three, self.heads, 3)
        return self._add(x, attend(query, key, value, self._rate, side, causal))

    def to_memory(self, x: Tensor, side: Side, memory: Tensor, of_memory: Side) -> Tensor:
        query, looked_at = self.query(x), F.linear(memory, torch.cat([self.key.weight, self.value.weight]))
        if isinstance(of_memory, Packing):
            assert isinstance(side, Packing), "both sides are packed, or neither is"
            return self._add(
                x, attend_packed(query, looked_at, side, of_memory, self.heads, self._rate, fused=self.fused)
            )
        (query,), (key, value) = split_heads(query, self.heads, 1), split_heads(looked_at, self.heads, 2)
        return self._add(x, attend(query, key, value, self._rate, of_memory))

    @property
    def _rate(self) -> float:
        return self.dropout if self.training else 0.0

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        return normalise(x + F.dropout(self.merge(mixed), self._rate))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, dropout on what they add, then layer norm."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), dropout

    def forward(self, x: Tensor) -> Tensor:
        return normalise(x + F.dropout(self.outer(F.relu(self.inner(x))), self.dropout, self.training))


def normalise(x: Tensor) -> Tensor:
    """Layer norm without gain and bias."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)
