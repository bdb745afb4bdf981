"""scripts/train.py on a machine that a sweep takes for one with a GPU: `python tests/pretended_gpu.py --multirun ...`.

Runs find no CUDA there and use the CPU.
"""

import runpy
from pathlib import Path

import torch

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 1
    runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "train.py"), run_name="__main__")
