"""Tests of PPO on the embedded game: rollouts, the loss against a plain implementation, and resumed runs."""

import io
import math
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor, nn
from torch.distributions import Categorical

from nero.engine.schedules import linear_to_zero
from nero.engine.seeding import SeedStreams
from nero.games.base import Turn
from nero.games.catch import Catch
from nero.models.policy import Policy
from nero.plans.config import compose
from nero.runs.store import RunDirectory
from nero.tasks.base import Context
from nero.tasks.playing import moves
from nero.tasks.ppo import PPO, discounted_sums
from nero.tasks.rollout import EpisodeStatistics, as_input
from nero.train.build import build_optimizers, build_task
from nero.train.run import train
from support.animations import pictures
from support.toy import make_loop, without_times
from support.whole_runs import assert_one_line, final_weights, prepare, train_until

TASK = "pong_ppo"
CPU = torch.device("cpu")
SMALL = (
    "task.environments=3",
    "task.steps=8",
    "task.update_epochs=2",
    "task.minibatches=2",
    "task.network.hidden=8",
    "task.epochs=6",
    "task.log_every=2",
)
GAMES, STEPS = 3, 40  # two thirds of a game, so that games end within the second rollout


def make_task(device: torch.device = CPU, seed: int = 0, data: str = "embedded", **settings: Any) -> PPO:
    torch.manual_seed(0)
    context = Context(device, SeedStreams(seed), data, Path())
    defaults: dict[str, Any] = {
        "game": "pong",
        "epochs": 3,
        "environments": GAMES,
        "steps": STEPS,
        "update_epochs": 2,
        "minibatches": 4,
        "clip": 0.1,
        "discount": 0.99,
        "gae_lambda": 0.95,
        "entropy": 0.01,
        "value": 0.5,
        "clip_norm": 0.5,
        "window": 10,
        "log_every": 1,
        "network": partial(Policy, hidden=8),
    }
    return PPO(context, **{**defaults, **settings})


def make_policy_confident(task: PPO) -> PPO:
    """Scale up the policy's weights, since all actions are about equally likely at first."""
    with torch.no_grad():
        task.network.policy.weight.mul_(300)
    return task


class Replay:
    """Replays the same games, with the stacks of frames built on the host one at a time."""

    def __init__(self, task: PPO) -> None:
        self.games = Catch(GAMES)
        frames = self.games.reset(task.context.streams.number("games", 0))
        self.stacks = [deque([np.zeros((84, 84), np.uint8)] * 3 + [frame], maxlen=4) for frame in frames]

    def stacked(self) -> Tensor:
        return torch.from_numpy(np.stack([np.stack(stack) for stack in self.stacks]))

    def step(self, actions: Tensor) -> Turn:
        self.games.send(actions.numpy())
        turn = self.games.receive()
        for stack, frame, ended in zip(self.stacks, turn.frames, turn.ended, strict=True):
            if ended:
                stack.extend([np.zeros((84, 84), np.uint8)] * 3)
            stack.append(frame)
        return turn


def gae(rewards: Tensor, values: Tensor, ended: Tensor, last: Tensor, discount: float, lam: float) -> Tensor:
    """Generalised advantage estimates by the backward recurrence."""
    following, advantage, found = last, torch.zeros_like(last), []
    for reward, value, end in reversed(list(zip(rewards, values, ended, strict=True))):
        goes_on = 1.0 - end.to(value.dtype)
        advantage = reward + discount * following * goes_on - value + discount * lam * goes_on * advantage
        following = value
        found.append(advantage)
    return torch.stack(found[::-1])


def test_rollout_matches_replayed_games_across_updates() -> None:
    task = make_policy_confident(make_task())
    replay = Replay(task)
    network, rollout = task.network, task.rollout
    ends = 0
    for epoch in range(3):
        list(task.batches(epoch))  # without training steps
        for step in range(STEPS):
            stacked = replay.stacked()
            assert torch.equal(rollout.observations(step * GAMES + torch.arange(GAMES)), stacked)
            with torch.no_grad():
                logits, values = network(stacked.float() / 255)
            actions = rollout.actions[step]
            assert torch.allclose(rollout.values[step], values, atol=1e-5)
            assert torch.allclose(rollout.log_probs[step], Categorical(logits=logits).log_prob(actions), atol=1e-5)
            turn = replay.step(actions)
            assert rollout.rewards[step].tolist() == turn.rewards.tolist()
            assert rollout.ended[step].tolist() == turn.ended.tolist()
            ends += int(turn.ended.sum())
        with torch.no_grad():
            last = network(replay.stacked().float() / 255)[1]
        doubles = (tensor.double() for tensor in (rollout.rewards, rollout.values, rollout.ended, last))
        expected = gae(*doubles, 0.99, 0.95)
        assert torch.allclose(rollout.returns.double(), expected + rollout.values, atol=1e-5)
        normal = (expected - expected.mean()) / (expected.std() + 1e-5)
        assert torch.allclose(rollout.advantages.double(), normal, atol=1e-4)
    assert ends >= GAMES, "no game ended: nothing was tested of it"


