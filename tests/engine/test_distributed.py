"""Runs of several processes: they match a single process, only rank 0 writes, and nothing is lost when one dies.

Checks in real processes are functions of this file that every rank calls: see `rank_processes`.
"""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from conftest import ROOT, script_environment
from nero.engine import loop as engine_loop
from nero.engine.distributed import ALONE, average_buffers_, gather_on_host, gather_shards, is_lost_connection, join
from nero.engine.distributed import Ranks as Places
from nero.plans.config import ConfigError, RunConfig, compose
from nero.runs.store import RunDirectory, Store
from nero.tasks.base import Meters
from nero.tasks.imagenet import ImageNet
from nero.train.build import build_task
from nero.train.run import train
from support.rank_processes import Ranks, rank_groups
from support.tiny_network import Tiny
from support.toy import without_times

# Batches of 40 images in 4 norm parts: 4 ranks have one part each, 2 ranks two, and 3 ranks split two of the parts.
WORDS = (
    "task=imagenet_resnet50",
    "data=embedded",
    "machine=cpu",
    "precision=fp32",
    "task.epochs=2",
    "task.batch_size=40",
    "task.image_size=16",
    "task.resize=18",
    "task.train_examples=200",
    "task.network._target_=support.tiny_network.Tiny",
    "~task.network.layers",
)
STEPS = 5
RATES = {"sgd": "0.01", "nero": "0.001"}


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    with rank_groups(tmp_path_factory.mktemp("stores"), __name__) as made:
        yield made


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared data directory, so that the embedded images are generated once."""
    return tmp_path_factory.mktemp("data")


def prepare(store: Path, data: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    config = compose([*WORDS, f"data_root={data}", f"store={store}", *words])
    return config, Store(store).run(config.task_name, config.run_id)


def state_of(run: RunDirectory) -> dict[str, Any]:
    saved = run.load_checkpoint()
    assert saved is not None
    state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
    return state


def weights(run: RunDirectory) -> Tensor:
    """All parameters and running statistics as one vector in float64."""
    return torch.cat([value.double().cpu().flatten() for value in state_of(run)["networks"]["network"].values()])


def carry_out(store: Path, data: Path, words: tuple[str, ...], status: str = "done") -> None:
    config, run = prepare(store, data, *words)
    outcome = train(config)
    assert outcome["status"] == status, outcome
    assert outcome["run_id"] == run.run_id


def assert_alike(ours: RunDirectory, theirs: RunDirectory, start: Tensor, tolerance: float = 1e-4) -> None:
    """Compare the weights, relative to the distance that training has moved them, and all logged values."""
    way = (weights(theirs) - start).norm()
    difference = (weights(ours) - weights(theirs)).norm()
    assert difference < tolerance * way, f"{difference / way:.2g} of the way"
    records = [without_times(run.read_metrics()) for run in (ours, theirs)]
    assert len(records[0]) == len(records[1]) > 0
    for mine, other in zip(*records, strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-6)


def start_of(tmp_path: Path, data: Path, optim: str) -> Tensor:
    """Initial weights, after the optimiser was created (Nero projects them)."""
    words = (f"optim={optim}", "optim.lr=1e-15")
    carry_out(tmp_path / "start", data, words)
    return weights(prepare(tmp_path / "start", data, *words)[1])


@dataclass(frozen=True)
class OfOne:
    """A single-process run, which runs of several ranks must match."""

    words: tuple[str, ...]
    run: RunDirectory
    start: Tensor


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], OfOne]:
    """Single-process runs by optimiser, each trained once."""
    folder = tmp_path_factory.mktemp("one")

    @cache
    def made(optim: str) -> OfOne:
        words = (f"optim={optim}", f"optim.lr={RATES[optim]}")
        carry_out(folder, data, words)
        return OfOne(words, prepare(folder, data, *words)[1], start_of(folder, data, optim))

    return made


# same results as a single process


SLOW_WAYS = (pytest.param(*way, marks=pytest.mark.slow) for way in [(4, "ddp"), (3, "ddp"), (3, "fsdp"), (4, "fsdp")])


@pytest.mark.parametrize("optim", RATES)
@pytest.mark.parametrize(("world", "way"), [(2, "ddp"), *SLOW_WAYS])
def test_run_on_several_ranks_matches_single_process(
    groups: Callable[[int], Ranks],
    of_one: Callable[[str], OfOne],
    tmp_path: Path,
    data: Path,
    optim: str,
    world: int,
    way: str,
) -> None:
    one = of_one(optim)
    groups(world)(carry_out, tmp_path, data, (*one.words, f"machine.parallel={way}"))
    _, many = prepare(tmp_path, data, *one.words)
    assert many.run_id == one.run.run_id, "how many there are is no part of what a run is"
    assert_alike(many, one.run, one.start)
    assert len(many.read_provenance()) == 1, "the first alone writes"
    summary = many.read_summary()
    assert summary is not None
    assert summary["device"].startswith(f"{world} x CPU")
    assert not many.is_held()


@pytest.mark.slow
def test_plain_batch_norm_does_not_match_single_process(
    groups: Callable[[int], Ranks], tmp_path: Path, data: Path
) -> None:
    """The tolerance is tight enough: with batch statistics per rank, four ranks compute something different."""
    words = (
        "optim=sgd",
        "optim.lr=0.01",
        "task.network._target_=support.tiny_network.LocalNorm",
        "~task.network.norm_parts",
    )
    carry_out(tmp_path / "one", data, words)
    groups(4)(carry_out, tmp_path / "many", data, words)
    (_, one), (_, many) = (prepare(tmp_path / name, data, *words) for name in ("one", "many"))
    with pytest.raises(AssertionError, match="of the way"):
        assert_alike(many, one, start_of(tmp_path, data, "sgd"))


@pytest.mark.slow
def test_norm_parts_split_unevenly_across_ranks_match_single_process(
    groups: Callable[[int], Ranks], tmp_path: Path, data: Path
) -> None:
    """Ten parts of two images for three ranks: the first has three complete parts, the other two split one."""
    words = ("optim=sgd", "optim.lr=0.01", "task.batch_size=20", "task.network.norm_parts=10")
    carry_out(tmp_path / "one", data, words)
    groups(3)(carry_out, tmp_path / "many", data, words)
    (_, one), (_, many) = (prepare(tmp_path / name, data, *words) for name in ("one", "many"))
    assert_alike(many, one, start_of(tmp_path, data, "sgd"))


@pytest.mark.parametrize("world", [2, 4, 3])
def test_batch_is_fully_divided_among_ranks(world: int, data: Path) -> None:
    config = compose([*WORDS, f"data_root={data}"])
    parts = []
    for rank in range(world):
        task = build_task(config, torch.device("cpu"), Places(rank, world))
        assert isinstance(task, ImageNet)
        parts += list(task._part())
    assert parts == list(range(40))


# stopping and resuming


def stop_at(step: int, store: Path, data: Path, words: tuple[str, ...], rank: int) -> None:
    """Request a stop on one rank at a step; all ranks must checkpoint and end."""
    config, _ = prepare(store, data, *words)
    looks = iter(range(1000))  # one check before the first step, and one after each step

    def reason(deadline: float) -> str | None:
        return "enough" if next(looks) >= step and int(os.environ["RANK"]) == rank else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_loop, "AGREE_EVERY", 1)
        patch.setattr(engine_loop, "stop_reason", reason)
        outcome = train(config)
    assert outcome["status"] == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("optim", RATES)
@pytest.mark.parametrize(
    ("first", "then"),
    [((4, "ddp"), (1, "ddp")), ((2, "ddp"), (4, "fsdp")), ((4, "fsdp"), (2, "ddp")), ((3, "fsdp"), (2, "fsdp"))],
)
def test_run_resumes_with_different_number_of_ranks(
    groups: Callable[[int], Ranks],
    of_one: Callable[[str], OfOne],
    tmp_path: Path,
    data: Path,
    optim: str,
    first: tuple[int, str],
    then: tuple[int, str],
) -> None:
    one = of_one(optim)
    step = STEPS + 2  # in the middle of the second epoch
    groups(first[0])(stop_at, step, tmp_path, data, (*one.words, f"machine.parallel={first[1]}"), first[0] - 1)
    _, cut = prepare(tmp_path, data, *one.words)
    state = state_of(cut)
    assert state["position"]["total_steps"] == step
    assert state["task"]["meters"]["sum/count"] == 2 * 40, "of all ranks"
    call: Any = groups(then[0]) if then[0] > 1 else lambda check, *args: check(*args)
    call(carry_out, tmp_path, data, (*one.words, f"machine.parallel={then[1]}"))
    assert_alike(cut, one.run, one.start)
    assert len(cut.read_provenance()) == 2


def test_finished_run_is_skipped_by_all_ranks(groups: Callable[[int], Ranks], tmp_path: Path, data: Path) -> None:
    words = ("optim=sgd", "optim.lr=0.01")
    carry_out(tmp_path, data, words)
    groups(2)(carry_out, tmp_path, data, words)
    assert len(prepare(tmp_path, data, *words)[1].read_provenance()) == 1


def is_told_who_has_it(store: Path, data: Path) -> None:
    carry_out(store, data, ("optim=sgd",), status="busy")


def test_run_held_by_another_process_is_busy_for_all_ranks(
    groups: Callable[[int], Ranks], tmp_path: Path, data: Path
) -> None:
    _, run = prepare(tmp_path, data, "optim=sgd")
    with run.exclusive():
        groups(2)(is_told_who_has_it, tmp_path, data)
    groups(2)(carry_out, tmp_path, data, ("optim=sgd",))


# failures


def diverges_on_one(store: Path, data: Path) -> None:
    """Infinite losses on the last rank only, from the third step on."""
    losses = ImageNet.losses
    steps = iter(range(1000))

    def poisoned(self: ImageNet, batch: Any) -> Any:
        bad = next(steps) >= 2 and self.ranks.rank == self.ranks.size - 1
        for name, loss in losses(self, batch):
            yield name, loss * (float("inf") if bad else 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageNet, "losses", poisoned)
        config, _ = prepare(store, data, "optim=sgd")
        outcome = train(config)
    assert outcome["status"] == "diverged"
    assert outcome["diverged_at"]["step"] == 3


def test_divergence_on_one_rank_ends_the_run_as_diverged(
    groups: Callable[[int], Ranks], tmp_path: Path, data: Path
) -> None:
    groups(2)(diverges_on_one, tmp_path, data)
    summary = prepare(tmp_path, data, "optim=sgd")[1].read_summary()
    assert summary is not None
    assert (summary["status"], summary["diverged_at"]["step"]) == ("diverged", 3)


def refuses(message: str, store: Path, data: Path, *words: str) -> None:
    config, _ = prepare(store, data, *words)
    with pytest.raises(ConfigError, match=message) as error:
        train(config)
    assert "\n" not in str(error.value)


def test_single_process_task_on_several_ranks_gives_one_line_error(
    groups: Callable[[int], Ranks], tmp_path: Path
) -> None:
    groups(2)(refuses_mnist, tmp_path)
    groups(2)(carry_out_sum, 2)  # the process group still works


def refuses_mnist(store: Path) -> None:
    config = compose(["task=mnist_mlp100", "data=embedded", "machine=cpu", f"store={store}", "task.train_examples=50"])
    with pytest.raises(ConfigError, match="task=mnist_mlp100 is trained by one process, and here are 2"):
        train(config)


def carry_out_sum(world: int) -> None:
    one = torch.ones(())
    join(torch.device("cpu")).sum_(one)
    assert float(one) == world


def test_batch_smaller_than_number_of_ranks_raises(groups: Callable[[int], Ranks], tmp_path: Path, data: Path) -> None:
    message = "task: batch_size must be at least 2, the number of ranks"
    groups(2)(refuses, message, tmp_path, data, "task.batch_size=1")
    groups(2)(carry_out_sum, 2)


def fails_on_one(store: Path, data: Path) -> None:
    """One rank cannot start: every rank reports its error, and the run is recorded as failed."""
    config, run = prepare(store, data, "optim=sgd")
    place = int(os.environ["RANK"])

    def broken(self: ImageNet) -> range:
        if place == 1:
            raise OSError("no such disk on rank 1")
        return range(20)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageNet, "_part", broken)
        outcome = train(config)
    assert outcome["status"] == "failed"
    assert "no such disk on rank 1" in outcome["message"]
    summary = run.read_summary()
    assert summary is not None
    assert "no such disk on rank 1" in summary["traceback"]


def test_failure_to_start_on_one_rank_fails_run_and_keeps_group_usable(
    groups: Callable[[int], Ranks], tmp_path: Path, data: Path
) -> None:
    groups(2)(fails_on_one, tmp_path, data)
    groups(2)(carry_out, tmp_path, data, ("optim=sgd",))


def asks_for_different_runs(store: Path, data: Path) -> None:
    runs = [prepare(store, data, f"seed={seed}") for seed in range(2)]
    config, _ = runs[int(os.environ["RANK"])]
    with pytest.raises(ConfigError, match=f"different runs: {runs[0][1].run_id}, {runs[1][1].run_id}"):
        train(config)


def test_ranks_with_different_runs_raise(groups: Callable[[int], Ranks], tmp_path: Path, data: Path) -> None:
    groups(2)(asks_for_different_runs, tmp_path, data)
    groups(2)(carry_out_sum, 2)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc:525] Connection closed by peer"), True),
        (RuntimeError("NCCL communicator was aborted"), True),
        (dist.DistNetworkError("nobody there"), True),
        (ConnectionResetError("gone"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("gloo"), False),
    ],
)
def test_lost_connections_are_distinguished_from_other_errors(error: Exception, lost: bool) -> None:
    assert is_lost_connection(error) is lost


# single process and collective operations


def test_single_process_has_no_process_group() -> None:
    assert join(torch.device("cpu")) is ALONE
    assert ALONE.is_main
    assert ALONE.minimum(3, 2) == [3, 2]
    assert ALONE.broadcast("x") == "x"
    assert ALONE.broadcast(b"x") == b"x"


def talks() -> None:
    ranks = join(torch.device("cpu"))
    assert ranks.minimum(ranks.rank, -ranks.rank) == [0, 1 - ranks.size]
    assert ranks.broadcast({"rank": ranks.rank}) == {"rank": 0}
    assert ranks.broadcast(b"abc" if ranks.is_main else None) == b"abc"
    assert ranks.broadcast(b"" if ranks.is_main else None) == b""
    assert ranks.broadcast(None) is None
    assert ranks.all_succeed(lambda: ranks.rank) == ranks.rank

    def fail_last() -> None:
        if ranks.rank == ranks.size - 1:
            raise KeyError("last")

    with pytest.raises(KeyError, match="last"):
        ranks.all_succeed(fail_last)


def counts_together() -> None:
    ranks = join(torch.device("cpu"))
    meters = Meters(torch.device("cpu"), sums=("a", "b"), ranks=ranks)
    meters.add_("a", ranks.rank + 1)
    total = ranks.size * (ranks.size + 1) / 2
    assert meters.read() == {"a": total, "b": 0.0}
    assert meters.read() == {"a": total, "b": 0.0}, "reading changes nothing"
    state = meters.state_dict()
    meters.reset_()
    meters.load_state_dict(state)
    assert meters.read() == {"a": total, "b": 0.0}, "loaded once, not on every rank"
    with pytest.raises(ValueError, match="traces"):
        Meters(torch.device("cpu"), traces={"a": 1}, ranks=ranks)


def averages_statistics() -> None:
    ranks = join(torch.device("cpu"))
    network = Tiny(3)
    for buffer in network.buffers():
        buffer.fill_(ranks.rank)
    average_buffers_({"network": network}, ranks)
    for name, buffer in network.named_buffers():
        assert bool((buffer == (ranks.rank if "tracked" in name else (ranks.size - 1) / 2)).all())


def gathers_shards() -> None:
    """`gather_on_host` is meant for GPU shards with gloo; on the CPU it can be compared with `full_tensor`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for rows in (1, 5, 8):  # fewer rows than ranks, not a multiple of the ranks, a multiple
        values = torch.arange(rows * 3.0).reshape(rows, 3)
        sharded = distribute_tensor(values, mesh, [Shard(0)])
        assert torch.equal(gather_on_host(sharded), values)
        assert torch.equal(gather_shards({"weight": [sharded]})["weight"][0], sharded.full_tensor())


