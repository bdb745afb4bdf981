"""The Wikitext-2 transformer (Figure 6): causal, two layers, and no layer norm, hence no gains."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.attention import attend, check_sizes, sinusoidal_positions, split_heads

INIT_RANGE = 0.1  # embedding and output weights start uniform in plus and minus this


class LanguageModel(nn.Module):
    """Tokens [batch, length] -> features [batch, length, width]; the linear layer `output` maps them to logits.

    vocabulary:   number of token types
    inner:        hidden width of the feed-forward layers
    longest:      most positions of a sequence
    copy_layers:  whether all layers start with the weights of the first, as nn.TransformerEncoder's do

    With the paper's settings there are 19 tensors: the embedding, two layers of 8, output weights and bias, not tied.
    """

    positions: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int = 200,
        heads: int = 2,
        layers: int = 2,
        inner: int = 200,
        dropout: float = 0.2,
        longest: int = 512,
        copy_layers: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(width, heads, layers, dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, inner, dropout) for _ in range(layers))
        self.output = nn.Linear(width, vocabulary)
        self.dropout = dropout
        self.register_buffer("positions", sinusoidal_positions(longest, width), persistent=False)
        nn.init.uniform_(self.embedding.weight, -INIT_RANGE, INIT_RANGE)
        nn.init.uniform_(self.output.weight, -INIT_RANGE, INIT_RANGE)
        nn.init.zeros_(self.output.bias)
        if copy_layers:
            first, *others = self.layers
            for layer in others:
                layer.load_state_dict(first.state_dict())

    def forward(self, tokens: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        # Not F.embedding: on a GPU its backward pass takes longer than a layer; this one's is a plain index_add.
        embedded = self.embedding.weight.index_select(0, tokens.flatten()).view(*tokens.shape, width)
        x = torch.add(self.positions[: tokens.shape[1]], embedded, alpha=math.sqrt(width))
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual connection, initialised as torch's own."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        nn.init.xavier_uniform_(self.query_key_value.weight)
        nn.init.zeros_(self.query_key_value.bias)
        nn.init.zeros_(self.merge.bias)

    def forward(self, x: Tensor) -> Tensor:
        rate = self.dropout if self.training else 0.0
        query, key, value = split_heads(self.query_key_value(x), self.heads, 3)
        x = x + F.dropout(self.merge(attend(query, key, value, rate, causal=True)), rate)
        hidden = F.dropout(F.relu(self.inner(x)), rate)
        return x + F.dropout(self.outer(hidden), rate)
