"""Process-wide state that a run changes: it is restored for the next run, or for the rest of the program."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_gpu_broken_by: str | None = None


@contextmanager
def isolate_process_state() -> Iterator[None]:
    """Restore random generators, threads and torch's switches at the end, also after an exception."""
    threads = torch.get_num_threads()
    cpu, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() and gpu_broken_by() is None else []
    matmul, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    cudnn = torch.backends.cudnn
    switches = (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    has_grad, deterministic = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if cuda and gpu_broken_by() is None:
            torch.cuda.set_rng_state_all(cuda)
        torch.set_float32_matmul_precision(matmul)
        torch.set_default_dtype(dtype)
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = switches
        torch.set_grad_enabled(has_grad)
        torch.use_deterministic_algorithms(deterministic)


def check_gpu(device: torch.device, run_id: str) -> None:
    """After a failed run: record whether its GPU still works. Some errors break CUDA for the rest of the process."""
    global _gpu_broken_by
    try:
        torch.cuda.synchronize(device)
        works = int(torch.ones(8, device=device).sum()) == 8
    except Exception:
        works = False
    if not works:
        _gpu_broken_by = run_id


def gpu_broken_by() -> str | None:
    """The run whose failure broke CUDA in this process, or None."""
    return _gpu_broken_by
