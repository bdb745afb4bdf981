"""Several optimisers as one."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nero.optim import Nero, Split

SGD, AdamW, Muon = torch.optim.SGD, torch.optim.AdamW, torch.optim.Muon


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 6), nn.Linear(6, 3)
    )


def train(net: nn.Module, *optimizers: Any, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
        batch = torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(step))
        net(batch).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def assert_same_weights(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name, **({"rtol": 0, "atol": 0} | tolerance))


def test_each_part_steps_its_parameters_as_it_would_alone() -> None:
    ours, theirs = network(), network()
    parts = [
        {"optim": partial(SGD, momentum=0.9), "names": ["0.*", "4.*"], "lr_factor": 0.5},
        {"optim": Nero, "roles": ["neurons"]},
        {"optim": AdamW},
    ]
    split = Split(ours, parts, lr=0.01)
    named = dict(theirs.named_parameters())
    by_sgd = [named.pop(name) for name in ("0.weight", "0.bias", "4.weight", "4.bias")]
    by_nero = [named.pop("2.weight")]
    others = (SGD(by_sgd, lr=0.005, momentum=0.9), Nero(by_nero, lr=0.01), AdamW(named.values(), lr=0.01))
    train(ours, split)
    train(theirs, *others)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_filters_are_matrices_to_part_as_matrices(memory_format: torch.memory_format) -> None:
    """Muon's steps do not depend on the order of columns, which is another one in channels_last."""
    ours, theirs = network().to(memory_format=memory_format), network()  # type: ignore[call-overload]
    split = Split(ours, [{"optim": Muon, "ndim": 4, "as_matrices": True}, {"optim": SGD}], lr=0.01)
    filters = [theirs[0].weight, theirs[2].weight]
    matrices = [nn.Parameter(weight.detach().flatten(1)) for weight in filters]
    muon, sgd = Muon(matrices, lr=0.01), SGD([p for p in theirs.parameters() if p.ndim != 4], lr=0.01)
    for step in (1, 2, 3):
        theirs.zero_grad()
        train(theirs, steps=(step,))
        for matrix, weight in zip(matrices, filters, strict=True):
            assert isinstance(weight.grad, Tensor)
            matrix.grad = weight.grad.flatten(1)
        muon.step()
        sgd.step()
        for matrix, weight in zip(matrices, filters, strict=True):
            weight.data.copy_(matrix.view_as(weight))
    train(ours, split)
    assert split.param_groups[0]["params"][0].shape == (4, 18)
    assert_same_weights(ours, theirs, rtol=1e-2, atol=1e-4)  # Muon computes in bfloat16


def make(net: nn.Module) -> Split:
    muon = {"optim": Muon, "roles": ["neurons"], "as_matrices": True}
    return Split(net, [muon, {"optim": partial(SGD, momentum=0.9), "roles": ["head"]}, {"optim": AdamW}], lr=0.01)


def test_state_dict_continues_training_bit_exactly() -> None:
    whole, part, resumed = network(), network(), network()
    train(whole, make(whole), steps=(1, 2))
    optimizer = make(part)
    train(part, optimizer, steps=(1,))
    saved = copy.deepcopy(optimizer.state_dict())
    assert sorted(saved["state"]) == list(range(10))
    assert sorted(n for group in saved["param_groups"] for n in group["params"]) == list(range(10))
    resumed.load_state_dict(part.state_dict())
    loaded = make(resumed)
    loaded.load_state_dict(saved)
    train(resumed, loaded, steps=(2,))
    assert_same_weights(whole, resumed)


def test_learning_rate_set_on_split_reaches_parts_also_after_loading() -> None:
    optimizer = make(network())
    optimizer.load_state_dict(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == [0.5] * 3


def test_copy_trains_as_original() -> None:
    net = network()
    train(net, optimizer := make(net))
    both = copy.deepcopy((net, optimizer))
    train(net, optimizer)
    train(*both)
    assert_same_weights(net, both[0])


def test_closure_is_called_once_and_its_loss_returned() -> None:
    net = network()
    optimizer = make(net)
    calls = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 2, 6, 6)).square().sum()
        loss.backward()
        calls.append(loss)
        return loss

    assert optimizer.step(closure) is calls[0]
    assert len(calls) == 1


def test_modes_reach_parts_that_have_them() -> None:
    class WithModes(SGD):
        mode = ""

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    optimizer = Split(network(), [{"optim": WithModes, "ndim": 4}, {"optim": AdamW}], lr=0.1)
    for mode in ("train", "eval"):
        getattr(optimizer, mode)()
        assert optimizer.parts[0].mode == mode  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"optim": SGD, "role": ["head"]}], "part 1 has an unknown key 'role'; there are: optim, roles, names, ndim,"),
        ([{"roles": ["head"]}], "part 1 needs 'optim', an optimiser class, not None"),
        ([{"optim": SGD}, {"optim": SGD, "roles": ["tail"]}], "part 2: there is no role 'tail'; there are: neurons,"),
        (
            [{"optim": SGD, "ndim": 4}],
            "no part takes 0.bias, of shape \\[4\\] and role biases; end with one without ru",
        ),
        ([{"optim": Muon}], "Muon only supports 2D parameters whereas we found a parameter with size: "),
    ],
)
def test_invalid_parts_are_refused(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(network(), parts, lr=0.1)


def test_further_groups_and_foreign_state_are_refused() -> None:
    optimizer = make(network())
    with pytest.raises(RuntimeError, match="add them to one of its parts"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with pytest.raises(ValueError, match="has 1 param groups, and Split has 3"):
        optimizer.load_state_dict(SGD(network().parameters(), lr=0.1).state_dict())
