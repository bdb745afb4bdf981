"""Sharded parameters: a step needs no communication and equals the unsharded step bit for bit.

Checks in real processes (gloo, on the CPU) are functions of this file that every rank calls: see `Ranks`.
"""

import copy
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import SGD, Optimizer

from nero.optim import LAMB, Madam, Nero, constrained
from nero.optim.balance import neuron_mean, neuron_norm
from nero.optim.sharding import (
    check_shards,
    is_sharded,
    like_rows,
    local,
    local_gradient,
    means_over_all,
)
from support.rank_processes import Ranks, rank_groups
from support.references import draw

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton's interpreter")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    with rank_groups(tmp_path_factory.mktemp("stores"), __name__) as made:
        yield made


@pytest.fixture(params=[2, 4])
def ranks(request: pytest.FixtureRequest, groups: Callable[[int], Ranks]) -> Ranks:
    return groups(request.param)


@pytest.fixture
def two(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(2)


@pytest.fixture
def four(groups: Callable[[int], Ranks]) -> Ranks:
    return groups(4)


# ---------------------------------------------------------------------------------------------------- networks


class Net(nn.Module):
    """A network with every kind of parameter; no number of rows is divisible by 2 or 4, and some are smaller."""

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
        hidden = self.layer_norm(self.hidden(maps.flatten(1))).tanh()
        score: Tensor = self.gate(self.head(hidden)).sigmoid() * self.temperature
        return score


def sharded(net: Net, **settings: Any) -> Net:
    """Shard a network over all ranks, except its scalar parameter, which fully_shard does not support."""
    fully_shard(net.hidden, **settings)
    fully_shard(net, ignored_params={net.temperature}, **settings)
    return net


def set_gradients(net: nn.Module, seed: int) -> None:
    """Set gradients that do not depend on the sharding: zero in the first row, and None for some parameters."""
    params = list(net.parameters())
    for i, (param, grad) in enumerate(zip(params, draw(seed, [tuple(p.shape) for p in params]), strict=True)):
        if grad.ndim:
            grad[0] = 0
        grad = grad.to(param.dtype)
        if isinstance(param, DTensor):
            grad = distribute_tensor(grad, param.device_mesh, param.placements, src_data_rank=None)
        param.grad = None if (seed + i) % 7 == 3 else grad


def whole(tensor: Tensor) -> Tensor:
    """A copy of the full tensor, gathered from all ranks."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: whole(param) for name, param in net.named_parameters()}


def everything(net: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Parameters and their state, by name."""
    tensors = weights(net)
    for name, param in net.named_parameters():
        tensors |= {f"{name}: {key}": whole(value) for key, value in optimizer.state[param].items()}
    return tensors


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """Assert that names, dtypes, shapes and values are equal, bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert tensor.shape == theirs[name].shape, name
        assert torch.equal(tensor, theirs[name]), f"{name} differs by {(tensor - theirs[name]).abs().max()}"


def step_alone(optimizer: Optimizer) -> None:
    """Take one step and assert that it does not communicate."""
    with CommDebugMode() as messages:
        optimizer.step()
    assert messages.get_total_counts() == 0, messages.get_comm_counts()


# -------------------------------------------------------------------------- sharded steps match unsharded steps


def follow(make: Callable[..., Optimizer], settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
    """Compare the steps of a sharded network with those of an unsharded copy."""
    net = Net().to(dtype)
    twin = copy.deepcopy(net)
    sharded(net)
    optimizer, other = make(net.parameters(), **settings), make(twin.parameters(), **settings)
    assert_same(everything(net, optimizer), everything(twin, other))
    for t in range(3):
        set_gradients(net, seed=t)
        set_gradients(twin, seed=t)
        step_alone(optimizer)
        other.step()
        assert_same(weights(net), weights(twin))
    assert_same(everything(net, optimizer), everything(twin, other))
    # On every rank, also where the shard of a parameter is empty.
    steps = [optimizer.state[param].get("step") for param in net.parameters()]
    assert steps == [other.state[param].get("step") for param in twin.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"foreach": False, "gain_penalty": 0.1}, id="one by one"),
        pytest.param({"foreach": True, "gain_penalty": 0.1, "maximize": True}, id="foreach"),
        pytest.param({"fused": True, "gain_penalty": 0.1}, id="fused", marks=needs_triton),
        pytest.param({"norm": False, "beta": 0.9, "lr": torch.tensor(0.1)}, id="mean"),
    ],
)
def test_sharded_nero_matches_unsharded(ranks: Ranks, settings: dict[str, Any]) -> None:
    ranks(follow, Nero, settings)


@pytest.mark.slow
def test_sharded_half_precision_matches_unsharded(two: Ranks) -> None:
    two(follow, Nero, {"foreach": True}, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("foreach", [False, True])
def test_sharded_madam_matches_unsharded(ranks: Ranks, foreach: bool) -> None:
    ranks(follow, Madam, {"foreach": foreach})


def follow_lamb(settings: dict[str, Any]) -> None:
    """Sharded LAMB equals unsharded LAMB up to the rounding of its norms, and a step sends one message."""
    net = Net()
    twin = copy.deepcopy(net)
    sharded(net)
    optimizer, other = LAMB(net.parameters(), lr=0.1, **settings), LAMB(twin.parameters(), lr=0.1, **settings)
    for t in range(3):
        set_gradients(net, seed=t)
        set_gradients(twin, seed=t)
        with CommDebugMode() as messages:
            optimizer.step()
        assert messages.get_total_counts() == 1, messages.get_comm_counts()
        other.step()
        for name, tensor in everything(net, optimizer).items():
            torch.testing.assert_close(tensor, everything(twin, other)[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"foreach": False}, id="one by one"),
        pytest.param({"foreach": True, "betas": (0.0, 0.999), "debias": True}, id="foreach"),
        pytest.param({"fused": True}, id="fused", marks=needs_triton),
    ],
)
def test_sharded_lamb_matches_unsharded(ranks: Ranks, settings: dict[str, Any]) -> None:
    ranks(follow_lamb, settings)


def follow_lamb_on_a_mesh() -> None:
    """Entries are counted once where shards are copied, and where they are split again."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    (start, grad), placements = draw(0, [(5, 6), (5, 6)]), [(Replicate(), Shard(0)), (Shard(0), Shard(1))]
    whole_weight = nn.Parameter(start.clone())
    split = [nn.Parameter(distribute_tensor(start, mesh, place, src_data_rank=None)) for place in placements]
    whole_weight.grad = grad
    for param, place in zip(split, placements, strict=True):
        param.grad = distribute_tensor(grad, mesh, place, src_data_rank=None)
    LAMB([whole_weight], lr=0.1).step()
    LAMB(split, lr=0.1).step()
    for param in split:
        torch.testing.assert_close(whole(param.detach()), whole_weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_lamb_on_two_dimensional_mesh_matches_unsharded(four: Ranks) -> None:
    four(follow_lamb_on_a_mesh)


@pytest.mark.slow
def test_sharded_constrained_sgd_matches_unsharded(ranks: Ranks) -> None:
    ranks(follow, partial(constrained, base=SGD), {"lr": 0.1, "momentum": 0.9})


def stay_balanced() -> None:
    net = sharded(Net())
    optimizer = constrained(net.parameters(), SGD, lr=0.1)
    for t in range(3):
        set_gradients(net, seed=t)
        optimizer.step()
        for weight in (net.embedding.weight, net.conv.weight, net.hidden.weight, net.head.weight, net.gate.weight):
            torch.testing.assert_close(neuron_mean(whole(weight)), torch.zeros(weight.shape[0]), rtol=0, atol=1e-6)
            torch.testing.assert_close(neuron_norm(whole(weight)), torch.ones(weight.shape[0]))


@pytest.mark.slow
def test_sharded_constrained_neurons_stay_balanced(two: Ranks) -> None:
    two(stay_balanced)


def shard_within_neurons() -> None:
    """Madam updates each weight independently, so parameters may be sharded along any dimension."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = nn.Linear(7, 5)
    net.weight = nn.Parameter(distribute_tensor(draw(0, [(5, 7)])[0], mesh, [Shard(1)]))
    twin = nn.Linear(7, 5)
    twin.weight = nn.Parameter(draw(0, [(5, 7)])[0])
    twin.bias = net.bias
    optimizer, other = Madam([net.weight]), Madam([twin.weight])
    for t in range(3):
        set_gradients(net, seed=t)
        set_gradients(twin, seed=t)
        step_alone(optimizer)
        other.step()
        assert_same(everything(net, optimizer), everything(twin, other))


@pytest.mark.slow
def test_madam_supports_sharding_within_neurons(ranks: Ranks) -> None:
    ranks(shard_within_neurons)


def hold_nothing() -> None:
    net = sharded(Net())
    held = [local(param).numel() > 0 for param in net.parameters()]
    assert all(held) == (dist.get_rank() == 0)
    if dist.get_rank() == 3:
        assert local(net.head.weight).shape == (0, 7)


@pytest.mark.slow
def test_some_ranks_hold_empty_shards(ranks: Ranks) -> None:
    ranks(hold_nothing)


def learn(net: Net, seed: int) -> None:
    """Steps with gradients of a real loss; `seed` is that of this rank's batches."""
    twin = Net()
    optimizer, other = Nero(net.parameters()), Nero(twin.parameters())
    assert_same(everything(net, optimizer), everything(twin, other))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randint(11, (8, 4), generator=generator)).square().sum().backward()
        assert net.temperature.grad is not None
        dist.all_reduce(net.temperature.grad)
        for ours, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            assert ours.grad is not None
            theirs.grad = whole(ours.grad)
        step_alone(optimizer)
        other.step()
        assert_same(weights(net), weights(twin))
    assert_same(everything(net, optimizer), everything(twin, other))


def learn_from_shards() -> None:
    learn(sharded(Net()), seed=dist.get_rank())


def learn_from_copies_of_shards() -> None:
    net = sharded(Net(), mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    assert isinstance(net.head.weight, DTensor)
    assert net.head.weight.placements == (Replicate(), Shard(0))
    learn(net, seed=dist.get_rank())


def learn_from_shards_of_shards() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = Net()
    parallelize_module(net, mesh["tensor"], {"hidden": ColwiseParallel(output_layouts=Replicate())})
    sharded(net, mesh=mesh["data"])
    assert isinstance(net.hidden.weight, DTensor)
    assert isinstance(net.hidden.weight.placements[0], _StridedShard)
    learn(net, seed=mesh.get_local_rank("data"))


def refuse_weight_of_one_rank() -> None:
    net = sharded(Net())
    if dist.get_rank() == 0:
        with torch.no_grad():
            local(net.hidden.weight)[0, 0] = torch.nan
    for kind in (Nero, LAMB, Madam):
        with pytest.raises(ValueError, match=r"1 of parameter 'hidden\.weight' of group 0, shape \(7, 120\) are not"):
            kind(net.named_parameters())


@pytest.mark.slow
def test_all_ranks_refuse_a_weight_of_one_that_is_not_finite(ranks: Ranks) -> None:
    ranks(refuse_weight_of_one_rank)


@pytest.mark.slow
def test_sharded_nero_matches_unsharded_with_loss_gradients(ranks: Ranks) -> None:
    ranks(learn_from_shards)


@pytest.mark.slow
@pytest.mark.parametrize("check", [learn_from_copies_of_shards, learn_from_shards_of_shards])
def test_two_dimensional_meshes_match_unsharded(four: Ranks, check: Callable[[], None]) -> None:
    four(check)


# ----------------------------------------------------------------------------------------------- communication


def count_messages() -> None:
    net = sharded(Net())
    with CommDebugMode() as messages:
        whole(net.head.weight)
    assert messages.get_total_counts() == 1
    # Construction communicates once per sharded parameter, for its scale, and once for weights that are not finite.
    # `CommDebugMode` counts it.
    with CommDebugMode() as messages:
        optimizer = Nero(net.parameters())
    assert messages.get_total_counts() == 1 + sum(map(is_sharded, net.parameters())) > 1
    set_gradients(net, seed=0)
    optimizer.register_step_post_hook(lambda *_: dist.all_reduce(torch.ones(())))
    with pytest.raises(AssertionError, match="allreduce"):
        step_alone(optimizer)


@pytest.mark.slow
def test_communication_in_step_would_be_detected(two: Ranks) -> None:
    two(count_messages)


def step_in_turn() -> None:
    net = sharded(Net())
    optimizer = Nero(net.parameters())
    set_gradients(net, seed=0)
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            optimizer.step()
        dist.monitored_barrier(timeout=timedelta(seconds=20))


@pytest.mark.slow
def test_rank_can_step_while_others_wait(ranks: Ranks) -> None:
    ranks(step_in_turn)


def sum_gradients(make: Callable[..., Optimizer], settings: dict[str, Any]) -> None:
    """Sequence parallelism leaves each rank a partial sum of the gradient of a replicated gain."""
    norm, twin = nn.LayerNorm(6), nn.LayerNorm(6)
    parallelize_module(norm, init_device_mesh("cpu", (dist.get_world_size(),)), SequenceParallel())
    optimizer, other = make(norm.parameters(), **settings), make(twin.parameters(), **settings)
    for sequence in draw(0, [(3, 8, 6), (3, 8, 6)]):
        optimizer.zero_grad()
        norm(sequence).pow(3).sum().backward()
        for ours, theirs in zip(norm.parameters(), twin.parameters(), strict=True):
            assert isinstance(ours.grad, DTensor)
            assert ours.grad.placements[0].is_partial()
            theirs.grad = whole(ours.grad)
        optimizer.step()
        other.step()
        assert_same(everything(norm, optimizer), everything(twin, other))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings"),
    [(Nero, {}), (Madam, {}), (LAMB, {}), pytest.param(Nero, {"fused": True}, marks=needs_triton)],
)
def test_partial_gradients_are_summed(two: Ranks, make: Callable[..., Optimizer], settings: dict[str, Any]) -> None:
    two(sum_gradients, make, settings)


# ------------------------------------------------------------------------------------------------- checkpoints


def fresh(seed: int, **settings: Any) -> tuple[Net, Optimizer]:
    """A network, sharded if there is a process group, and Nero with two parameter groups."""
    net = sharded(Net(seed)) if dist.is_initialized() else Net(seed)
    gains = [*net.norm.parameters(), *net.layer_norm.parameters()]
    rest = [param for param in net.parameters() if not any(param is gain for gain in gains)]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": gains, "lr": 0.002, "gain_penalty": 0.1}]
    return net, Nero(groups, lr=torch.tensor(0.03), **settings)


def train(net: Net, optimizer: Optimizer, steps: range) -> None:
    for t in steps:
        set_gradients(net, seed=t)
        optimizer.step()


def save(folder: Path, flatten: bool, settings: dict[str, Any]) -> None:
    """Train, save a checkpoint, continue training, and save the final state next to the checkpoint."""
    net, optimizer = fresh(0, **settings)
    train(net, optimizer, range(3))
    model, state = get_state_dict(net, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flatten))
    saved = {"model": model, "optimizer": state}
    dcp.save(saved, checkpoint_id=folder / "checkpoint", no_dist=not dist.is_initialized())
    train(net, optimizer, range(3, 5))
    end = everything(net, optimizer)
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(end, folder / "end.pt")


