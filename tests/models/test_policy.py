"""The policy network: its size, initialisation and outputs."""

import math

import pytest
import torch
from torch import nn

from nero.games.atari import AtariGames
from nero.models.policy import FRAMES, SIDE, AreaResize, Policy
from nero.optim.nero import Nero
from nero.tasks.rollout import as_input


def test_parameter_shapes_and_count_match_the_paper() -> None:
    network = Policy(actions=6)
    shapes = [tuple(p.shape) for p in network.parameters()]
    assert shapes == [
        (32, 4, 8, 8),
        (32,),
        (64, 32, 4, 4),
        (64,),
        (32, 64, 3, 3),
        (32,),
        (512, 32 * 7 * 7),
        (512,),
        (6, 512),
        (6,),
        (1, 512),
        (1,),
    ]
    assert sum(p.numel() for p in network.parameters()) == 866_439


def test_weights_start_orthogonal_with_layer_gains_and_zero_biases() -> None:
    torch.manual_seed(0)
    network = Policy(actions=6)
    gains = {"features": math.sqrt(2), "policy": 0.01, "value": 1.0}
    seen = 0
    for name, module in network.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        gain = gains[name.split(".")[0]]
        weight = module.weight.detach().double().flatten(1)
        square = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        assert torch.allclose(square, gain**2 * torch.eye(len(square), dtype=torch.float64), atol=1e-5)
        assert module.bias is not None
        assert not module.bias.any()
        seen += 1
    assert seen == 6


def test_initial_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    logits, values = Policy(actions=6)(torch.rand(5, 4, 84, 84))
    assert logits.shape == (5, 6)
    assert values.shape == (5,)
    assert logits.softmax(dim=1).detach().numpy() == pytest.approx(1 / 6, abs=0.01)
    assert values.detach().abs().max() > 0


def test_balanced_first_layer_is_nearly_blind_to_uniform_pong_background() -> None:
    """A filter that sums to zero gives zero for a uniform grey; an orthogonal filter does not."""
    pytest.importorskip("ale_py")
    games = AtariGames("pong", 1)
    frame = AreaResize(games.screen, SIDE, torch.device("cpu"))(torch.from_numpy(games.reset(0)))
    torch.manual_seed(0)
    network = Policy(games.actions)
    shares = []
    for _ in range(2):
        with torch.no_grad():
            seen = network.features[0](as_input(frame[:, None].expand(-1, FRAMES, -1, -1)))
        shares.append((seen.abs() < 1e-6).float().mean().item())
        Nero(network.parameters(), lr=0.01)  # balances the weights
    assert shares[0] < 0.001
    assert shares[1] > 0.6
