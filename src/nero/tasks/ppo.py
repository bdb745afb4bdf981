"""Proximal policy optimisation (Schulman et al., 2017) of a network that plays games from their pixels: Figure 8.

One update is an epoch of the engine's loop, from top to bottom of this file:

    batches    plays `steps` steps of `environments` games with the policy as it stands (`_collect`), sees how much
               better each action was than expected (`_finish`), and yields minibatches of what was played: places only
    losses     the clipped objective on a minibatch; the engine does the step
    evaluate   how the last finished games went, and what the update did

Everything that was played stays on the device: each frame is uploaded once, as bytes, and stacks of four are put
together where they are used. What the device does between two steps of the games is captured like a training step; the
games' threads play while the host keeps its accounts.

What is easily done otherwise, and makes a difference: advantages are normalised over the whole rollout, not per
minibatch; the value loss is half the squared error, clipped, and the larger of the two counts; a game that is cut off
at its time limit counts as ended; a stack of frames begins black; rewards are the sign of what the game counts, but the
reward that is reported is the game's own; gradients are clipped by their joint norm for every optimiser.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from nero.games.atari import AtariGames
from nero.games.base import GameError, Games, Turn
from nero.games.catch import Catch
from nero.models.policy import FRAMES, SIDE, AreaResize
from nero.tasks.base import NETWORK, BadSetting, Batch, Context, Meters, Metric, Task, Work, check_whole

EARLIER = FRAMES - 1  # frames that a stack has beside the newest
WATCHING = 2e-4  # s that the host waits for the device with its eyes open, before it sleeps
RECENT = 10
"""Finished games of the mean that is always logged, as "train/return"; the authors' code prints the same."""

MEANS = ("entropy", "value_loss", "policy_loss", "kl", "clip_fraction")
"""What is logged of updates, as means over their minibatches."""


