"""A process that imports everything once and forks a child for each sweep that is to be killed.

`Sweeps` below starts it and exchanges lines of JSON with it: one per request and one per answer. A child dies by
SIGKILL, sent by its parent after a given time or by itself before the n-th operation on a file of the store.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nero.plans.config import RunConfig

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.truncate", "os.mkdir"})
"""Names of Python's audit events that come before an operation on a file."""


class Sweeps:
    """Sweeps over runs, each in a forked child that trains them one after another."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(
        self, words: Sequence[Sequence[str]], store: Path, after: float | None = None, before: int | None = None
    ) -> dict[str, Any]:
        """Train the given runs. Returns `killed`, the `seconds` it took and the number of `operations` on the store.

        after:   seconds until the kill
        before:  index, from 0, of the operation on a file of the store before which the child kills itself
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"words": [list(run) for run in words], "store": str(store), "after": after, "before": before}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["status"] in (0, -signal.SIGKILL), answer
        return {**answer, "killed": answer["status"] != 0}

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


def main() -> None:
    # Import all that a run needs and create the shapes of digits, so that a child starts at once. torch must not
    # compute anything before the fork, because its threads do not survive it.
    import torch._dynamo  # noqa: F401

    import nero.optim  # noqa: F401
    from nero.data.synthetic.digits import digits
    from nero.plans.config import compose
    from nero.tasks import mnist  # noqa: F401
    from nero.train.run import train

    composed = cache(lambda *words: compose(words))
    digits(1, 1)
    compose([])
    gc.collect()
    gc.freeze()  # excludes these objects from garbage collection in the runs
    for line in sys.stdin:
        request = json.loads(line)
        configs = [in_store(composed(*words), request["store"]) for words in request["words"]]
        begun = time.monotonic()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            sys.stdin.close()
            os.dup2(2, 1)
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            count = _count_operations(request["store"], request["before"])
            for config in configs:
                train(config)
            os.write(writing, str(count[0]).encode())
            os._exit(0)
        os.close(writing)
        status = _wait(child, request["after"])
        operations = os.read(reading, 100)
        os.close(reading)
        answer = {"status": status, "seconds": time.monotonic() - begun, "operations": int(operations or b"0")}
        print(json.dumps(answer), flush=True)


def _wait(child: int, after: float | None) -> int:
    """Wait for the child and return its exit status; kill it after `after` seconds."""
    end = None if after is None else time.monotonic() + after
    while end is not None and time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(max(0.0, min(0.002, end - time.monotonic())))
    if end is not None:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_store(config: "RunConfig", store: Path | str) -> "RunConfig":
    """The same config with another store, without composing it again."""
    cfg = config.cfg.copy()
    cfg.store = str(store)
    return replace(config, cfg=cfg)


def _count_operations(store: str, before: int | None) -> list[int]:
    """Count this process's operations on files of a store in a one-element list; SIGKILL the process at `before`."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS:
            return
        # A file descriptor has no path; the store's lock is the only file that is accessed by one.
        if isinstance(arguments[0], int) or os.fsdecode(arguments[0]).startswith(store):
            if count[0] == before:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1

    sys.addaudithook(hook)
    return count


if __name__ == "__main__":
    main()
