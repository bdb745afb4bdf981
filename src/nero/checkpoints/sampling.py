"""Text by a language model, word by word."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def continuation(
    network: nn.Module,
    start: Sequence[int],
    words: int,
    block: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> Iterator[int]:
    """So many ids that follow `start`, each drawn from what the network says after the last `block` of them.

    temperature:  log probabilities are divided by it; 0 takes the likeliest word
    top_k:        draw from so many of the likeliest only; 0 for all
    """
    if not start:
        raise ValueError("a text must begin with something")
    network.eval()
    device = next(network.parameters()).device
    # Drawn on the CPU, so that a seed means the same on every device.
    generator = torch.Generator().manual_seed(seed)
    text = list(start)
    for _ in range(words):
        features = network(torch.tensor([text[-block:]], device=device))
        logits = network.get_submodule("output")(features[0, -1]).cpu()
        text.append(draw(logits, temperature, top_k, generator))
        yield text[-1]


def draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """One number from 0 to len(logits) - 1."""
    if temperature == 0:
        return int(logits.argmax())
    likeliest, numbers = logits.double().topk(min(top_k, len(logits)) if top_k else len(logits))
    # The largest becomes 0 first: no temperature, however low, makes an infinity of it.
    probabilities = ((likeliest - likeliest[0]) / temperature).softmax(dim=0)
    return int(numbers[torch.multinomial(probabilities, 1, generator=generator)])
