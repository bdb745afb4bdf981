import copy
import functools
import math

import pytest
import torch
from hydra.utils import instantiate
from torch import nn

from nero.optim import LAMB, Madam, constrained, neuron_mean, neuron_norm, project_, project_all_
from nero.plans.config import compose
from support import references

BASES = pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam, LAMB, Madam])


def weights_of(params):
    return [param for param in params if param.ndim >= 2 and param[0].numel() > 1]


def assert_balanced(params, mean=True, norm=True):
    for weight in weights_of(params):
        if norm:
            torch.testing.assert_close(neuron_norm(weight), torch.ones(weight.shape[0]), rtol=0, atol=5e-6)
        if mean:
            size = neuron_norm(weight).max()
            assert neuron_mean(weight).abs().max() * math.sqrt(weight[0].numel()) <= 5e-6 * size


@BASES
@pytest.mark.parametrize(("mean", "norm"), [(True, True), (True, False), (False, True), (False, False)])
def test_step_is_base_step_followed_by_projection(base, mean, norm):
    params, expected = references.parameters(), references.parameters()
    optimizer = constrained(params, base, lr=0.05, mean=mean, norm=norm)
    assert type(optimizer) is base
    assert_balanced(params, mean, norm)

    for weight in expected:
        project_(weight, mean=mean, norm=norm)
    plain = base(expected, lr=0.05)
    for t in range(4):
        references.set_gradients(params, seed=t)
        references.set_gradients(expected, seed=t)
        optimizer.step()
        plain.step()
        project_all_(expected, mean=mean, norm=norm)
        references.assert_same(params, expected)
    assert_balanced(params, mean, norm)


@pytest.mark.parametrize("base", [torch.optim.SGD, Madam])
def test_balance_holds_after_a_thousand_steps(base):
    params = references.parameters(shapes=[(6, 40), (5,)])
    optimizer = constrained(params, base, lr=0.02)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()
    assert_balanced(params)


def test_one_dimensional_parameters_are_not_projected():
    bias, gain = torch.tensor([3.0, 4.0]), torch.ones(())
    optimizer = constrained([bias, gain], torch.optim.SGD, lr=0.0)
    bias.grad, gain.grad = torch.ones(2), torch.ones(())
    optimizer.step()
    assert bias.tolist() == [3.0, 4.0]
    assert gain == 1


def test_settings_are_passed_to_base_optimiser():
    base = functools.partial(torch.optim.SGD, momentum=0.5, nesterov=True)
    (group,) = constrained([torch.ones(2, 2)], base, lr=0.3, momentum=0.9).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.3, 0.9, True)


def test_accepts_iterators_named_parameters_and_groups():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    constrained(model.parameters(), torch.optim.SGD, lr=0.1)  # an iterator
    assert_balanced(model.parameters())

    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    named = constrained(model.named_parameters(), torch.optim.SGD, lr=0.1)
    assert named.param_groups[0]["param_names"][0] == "0.weight"
    assert_balanced(model.parameters())

    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].weight}]
    optimizer = constrained(groups, torch.optim.SGD, lr=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 1]
    assert_balanced(model.parameters())


def test_madam_bound_is_computed_from_balanced_weights():
    weight = 100 * references.draw(0, [(3, 16)])[0]
    optimizer = constrained([weight], Madam, lr=0.01)
    assert optimizer.state[weight]["bound"].item() == pytest.approx(3 / math.sqrt(16))


def project(weight):
    """Equation 4, written out: rows of mean 0 and norm 1."""
    rows = weight.flatten(1)
    rows = rows - rows.mean(dim=1, keepdim=True)
    return (rows / rows.square().sum(dim=1, keepdim=True).sqrt()).view_as(weight)


def lamb_step(weight, grad, lr):
    average = 0.001 * grad**2  # the first step: no bias correction, beta1 = 0
    adam = grad / (average.sqrt() + 1e-6)
    return weight - lr * weight.norm().clamp(max=10) / adam.norm() * adam


def madam_step(weight, grad, lr, raw):
    relative = (grad / grad.abs()).clamp(-10, 10)  # the first step: the corrected average is the squared gradient
    bound = 3 * raw.square().mean().sqrt()
    return (weight * torch.exp(-lr * weight.sign() * relative)).clamp(-bound, bound)


@pytest.mark.parametrize("name", ["lamb", "madam"])
def test_constrained_configs_project_only_after_each_step(name):
    """Compares the shipped configs with one step written out in float64, from raw weights with norms far from one."""
    raw = 5 * torch.randn(6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grad = torch.randn(6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = nn.Parameter(raw.clone())
    config = compose([f"optim={name}_constrained", "~optim.display_name"])
    optimizer = instantiate(config.cfg.optim)([weight], lr=0.1)
    assert torch.equal(weight, raw), "not projected at construction"
    weight.grad = grad.clone()
    optimizer.step()
    step = lamb_step(raw, grad, 0.1) if name == "lamb" else madam_step(raw, grad, 0.1, raw)
    torch.testing.assert_close(weight.data, project(step), rtol=1e-10, atol=1e-12)
    if name == "madam":
        assert optimizer.state[weight]["bound"].item() == pytest.approx(3 * raw.square().mean().sqrt().item())
    safest = nn.Parameter(raw.clone())
    constrained([safest], {"lamb": LAMB, "madam": Madam}[name], lr=0.1)
    torch.testing.assert_close(safest.data, project(raw), rtol=1e-10, atol=1e-12)


def test_constrained_adam_reduces_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    inputs = torch.randn(64, 8)
    targets = copy.deepcopy(model)(inputs).detach() * 0.3
    optimizer = constrained(model.parameters(), torch.optim.Adam, lr=0.01)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    assert_balanced(model.parameters())
