"""Run scripts/train.py as if there were one GPU: `python tests/support/pretended_gpu.py --multirun ...`.

Only the sweep counts a GPU: the runs find no CUDA and use the CPU.
"""

import runpy
from pathlib import Path

import torch

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 1
    runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train.py"), run_name="__main__")
