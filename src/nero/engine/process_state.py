"""What a run changes in its process, and puts back: another run, or the rest of someone's program, may follow."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_spoilt: str | None = None


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Seeds, threads, and switches of torch, as they were before, whatever becomes of the run."""
    threads = torch.get_num_threads()
    cpu, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() and spoilt_by() is None else []
    products, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    cudnn = torch.backends.cudnn
    switches = (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    tracked, deterministic = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if cuda and spoilt_by() is None:
            torch.cuda.set_rng_state_all(cuda)
        torch.set_float32_matmul_precision(products)
        torch.set_default_dtype(dtype)
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = switches
        torch.set_grad_enabled(tracked)
        torch.use_deterministic_algorithms(deterministic)


def look_at(device: torch.device, run_id: str) -> None:
    """After a run that failed: does its GPU still answer? Some errors leave a process without one for good."""
    global _spoilt
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
        if int(torch.ones(8, device=device).sum()) != 8:
            _spoilt = run_id
    except Exception:
        _spoilt = run_id


def spoilt_by() -> str | None:
    """The run after whose failure this process can no longer use its GPU, or None."""
    return _spoilt
