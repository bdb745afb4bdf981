"""The energy that a GPU has used, from its driver's counter, which counts for all processes on the card."""

import math
from typing import Any

import torch

try:
    import pynvml
except ImportError:  # energy is then unknown
    pynvml = None


class EnergyCounter:
    """Counts since the driver was loaded: only differences are meaningful."""

    def __init__(self, device: torch.device) -> None:
        self._handle: Any = None
        if device.type == "cuda" and pynvml is not None:
            try:
                pynvml.nvmlInit()
                # By UUID, because torch numbers only visible devices. ROCm's devices have none.
                uuid = torch.cuda.get_device_properties(device).uuid
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except (pynvml.NVMLError, AttributeError):
                pass

    def joules(self) -> float:
        """NaN without a counter: on a CPU, or on a GPU older than Volta."""
        return float(self._query("nvmlDeviceGetTotalEnergyConsumption", math.nan)) / 1e3

    def processes(self) -> int:
        """Number of processes computing on the card now, including an MPS server; 0 if unknown."""
        return len(self._query("nvmlDeviceGetComputeRunningProcesses", ()))

    def _query(self, function: str, default: Any) -> Any:
        if self._handle is None:
            return default
        try:
            return getattr(pynvml, function)(self._handle)
        except pynvml.NVMLError:
            return default