@pytest.mark.parametrize("check", [talks, counts_together, averages_statistics, gathers_shards])
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_collective_operations(groups: Callable[[int], Ranks], world: int, check: Callable[[], None]) -> None:
    groups(world)(check)


# torchrun and a rank that dies


LONG = ("task.epochs=400", "optim=sgd", "machine.checkpoint_seconds=0.2")


def torchrun(tmp_path: Path, data: Path, world: int, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    command += [str(ROOT / "scripts" / "train.py"), *WORDS, f"data_root={data}", *words]
    env = {**script_environment(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def process_of_rank(agent: int, rank: int) -> int:
    """Process id of torchrun's child that has this rank."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "environ").read_bytes().split(b"\0") if parent == agent else []
        except (OSError, ValueError):
            continue
        if f"RANK={rank}".encode() in words:
            return int(path.name)
    raise AssertionError(f"no rank {rank}")


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 90
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_sigkill_of_one_rank_ends_run_which_can_be_resumed(tmp_path: Path, data: Path, victim: int) -> None:
    _, run = prepare(tmp_path / "runs", data, *LONG)
    process = torchrun(tmp_path, data, 2, *LONG)
    wait_for(lambda: len(run.read_metrics()) >= 3 and (run.path / "checkpoint.json").exists(), process)
    others = [process_of_rank(process.pid, rank) for rank in range(2)]
    os.kill(others[victim], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in others), "nobody is left waiting"
    if victim:
        assert "another rank failed or is gone; the same command resumes from the checkpoint" in output
    summary = run.read_summary()
    assert summary is not None
    assert summary["status"] == "running"
    assert not run.is_held()
    done = state_of(run)["position"]["total_steps"]
    assert done > 0
    if victim == 0:
        return  # the rest does not depend on the victim

    # Resume with another number of ranks. A stop request to one rank must stop all of them cleanly.
    process = torchrun(tmp_path, data, 3, *LONG)
    wait_for(lambda: len(run.read_metrics()) > done // STEPS + 2, process)
    os.kill(process_of_rank(process.pid, 2), signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "stopped (another rank was asked to); the same command resumes it" in output
    assert "resuming" in output
    records = run.read_metrics()
    assert [record["epoch"] for record in records] == list(range(1, len(records) + 1))
    assert state_of(run)["position"]["total_steps"] > done
