"""Optimiser state can be saved, loaded, copied and pickled like that of torch.optim's optimisers."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from nero.optim import LAMB, Madam, Nero, constrained
from optim.test_every_optimiser import EVERY_KIND, EVERY_OPTIMISER, Kind, Make, balanced
from support import references


@EVERY_OPTIMISER
def test_fresh_state_is_plain_tensors(make: Make) -> None:
    params = references.parameters()
    fresh = make(params, lr=0.01).state_dict()
    assert list(fresh["state"]) == list(range(len(params)))
    for param, entries in zip(params, fresh["state"].values(), strict=True):
        assert entries["step"] == 0
        for value in entries.values():
            assert type(value) is Tensor
            assert value.device == param.device
            assert not value.requires_grad
    loaded = references.on_disk(fresh)
    assert loaded["param_groups"] == fresh["param_groups"]


@EVERY_KIND
def test_averages_stay_float32_when_loaded_across_dtypes(kind: Kind) -> None:
    params = references.parameters()
    optimizer = kind(params)
    references.run(params, optimizer, range(3))
    halves = [param.detach().bfloat16() for param in references.parameters()]
    half = kind(halves)
    half.load_state_dict(references.on_disk(optimizer.state_dict()))
    back = kind(references.parameters())
    back.load_state_dict(references.on_disk(half.state_dict()))
    for mine, middle, theirs in zip(*(which.state.values() for which in (optimizer, half, back)), strict=True):
        assert {value.dtype for value in middle.values()} == {torch.float32}
        references.assert_same(list(mine.values()), list(middle.values()))
        references.assert_same(list(mine.values()), list(theirs.values()))
    references.run(halves, half, range(3, 4))
    assert half.state[halves[1]]["step"] == optimizer.state[params[1]]["step"] + 1


@pytest.mark.gpu
@EVERY_KIND
@pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02)], ids=["number", "tensor"])
def test_checkpoint_moves_to_gpu_and_back(kind: Kind, lr: float | Tensor) -> None:
    params = references.parameters()
    optimizer = kind(params, lr=lr)
    references.run(params, optimizer, range(3))
    there = [param.detach().cuda() for param in params]
    other = kind(there)
    other.load_state_dict(optimizer.state_dict())
    assert {value.device.type for state in other.state.values() for value in state.values()} == {"cuda"}
    rate = other.param_groups[0]["lr"]
    assert not isinstance(rate, Tensor) or rate.is_cuda
    references.run(there, other, range(3, 5))
    again = [param.cpu() for param in there]
    back = kind(again)
    back.load_state_dict(other.state_dict())
    references.run(again, back, range(5, 7))
    references.run(params, optimizer, range(3, 7))
    for ours, theirs in zip(params, again, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


@EVERY_KIND
def test_state_dict_hooks_can_change_saved_and_loaded_state(kind: Kind) -> None:
    params = references.parameters()
    optimizer = kind(params)
    references.run(params, optimizer, range(2))
    seen: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("saving"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": 1})
    saved = optimizer.state_dict()
    assert seen == ["saving"]
    assert saved["note"] == 1

    # An old format: other parameter numbers, another name for `step`, and an outdated learning rate.
    old = {
        "state": {number + 100: {**v, "count": v["step"]} for number, v in saved["state"].items()},
        "param_groups": [{**g, "params": [number + 100 for number in g["params"]]} for g in saved["param_groups"]],
    }
    for entries in old["state"].values():
        del entries["step"]

    def translate(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        renamed = {
            number: {name.replace("count", "step"): value for name, value in entries.items()}
            for number, entries in state["state"].items()
        }
        return {"state": renamed, "param_groups": [{**group, "lr": 0.125} for group in state["param_groups"]]}

    others = references.parameters(1)
    other = kind(others)
    other.register_load_state_dict_pre_hook(translate)
    other.register_load_state_dict_post_hook(
        lambda which: seen.append(references.values(list(which.state[others[1]].values())))
    )
    for _ in range(2):
        other.load_state_dict(old)
    assert other.param_groups[0]["lr"] == 0.125
    for ours, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        references.assert_same(list(ours.values()), list(theirs.values()))
    assert len(seen) == 3
    references.assert_same(seen[-1], list(optimizer.state[params[1]].values()))


@EVERY_KIND
def test_groups_sharing_lr_tensor_load_their_own_rates(kind: Kind) -> None:
    first, second, third = references.draw(0, [(3, 4)] * 3)
    lr = torch.tensor(0.5)
    optimizer = kind([{"params": [first]}, {"params": [second]}, {"params": [third]}], lr=lr)
    rates = (0.25, 0.25, 0.125)
    groups = [{"params": [w], "lr": rate} for w, rate in zip((first, second, third), rates, strict=True)]
    optimizer.load_state_dict(kind(groups).state_dict())
    assert [float(group["lr"]) for group in optimizer.param_groups] == list(rates)
    assert optimizer.param_groups[0]["lr"] is optimizer.param_groups[1]["lr"] is lr


@EVERY_KIND
def test_loading_mismatched_state_changes_nothing(kind: Kind) -> None:
    params = references.parameters()
    optimizer = kind(params)
    references.run(params, optimizer, range(2))
    before = copy.deepcopy(optimizer.state_dict())
    sgd = torch.optim.SGD(params, lr=0.3, momentum=0.9)
    references.run(params, sgd, range(1))
    other_shape = kind(references.parameters(shapes=[*references.SHAPES[:-1], (7, 2)]), lr=0.3).state_dict()
    groups = [{"params": references.parameters()} for _ in range(2)]
    one_group_more = kind(groups, lr=0.3).state_dict()
    for unfit in (kind(params[:3], lr=0.3).state_dict(), sgd.state_dict(), other_shape, one_group_more):
        with pytest.raises(ValueError, match="parameter"):
            optimizer.load_state_dict(unfit)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, entries in before["state"].items():
        references.assert_same(list(after["state"][number].values()), list(entries.values()))


COPIES: dict[str, Make] = {
    "nero": Nero,
    "lamb": LAMB,
    "madam": Madam,
    "constrained lamb": balanced(LAMB),
    "constrained sgd": balanced(partial(torch.optim.SGD, momentum=0.9)),
    "only centred adam": partial(constrained, base=torch.optim.Adam, norm=False),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda both: pickle.loads(pickle.dumps(both)),
    "a copy of a pickle": lambda both: copy.deepcopy(pickle.loads(pickle.dumps(both))),
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("lr", [0.02, torch.tensor(0.02)], ids=["number", "tensor"])
def test_copy_steps_like_original_without_affecting_it(
    make: Make, way: Callable[[Any], Any], lr: float | Tensor
) -> None:
    model = references.network()
    optimizer = make(model.parameters(), lr=copy.deepcopy(lr))
    references.train(model, optimizer, range(3))
    twin, copied = way((model, optimizer))
    assert type(copied) is type(optimizer)
    before = references.values(list(model.parameters()))
    references.train(twin, copied, range(3, 6))
    references.assert_same(list(model.parameters()), before)
    references.train(model, optimizer, range(3, 6))
    references.assert_same(list(model.parameters()), list(twin.parameters()))


def test_copy_of_plain_optimiser_is_not_constrained() -> None:
    (weight,) = references.draw(0, [(3, 4)])
    constrained([weight.clone()], torch.optim.SGD, lr=0.1)
    plain = torch.optim.SGD([weight], lr=0.1)
    assert not copy.deepcopy(plain)._optimizer_step_post_hooks
    assert b"nero" not in pickle.dumps(plain)


def test_lamb_raises_when_momentum_is_enabled_after_construction() -> None:
    params = references.parameters()
    optimizer = LAMB(params, betas=(0.0, 0.999))
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    references.set_gradients(params, seed=0)
    with pytest.raises(RuntimeError, match=r"betas\[0\] was 0"):
        optimizer.step()


@pytest.mark.gpu
@EVERY_KIND
def test_capture_raises_unless_capturable(kind: Kind) -> None:
    param = torch.ones(3, 4, device="cuda")
    param.grad = torch.randn_like(param)
    optimizer = kind([param], capturable=False)
    optimizer.step()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="capturable=False"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    assert kind([param]).param_groups[0]["capturable"] is True
