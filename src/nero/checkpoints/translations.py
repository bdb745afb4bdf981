"""Translations of any number of sentences by one network."""

from collections.abc import Iterator, Sequence

import torch

from nero.checkpoints.beam_search import search
from nero.checkpoints.step_by_step import CachedDecoder
from nero.data.text.buckets import padded
from nero.models.translator import Translator


@torch.no_grad()
def translations(
    network: Translator,
    sources: Sequence[Sequence[int]],
    beam: int = 5,
    alpha: float = 0.6,
    longest: int | None = None,
    batch_size: int = 128,
) -> Iterator[tuple[int, list[int]]]:
    """(number of a sentence, its translation as ids without BEGIN and END): shortest sources first.

    sources:      ids with BEGIN in front and END behind
    beam, alpha:  see `search`
    longest:      most words of a translation; None for twice those of its source and ten more. Never more than the
                  network has positions for
    batch_size:   sentences at a time

    ValueError if a source has more tokens than the network has positions.
    """
    network.eval()
    device, positions = network.output_weight.device, len(network.positions)
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    for start in range(0, len(order), batch_size):
        group = order[start : start + batch_size]
        lengths = [len(sources[number]) for number in group]
        if lengths[-1] > positions:
            raise ValueError(f"a sentence has {lengths[-1] - 2} words, and the network takes at most {positions - 2}")
        source = padded([sources[number] for number in group], len(group), lengths[-1]).to(device)
        # While END is predicted, BEGIN and all words stand before it.
        limits = [min(2 * (n - 2) + 10 if longest is None else longest, positions - 1) for n in lengths]
        found = search(CachedDecoder(network, source), torch.tensor(limits, device=device), beam, alpha)
        yield from zip(group, found, strict=True)
