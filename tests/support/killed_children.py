"""A process that has imported everything once, and forks a child for each sweep that is to be killed.

Started by `Sweeps` below, which talks to it in lines of JSON: one per request, one per answer. What kills a child is
SIGKILL, either from outside after a time, or from its own hand before the n-th operation on a file of the store.
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
        """Train what these words say: whether it was `killed`, the `seconds` it took, the `operations` on the store.

        after:   seconds until the kill
        before:  the number of the operation on a file of the store before which to kill, counted from 0
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
    # All that a run would import, and the shapes of digits, so that a child begins at once. torch computes nothing yet,
    # which a fork could not take.
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
    gc.freeze()  # a run's own collection has these not to look through
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
    """The child's exit status; it is killed after so many seconds."""
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
    """The same run in another store, without composing again."""
    cfg = config.cfg.copy()
    cfg.store = str(store)
    return replace(config, cfg=cfg)


def _count_operations(store: str, before: int | None) -> list[int]:
    """A count, in a list, of what this process does to files of a store; at `before` it ends there and then."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in OPERATIONS:
            return
        # A descriptor, as of a lock that is released, has no name; there are no others.
        if isinstance(arguments[0], int) or os.fsdecode(arguments[0]).startswith(store):
            if count[0] == before:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1

    sys.addaudithook(hook)
    return count


if __name__ == "__main__":
    main()
