"""Several processes that train one network together, each on a part of every batch: started by torchrun or by SLURM.

What a run computes does not depend on how many there are, but for rounding. The first of them, rank 0, alone writes.
"""

import atexit
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nero.tasks.base import Task

T = TypeVar("T")

WAYS = ("ddp", "fsdp")
"""How a network is spread over ranks: a copy on each, or its parameters in shards (FSDP2)."""

SUBMITIT = "SUBMITIT_EXECUTOR"
"""What submitit, Hydra's way to SLURM, says in the environment of the processes that it starts."""

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for the others before it gives up: the slowest may be listing a million files."""


LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Words in what torch raises when another rank is gone."""


class BrokenGroup(RuntimeError):
    """A rank failed or is gone, so that the others cannot go on; the message is one line."""


@dataclass(frozen=True)
class Ranks:
    """The processes of a run and this one's place among them; by default it is alone."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of this machine
    local_size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes the run."""
        return self.rank == 0

    def sum_(self, tensor: Tensor) -> None:
        """Put the sum over all ranks in the place of each one's tensor."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def least(self, *numbers: float) -> list[float]:
        """Of each number, the least that any rank gives. On the host: no device is waited for."""
        if self.size == 1:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        return tensor.tolist()

    def from_first(self, value: T) -> T:
        """What rank 0 gives, for all."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        result: T = box[0]
        return result

    def bytes_from_first(self, data: bytes | None) -> bytes | None:
        """The same for many bytes, such as a checkpoint, without a second copy in between."""
        if self.size == 1:
            return data
        length = self.from_first(None if data is None else len(data))
        if not length:
            return data if self.leads else None if length is None else b""
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data is not None and self.leads else None
        tensor = torch.empty(length, dtype=torch.uint8) if own is None else own
        dist.broadcast(tensor, src=0)
        return data if self.leads else tensor.numpy().tobytes()

    def all_of(self, value: T) -> list[T]:
        """What each rank gives, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def all_or_none(self, work: Callable[[], T]) -> T:
        """Do what every rank has to do; if some rank fails, all of them raise what the first of those raised."""
        error: Exception | None = None
        result: Any = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        errors = self.all_of(_portable(error))  # before anything is decided: all take part
        error = error or next((other for other in errors if other is not None), None)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


ALONE = Ranks()


def _portable(error: Exception | None) -> Exception | None:
    """An exception that can be sent: one whose class cannot be made again from its words becomes a RuntimeError."""
    if error is None:
        return None
    try:
        return type(error)(*error.args)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def join(device: torch.device, backend: str = "auto") -> Ranks:
    """The ranks that this process was started with, connected; ALONE where it was started by itself.

    backend:  "auto" (nccl between GPUs, gloo between CPUs) or "gloo", by which processes can share one GPU

    A process that has joined stays so, for the runs that follow in it. ValueError where there are too few GPUs.
    """
    if not is_started_together():
        return ALONE
    if "RANK" not in os.environ:
        _take_places_from_launcher()
    ranks = Ranks(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
    if ranks.size == 1:
        return ALONE
    if not dist.is_initialized():
        by_nccl = device.type == "cuda" and backend == "auto"
        if by_nccl and not _has_gpu_of_its_own(ranks):
            raise ValueError(
                f"{ranks.local_size} processes on this machine need as many GPUs, and torch sees "
                f"{torch.cuda.device_count()}"
            )
        if device.type == "cuda":
            torch.cuda.set_device(own_device(device, ranks))
        # Numbers that the host decides by go by gloo, so that nobody waits for a device.
        dist.init_process_group("cpu:gloo,cuda:nccl" if by_nccl else "gloo", timeout=PATIENCE)
        atexit.register(_leave)
    return ranks


def own_device(device: torch.device, ranks: Ranks) -> torch.device:
    """The GPU of this rank; where a launcher shows each process its own, that."""
    if ranks.size == 1 or device.type != "cuda":
        return device
    return torch.device("cuda", ranks.local_rank % torch.cuda.device_count())


def _has_gpu_of_its_own(ranks: Ranks) -> bool:
    shown_one_each = SUBMITIT in os.environ and torch.cuda.device_count() == 1
    return shown_one_each or ranks.local_size <= torch.cuda.device_count()


def is_started_together() -> bool:
    """Whether whoever started this process has started others with it: torchrun, or a launcher with several tasks."""
    if "RANK" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1")) > 1
    return _launched_tasks() > 1


def is_first() -> bool:
    """Whether this process speaks for all that were started together, or is alone."""
    return not dist.is_initialized() or dist.get_rank() == 0


def _launched_tasks() -> int:
    """Tasks of the job that submitit has started this process for."""
    if SUBMITIT not in os.environ:
        return 1
    from submitit import JobEnvironment

    return int(JobEnvironment().num_tasks)


def _take_places_from_launcher() -> None:
    """Say in torchrun's words what SLURM says in its own."""
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def spread(task: Task, ranks: Ranks, way: str, device: torch.device) -> None:
    """Have the task's networks trained by all ranks. Before optimisers are made: shards are other parameters."""
    if ranks.size == 1:
        return

    def copy_on_each(network: nn.Module) -> nn.Module:
        # Buffers are each rank's own until they are needed: see `average_buffers_`.
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, broadcast_buffers=False)

    def in_shards(network: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import fully_shard  # takes long to import, and most runs do without

        for param in network.parameters():
            param.data = param.data.contiguous()  # channels last cannot be sharded; activations may still lie so
        for unit in _units(network):
            fully_shard(unit)
        fully_shard(network)
        return network

    task.spread(in_shards if way == "fsdp" else copy_on_each)


def _units(network: nn.Module) -> list[nn.Module]:
    """Parts of a network whose shards are gathered together: its blocks, as far as they lie in sequences."""
    found: list[nn.Module] = []
    for child in network.children():
        found += list(child.children()) if isinstance(child, nn.Sequential) else [child]
    return [unit for unit in found if any(True for _ in unit.parameters())]


@torch.no_grad()
def average_buffers_(networks: Mapping[str, nn.Module], ranks: Ranks) -> None:
    """Give every rank the mean of what all have as running statistics: what one process would have, but for rounding.

    They move linearly, so that the mean of averages is the average of means.
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


def whole(value: Any) -> Any:
    """A state with every sharded tensor gathered: such as one process has it. All ranks take part."""
    if _is_sharded(value):
        return gather_on_host(value) if value.is_cuda and dist.get_backend() == "gloo" else value.full_tensor()
    if isinstance(value, Mapping):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item) for item in value)
    return value


def gather_on_host(tensor: Any) -> Tensor:
    """Gather a tensor whose rows are sharded, on the host: `full_tensor` on a GPU crashes with gloo (torch 2.11)."""
    shards: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shards, tensor.to_local().cpu())
    return torch.cat(shards)


def shard_like(param: Tensor, value: Any) -> Any:
    """What this rank holds of a whole tensor that has an entry, or a row, for each row of a parameter."""
    rows = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == param.shape[:1].numel()
    if not _is_sharded(param) or not rows:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the whole: nothing is sent.
    mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
    return distribute_tensor(value.to(param.device), mesh, placements, src_data_rank=None)


def _is_sharded(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def is_lost_connection(error: BaseException) -> bool:
    """Whether an exception says that another rank could not be reached, and nothing of what this one did."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(word in said for word in LOST)