def resume(folder: Path, flatten: bool, settings: dict[str, Any]) -> None:
    """Resume from the checkpoint and assert that training ends in the same state."""
    net, optimizer = fresh(1, **settings)
    train(net, optimizer, range(1))
    for group in optimizer.param_groups:
        group["lr"] *= 10
    tensors = {id(value) for state in optimizer.state.values() for value in state.values()}
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    model, state = get_state_dict(net, optimizer, options=options)
    saved: dict[str, Any] = {"model": model, "optimizer": state}
    dcp.load(saved, checkpoint_id=folder / "checkpoint", no_dist=not dist.is_initialized())
    set_state_dict(
        net,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=options,
    )
    train(net, optimizer, range(3, 5))
    assert_same(everything(net, optimizer), torch.load(folder / "end.pt", weights_only=True))
    assert [float(group["lr"]) for group in optimizer.param_groups] == [pytest.approx(0.03), 0.002]
    assert tensors == {id(value) for state in optimizer.state.values() for value in state.values()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(("world", "flatten"), [(1, False), (2, True), (4, False)])
def test_checkpoint_can_be_loaded_by_any_number_of_ranks(
    groups: Callable[[int], Ranks], tmp_path: Path, world: int, flatten: bool
) -> None:
    calls: dict[int, Callable[..., None]] = {1: lambda check, *args: check(*args), 2: groups(2), 4: groups(4)}
    calls[world](save, tmp_path, flatten, {})
    for call in calls.values():
        call(resume, tmp_path, flatten, {})


@pytest.mark.slow
@needs_triton
def test_fused_step_resumes_from_checkpoint(groups: Callable[[int], Ranks], tmp_path: Path) -> None:
    groups(2)(save, tmp_path, False, {"fused": True})
    groups(4)(resume, tmp_path, False, {"fused": True})


def gather_and_broadcast(folder: Path) -> None:
    """A checkpoint in one file, which rank 0 writes, reads and broadcasts."""
    net, optimizer = fresh(0)
    train(net, optimizer, range(3))
    first = dist.get_rank() == 0
    saved = get_state_dict(net, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if first:
        torch.save(saved, folder / "whole.pt")
    other, resumed = fresh(1)
    model, state = torch.load(folder / "whole.pt", weights_only=True) if first else ({}, {})
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, model, options=options)
    set_optimizer_state_dict(other, resumed, state, options=options)
    assert_same(everything(other, resumed), everything(net, optimizer))
    train(net, optimizer, range(3, 5))
    train(other, resumed, range(3, 5))
    assert_same(everything(other, resumed), everything(net, optimizer))


@pytest.mark.slow
def test_full_state_dict_can_be_resharded(ranks: Ranks, tmp_path: Path) -> None:
    ranks(gather_and_broadcast, tmp_path)


def keep_what_is_frozen() -> None:
    """torch.distributed.checkpoint loads no state for frozen parameters, so they keep theirs."""
    for flatten in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flatten)
        net, optimizer = fresh(0)
        other, resumed = fresh(1)
        net.embedding.requires_grad_(False)
        other.embedding.requires_grad_(False)
        train(net, optimizer, range(2))
        before = everything(other, resumed)
        model, state = get_state_dict(net, optimizer, options=options)
        set_state_dict(other, resumed, model_state_dict=model, optim_state_dict=state, options=options)
        kept = {name: tensor for name, tensor in before.items() if name.startswith("embedding.weight:")}
        assert len(kept) == 3
        assert_same(everything(other, resumed), everything(net, optimizer) | kept)


