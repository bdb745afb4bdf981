"""A process that imports everything once and forks a child for each command that is to be killed.

`Sweeps` below starts it and exchanges lines of JSON with it: one per request and one per answer. A child dies by
SIGKILL, sent by its parent after a given time or by itself before the n-th operation on a file below a folder.
"""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nero.plans.config import RunConfig

OPERATIONS = frozenset({"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir"})
"""Names of Python's audit events that come before an operation on a file."""
SOON = 0.002  # seconds between two looks at the children


class Sweeps:
    """Runs and `nero` commands, each in a forked child.

    environment:  variables of the children
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
            text=True,
        )

    def run(
        self, words: Sequence[Sequence[str]], store: Path, after: float | None = None, before: int | None = None
    ) -> dict[str, Any]:
        """Train the given runs one after another in one child. Returns the answer of `commands`.

        after:   seconds until the kill
        before:  index, from 0, of the operation on a file of the store before which the child kills itself
        """
        job = {"train": [list(run) for run in words], "store": str(store), "after": after, "before": before}
        return self._answer([job])

    def nero(
        self,
        *commands: Sequence[str],
        folder: Path,
        after: Sequence[float | None] = (None,),
        before: int | None = None,
        victim: str = "all",
    ) -> dict[str, Any]:
        """Run `nero` commands side by side, each in a child and a process group of its own.

        folder:  where files are counted for `before`
        after:   seconds until the kill of each command; None for no kill
        victim:  `all` processes of its group, its `leader` alone or one `worker`, where it has any

        Returns the number of `kills`, whether a child was `killed`, the exit `statuses`, the `seconds` it took, and the
        number of `operations` of the first child on files below the folder.
        """
        options = {"store": str(folder), "before": before, "victim": victim}
        return self._answer(
            [{"nero": list(words), "after": end, **options} for words, end in zip(commands, after, strict=True)]
        )

    def _answer(self, jobs: list[dict[str, Any]]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(jobs) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert not answer["wrong"], answer["wrong"]
        return {**answer, "killed": -signal.SIGKILL in answer["statuses"]}

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


def main() -> None:
    # Import all that a run and a report need and create the shapes of digits, so that a child starts at once. torch
    # must not compute anything before the fork, because its threads do not survive it.
    import torch._dynamo  # noqa: F401

    import nero.cli.report
    import nero.cli.runs
    import nero.cli.sweep
    import nero.optim  # noqa: F401
    from nero.cli.main import main as nero_main
    from nero.data.synthetic.digits import digits
    from nero.plans.config import compose
    from nero.tasks import mnist  # noqa: F401
    from nero.train.run import train

    composed = cache(lambda *words: compose(words))
    digits(1, 1)
    compose([])
    gc.collect()
    gc.freeze()  # excludes these objects from garbage collection in the runs

    def work(job: dict[str, Any]) -> int:
        if "nero" in job:
            return nero_main(job["nero"])
        for config in [in_store(composed(*words), job["store"]) for words in job["train"]]:
            train(config)
        return 0

    started: list[int] = []
    for line in sys.stdin:
        jobs = json.loads(line)
        for job in jobs:
            for words in job.get("train", ()):
                composed(*words)
        begun = time.monotonic()
        children = [_start(job, work) for job in jobs]
        started += [child.pid for child in children]
        kills = _kill_and_wait(children)
        seconds = time.monotonic() - begun
        wrong = [child.output.read_text() for child in children if not child.ended_as_expected()]
        operations = int(os.read(children[0].reading, 100) or b"0")
        for child in children:
            os.close(child.reading)
            child.output.unlink()
        statuses = [child.status for child in children]
        answer = {"statuses": statuses, "kills": kills, "seconds": seconds, "operations": operations}
        print(json.dumps({**answer, "wrong": wrong}), flush=True)
    for pid in started:  # workers that outlived their leader
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


class Child:
    """A forked process. `reading` is a pipe for its number of operations, `output` the file of all that it prints."""

    def __init__(self, pid: int, job: Mapping[str, Any], reading: int, output: Path) -> None:
        self.pid, self.reading, self.output = pid, reading, output
        self.after: float | None = job["after"]
        self.victim: str = job.get("victim", "all")
        self.status: int | None = None
        self.was_killed = False

    def ended_as_expected(self) -> bool:
        """Where a worker was killed before any run began, the sweep says that its runs failed for want of it."""
        lost_worker = self.victim == "worker" and self.was_killed and "TerminatedWorkerError" in self.output.read_text()
        return self.status in (0, -signal.SIGKILL) or (self.status == 1 and lost_worker)

    def look(self) -> None:
        """Note whether it has ended."""
        found, status = os.waitpid(self.pid, os.WNOHANG)
        self.status = os.waitstatus_to_exitcode(status) if found else None

    def kill(self) -> None:
        workers = [pid for pid in _group(self.pid) if pid != self.pid]
        if self.victim == "all":
            os.killpg(self.pid, signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                os.kill(random.choice(workers) if self.victim == "worker" and workers else self.pid, signal.SIGKILL)


def _start(job: Mapping[str, Any], work: Any) -> Child:
    reading, writing = os.pipe()
    descriptor, output = tempfile.mkstemp(suffix=".txt")
    child = os.fork()
    if child:
        os.close(writing)
        os.close(descriptor)
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(child, child)
        return Child(child, job, reading, Path(output))
    os.setpgid(0, 0)
    os.close(reading)
    devnull = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((devnull, 0), (descriptor, 1), (descriptor, 2)):
        os.dup2(source, target)
    count = _count_operations(job["store"], job["before"])
    try:
        status = work(job)
    except SystemExit as stop:
        print(stop.code, file=sys.stderr)
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    os.write(writing, str(count[0]).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _kill_and_wait(children: Sequence[Child]) -> int:
    """Kill each child at its time, and wait for all of them; returns the number of kills."""
    begun, kills = time.monotonic(), 0
    while left := [child for child in children if child.status is None]:
        for child in left:
            child.look()
            if child.status is None and child.after is not None and time.monotonic() >= begun + child.after:
                child.kill()
                child.after, child.was_killed = None, True
                kills += 1
        time.sleep(SOON)
    return kills


def _group(leader: int) -> Iterator[int]:
    """The processes of a group, where the kernel lists them."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(path.name)) == leader:
                yield int(path.name)


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
