"""The translation transformer (Figure 7): an encoder and a decoder with post-layer-norm and no gains."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.attention import (
    Layout,
    attend_projected,
    check_sizes,
    packing,
    padding_mask,
    sinusoidal_positions,
    take_tokens,
)
from nero.models.kernels import product_dtype

EPSILON = 1e-6  # of the layer norms


class Translator(nn.Module):
    """Features [batch, T, width] for source tokens [batch, S] and target tokens [batch, T].

    With the indices of both sides' tokens (`nero.models.attention.token_indices`) nothing is computed for padding, and
    the features are those of the target's tokens alone: [slots, width].

    vocabulary:       number of token types, of both languages together
    inner:            hidden width of the feed-forward layers
    layers:           of the encoder, and of the decoder
    scale_embedding:  whether embeddings are multiplied by sqrt(width) before positions are added
    normalise_input:  whether a layer norm follows
    padding:          the token that fills up a sentence; no other attends to it
    longest:          most positions of a sentence
    fused:            whether packed attention uses the Triton kernels where there are any

    Both embeddings and the output share one matrix: logits are features @ output_weight.T. With the paper's settings
    there are 121 tensors: that matrix, six encoder layers of 8 and six decoder layers of 12.
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
        check_sizes(width, heads, layers, dropout)
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
        """The modules to compile one by one: six identical layers then take as long as one."""
        return [*self.encoder, *self.decoder]

    def forward(self, source: Tensor, target: Tensor, indices: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if indices is None:
            return self.decode(target, self.encode(source), self.mask(source))
        # One look-up for both languages: its backward pass fills one matrix of the vocabulary's size, not two.
        sides = [*zip((source, target), indices, strict=True)]
        embedded = self._embed(torch.cat([take_tokens(tokens, where, self.padding) for tokens, where in sides]))
        parts = embedded.split([len(where) for where in indices])
        x, y = (self._enter(part, where % tokens.shape[1]) for part, (tokens, where) in zip(parts, sides, strict=True))
        source_packing, target_packing = (packing(where, *tokens.shape) for tokens, where in sides)
        return self._decode(y, self._encode(x, source_packing), source_packing, target_packing)

    def mask(self, source: Tensor) -> Tensor:
        """The padding mask of a source."""
        return padding_mask(source == self.padding, product_dtype(self.embedding.weight))

    def encode(self, source: Tensor) -> Tensor:
        """The memory [batch, S, width], which the decoder attends to with `mask(source)`."""
        return self._encode(self._enter(self._embed(source)), self.mask(source))

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Features of every position of the target so far."""
        return self._decode(self._enter(self._embed(target)), memory, mask)

    def _embed(self, tokens: Tensor) -> Tensor:
        # Not F.embedding, whose backward pass sorts; this one's is a plain index_add. Padding needs no special case:
        # nothing attends to it, so it gets no gradient.
        return self.embedding.weight.index_select(0, tokens.flatten()).view(*tokens.shape, -1)

    def _enter(self, embedded: Tensor, where: Tensor | None = None) -> Tensor:
        """Add the positions, given for packed tokens, else counted along the last dim but one."""
        positions = self.positions[: embedded.shape[1]] if where is None else self.positions.index_select(0, where)
        x = torch.add(positions, embedded, alpha=self.scale)
        x = F.dropout(x, self.dropout, self.training)
        return normalise(x) if self.normalise_input else x

    def _encode(self, x: Tensor, source: Layout) -> Tensor:
        for layer in self.encoder:
            x = layer(x, source)
        return x

    def _decode(self, x: Tensor, memory: Tensor, source: Layout, target: Layout = None) -> Tensor:
        for layer in self.decoder:
            x = layer(x, memory, source, target)
        return x


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward layer, each with a residual connection and a layer norm after it."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, fused)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, source: Layout) -> Tensor:
        return self.feed_forward(self.attention(x, source))


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, and a feed-forward layer."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, fused)
        self.to_source = Attention(width, heads, dropout, fused)
        self.feed_forward = FeedForward(width, inner, dropout)

    def forward(self, x: Tensor, memory: Tensor, source: Layout, target: Layout) -> Tensor:
        # The target's padding comes after its last token, so causal attention hides it.
        x = self.attention(x, target, causal=True)
        return self.feed_forward(self.to_source(x, target, memory, source))


class Attention(nn.Module):
    """Attention without biases, dropout on its weights and its output, residual connection and layer norm."""

    def __init__(self, width: int, heads: int, dropout: float, fused: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.query, self.key, self.value, self.merge = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(
        self, x: Tensor, layout: Layout, memory: Tensor | None = None, of_memory: Layout = None, causal: bool = False
    ) -> Tensor:
        """Attention of x to the memory, by default to itself."""
        dropout, weights = self.dropout if self.training else 0.0, [self.key.weight, self.value.weight]
        if memory is None:  # one product instead of three
            query, projected, of_memory = F.linear(x, torch.cat([self.query.weight, *weights])), None, layout
        else:
            query, projected = self.query(x), F.linear(memory, torch.cat(weights))
        mixed = attend_projected(query, projected, layout, of_memory, self.heads, dropout, causal, self.fused)
        return normalise(x + F.dropout(self.merge(mixed), dropout))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, dropout, residual connection and layer norm."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(width, inner), nn.Linear(inner, width), dropout

    def forward(self, x: Tensor) -> Tensor:
        return normalise(x + F.dropout(self.outer(F.relu(self.inner(x))), self.dropout, self.training))


def normalise(x: Tensor) -> Tensor:
    """Layer norm without gain and bias."""
    return F.layer_norm(x, x.shape[-1:], eps=EPSILON)
