"""Beam search for many sentences at a time, each until nothing that runs can beat what has ended."""

from itertools import count
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nero.data.text.parallel_text import BEGIN, END, PAD

NEVER = [PAD, BEGIN]
"""Tokens that no translation has."""


class Decoder(Protocol):
    """What a search goes by; `nero.checkpoints.step_by_step.CachedDecoder` is a network's.

    step:  the newest word of every hypothesis [sentences, rows] -> logits of the next [sentences, rows, types]
    keep:  go on with sentences [n] and, of each, with hypotheses [n, rows]; both are numbers among those there are
    """

    def step(self, words: Tensor) -> Tensor: ...
    def keep(self, sentences: Tensor, rows: Tensor) -> None: ...


@torch.no_grad()
def search(decoder: Decoder, longest: Tensor, beam: int = 5, alpha: float = 0.6) -> list[list[int]]:
    """The best translation that is found for each sentence, without BEGIN and END.

    A translation is at most `longest` [sentences] words and then END, and its score is its log probability / (words +
    1)**alpha. In each step the `beam` likeliest ways to go on, over all hypotheses of a sentence, are kept; those that
    end are put aside. With a beam of 1 this is greedy. PAD and BEGIN are never chosen; the probabilities of all other
    tokens are left as they are.
    """
    if beam < 1 or alpha < 0:
        raise ValueError(f"a beam is at least 1 and alpha is not negative: not {beam} and {alpha}")
    sentences, device = len(longest), longest.device
    found: list[list[int]] = [[] for _ in range(sentences)]
    # Of each sentence that goes on: its number, and the best that has ended.
    numbers = torch.arange(sentences, device=device)
    best = torch.empty((sentences, 0), dtype=torch.int64, device=device)
    best_words, best_score = torch.zeros_like(numbers), torch.full((sentences,), -torch.inf, device=device)
    # Hypotheses [sentences, rows, tokens], and their log probabilities: minus infinity for those that go on no more.
    prefix = torch.full((sentences, 1, 1), BEGIN, device=device)
    score = torch.zeros((sentences, 1), device=device)
    for length in count(1):  # of the new hypotheses, END counted and BEGIN not
        following = F.log_softmax(decoder.step(prefix[:, :, -1]).float(), dim=-1)
        types = following.shape[-1]
        following[..., NEVER] = -torch.inf
        words = torch.arange(types, device=device) != END
        following.masked_fill_((longest < length)[:, None, None] & words, -torch.inf)

        candidates = (score[:, :, None] + following).flatten(1)
        score, chosen = candidates.topk(min(beam, candidates.shape[1]))
        row, word = chosen // types, chosen % types
        prefix = torch.cat([prefix.gather(1, row[:, :, None].expand(-1, -1, length)), word[:, :, None]], dim=2)

        ended = word == END
        value, place = (score / length**alpha).masked_fill(~ended, -torch.inf).max(dim=1)
        better = value > best_score
        best_score, best_words = torch.where(better, value, best_score), torch.where(better, length - 1, best_words)
        newest = prefix[torch.arange(len(numbers), device=device), place, 1:]
        best = torch.where(better[:, None], newest, F.pad(best, (0, 1)))

        score = score.masked_fill(ended, -torch.inf)
        # A log probability never rises, and a greater length only helps: more than this no hypothesis comes to.
        going = score.amax(dim=1) / (longest + 1) ** alpha > best_score
        stopped, kept = (~going).nonzero().flatten(), going.nonzero().flatten()
        lines = zip(numbers[stopped].tolist(), best_words[stopped].tolist(), best[stopped].tolist(), strict=True)
        for number, size, tokens in lines:
            found[number] = tokens[:size]
        if not len(kept):
            break
        decoder.keep(kept, row[kept])
        numbers, longest, best, best_words = (x[kept] for x in (numbers, longest, best, best_words))
        best_score, prefix, score = (x[kept] for x in (best_score, prefix, score))
    return found
