"""Proximal policy optimisation (Schulman et al., 2017) of a network that plays games from pixels: Figure 8.

One update is an epoch of the engine's loop, from top to bottom of this file (`rollout` has the buffers):

    batches    collects a rollout, `steps` steps of `environments` games with the current policy (`_collect`), computes
               advantages and returns (`_finish`), and yields minibatches of indices into the rollout
    losses     the clipped objective on a minibatch; the engine does the step
    evaluate   returns and lengths of the last finished games, and means over the minibatches
    pictures   after the last update an animation of the policy's play, in games of its own

The rollout stays on the device: each frame is uploaded once, as bytes, and stacks of four are gathered where they are
used. The work on the device between two steps of the games is captured like a training step. The games' threads run
while the host updates its statistics.

Implementation details that matter: advantages are normalised over the whole rollout, not per minibatch; the value loss
is half the maximum of the clipped and unclipped squared error; a game truncated at its time limit counts as ended;
stacks of frames start black; rewards are clipped to their sign, but the reported return is the game's own; gradients
are clipped by their joint norm for every optimiser.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from nero.games.animation import small_gif
from nero.games.atari import AtariGames
from nero.games.base import GameError, Games, Turn
from nero.games.catch import Catch
from nero.models.policy import SIDE, AreaResize
from nero.tasks.base import (
    NETWORK,
    BadSetting,
    Batch,
    Context,
    Meters,
    Metric,
    Task,
    Work,
    build_network,
    check_positive,
    check_range,
)
from nero.tasks.playing import moves
from nero.tasks.rollout import EpisodeStatistics, Rollout, as_input, entries_at

RECENT = 10  # finished games of "train/return", which is always logged; the authors' code prints the same mean
MEANS = ("entropy", "value_loss", "policy_loss", "kl", "clip_fraction")  # logged as means over minibatches
SHOWN = 300  # actions of the animation at the end of training: 20 seconds
LARGEST_GIF = 150_000  # bytes


class PPO(Task):
    """Learn to play `game`; configs/task/pong_ppo.yaml describes the settings.

    The metric is "train/reward_<window>", or "train/return" for a window of 10.
    """

    resumes_within_epoch = False  # rollouts are not saved

    def __init__(
        self,
        context: Context,
        game: str,
        epochs: int,
        environments: int,
        steps: int,
        update_epochs: int,
        minibatches: int,
        clip: float,
        discount: float,
        gae_lambda: float,
        entropy: float,
        value: float,
        clip_norm: float,
        window: int,
        log_every: int,
        network: Callable[..., nn.Module],
    ) -> None:
        check_positive(environments=environments, steps=steps, update_epochs=update_epochs, minibatches=minibatches)
        check_positive(window=window, log_every=log_every)
        check_range(0, 1, discount=discount, gae_lambda=gae_lambda)
        check_range(0, inf, clip=clip, entropy=entropy, value=value)
        if environments * steps % minibatches:
            raise BadSetting(f"minibatches must divide environments x steps = {environments * steps}: {minibatches}")
        self.context, self.game = context, game
        self.epochs, self.environments, self.steps = epochs, environments, steps
        self.update_epochs, self.minibatches = update_epochs, minibatches
        self.steps_per_epoch = update_epochs * minibatches
        self.clip, self.discount, self.gae_lambda = clip, discount, gae_lambda
        self.entropy, self.value, self.clip_norm = entropy, value, clip_norm
        self.log_every, self.window = log_every, window
        self.metric = Metric("train/return" if window == RECENT else f"train/reward_{window}", "max", "reward")
        device = context.device
        if device.type == "cuda":
            self.threads = 1  # more threads of torch would spin and take the cores from the games
        self.games = self.make_games(environments)
        self.network = build_network(network, self.games.actions).to(device)
        convert_conv2d_weight_memory_format(self.network, torch.channels_last)
        self.resize = AreaResize(self.games.screen, SIDE, device)
        self.rollout = Rollout(steps, environments, self.games, self.resize, device)
        self.meters = Meters(device, sums=(*MEANS, "count"))
        self.episodes = EpisodeStatistics(environments, max(window, RECENT))
        self.started = False  # whether the games have been reset
        self.restarts = 0
        self.ended = epochs  # an evaluation before any batch is one of a finished run
        self.animation: bytes | None = None
        self.last_log = time.monotonic(), 0  # time and environment steps
        self.act: Work = self._act
        self.observe_and_act: Work = self._observe_and_act
        self.finish: Work = self._finish

    def make_games(self, count: int, colour: bool = False) -> Games:
        """The game by ale-py, or the embedded one."""
        if self.context.data == "embedded":
            return Catch(count, colour)
        try:
            return AtariGames(self.game, count, colour)
        except GameError as error:
            raise BadSetting(f"game: {error}") from error

    def before_training(self, as_step: Callable[[Work], Work]) -> None:
        self.act, self.observe_and_act, self.finish = map(as_step, (self._act, self._observe_and_act, self._finish))
        self.last_log = time.monotonic(), self.episodes.steps  # steps before a resume took another time

    # collecting a rollout

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        self.ended = epoch + 1
        if not self.started:
            self.started = True
            self.rollout.reset_(self.games.reset(self.context.streams.number("games", epoch)))
            self.episodes.reset()
        self._collect(epoch)
        generator = self.context.streams.generator("minibatches", epoch)
        count = self.environments * self.steps
        orders = torch.stack([torch.randperm(count, generator=generator) for _ in range(self.update_epochs)])
        for order in orders.to(self.context.device):
            yield from ((indices,) for indices in order.chunk(self.minibatches))
        self.rollout.wait()  # for the end of the update, without keeping a core from the games of other runs

    def _collect(self, epoch: int) -> None:
        """Play `steps` steps of all games and fill the rollout."""
        rollout, games = self.rollout, self.games
        rollout.begin_(self._gumbel_noise(epoch))
        self.act(())
        turn: Turn | None = None
        for step in range(1, self.steps + 1):
            rollout.wait()
            games.send(rollout.host_actions.numpy())
            if turn is not None:
                self.episodes.add(turn)  # while the games run
            turn = games.receive()
            rollout.upload(turn)
            (self.observe_and_act if step < self.steps else self.finish)(())
        assert turn is not None
        self.episodes.add(turn)

    def _gumbel_noise(self, epoch: int) -> Tensor:
        """Noise for action sampling: the argmax of logits plus Gumbel noise is distributed as their softmax.

        Drawn in advance on the CPU: the same on every device, and a resumed run needs no saved state.
        """
        shape = (self.steps, self.environments, self.games.actions)
        draws = torch.rand(shape, dtype=torch.float64, generator=self.context.streams.generator("actions", epoch))
        return -(-(draws.clamp(min=torch.finfo(torch.float64).tiny)).log()).log().float()

    @torch.no_grad()
    def _act(self, nothing: Batch) -> None:
        """Sample the actions of the current step."""
        rollout = self.rollout
        logits, values = self._forward(rollout.observations(rollout.now))
        actions = (logits + entries_at(rollout.now, rollout.gumbel_noise)).argmax(dim=1)
        rollout.host_actions.copy_(actions, non_blocking=True)
        rollout.put_(actions=actions, values=values, logits=logits)

    @torch.no_grad()
    def _observe_and_act(self, nothing: Batch) -> None:
        self.rollout.observe_()
        self._act(nothing)

    @torch.no_grad()
    def _finish(self, nothing: Batch) -> None:
        """Observe the last step and compute advantages and returns by GAE (Schulman et al., 2016)."""
        rollout = self.rollout
        rollout.observe_()
        _, last_values = self._forward(rollout.observations(rollout.now))
        values, next_values = rollout.values, torch.cat([rollout.values[1:], last_values[None]])
        td_errors = rollout.rewards + self.discount * next_values * (1 - rollout.ended) - values
        advantages = discounted_sums(td_errors, rollout.ended, self.discount * self.gae_lambda)
        rollout.returns.copy_(advantages + values)
        rollout.advantages.copy_((advantages - advantages.mean()) / (advantages.std() + 1e-5))
        rollout.log_probs.copy_(_log_probs(rollout.logits, rollout.actions))

    def _forward(self, stacks: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = self.network(as_input(stacks))
        return logits.float(), values.float()

    # learning from it

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        (indices,) = batch
        rollout = self.rollout
        actions, old_log_probs, old_values, advantages, returns = (
            entries_at(indices, recorded)
            for recorded in (rollout.actions, rollout.log_probs, rollout.values, rollout.advantages, rollout.returns)
        )
        logits, values = self._forward(rollout.observations(indices))

        log_ratios = _log_probs(logits, actions) - old_log_probs
        ratios = log_ratios.exp()
        clipped_ratios = ratios.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()

        clipped_values = old_values + (values - old_values).clamp(-self.clip, self.clip)
        value_loss = 0.5 * torch.maximum((values - returns) ** 2, (clipped_values - returns) ** 2).mean()

        log_probs = logits.log_softmax(dim=1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()

        clip_fraction = ((ratios - 1).abs() > self.clip).float().mean()
        kl = (ratios - 1 - log_ratios).mean()  # the estimator of low variance that is never negative
        for name, value in zip(MEANS, (entropy, value_loss, policy_loss, kl, clip_fraction), strict=True):
            self.meters.add_(name, value)
        self.meters.add_("count", 1.0)
        yield NETWORK, policy_loss + self.value * value_loss - self.entropy * entropy

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        (begun, steps), self.last_log = self.last_log, (time.monotonic(), self.episodes.steps)
        recent_return, recent_length = self.episodes.means(RECENT)
        self.animation = self._animation() if self.ended == self.epochs else None
        return {
            **{f"train/{name}": sums[name] / max(sums["count"], 1.0) for name in MEANS},
            "train/return": recent_return,
            self.metric.key: self.episodes.means(self.window)[0],
            "train/length": recent_length,
            "train/environment_steps": self.episodes.steps,
            "train/steps_per_second": (self.last_log[1] - steps) / (self.last_log[0] - begun),
            "train/restarts": self.restarts,
        }

    def _animation(self) -> bytes | None:
        """A GIF of the policy's play from the start of a game. A run is not lost because it cannot be made."""
        try:
            seed = self.context.streams.number("games shown")
            return small_gif((move.frame for move in moves(self, games=SHOWN, steps=SHOWN, seed=seed)), LARGEST_GIF)
        except Exception as error:
            warnings.warn(f"no animation of the policy's play: {type(error).__name__}: {error}", stacklevel=2)
            return None

    def pictures(self) -> dict[str, bytes]:
        return {"game.gif": self.animation} if self.animation is not None else {}

    # resuming

    def state_dict(self) -> dict[str, Any]:
        """All but the state of Atari emulators, which is not accessible: they restart, counted in `train/restarts`."""
        games = self.games.state()
        seen = None if games is None else self.rollout.last_frames()
        counts = {"scores": self.episodes.state(), "restarts": self.restarts}
        return {**super().state_dict(), **counts, "games": games, "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.episodes.restore(state["scores"])
        self.restarts = state["restarts"]
        if state["games"] is None:
            self.restarts += 1
            return
        self.games.restore(state["games"])
        self.rollout.restore_last_frames_(state["seen"])
        self.started = True


def discounted_sums(values: Tensor, ended: Tensor, factor: float) -> Tensor:
    """[steps, games] -> for each step the sum of its and later values, times `factor` per step, to the episode's end.

    Vectorised: a later step counts if no end lies between, that is if the same number of ends came before both.
    """
    steps = len(values)
    before = ended.cumsum(dim=0) - ended
    step = torch.arange(steps, device=values.device)
    distance = step[None, :] - step[:, None]
    weights = torch.where(distance >= 0, factor ** distance.clamp(min=0).to(values.dtype), 0.0)
    same_episode = before[:, None] == before[None, :]
    return (weights[:, :, None] * same_episode * values[None, :]).sum(dim=1)


def _log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1).gather(-1, actions[..., None]).squeeze(-1)