@pytest.mark.slow
def test_checkpoint_keeps_existing_state_of_frozen_parameters(two: Ranks) -> None:
    two(keep_what_is_frozen)


def copy_and_save(folder: Path) -> None:
    net, optimizer = fresh(0)
    train(net, optimizer, range(3))
    saved = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
    path = folder / f"{dist.get_rank()}.pt"
    torch.save(saved, path)
    copies = [copy.deepcopy(saved), torch.load(path, weights_only=True)]
    train(net, optimizer, range(3, 5))
    for state in copies:
        other, resumed = fresh(1)
        other.load_state_dict(state["net"])
        resumed.load_state_dict(state["optimizer"])
        train(other, resumed, range(3, 5))
        assert_same(everything(other, resumed), everything(net, optimizer))


@pytest.mark.slow
def test_each_rank_can_save_its_own_shards(ranks: Ranks, tmp_path: Path) -> None:
    ranks(copy_and_save, tmp_path)


def refuse_to_mix() -> None:
    split, plain = sharded(Net()), Net()
    pairs = [(split, Nero(split.parameters())), (plain, Nero(plain.parameters()))]
    for (net, optimizer), (_, other) in (pairs, pairs[::-1]):
        set_gradients(net, seed=0)
        optimizer.step()
        before = everything(net, optimizer)
        with pytest.raises(ValueError, match=r"\(11,\) is (whole|sharded).*full_state_dict=True"):
            optimizer.load_state_dict(other.state_dict())
        assert_same(everything(net, optimizer), before)


