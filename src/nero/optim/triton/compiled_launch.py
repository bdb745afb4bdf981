"""Launches of a compiled Triton kernel, without Triton's inspection of every argument."""

from typing import Any

import torch
from torch import Tensor


class CompiledLaunch:
    """A kernel over `programs` programs.

    Its arguments are tables, the learning rate (a number or a tensor), numbers, constants, and whether the learning
    rate is a tensor. `maxnreg` is the largest number of registers of a thread; 0 leaves it to the compiler.
    """

    def __init__(self, kernel: Any, programs: int, num_warps: int, maxnreg: int = 0) -> None:
        self.kernel, self.grid, self.options = kernel, (programs, 1, 1), {"num_warps": num_warps}
        if maxnreg and not torch.version.hip:  # AMD's compiler has no such option
            self.options["maxnreg"] = maxnreg
        self.compiled: dict[Any, Any] = {}

    def __call__(
        self, tables: tuple[Tensor, ...], lr: float | Tensor, numbers: tuple[float, ...], constants: tuple[Any, ...]
    ) -> None:
        in_tensor = isinstance(lr, Tensor)
        # Triton would inspect every argument again to find its compiled kernel, which takes longer than the launch.
        key = (constants, lr.dtype if isinstance(lr, Tensor) else None)
        if (run := self.compiled.get(key)) is not None:
            rate = lr.data_ptr() if isinstance(lr, Tensor) else lr
            run(*map(Tensor.data_ptr, tables), rate, *numbers, *constants, in_tensor)
            return
        kernel = self.kernel[self.grid](*tables, lr, *numbers, *constants, in_tensor, **self.options)
        if kernel is not None:  # the interpreter returns None
            self.compiled[key] = kernel[self.grid]
