"""What a GPU has used, by its driver's counter. The counter is of the whole card, whoever computes on it."""

import math
from typing import Any

import torch

try:
    import pynvml
except ImportError:  # not with a hand-picked set of packages: energy is then unknown
    pynvml = None


class EnergyCounter:
    """Counts from whenever the driver was loaded: only differences mean something."""

    def __init__(self, device: torch.device) -> None:
        self._handle = _handle(device)

    def joules(self) -> float:
        """NaN where no counter is known: on a CPU, or on a GPU older than Volta."""
        return math.nan if self._handle is None else self._ask("nvmlDeviceGetTotalEnergyConsumption", math.nan) / 1e3

    def processes(self) -> int:
        """How many compute on the card now, the server of CUDA's MPS included; 0 where that is unknown."""
        return len(self._ask("nvmlDeviceGetComputeRunningProcesses", ()))

    def _ask(self, function: str, otherwise: Any) -> Any:
        if self._handle is None:
            return otherwise
        try:
            return getattr(pynvml, function)(self._handle)
        except pynvml.NVMLError:
            return otherwise


def _handle(device: torch.device) -> Any:
    """The driver's name for a device of torch's, which counts only those that are visible; None where it has none."""
    if device.type != "cuda" or pynvml is None:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except (pynvml.NVMLError, AttributeError):  # ROCm's devices have no such id
        return None
