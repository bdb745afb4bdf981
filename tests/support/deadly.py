"""An optimiser whose process dies in the midst of a run, as one that the kernel kills for its memory does."""

import os
import signal
from typing import Any

import torch

STEPS = 10


class Deadly(torch.optim.SGD):
    """SGD, up to its last step."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.left = STEPS

    def step(self, closure: None = None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step(closure)
