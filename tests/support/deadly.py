"""Optimisers that fail in the middle of a run, or end its process."""

import os
import signal
import sys
from typing import Any

import torch

STEPS = 10


class Deadly(torch.optim.SGD):
    """SGD that kills its process with SIGKILL at step number `STEPS`, as the kernel's out-of-memory killer would."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.left = STEPS

    def step(self, closure: None = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(closure)


class Leaving(torch.optim.SGD):
    """SGD that calls sys.exit at its first step."""

    def step(self, closure: None = None) -> None:
        sys.exit(0)


class Raising(torch.optim.SGD):
    """SGD that raises at its first step."""

    def step(self, closure: None = None) -> None:
        raise ArithmeticError("this optimiser cannot step")
