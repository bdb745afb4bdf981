"""The kernels compile for GPUs of NVIDIA and AMD; the interpreter of the other tests accepts more than compilers do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["nvidia cuda 90 32", "amd hip gfx942 64"])
def test_kernels_compile_in_float32_and_bfloat16_with_all_options(target: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(ROOT / "tests" / "support" / "compile_kernels.py"), *target.split()]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    if done.stdout.startswith("missing"):
        pytest.skip(f"Triton has no such backend: {target}")
    assert len(done.stdout.splitlines()) == 16
