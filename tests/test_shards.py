"""Parameters split over processes: a step needs no message, and is that of the whole parameters bit for bit.

Tests of real processes (gloo, on the CPU) hand a function of this file to every one of them: see `Ranks`.
"""

import copy
import os
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.optim import Optimizer

from nero.optim import LAMB, Madam, Nero, constrained
from nero.optim.balance import neuron_mean, neuron_norm
from nero.optim.shards import check_whole_neurons, is_sharded, like_rows, local, local_gradient, mean_over_all
from references import draw

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
TIMEOUT = 60.0
"""Seconds that one check may take; the slowest takes a few."""


# ------------------------------------------------------------------------------------------------ processes


class Ranks:
    """Processes of one group. Calling it runs a function in all of them, and fails with the first traceback."""

    def __init__(self, world: int, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        self.starts = 0

    def start(self) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.starts += 1
        store = self.folder / f"store-{self.world}-{self.starts}"
        # The interpreter lets Triton's kernel run on a CPU. Threads of 4 processes would only wait for each other.
        with mock.patch.dict(os.environ, OMP_NUM_THREADS="1", TRITON_INTERPRET="1"):
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
            # The others may be waiting for a message that will never come.
            self.stop()
            pytest.fail(failure, pytrace=False)

    def _run(self, check: Callable[..., None], args: tuple[Any, ...]) -> str | None:
        for connection in self.connections:
            connection.send((check, args))
        waiting, end = dict(zip(self.connections, range(self.world), strict=True)), time.monotonic() + TIMEOUT
        while waiting:
            ready = wait(list(waiting), timeout=max(end - time.monotonic(), 0))
            if not ready:
                return f"{check.__name__}: no answer from ranks {list(waiting.values())} after {TIMEOUT:.0f} s"
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                try:
                    answer = connection.recv()
                except EOFError:
                    answer = "the process died"
                if answer is not None:
                    return f"{check.__name__}: rank {rank} of {self.world}\n{answer}"
        return None


def serve(rank: int, world: int, store: Path, connection: Connection) -> None:
    """What a process does: answer every function by its traceback, or None."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=limit)
    while True:
        check, args = connection.recv()
        try:
            check(*args)
            answer = None
        except BaseException:
            answer = traceback.format_exc()
        connection.send(answer)


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """Groups of processes by their number, started when they are first needed."""
    made: dict[int, Ranks] = {}
    folder = tmp_path_factory.mktemp("stores")
    yield lambda world: made.setdefault(world, Ranks(world, folder))
    for ranks in made.values():
        ranks.stop()


@pytest.fixture(params=[2, 4])
def ranks(request: pytest.FixtureRequest, groups: Callable[[int], Ranks]) -> Ranks:
    return groups(request.param)


@pytest.fixture
def two(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(2)


@pytest.fixture
def four(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(4)


# -------------------------------------------------------------------------------------------------- networks


class Net(nn.Module):
    """Every kind of parameter; no number of rows is a multiple of 4, and some are fewer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(11, 6)
        self.conv = nn.Conv2d(1, 5, 3, padding=1)
        self.norm = nn.BatchNorm2d(5)
        self.hidden = nn.Linear(120, 7)
        self.layer_norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 3)
        self.gate = nn.Linear(3, 1)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        maps = self.norm(self.conv(self.embedding(tokens).unsqueeze(1))).relu()
        hidden: Tensor = self.layer_norm(self.hidden(maps.flatten(1))).tanh()
        return self.gate(self.head(hidden)).sigmoid() * self.temperature


def sharded(net: Net, **settings: Any) -> Net:
    """The network split over all processes; fully_shard leaves a single number to each of them whole."""
    fully_shard(net.hidden, **settings)
    fully_shard(net, ignored_params={net.temperature}, **settings)
    return net