class PPO(Task):
    """Learn to play `game`.

    environments:  games side by side; with `steps` of each, what an update learns from
    update_epochs: times that an update sees all of it, in an order of its own each, cut into `minibatches`
    clip:          how far an update may move the ratio of probabilities from 1, and values from where they were
    gae_lambda:    0 trusts the values one step ahead, 1 trusts the rewards alone
    window:        finished games that the reported reward is a mean over: the metric is "train/reward_<window>", or
                   "train/return" for a window of 10, which is logged in any case
    """

    resumes_within_epoch = False  # what was played is not saved

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
        counts = {"environments": environments, "steps": steps, "update_epochs": update_epochs}
        for name, count in {**counts, "minibatches": minibatches, "window": window, "log_every": log_every}.items():
            check_whole(name, count)
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
            self.threads = 1  # more of torch's would spin, and take the cores from the games
        self.games = self.make_games(environments)
        self.network = network(self.games.actions).to(device)
        convert_conv2d_weight_memory_format(self.network, torch.channels_last)
        self.resize = AreaResize(self.games.screen, SIDE, device)
        self.rollout = Rollout(steps, environments, self.games, device)
        self.meters = Meters(device, sums=(*MEANS, "count"))
        self.scores = Scores(environments, max(window, RECENT))
        self.playing = False  # whether the games have begun
        self.restarts = 0
        self.since = time.monotonic(), 0  # the last line of the log: when, and after how many steps
        self.decide: Work = self._decide
        self.go_on: Work = self._go_on
        self.finish: Work = self._finish

    def make_games(self, count: int, colour: bool = False) -> Games:
        """The game by ale-py, or the embedded one in its place."""
        if self.context.data == "embedded":
            return Catch(count, colour)
        try:
            return AtariGames(self.game, count, colour)
        except GameError as error:
            raise BadSetting(f"game: {error}") from error

    def networks(self) -> dict[str, nn.Module]:
        return {NETWORK: self.network}

    def before_training(self, as_step: Callable[[Work], Work]) -> None:
        self.decide, self.go_on, self.finish = map(as_step, (self._decide, self._go_on, self._finish))
        self.since = time.monotonic(), self.scores.steps  # what was played before a resume took other time

    # playing

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        if not self.playing:
            self._begin_games(epoch)
        self._collect(epoch)
        for order in self._orders(epoch):
            yield from ((indices,) for indices in order.chunk(self.minibatches))
        self.rollout.wait()  # until the update is done, without keeping a core from other runs' games

    def _orders(self, epoch: int) -> Tensor:
        """[update_epochs, all that was played]: the order in which each pass goes through it."""
        generator = self.context.streams.generator("minibatches", epoch)
        count = self.environments * self.steps
        orders = torch.stack([torch.randperm(count, generator=generator) for _ in range(self.update_epochs)])
        return orders.to(self.context.device)

    def _begin_games(self, epoch: int) -> None:
        self.playing = True
        self.rollout.upload_first(self.games.reset(self.context.streams.number("games", epoch)))
        self.rollout.begin_games_(self.resize)
        self.scores.begin_games()

    def _collect(self, epoch: int) -> None:
        """Play, and leave in the rollout what was seen, done and won."""
        rollout, games = self.rollout, self.games
        rollout.begin_(self._luck(epoch))
        self.decide(())
        turn: Turn | None = None
        for step in range(1, self.steps + 1):
            games.send(rollout.wait_for_actions())
            if turn is not None:
                self.scores.add(turn)  # while the games go on
            turn = games.receive()
            rollout.upload(turn)
            (self.go_on if step < self.steps else self.finish)(())
        assert turn is not None
        self.scores.add(turn)

    def _luck(self, epoch: int) -> Tensor:
        """What action sampling draws: Gumbel noise, since logits plus that are largest as often as the softmax says.

        Drawn beforehand on the CPU: the same on every device, and nothing to save for a resumed run.
        """
        shape = (self.steps, self.environments, self.games.actions)
        draws = torch.rand(shape, dtype=torch.float64, generator=self.context.streams.generator("actions", epoch))
        return -(-(draws.clamp(min=torch.finfo(torch.float64).tiny)).log()).log().float()

    @torch.no_grad()
    def _decide(self, nothing: Batch) -> None:
        """What to do in the present step of each game."""
        rollout = self.rollout
        logits, values = self._outputs(rollout.observations(rollout.now))
        actions = (logits + _at(rollout.now, rollout.luck)).argmax(dim=1)
        rollout.download_actions_(actions)
        rollout.put_(actions=actions, values=values, logits=logits)

    @torch.no_grad()
    def _go_on(self, nothing: Batch) -> None:
        """See what became of it, and decide again."""
        self.rollout.take_in_(self.resize)
        self._decide(nothing)

    @torch.no_grad()
    def _finish(self, nothing: Batch) -> None:
        """See what became of the last step, and judge them all: how much better was each action than expected?

        By generalised advantage estimation (Schulman et al., 2016).
        """
        rollout = self.rollout
        rollout.take_in_(self.resize)
        _, last = self._outputs(rollout.observations(rollout.now))
        values, following = rollout.values, torch.cat([rollout.values[1:], last[None]])
        surprise = rollout.rewards + self.discount * following * (1 - rollout.ended) - values
        advantages = discounted_sums(surprise, rollout.ended, self.discount * self.gae_lambda)
        rollout.returns.copy_(advantages + values)
        rollout.advantages.copy_((advantages - advantages.mean()) / (advantages.std() + 1e-5))
        rollout.log_probs.copy_(_log_probs(rollout.logits, rollout.actions))

    def _outputs(self, stacked: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = self.network(as_input(stacked))
        return logits.float(), values.float()

    # learning

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        (places,) = batch
        rollout = self.rollout
        actions, old_log_probs, old_values, advantages, returns = (
            _at(places, played)
            for played in (rollout.actions, rollout.log_probs, rollout.values, rollout.advantages, rollout.returns)
        )
        logits, values = self._outputs(rollout.observations(places))

        log_ratios = _log_probs(logits, actions) - old_log_probs
        ratios = log_ratios.exp()
        clipped_ratios = ratios.clamp(1 - self.clip, 1 + self.clip)
        policy_loss = -torch.minimum(ratios * advantages, clipped_ratios * advantages).mean()

        clipped_values = old_values + (values - old_values).clamp(-self.clip, self.clip)
        value_loss = 0.5 * torch.maximum((values - returns) ** 2, (clipped_values - returns) ** 2).mean()

        log_probs = logits.log_softmax(dim=1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()

        clipped = ((ratios - 1).abs() > self.clip).float().mean()
        # Of the estimates of the divergence from the policy that played, one that has little variance and no sign.
        divergence = (ratios - 1 - log_ratios).mean()
        for name, value in zip(MEANS, (entropy, value_loss, policy_loss, divergence, clipped), strict=True):
            self.meters.add_(name, value)
        self.meters.add_("count", 1.0)
        yield NETWORK, policy_loss + self.value * value_loss - self.entropy * entropy

    def evaluate(self) -> dict[str, float]:
        sums = self.meters.read()
        (begun, steps), self.since = self.since, (time.monotonic(), self.scores.steps)
        return {
            **{f"train/{name}": sums[name] / max(sums["count"], 1.0) for name in MEANS},
            "train/return": self.scores.mean_return(RECENT),
            self.metric.key: self.scores.mean_return(self.window),
            "train/length": self.scores.mean_length(RECENT),
            "train/environment_steps": self.scores.steps,
            "train/steps_per_second": (self.since[1] - steps) / (self.since[0] - begun),
            "train/restarts": self.restarts,
        }

    # resuming

    def state_dict(self) -> dict[str, Any]:
        """All but emulators' own state, which nobody gives away: they begin anew, and `train/restarts` counts it."""
        games = self.games.state()
        return {
            **super().state_dict(),
            "scores": self.scores.state(),
            "restarts": self.restarts,
            "games": games,
            "seen": None if games is None else self.rollout.seen(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.scores.restore(state["scores"])
        self.restarts = state["restarts"]
        if state["games"] is None:
            self.restarts += 1
            return
        self.games.restore(state["games"])
        self.rollout.restore_seen_(state["seen"])
        self.playing = True


class Rollout:
    """What was played since the last update, on the device: [steps, games, ...] each.

    A place in it is a step and a game in one number, as in `flatten(0, 1)`. The present step of every game is `now`, on
    the device too, so that one captured piece of work does for every step. The frame at a place is `EARLIER` steps
    further on in `frames`; before the first are the last of the rollout before.
    """

    def __init__(self, steps: int, count: int, games: Games, device: torch.device) -> None:
        self.steps, self.count, self.device = steps, count, device

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.frames = zeros(EARLIER + steps + 1, count, SIDE, SIDE, dtype=torch.uint8)
        self.age = zeros(steps + 1, count)  # of an episode, in frames before the present one
        self.actions = zeros(steps, count, dtype=torch.int64)
        self.logits, self.luck = zeros(steps, count, games.actions), zeros(steps, count, games.actions)
        self.log_probs, self.values, self.advantages, self.returns = (zeros(steps, count) for _ in range(4))
        self.outcomes = zeros(2, steps, count)
        self.rewards, self.ended = self.outcomes  # 1 where the episode ended with the step
        self.now = zeros(count, dtype=torch.int64)
        self.first = torch.arange(count, device=device)
        self.back = torch.arange(EARLIER, -1, -1, device=device)  # how many steps ago each frame of a stack was
        self.ahead = count * (EARLIER - self.back)  # from a place to each of its frames
        # What goes back and forth, on both sides. Transfers to and from pinned memory do not hold up the host.
        pinned = device.type == "cuda"
        self.host_frames = torch.zeros(count, *games.screen, dtype=torch.uint8, pin_memory=pinned)
        self.host_outcome = torch.zeros(2, count, pin_memory=pinned)
        self.host_actions = torch.zeros(count, dtype=torch.int64, pin_memory=pinned)
        self.screens, self.outcome = torch.zeros_like(self.host_frames, device=device), zeros(2, count)
        self.done = torch.cuda.Event(blocking=True) if pinned else None

    def begin_games_(self, resize: AreaResize) -> None:
        """All games are at their first frame."""
        self.screens.copy_(self.host_frames)
        self.frames[self.steps + EARLIER] = resize(self.screens)
        self.age.zero_()

    def begin_(self, luck: Tensor) -> None:
        """A new rollout, which goes on where the last one stopped."""
        self.frames[:FRAMES] = self.frames[self.steps :].clone()
        self.age[0] = self.age[self.steps]
        self.luck.copy_(luck)
        self.now.copy_(self.first)

    def observations(self, places: Tensor) -> Tensor:
        """The stacks that games had before them, oldest frame first, black before an episode's first frame."""
        stacks = _at(places[:, None] + self.ahead, self.frames)
        seen = self.back <= _at(places, self.age)[:, None]
        return stacks * seen[:, :, None, None]

    def put_(self, **values: Tensor) -> None:
        """One value per game at the present step."""
        for name, value in values.items():
            getattr(self, name).flatten(0, 1).index_copy_(0, self.now, value)

    def take_in_(self, resize: AreaResize) -> None:
        """From what was uploaded: how the present step ended, and the frame of the next, which becomes the present."""
        self.screens.copy_(self.host_frames, non_blocking=True)
        self.outcome.copy_(self.host_outcome, non_blocking=True)
        self.outcomes.flatten(1).index_copy_(1, self.now, self.outcome)
        age = (_at(self.now, self.age) + 1) * (1 - self.outcome[1])
        self.now += self.count
        self.put_(age=age)
        self.frames[EARLIER:].flatten(0, 1).index_copy_(0, self.now, resize(self.screens))

    # what the host has to do with it

    def upload_first(self, frames: np.ndarray[Any, Any]) -> None:
        np.copyto(self.host_frames.numpy(), frames)

    def upload(self, turn: Turn) -> None:
        # By numpy: torch would wake its threads for so many bytes.
        np.copyto(self.host_frames.numpy(), turn.frames)
        outcome = self.host_outcome.numpy()
        outcome[0], outcome[1] = np.sign(turn.rewards), turn.ended

    def download_actions_(self, actions: Tensor) -> None:
        self.host_actions.copy_(actions, non_blocking=True)

    def wait_for_actions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        self.wait()
        return self.host_actions.numpy()

    def wait(self) -> None:
        """Until the device has done all that it was asked for.

        Watched for a moment, since a thread that sleeps is woken late; then asleep, since one that watches keeps a core
        from the games.
        """
        if self.done is None:
            return
        self.done.record()
        until = time.monotonic() + WATCHING
        while not self.done.query() and time.monotonic() < until:
            pass
        self.done.synchronize()

    def seen(self) -> dict[str, Tensor]:
        """What the next rollout starts from. Copies: to save a part of a tensor is to save all of it."""
        return {"frames": self.frames[self.steps :].clone(), "age": self.age[self.steps].clone()}

    def restore_seen_(self, seen: Mapping[str, Tensor]) -> None:
        self.frames[self.steps :] = seen["frames"].to(self.device)
        self.age[self.steps] = seen["age"].to(self.device)


class Scores:
    """What games in play have won so far, and the returns and lengths (in steps) of the last `kept` that finished."""

    def __init__(self, count: int, kept: int) -> None:
        self.returns, self.lengths = np.zeros(count), np.zeros(count, dtype=np.int64)
        self.finished: deque[tuple[float, int]] = deque(maxlen=kept)
        self.steps = 0  # of all environments together

    def begin_games(self) -> None:
        self.returns[:], self.lengths[:] = 0.0, 0

    def add(self, turn: Turn) -> None:
        self.returns += turn.rewards
        self.lengths += 1
        self.steps += len(self.lengths)
        if turn.over.any():
            self.finished.extend(zip(self.returns[turn.over].tolist(), self.lengths[turn.over].tolist(), strict=True))
            self.returns[turn.over], self.lengths[turn.over] = 0.0, 0

    def mean_return(self, games: int) -> float:
        """Over the last games that finished, at most so many; NaN while none has."""
        return _mean([score for score, _ in list(self.finished)[-games:]])

    def mean_length(self, games: int) -> float:
        return _mean([length for _, length in list(self.finished)[-games:]])

    def state(self) -> dict[str, Any]:
        return {
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "finished": list(self.finished),
            "steps": self.steps,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.returns[:], self.lengths[:] = state["returns"], state["lengths"]
        self.finished.clear()
        self.finished.extend(state["finished"])
        self.steps = state["steps"]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def as_input(stacked: Tensor) -> Tensor:
    """Stacks of frames as the network takes them: from 0 to 1, and with the values of a pixel side by side."""
    return stacked.to(torch.float32, memory_format=torch.channels_last) / 255


def discounted_sums(values: Tensor, ended: Tensor, factor: float) -> Tensor:
    """[steps, games] -> sums over what follows each step, itself first, times `factor` a step, up to the episode's end.

    All at once: a step counts where no end lies between, that is where as many ends came before both.
    """
    steps = len(values)
    before = ended.cumsum(dim=0) - ended
    ahead = torch.arange(steps, device=values.device)
    distance = ahead[None, :] - ahead[:, None]
    weights = torch.where(distance >= 0, factor ** distance.clamp(min=0).to(values.dtype), 0.0)
    together = before[:, None] == before[None, :]
    return (weights[:, :, None] * together * values[None, :]).sum(dim=1)


def _at(places: Tensor, played: Tensor) -> Tensor:
    """Of one of a rollout's tensors."""
    return played.flatten(0, 1)[places]


def _log_probs(logits: Tensor, actions: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1).gather(-1, actions[..., None]).squeeze(-1)
