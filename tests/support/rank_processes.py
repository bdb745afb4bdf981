"""Real processes of one group (gloo, on the CPU) that call given functions of a test module."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

LIMIT = 60.0
"""Seconds that one check may take; the slowest takes a few."""


class Ranks:
    """Processes of one group. Calling it runs a function in all of them and fails with the first traceback."""

    def __init__(self, world: int, folder: Path, preload: str) -> None:
        self.world, self.folder, self.preload = world, folder, preload
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        self.starts = 0

    def start(self) -> None:
        # Fork from a server that has imported the tests: importing torch in each process would take most of the time.
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, self.preload])
        self.starts += 1
        store = self.folder / f"store-{self.world}-{self.starts}"
        # Triton's interpreter runs the kernels on a CPU. More threads per process would only compete for the cores.
        settings = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        with mock.patch.dict(os.environ, settings):
            for rank in range(self.world):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(rank, self.world, store, theirs), daemon=True)
                process.start()
                theirs.close()
                self.connections.append(ours)
                self.processes.append(process)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for connection in self.connections:
            connection.close()
        self.processes, self.connections = [], []

    def __call__(self, check: Callable[..., None], *args: Any) -> None:
        if not self.processes:
            self.start()
        failure = self._run(check, args)
        if failure is not None:
            self.stop()  # the others may be waiting for a message that will never come
            pytest.fail(failure, pytrace=False)

    def _run(self, check: Callable[..., None], args: tuple[Any, ...]) -> str | None:
        for connection in self.connections:
            connection.send((check, args))
        waiting: dict[Any, int] = dict(zip(self.connections, range(self.world), strict=True))
        end = time.monotonic() + LIMIT
        while waiting:
            ready = wait(list(waiting), timeout=max(end - time.monotonic(), 0))
            if not ready:
                return f"no answer from ranks {list(waiting.values())} after {LIMIT:.0f} s"
            for answered in ready:
                rank = waiting.pop(answered)
                try:
                    answer = self.connections[rank].recv()
                except EOFError:
                    answer = "the process died"
                if answer is not None:
                    return f"rank {rank} of {self.world}: {answer}"
        return None


def serve(rank: int, world: int, store: Path, connection: Connection) -> None:
    """The loop of one process: run every received call and answer with its traceback, or None."""
    torch.set_num_threads(1)
    # The variables that torchrun sets, for tests of complete runs.
    places = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in places.items()})
    limit = timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)
    while True:
        try:
            check, args = connection.recv()
        except EOFError:  # the tests are over
            return
        try:
            check(*args)
            answer = None
        except BaseException:
            answer = traceback.format_exc()
        connection.send(answer)


@contextmanager
def rank_groups(folder: Path, preload: str) -> Iterator[Callable[[int], Ranks]]:
    """A function from a group's size to its processes, which start at the first call; `preload` is the test module."""
    if not dist.is_gloo_available():
        pytest.skip("needs gloo")
    made: dict[int, Ranks] = {}
    yield lambda world: made.setdefault(world, Ranks(world, folder, preload))
    for ranks in made.values():
        ranks.stop()