def set_gradients(net: nn.Module, seed: int) -> None:
    """The same gradients however the network is split: zero in a first row, now and then none at all."""
    params = list(net.parameters())
    for i, (param, grad) in enumerate(zip(params, draw(seed, [tuple(p.shape) for p in params]), strict=True)):
        if grad.ndim:
            grad[0] = 0
        grad = grad.to(param.dtype)
        if isinstance(param, DTensor):
            grad = distribute_tensor(grad, param.device_mesh, param.placements, src_data_rank=None)
        param.grad = None if (seed + i) % 7 == 3 else grad


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def everything(net: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and state by name, put together from all processes."""
    tensors = {}
    for name, param in net.named_parameters():
        tensors[name] = whole(param.detach()).clone()
        for key, value in optimizer.state[param].items():
            tensors[f"{name}: {key}"] = whole(value).clone()
    return tensors


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert tensor.shape == theirs[name].shape, name
        assert torch.equal(tensor, theirs[name]), f"{name} differs by {(tensor - theirs[name]).abs().max()}"


def assert_step_alone(optimizer: Optimizer) -> None:
    """One step, in which no message is sent."""
    with CommDebugMode() as messages:
        optimizer.step()
    assert messages.get_total_counts() == 0, messages.get_comm_counts()


# ----------------------------------------------------------------------------------- steps are those of the whole


def follow(make: Callable[..., Optimizer], settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Steps of a split network and of its twin, which every process has whole."""
    net = Net().to(dtype)
    twin = copy.deepcopy(net)
    sharded(net)
    optimizer, other = make(net.parameters(), **settings), make(twin.parameters(), **settings)
    assert_same(everything(net, optimizer), everything(twin, other))
    for t in range(5):
        set_gradients(net, seed=t)
        set_gradients(twin, seed=t)
        assert_step_alone(optimizer)
        other.step()
        assert_same(everything(net, optimizer), everything(twin, other))
    # In every process, those that hold nothing of a parameter among them.
    steps = [optimizer.state[param].get("step") for param in net.parameters()]
    assert steps == [other.state[param].get("step") for param in twin.parameters()]


SETTINGS: dict[str, dict[str, Any]] = {
    "one by one": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "by default": {},
    "penalty": {"gain_penalty": 0.1, "foreach": True, "maximize": True},
    "no norm": {"norm": False, "beta": 0.9},
    "no mean": {"mean": False},
    "tensor lr": {"lr": torch.tensor(0.1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_nero_on_shards_is_nero_on_the_whole(ranks: Ranks, name: str) -> None:
    ranks(follow, Nero, SETTINGS[name])


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
def test_madam_on_shards_is_madam_on_the_whole(ranks: Ranks, foreach: bool) -> None:
    ranks(follow, Madam, {"foreach": foreach})


def follow_in_half_precision() -> None:
    follow(Nero, {}, torch.bfloat16)


@pytest.mark.slow
def test_half_precision(two: Ranks) -> None:
    two(follow_in_half_precision)


def some_processes_hold_nothing() -> None:
    net = sharded(Net())
    held = torch.tensor([local(param).numel() > 0 for param in net.parameters()])
    assert held.all() == (dist.get_rank() == 0)


@pytest.mark.slow
def test_the_network_leaves_some_processes_empty_shards(ranks: Ranks) -> None:
    ranks(some_processes_hold_nothing)


def learn(net: Net, twin: Net, seed: int) -> None:
    """Steps by gradients of a real loss; the seed is that of this process's batches."""
    optimizer, other = Nero(net.parameters()), Nero(twin.parameters())
    assert_same(everything(net, optimizer), everything(twin, other))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        tokens = torch.randint(11, (8, 4), generator=generator)
        net(tokens).square().sum().backward()
        assert net.temperature.grad is not None
        dist.all_reduce(net.temperature.grad)
        for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            assert ours.grad is not None
            theirs.grad = whole(ours.grad).clone()
        assert_step_alone(optimizer)
        other.step()
        assert_same(everything(net, optimizer), everything(twin, other))


def learn_by_fully_shard() -> None:
    learn(sharded(Net()), Net(), seed=dist.get_rank())


def learn_by_replicas_of_shards() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    net = sharded(Net(), mesh=mesh)
    assert isinstance(net.head.weight, DTensor)
    assert net.head.weight.placements == (Replicate(), Shard(0))
    learn(net, Net(), seed=dist.get_rank())


def learn_by_shards_of_shards() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = Net()
    parallelize_module(net, mesh["tensor"], {"hidden": ColwiseParallel(output_layouts=Replicate())})
    sharded(net, mesh=mesh["data"])
    assert isinstance(net.hidden.weight, DTensor)
    assert "_StridedShard" in str(net.hidden.weight.placements)
    learn(net, Net(), seed=mesh.get_local_rank("data"))


@pytest.mark.slow
def test_gradients_of_a_real_loss(ranks: Ranks) -> None:
    ranks(learn_by_fully_shard)


@pytest.mark.slow
@pytest.mark.parametrize("check", [learn_by_replicas_of_shards, learn_by_shards_of_shards])
def test_meshes_of_two_dims(four: Ranks, check: Callable[[], None]) -> None:
    four(check)


# ------------------------------------------------------------------------------------------------- messages


def messages_are_counted() -> None:
    net = sharded(Net())
    with CommDebugMode() as messages:
        whole(net.head.weight)
    assert messages.get_total_counts() > 0
    with CommDebugMode() as messages:
        dist.all_reduce(torch.ones(()))
    assert messages.get_total_counts() > 0
    with CommDebugMode() as messages:
        optimizer = Nero(net.parameters())
    split = sum(map(is_sharded, net.parameters()))
    assert messages.get_total_counts() == split
    set_gradients(net, seed=0)
    optimizer.register_step_post_hook(lambda *_: dist.all_reduce(torch.ones(())))
    with pytest.raises(AssertionError, match="allreduce"):
        assert_step_alone(optimizer)


@pytest.mark.slow
def test_a_message_in_a_step_would_be_counted(two: Ranks) -> None:
    two(messages_are_counted)


def step_in_turn() -> None:
    net = sharded(Net())
    optimizer = Nero(net.parameters())
    set_gradients(net, seed=0)
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            optimizer.step()
        dist.monitored_barrier(timeout=timedelta(seconds=5))


@pytest.mark.slow
def test_a_process_steps_while_the_others_wait(ranks: Ranks) -> None:
    ranks(step_in_turn)


def sum_of_gradients() -> None:
    """Sequence parallelism leaves each process a summand of the gradient of a gain that all of them have."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(6)
    twin = copy.deepcopy(norm)
    parallelize_module(norm, init_device_mesh("cpu", (dist.get_world_size(),)), SequenceParallel())
    sequence = torch.randn(3, 8, 6)
    for make in (Nero, Madam, LAMB):
        for settings in ({"foreach": False}, {"foreach": True}, {"fused": True}):
            if make is not Nero and "fused" in settings:
                continue
            optimizer, other = make(norm.parameters(), **settings), make(twin.parameters(), **settings)
            for net in (norm, twin):
                net.zero_grad()
                whole(net(sequence)).pow(3).sum().backward()
            assert isinstance(norm.weight.grad, DTensor)
            assert norm.weight.grad.placements[0].is_partial()
            twin.weight.grad = whole(norm.weight.grad)
            twin.bias.grad = whole(norm.bias.grad)
            optimizer.step()
            other.step()
            assert_same(everything(norm, optimizer), everything(twin, other))


@pytest.mark.slow
def test_summands_of_a_gradient_are_summed(ranks: Ranks) -> None:
    ranks(sum_of_gradients)


# ---------------------------------------------------------------------------------------------- checkpoints


def fresh(seed: int, **settings: Any) -> tuple[Net, Optimizer]:
    """A network, split where there are processes, and an optimiser with settings of two groups."""
    net = sharded(Net(seed)) if dist.is_initialized() else Net(seed)
    gains = [*net.norm.parameters(), *net.layer_norm.parameters()]
    rest = [param for param in net.parameters() if not any(param is gain for gain in gains)]
    groups = [{"params": rest}, {"params": gains, "lr": 0.002, "gain_penalty": 0.1}]
    return net, Nero(groups, lr=torch.tensor(0.03), **settings)


def train(net: Net, optimizer: Optimizer, steps: range) -> None:
    for t in steps:
        set_gradients(net, seed=t)
        optimizer.step()


def save(path: Path, flatten: bool) -> None:
    """Train, save, train on; what comes out of that is left beside the checkpoint."""
    net, optimizer = fresh(0)
    train(net, optimizer, range(3))
    model, state = get_state_dict(net, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flatten))
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=path / "checkpoint", no_dist=not dist.is_initialized())
    train(net, optimizer, range(3, 5))
    end = everything(net, optimizer)
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(end, path / "end.pt")


def resume(path: Path, flatten: bool) -> None:
    """Training from the checkpoint ends where the training that went on did."""
    net, optimizer = fresh(1)
    tensors = {id(value) for state in optimizer.state.values() for value in state.values()}
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    optimizer.param_groups[0]["lr"].fill_(1.0)
    optimizer.param_groups[1]["lr"] = 1.0
    model, state = get_state_dict(net, optimizer, options=options)
    target = {"model": model, "optimizer": state}
    dcp.load(target, checkpoint_id=path / "checkpoint", no_dist=not dist.is_initialized())
    set_state_dict(
        net,
        optimizer,
        model_state_dict=target["model"],
        optim_state_dict=target["optimizer"],
        options=options,
    )
    assert [float(group["lr"]) for group in optimizer.param_groups] == [pytest.approx(0.03), 0.002]
    train(net, optimizer, range(3, 5))
    assert_same(everything(net, optimizer), torch.load(path / "end.pt", weights_only=True))
    assert tensors == {id(value) for state in optimizer.state.values() for value in state.values()}


@pytest.mark.slow
@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("world", [1, 2])
def test_a_checkpoint_is_read_by_any_number_of_processes(
    groups: Callable[[int], Ranks], tmp_path: Path, world: int, flatten: bool
) -> None:
    on = {1: lambda check, *args: check(*args), 2: groups(2), 4: groups(4)}
    on[world](save, tmp_path, flatten)
    for others in on.values():
        others(resume, tmp_path, flatten)


def explore(path: Path) -> None:
    say = lambda *a: dist.get_rank() == 0 and print(*a, flush=True)
    def attempt(name, f):
        try: f(); print("EXPLORE", dist.get_rank(), name, "ok", flush=True)
        except Exception as e: print("EXPLORE", dist.get_rank(), name, traceback.format_exc()[-1500:], flush=True)
    net, optimizer = fresh(0)
    train(net, optimizer, range(3))
    def full():
        for broadcast in (False, True):
            for flatten in (False, True):
                o = StateDictOptions(full_state_dict=True, cpu_offload=broadcast, flatten_optimizer_state_dict=flatten)
                model, state = get_state_dict(net, optimizer, options=o)
                model, state = copy.deepcopy((model, state))
                n2, o2 = fresh(1)
                o = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast, flatten_optimizer_state_dict=flatten)
                try:
                    set_state_dict(n2, o2, model_state_dict=model, optim_state_dict=state, options=o)
                    assert_same(everything(net, optimizer), everything(n2, o2))
                    print("EXPLORE full", broadcast, flatten, "ok", [g["lr"] for g in o2.param_groups], flush=True)
                except Exception:
                    print("EXPLORE full", broadcast, flatten, traceback.format_exc()[-1200:], flush=True)
    attempt("full", full)
    def frozen():
        for flatten in (False, True):
            o = StateDictOptions(flatten_optimizer_state_dict=flatten)
            n1, o1 = fresh(0); n1.embedding.requires_grad_(False)
            n2, o2 = fresh(1); n2.embedding.requires_grad_(False)
            model, state = get_state_dict(n1, o1, options=o)
            try:
                set_state_dict(n2, o2, model_state_dict=model, optim_state_dict=state, options=o)
                print("EXPLORE frozen", flatten, "ok")
            except Exception:
                    print("EXPLORE frozen", flatten, traceback.format_exc()[-1200:], flush=True)
    attempt("frozen", frozen)
    def dc():
        saved = copy.deepcopy(optimizer.state_dict())
        n2, o2 = fresh(1)
        o2.load_state_dict(saved)
    attempt("deepcopy", dc)
    def ts():
        f = path / f"{dist.get_rank()}.pt"
        torch.save({"m": net.state_dict(), "o": optimizer.state_dict()}, f)
        saved = torch.load(f, weights_only=True)
        n2, o2 = fresh(1)
        n2.load_state_dict(saved["m"]); o2.load_state_dict(saved["o"])
        assert_same(everything(net, optimizer), everything(n2, o2))
    attempt("save", ts)
    def plain():
        n2 = Net(); o2 = Nero(n2.parameters())
        n3 = sharded(Net()); o3 = Nero(n3.parameters())
        o3.load_state_dict(o2.state_dict())
    attempt("plain into sharded", plain)
    def plain2():
        n2 = Net(); o2 = Nero(n2.parameters())
        n3 = sharded(Net()); o3 = Nero(n3.parameters())
        o2.load_state_dict(o3.state_dict())
    attempt("sharded into plain", plain2)
    def dopt():
        o2 = copy.deepcopy(optimizer)
    attempt("deepcopy optimizer", dopt)
    def strided():
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        def make(seed):
            net = Net(seed)
            parallelize_module(net, mesh["tensor"], {"hidden": ColwiseParallel(output_layouts=Replicate())})
            sharded(net, mesh=mesh["data"])
            return net, Nero(net.parameters())
        n, o = make(0)
        net(torch.randint(11, (8, 4))).square().sum().backward(); o.step()
        model, state = get_state_dict(n, o)
        dcp.save({"m": model, "o": state}, checkpoint_id=path/"strided")
        n2, o2 = make(1)
        model, state = get_state_dict(n2, o2)
        dcp.load({"m": model, "o": state}, checkpoint_id=path/"strided")
        set_state_dict(n2, o2, model_state_dict=model, optim_state_dict=state)
        assert_same(everything(n, o), everything(n2, o2))
        n2, o2 = Net(1), None
        sharded(n2); o2 = Nero(n2.parameters())
        model, state = get_state_dict(n2, o2)
        dcp.load({"m": model, "o": state}, checkpoint_id=path/"strided")
        set_state_dict(n2, o2, model_state_dict=model, optim_state_dict=state)
        assert_same(everything(n, o), everything(n2, o2))
    if dist.get_world_size() == 4: attempt("strided", strided)

def test_explore(ranks, tmp_path): ranks(explore, tmp_path)