@given(
    values=st.lists(st.lists(st.floats(-5, 5), min_size=2, max_size=2), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    factor=st.floats(0, 1),
)
def test_discounted_sums_match_backward_recurrence(values: list[list[float]], seed: int, factor: float) -> None:
    given_values = torch.tensor(values, dtype=torch.float64)
    ended = torch.rand(given_values.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    expected, total = [], torch.zeros(2, dtype=torch.float64)
    for value, end in zip(given_values.flip(0), ended.flip(0), strict=True):
        total = value + factor * torch.where(end, 0.0, total)
        expected.append(total)
    sums = discounted_sums(given_values, ended.double(), factor)
    assert torch.allclose(sums, torch.stack(expected[::-1]), atol=1e-9)


def test_loss_and_gradient_match_clipped_objective() -> None:
    task = make_policy_confident(make_task())
    list(task.batches(0))
    with torch.no_grad():  # change policy and values since the rollout
        for weight in task.network.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    rollout, indices = task.rollout, torch.randperm(GAMES * STEPS)[:30]
    [(name, loss)] = task.losses((indices,))
    assert name == "network"
    loss.backward()
    gradients = [weight.grad.clone() for weight in task.network.parameters()]
    task.network.zero_grad()

    actions, old, advantages, old_values, returns = (
        getattr(rollout, field).flatten()[indices]
        for field in ("actions", "log_probs", "advantages", "values", "returns")
    )
    stacks = torch.stack([rollout.observations(torch.tensor([i]))[0] for i in indices.tolist()])
    logits, values = task.network(as_input(stacks))
    policy = Categorical(logits=logits)
    terms, value_terms, clipped = [], [], 0
    for i in range(30):
        ratio = (policy.log_prob(actions)[i] - old[i]).exp()
        held = min(max(ratio, torch.tensor(0.9)), torch.tensor(1.1))
        clipped += bool(ratio != held)
        terms.append(min(ratio * advantages[i], held * advantages[i]))
        moved = old_values[i] + min(max(values[i] - old_values[i], torch.tensor(-0.1)), torch.tensor(0.1))
        value_terms.append(max((values[i] - returns[i]) ** 2, (moved - returns[i]) ** 2))
    assert 0 < clipped < 30, "both sides of the clipping are met"
    expected = -torch.stack(terms).mean() + 0.5 * 0.5 * torch.stack(value_terms).mean() - 0.01 * policy.entropy().mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for ours, weight in zip(gradients, task.network.parameters(), strict=True):
        assert torch.allclose(ours, weight.grad, rtol=1e-4, atol=1e-6)

    means = task.meters.read()
    assert means["count"] == 1
    assert means["entropy"] == pytest.approx(policy.entropy().mean().item(), rel=1e-5)
    assert means["value_loss"] == pytest.approx(0.5 * torch.stack(value_terms).mean().item(), rel=1e-5)
    assert means["policy_loss"] == pytest.approx(-torch.stack(terms).mean().item(), rel=1e-4)
    assert means["clip_fraction"] == pytest.approx(clipped / 30)
    assert means["kl"] > 0


def test_minibatches_cover_all_steps_once_per_pass_in_new_order() -> None:
    task = make_task()
    batches = [batch for (batch,) in task.batches(0)]
    assert len(batches) == task.steps_per_epoch == 2 * 4
    passes = [torch.cat(batches[:4]), torch.cat(batches[4:])]
    for order in passes:
        assert order.sort().values.tolist() == list(range(GAMES * STEPS))
    assert not torch.equal(*passes)
    assert not torch.equal(torch.cat([batch for (batch,) in task.batches(1)][:4]), passes[0])


def test_sampled_actions_follow_policy_distribution() -> None:
    noise = make_task(environments=100, steps=200)._gumbel_noise(0)
    logits = torch.tensor([0.0, 1.0, -0.5])
    drawn = (logits + noise).argmax(dim=-1).flatten().bincount() / noise[..., 0].numel()
    assert drawn.tolist() == pytest.approx(logits.softmax(dim=0).tolist(), abs=4 * 0.5 / math.sqrt(20_000))
    assert noise.isfinite().all()


def test_actions_are_determined_by_seed() -> None:
    actions = []
    for seed in (0, 0, 1):
        task = make_task(seed=seed)
        list(task.batches(0))
        actions.append(task.rollout.actions.clone())
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(actions[0], actions[2])


def test_rollout_rewards_are_signs_while_scores_are_unclipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task()
    plain = task.games.receive
    turns: list[Turn] = []

    def generous() -> Turn:
        turn = plain()
        turns.append(turn._replace(rewards=turn.rewards * np.float32([0.5, 1, 7])))
        return turns[-1]

    monkeypatch.setattr(task.games, "receive", generous)
    for epoch in range(2):
        list(task.batches(epoch))
    rewards = np.stack([turn.rewards for turn in turns])
    assert {-0.5, -7} <= set(np.unique(rewards).tolist())
    assert np.array_equal(task.rollout.rewards.numpy(), np.sign(rewards[STEPS:]))
    ends = [np.flatnonzero([turn.over[game] for turn in turns]) for game in range(GAMES)]
    expected = [rewards[: end[0] + 1, game].sum() for game, end in enumerate(ends)]
    assert [score for score, _ in task.episodes.finished] == expected


@pytest.mark.parametrize(("ready_at", "looks"), [(1, 1), (4, 4), (10, 10), (11, 10)])
def test_wait_polls_device_briefly_then_synchronises(
    monkeypatch: pytest.MonkeyPatch, ready_at: int, looks: int
) -> None:
    """The polling time allows ten queries; synchronising is free if the device is ready."""
    now, events = [0], []

    class Device:
        def record(self) -> None:
            events.append("asked")

        def query(self) -> bool:
            now[0] += 1
            events.append("looked")
            return now[0] >= ready_at

        def synchronize(self) -> None:
            events.append("slept")

    monkeypatch.setattr("nero.tasks.ppo.time.monotonic", lambda: now[0])
    monkeypatch.setattr("nero.tasks.rollout.SPIN", 10)
    rollout = make_task().rollout
    rollout.done = Device()
    rollout.wait()
    assert events == ["asked", *["looked"] * looks, "slept"]


def test_episode_statistics_average_last_finished_games() -> None:
    scores = EpisodeStatistics(count=2, window=3)
    assert all(map(math.isnan, scores.means(3)))

    def turn(rewards: list[float], over: list[bool]) -> Turn:
        ended = np.array([True, True])  # as after a lost life, which does not end a game
        return Turn(np.zeros((2, 1, 1), np.uint8), np.array(rewards, np.float32), ended, np.array(over))

    for rewards, over in (
        ([5.0, 1.0], [False, False]),
        ([5.0, 0.0], [True, False]),  # 10 after 2 steps
        ([0.0, 2.0], [True, True]),  # 0 after 1 step and 3 after 3
        ([7.0, 7.0], [False, False]),
    ):
        scores.add(turn(rewards, over))
    assert scores.means(3) == scores.means(100) == pytest.approx(((10 + 0 + 3) / 3, (2 + 1 + 3) / 3))
    assert scores.means(2)[0] == pytest.approx((0 + 3) / 2)
    assert scores.means(1)[1] == 3
    other = EpisodeStatistics(count=2, window=3)
    other.restore(scores.state())
    for one in (scores, other):
        one.add(turn([1.0, 2.0], [True, False]))
        assert one.means(3)[0] == pytest.approx((0 + 3 + 8) / 3), "the oldest is forgotten"


@pytest.mark.slow
def test_run_logs_update_and_game_metrics(tmp_path: Path) -> None:
    config, run = prepare(tmp_path, TASK, *SMALL, "task.steps=32", "task.epochs=5")
    outcome = train(config)
    assert outcome["status"] == "done"
    assert outcome["epochs_done"] == 5
    records = run.read_metrics()
    assert [record["epoch"] for record in records] == [2, 4, 5], "every second update, and the last"
    assert [record["epochs"] for record in records] == [2, 2, 1]
    assert [record["train/environment_steps"] for record in records] == [192, 384, 480]
    assert [record["step"] for record in records] == [8, 16, 20]
    assert [record["lr"] for record in records] == pytest.approx([0.01 * (1 - done / 5) for done in (1, 3, 4)])
    for record in records:
        assert 0 < record["train/entropy"] <= math.log(3) + 1e-6
        assert record["train/value_loss"] > 0
        assert record["train/kl"] >= 0
        assert 0 <= record["train/clip_fraction"] <= 1
        assert record["train/steps_per_second"] > 0
        assert record["train/restarts"] == 0
    assert records[0]["train/length"] == 57
    assert outcome["metric"] == {"key": "train/reward_100", "goal": "max", "label": "reward"}
    assert outcome["final"] == records[-1]["train/reward_100"]
    assert -3 <= outcome["final"] <= 3


def test_reward_is_logged_over_10_games_and_over_window() -> None:
    """Compare with a list of the returns of 30 games, which all differ."""
    task = make_task(window=20)
    returns = [float(number % 7 - number / 10) for number in range(30)]
    for number, value in enumerate(returns):
        task.episodes.finished.append((value, number))
    logged = task.evaluate()
    assert logged["train/return"] == pytest.approx(sum(returns[-10:]) / 10)
    assert logged["train/reward_20"] == pytest.approx(sum(returns[-20:]) / 20)
    assert task.metric.key == "train/reward_20"
    assert compose(["task=pong_ppo"]).cfg.task.window == 100
    assert make_task(window=10).metric.key == "train/return", "as the first runs logged it"
    assert make_task(window=3).episodes.finished.maxlen == 10


@pytest.mark.slow
def test_animation_is_made_after_last_update_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = prepare(tmp_path / "with", TASK, *SMALL)
    train(config)
    assert list(run.pictures("game")) == [6], "the last epoch"
    monkeypatch.setattr(PPO, "_animation", lambda task: None)
    config, without = prepare(tmp_path / "without", TASK, *SMALL)
    train(config)
    assert without.pictures("game") == {}
    assert without_times(run.read_metrics()) == without_times(without.read_metrics())
    assert all(map(torch.equal, final_weights(run), final_weights(without)))
    ours, theirs = (torch.load(io.BytesIO(each.load_checkpoint() or b"")) for each in (run, without))
    assert ours["task"]["games"] == theirs["task"]["games"], "those of training go on as before"
    assert torch.equal(ours["rng"]["cpu"], theirs["rng"]["cpu"])


def test_animation_shows_twenty_seconds_of_play_of_trained_policy(tmp_path: Path) -> None:
    task = make_policy_confident(make_task())
    task.evaluate()
    path = tmp_path / "game.gif"
    path.write_bytes(task.pictures()["game.gif"])
    assert path.stat().st_size < 150_000
    read = pictures(path)
    assert sum(duration for _, duration in read) == 20_000
    played = [move.frame for move in moves(task, 300, 300, seed=task.context.streams.number("games shown"))]
    assert len(read) == len(played), "the ball always moves"
    assert all(np.array_equal(ours, theirs) for (ours, _), theirs in zip(read, played, strict=True))
    list(task.batches(0))
    task.evaluate()
    assert task.pictures() == {}, "not the last epoch"


@pytest.mark.slow
def test_animation_of_pong_is_small() -> None:
    """A confident policy moves the paddle all the time, so that most of the screen changes."""
    pytest.importorskip("ale_py")
    task = make_policy_confident(make_task(data="real"))
    task.evaluate()
    with Image.open(io.BytesIO(task.pictures()["game.gif"])) as image:
        assert image.size == (160, 210)
    assert 10_000 < len(task.pictures()["game.gif"]) < 150_000


def test_failed_animation_gives_warning_and_keeps_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()

    def broken(*words: Any, **options: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("nero.tasks.ppo.small_gif", broken)
    with pytest.warns(UserWarning, match="^no animation of the policy's play: OSError: no space$"):
        assert "train/return" in task.evaluate()
    assert task.pictures() == {}


@pytest.mark.slow
def test_interrupted_run_on_saveable_games_resumes_exactly(tmp_path: Path) -> None:
    config, whole = prepare(tmp_path / "whole", TASK, *SMALL)
    train(config)
    for stop in (1, 2, 5):  # number of updates: within and between the log lines, which cover two updates each
        config, run = prepare(tmp_path / str(stop), TASK, *SMALL)
        train_until(config, stop)
        assert train(config)["status"] == "done"
        assert without_times(run.read_metrics()) == without_times(whole.read_metrics())
        for ours, theirs in zip(final_weights(run), final_weights(whole), strict=True):
            assert torch.equal(ours, theirs)


def test_steps_per_second_excludes_time_before_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each update takes one second; updates before the interruption must not count in the resumed process."""
    now, collect = [0.0], PPO._collect

    def slowly(self: PPO, epoch: int) -> None:
        collect(self, epoch)
        now[0] += 1

    monkeypatch.setattr("nero.tasks.ppo.time.monotonic", lambda: now[0])
    monkeypatch.setattr(PPO, "_collect", slowly)
    monkeypatch.setattr("nero.tasks.ppo.SHOWN", 3)
    config, run = prepare(tmp_path, TASK, *SMALL)
    train_until(config, 3)
    now[0] += 500
    assert train(config)["status"] == "done"
    assert [record["train/steps_per_second"] for record in run.read_metrics()] == [24.0, 24.0, 24.0]


@pytest.mark.slow
def test_resumed_atari_run_restarts_games_and_logs_it(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    config, run = prepare(tmp_path, TASK, *SMALL, "data=real")
    train_until(config, 4)
    assert train(config)["status"] == "done"
    assert [record["train/restarts"] for record in run.read_metrics()] == [0, 0, 1]
    assert [record["train/environment_steps"] for record in run.read_metrics()] == [48, 96, 144]


def test_actions_and_screen_depend_on_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    config, _ = prepare(tmp_path, TASK, *SMALL, "data=real", "task.game=journey_escape")
    task = build_task(config, CPU)
    assert isinstance(task, PPO)
    assert task.games.screen == (230, 160)
    assert task.network.policy.out_features == task.games.actions == 16
    list(task.batches(0))
    assert task.rollout.frames[3:].float().std() > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data=real", "task.game=pingpong"], "game: ale-py has no game 'pingpong'"),
        (["task.minibatches=5"], "minibatches must divide environments x steps = 24: 5"),
        (["task.steps=0"], "steps must be a positive integer"),
        (["task.window=0.5"], "window must be a positive integer"),
        (["task.clip_norm=-1"], "clip_norm must be a positive number"),
    ],
)
def test_invalid_settings_give_one_line_error(tmp_path: Path, words: list[str], message: str) -> None:
    if "data=real" in words:
        pytest.importorskip("ale_py")
    assert_one_line(tmp_path, TASK, [*SMALL, *words], message)


@pytest.mark.parametrize("optim", ["nero", "sgd", "adam", "lamb", "lamb_momentum", "madam"])
def test_gradients_are_clipped_for_every_optimiser(tmp_path: Path, optim: str) -> None:
    config, _ = prepare(tmp_path, TASK, *SMALL, f"optim={optim}")
    task = build_task(config, CPU)
    [optimizer] = build_optimizers(config.cfg.optim, task).values()
    for weight in task.networks()["network"].parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    norm = torch.cat([weight.grad.flatten() for weight in task.networks()["network"].parameters()]).norm()
    assert norm.item() == pytest.approx(0.5, rel=1e-4)


def test_default_settings_match_paper() -> None:
    settings = compose([f"task={TASK}", "optim=adam"]).cfg
    assert settings.task.epochs * settings.task.environments * settings.task.steps == 4_999_168
    assert settings.task.schedule.epochs == settings.task.epochs
    assert (settings.optim.eps, list(settings.optim.betas)) == (1e-5, [0.0, 0.999])
    with_momentum = compose([f"task={TASK}", "optim=lamb_momentum"]).cfg.optim
    assert (with_momentum.eps, list(with_momentum.betas)) == (1e-5, [0.9, 0.999])


class OffZero(Policy):
    """A policy with non-zero biases.

    With zero biases, a balanced filter gives zero up to rounding on a uniform area, and rounding decides the ReLU.
    """

    def __init__(self, actions: int, hidden: int) -> None:
        super().__init__(actions, hidden)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.uniform_(weight, -0.1, 0.1)


class ShortRun:
    """A run of an `OffZero` policy. Small learning rates keep rounding from changing the sampled actions."""

    def __init__(self, folder: Path, optim: str, data: str, *words: str) -> None:
        if data == "real":
            pytest.importorskip("ale_py")
        network = f"task.network._target_={__name__}.{OffZero.__name__}"
        config, run = prepare(folder, TASK, *SMALL, network, f"optim={optim}", f"data={data}", "precision=fp32", *words)
        assert train(config)["status"] == "done"
        self.end = torch.cat([weight.double().flatten().cpu() for weight in final_weights(run)])
        self.log = run.read_metrics()


def assert_alike(start: ShortRun, one: ShortRun, *others: ShortRun) -> None:
    """Final weights must agree to 4% of the distance trained, and logged values to 0.1%."""
    way = (one.end - start.end).norm()
    assert way > 1e-6 * start.end.norm()
    for other in others:
        assert (other.end - one.end).norm() < 0.04 * way
        for ours, theirs in zip(other.log, one.log, strict=True):
            for key in ("train/entropy", "train/value_loss", "train/environment_steps"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["embedded", "real"])
def test_run_without_mkldnn_ends_with_similar_weights(tmp_path: Path, data: str) -> None:
    start = ShortRun(tmp_path / "start", "nero", data, "optim.lr=1e-12")
    usual = ShortRun(tmp_path / "usual", "nero", data, "optim.lr=1e-5")
    with torch.backends.mkldnn.flags(enabled=False):
        other = ShortRun(tmp_path / "other", "nero", data, "optim.lr=1e-5")
    assert_alike(start, usual, other)


@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["nero", "adam"])
@pytest.mark.parametrize("data", ["embedded", "real"])
def test_captured_gpu_run_matches_eager_and_cpu_runs(tmp_path: Path, optim: str, data: str) -> None:
    start = ShortRun(tmp_path / "start", optim, data, "machine=gpu", "optim.lr=1e-12")
    captured = ShortRun(tmp_path / "captured", optim, data, "machine=gpu", "optim.lr=1e-5")
    eager = ShortRun(tmp_path / "eager", optim, data, "machine=gpu", "machine.capture=false", "optim.lr=1e-5")
    cpu = ShortRun(tmp_path / "cpu", optim, data, "machine=cpu", "optim.lr=1e-5")
    assert_alike(start, eager, captured, cpu)


class Told(nn.Module):
    """A policy on fixed features: the ball's height and offset from the paddle, now and three frames ago."""

    places: Tensor

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, actions), nn.Linear(32, 1)
        self.register_buffer("places", torch.linspace(-1, 1, 42))
        for weight in self.policy.parameters():
            nn.init.zeros_(weight)  # all actions are equally likely at first

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x[:, ::3, ::2, ::2]  # the oldest and the newest frame, every other pixel
        ball, paddle = x[:, :, :40] > 0.8, x[:, :, 40:] > 0.3
        across = self._middle(ball.sum(dim=2)) - self._middle(paddle.sum(dim=2))
        features = self.features(torch.cat([across, self._middle(ball.sum(dim=3))], dim=1))
        return self.policy(features), self.value(features).squeeze(1)

    def _middle(self, seen: Tensor) -> Tensor:
        return (seen * self.places[: seen.shape[2]]).sum(dim=2) / seen.sum(dim=2).clamp(min=1)


@pytest.mark.slow
def test_agent_learns_catch(tmp_path: Path) -> None:
    """The agent must learn to catch more than two of three balls. Learning from pixels would take minutes on a CPU."""
    learning = {"epochs": 30, "environments": 16, "steps": 32, "clip": 0.2, "discount": 0.95}
    task = make_task(**learning, window=50, log_every=5, network=Told)
    run = RunDirectory(tmp_path / "run")
    make_loop(task, run, schedule=linear_to_zero(30)).run()
    returns = [record["train/return"] for record in run.read_metrics()]
    assert returns[0] < -0.5
    assert returns[-1] > 1


def test_thread_count_is_unchanged_on_cpu() -> None:
    assert make_task().threads is None


@pytest.mark.gpu
def test_torch_uses_one_cpu_thread_on_gpu() -> None:
    assert make_task(torch.device("cuda")).threads == 1
