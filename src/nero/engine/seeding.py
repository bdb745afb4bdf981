"""Named random streams: the same seed, purpose and epoch give the same numbers on any machine, resumed or not."""

import hashlib
from typing import Any

import torch


class SeedStreams:
    """The random streams of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def number(self, purpose: str, epoch: int = 0) -> int:
        """A 63-bit hash of (seed, purpose, epoch)."""
        text = f"{self.seed}/{purpose}/{epoch}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1

    def generator(self, purpose: str, epoch: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.number(purpose, epoch))


def global_state(device: torch.device) -> dict[str, Any]:
    """The state of torch's own generators, for a checkpoint."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_global_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    # A run that moves from a CPU to a GPU has no state for the GPU: it continues from the seed.
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