@pytest.mark.slow
def test_loading_between_sharded_and_unsharded_state_raises(two: Ranks) -> None:
    two(refuse_to_mix)


# ------------------------------------------------------------------------------------- ZeroRedundancyOptimizer


def spread_over_ranks(make: Callable[..., Optimizer], settings: dict[str, Any]) -> None:
    """Every rank has the network of one process, from construction on."""
    split, plain = Net(), Net()
    torch.manual_seed(1)
    later = nn.Linear(4, 3)
    plain_later = copy.deepcopy(later)
    for net in (split, plain):
        net.gate.requires_grad_(False)
    optimizer: Any = ZeroRedundancyOptimizer(split.parameters(), optimizer_class=make, lr=0.1, **settings)
    reference = make(plain.parameters(), lr=0.1, **settings)
    assert_same(weights(split), weights(plain))
    optimizer.add_param_group({"params": [later.weight]})
    reference.add_param_group({"params": [plain_later.weight]})
    for t in range(3):
        for net in (split, plain):
            set_gradients(net, seed=t)
        later.weight.grad = plain_later.weight.grad = torch.ones(3, 4).cumsum(1) * (t + 1)
        optimizer.step()
        reference.step()
        assert_same({**weights(split), "later": later.weight}, {**weights(plain), "later": plain_later.weight})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        pytest.param(Nero, {"foreach": False}, id="nero"),
        pytest.param(Nero, {"norm": False}, id="only centred"),
        pytest.param(Nero, {"fused": True}, id="fused", marks=needs_triton),
        pytest.param(LAMB, {}, id="lamb"),
        pytest.param(partial(constrained, base=SGD), {}, id="constrained"),
    ],
)
def test_zero_redundancy_optimizer_matches_one_process(
    ranks: Ranks, make: Callable[..., Optimizer], settings: dict[str, Any]
) -> None:
    ranks(spread_over_ranks, make, settings)


