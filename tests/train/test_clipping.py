"""Tests of `clip_norm`, a setting of every optimiser."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from nero.plans.config import ConfigError, compose
from nero.train.build import clip_before_step
from nero.train.run import train

SMALL = [
    "data=embedded",
    "machine=cpu",
    "task.depth=3",
    "task.train_examples=40",
    "task.batch_size=20",
    "task.epochs=1",
]


@pytest.mark.parametrize("norm", [0.25, 1e6])
def test_gradients_are_clipped_by_total_norm_before_step(norm: float) -> None:
    torch.manual_seed(0)
    ours = nn.Linear(4, 3)
    theirs = copy.deepcopy(ours)
    clipped, plain = (torch.optim.SGD(network.parameters(), lr=1.0) for network in (ours, theirs))
    clip_before_step(clipped, norm, list(ours.parameters()))
    x = 10 * torch.randn(5, 4)
    for _ in range(3):
        for network, optimizer in ((ours, clipped), (theirs, plain)):
            optimizer.zero_grad()
            network(x).square().mean().backward()
        clip_grad_norm_(theirs.parameters(), norm)
        clipped.step()
        plain.step()
        torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()], rtol=0, atol=0)


def test_clipped_sgd_step_has_length_lr_times_norm() -> None:
    torch.manual_seed(0)
    network = nn.Linear(30, 20)
    before = [param.detach().clone() for param in network.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), lr=2.0)
    clip_before_step(optimizer, 0.25, list(network.parameters()))
    (100 * network(torch.randn(5, 30))).square().sum().backward()
    optimizer.step()
    moved = [(new - old).detach().flatten() for new, old in zip(network.parameters(), before, strict=True)]
    assert torch.cat(moved).norm().item() == pytest.approx(0.5, rel=1e-5)


@pytest.mark.slow
def test_clip_norm_setting_takes_effect(tmp_path) -> None:
    finals = []
    for words in ([], ["+optim.clip_norm=0.0001"], ["+optim.clip_norm=1e9"]):
        config = compose([*SMALL, "optim=sgd", *words, f"store={tmp_path / str(len(finals))}"])
        finals.append(train(config)["final_metrics"]["test/loss"])
    assert finals[0] == finals[2] != finals[1]


@pytest.mark.parametrize("norm", ["0", "-1", "true", "much"])
def test_invalid_clip_norm_gives_one_line_error(tmp_path, norm: str) -> None:
    config = compose([*SMALL, "optim=sgd", f"+optim.clip_norm={norm}", f"store={tmp_path}"])
    with pytest.raises(ConfigError, match="optim: clip_norm must be a positive number") as error:
        train(config)
    assert "\n" not in str(error.value)
