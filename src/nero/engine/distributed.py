"""Data-parallel training by several processes, started by torchrun or by SLURM. Each has a part of every batch.

The result does not depend on their number, except for rounding. Only the main process, rank 0, writes the run.
"""

import atexit
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nero.tasks.base import Ranks as TaskRanks
from nero.tasks.base import Task

T = TypeVar("T")

SUBMITIT = "SUBMITIT_EXECUTOR"  # set by submitit, Hydra's launcher for SLURM, in the environment of its processes
TIMEOUT = timedelta(minutes=30)  # how long a rank waits for the others: the slowest may be listing a million files
# Text in torch's errors when another rank is gone.
LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")


class BrokenGroup(RuntimeError):
    """A rank failed or is gone, so that the others cannot continue; the message is one line."""


class Ranks(TaskRanks):
    """This process's place among the processes of a run; by default it is the only one."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the run."""
        return self.rank == 0

    def minimum(self, *numbers: float) -> list[float]:
        """The minimum of each number over all ranks. On the host: no device is waited for."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return tensor.tolist()

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        box: list[Any] = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        result: T = box[0]
        return result

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in order."""
        values: list[Any] = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value)
        return values

    def all_succeed(self, work: Callable[[], T]) -> T:
        """Call `work` on every rank; if it raises on some rank, every rank raises."""
        error: Exception | None = None
        result: Any = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        errors = self.all_gather(_picklable(error))
        error = error or next((other for other in errors if other is not None), None)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


ALONE = Ranks()


def _picklable(error: Exception | None) -> Exception | None:
    """The exception, or a RuntimeError if it cannot be made again from its arguments."""
    if error is None:
        return None
    try:
        return type(error)(*error.args)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def is_distributed_launch() -> bool:
    """Whether torchrun, or a launcher with several tasks, started this process together with others."""
    if "RANK" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1
    if SUBMITIT not in os.environ:
        return False
    from submitit import JobEnvironment

    return int(JobEnvironment().num_tasks) > 1


def is_main_process() -> bool:
    """Whether this process is rank 0, or the only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def join(device: torch.device, backend: str = "auto") -> Ranks:
    """Connect the ranks that were started with this process; ALONE if there are no others.

    backend:  "auto" (nccl between GPUs, gloo between CPUs) or "gloo", with which processes can share one GPU

    The connection is kept for later runs in this process. ValueError if there are too few GPUs.
    """
    if not is_distributed_launch():
        return ALONE
    if "RANK" not in os.environ:  # SLURM: set torchrun's variables from its own
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    ranks = Ranks(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
    if not dist.is_initialized():
        by_nccl = device.type == "cuda" and backend == "auto"
        gpus = torch.cuda.device_count() if by_nccl else 0
        shown_one_each = SUBMITIT in os.environ and gpus == 1
        if by_nccl and gpus < ranks.local_size and not shown_one_each:
            raise ValueError(f"{ranks.local_size} processes on this machine need as many GPUs, and torch sees {gpus}")
        if device.type == "cuda":
            torch.cuda.set_device(rank_device(device, ranks))
        # Values that the host needs are sent by gloo, so that nobody waits for a device.
        dist.init_process_group("cpu:gloo,cuda:nccl" if by_nccl else "gloo", timeout=TIMEOUT)
        atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)
    return ranks


def rank_device(device: torch.device, ranks: Ranks) -> torch.device:
    """The GPU of this rank. A launcher may show each process only its own."""
    if ranks.size == 1 or device.type != "cuda":
        return device
    return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())


def distribute(task: Task, ranks: Ranks, parallel: str, device: torch.device) -> None:
    """Wrap the task's networks in DDP or FSDP2 shards. Call it before optimisers are made: shards are new parameters.

    parallel:  "ddp" (a copy on each rank) or "fsdp" (parameters in shards)
    """
    if ranks.size == 1:
        return

    def replicate(network: nn.Module) -> nn.Module:
        # Each rank has its own buffers until they are needed: see `average_buffers_`.
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, broadcast_buffers=False)

    def shard(network: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import fully_shard  # slow to import, and most runs do without

        for param in network.parameters():
            param.data = param.data.contiguous()  # channels-last parameters cannot be sharded
        # Shards are gathered block by block: the children of sequences, and the other children.
        for child in network.children():
            for block in child.children() if isinstance(child, nn.Sequential) else [child]:
                if any(True for _ in block.parameters()):
                    fully_shard(block)
        fully_shard(network)
        return network

    task.spread(shard if parallel == "fsdp" else replicate)


@torch.no_grad()
def average_buffers_(networks: Mapping[str, nn.Module], ranks: Ranks) -> None:
    """Replace running statistics by their mean over ranks: what one process would have, except for rounding.

    They are moving averages, which are linear: the mean of averages is the average of means.
    """
    if ranks.size == 1:
        return
    for network in networks.values():
        buffers = [buffer for buffer in network.buffers() if buffer.is_floating_point()]
        if not buffers:
            continue
        joined = torch.cat([buffer.flatten() for buffer in buffers])
        ranks.sum_(joined)
        joined /= ranks.size
        for buffer, mean in zip(buffers, joined.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(mean.view_as(buffer))


def gather_shards(value: Any) -> Any:
    """A state with every sharded tensor gathered, as one process has it. All ranks must call it."""
    if _is_sharded(value):
        return gather_on_host(value) if value.is_cuda and dist.get_backend() == "gloo" else value.full_tensor()
    if isinstance(value, Mapping):
        return {key: gather_shards(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(gather_shards(item) for item in value)
    return value


def gather_on_host(tensor: Any) -> Tensor:
    """Gather a tensor sharded by rows on the host: `full_tensor` on a GPU crashes with gloo (torch 2.11)."""
    shards: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shards, tensor.to_local().cpu())
    return torch.cat(shards)


def shard_like(param: Tensor, value: Any) -> Any:
    """This rank's shard of a full tensor that has an entry, or a row, for each row of a sharded parameter."""
    has_rows = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == param.shape[:1].numel()
    if not _is_sharded(param) or not has_rows:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the full tensor: nothing is sent.
    mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(param.device), mesh, placements, src_data_rank=None)


def _is_sharded(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def is_lost_connection(error: BaseException) -> bool:
    """Whether an exception means that another rank could not be reached, and nothing is wrong with this one."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in LOST)