# ----------------------------------------------------------------------------------------------------- errors


def assert_refused(make: Callable[..., Optimizer], param: Tensor, match: str) -> None:
    """Assert that construction and `add_param_group` raise, and that the latter leaves the optimiser unchanged."""
    with pytest.raises(ValueError, match=match):
        make([param])
    first, second = (nn.Parameter(tensor) for tensor in draw(0, [(3, 4), (3, 4)]))
    optimizer, before = make([first]), second.detach().clone()
    if isinstance(optimizer, SGD):  # its constraints are checked only at construction
        return
    with pytest.raises(ValueError, match=match):
        optimizer.add_param_group({"params": [second, param]})
    assert [group["params"] for group in optimizer.param_groups] == [[first]]
    assert list(optimizer.state) == [first]
    assert torch.equal(second, before)


def refuse_cut_neurons() -> None:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    net = nn.Conv2d(world, 3, 2)
    fully_shard(net, shard_placement_fn=lambda param: Shard(min(1, param.ndim - 1)))
    tensor = torch.ones(3, 4)
    cut = [
        net.weight,
        distribute_tensor(tensor, mesh, [Shard(1)]),
        distribute_tensor(tensor, mesh, [Shard(-1)]),
        DTensor.from_local(torch.ones(3, 4 // world), mesh, [_StridedShard(1, split_factor=1)]),
    ]
    balanced = partial(constrained, base=SGD, lr=0.1)
    for param in cut:
        shape = str(tuple(param.shape)).replace("(", r"\(").replace(")", r"\)")
        for make in (Nero, balanced):
            assert_refused(make, param, f"{shape} cuts neurons in two.*shard along dim 0")
    assert net.bias is not None
    Nero([net.bias, distribute_tensor(tensor, mesh, [Shard(-2)]), distribute_tensor(tensor, mesh, [Replicate()])])


def refuse_summands() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    summand = DTensor.from_local(torch.ones(3, 4), mesh, [Partial()])
    for make in (Nero, Madam, LAMB, partial(constrained, base=SGD, lr=0.1)):
        assert_refused(make, summand, r"\(3, 4\) leaves each process a partial sum.*Replicate\(\) or Shard\(0\)")


def refuse_flat_parameters() -> None:
    for whole_shapes in (False, True):
        net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        flat = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=whole_shapes)
        for make in (Nero, Madam, LAMB, partial(constrained, base=SGD, lr=0.1)):
            for param in flat.parameters():
                assert_refused(make, param, "use fully_shard")


@pytest.mark.slow
@pytest.mark.parametrize("check", [refuse_cut_neurons, refuse_summands, refuse_flat_parameters])
def test_unsupported_shardings_raise(two: Ranks, check: Callable[[], None]) -> None:
    two(check)


def refuse_plain_gradients() -> None:
    settings: dict[str, Any]
    for settings in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        net = sharded(Net())
        optimizer = Nero(net.parameters(), **settings)
        set_gradients(net, seed=0)
        net.gate.weight.grad = torch.ones(1, 3)
        before = everything(net, optimizer)
        with pytest.raises(RuntimeError, match=r"gradient of a sharded parameter of shape \(1, 3\) must be a DTensor"):
            optimizer.step()
        assert_same(everything(net, optimizer), before)


@pytest.mark.slow
@needs_triton
def test_plain_tensor_gradient_of_sharded_parameter_raises(two: Ranks) -> None:
    two(refuse_plain_gradients)


# ------------------------------------------------------------------------------------------------- one process


def test_plain_tensors_are_not_sharded() -> None:
    for tensor in (torch.ones(3, 4), nn.Parameter(torch.ones(3, 4)), nn.Buffer(torch.ones(3)), torch.tensor(1.0)):
        assert not is_sharded(tensor)
        assert local(tensor) is tensor
        assert local_gradient(tensor, grad := torch.ones_like(tensor)) is grad
        assert like_rows(tensor, grad) is grad
        check_shards(tensor, "neurons")
        check_shards(tensor, "entries")
        check_shards(tensor, "tensors")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mean_of_plain_tensor_is_rounded_once(dtype: torch.dtype) -> None:
    for values in draw(0, [(1,), (1001,), (3, 4), ()], dtype):
        mean = means_over_all(values, values)
        assert mean.dtype == dtype
        assert mean == values.double().mean().to(dtype)


def test_mean_of_empty_tensor_is_zero() -> None:
    nothing = torch.empty(0, 4)
    assert means_over_all(nothing, nothing) == 0
