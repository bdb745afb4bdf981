"""What PPO records of games: the rollout of an update on the device, and statistics of episodes on the host."""

import math
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nero.games.base import Games, Turn
from nero.models.policy import FRAMES, SIDE, AreaResize

EARLIER = FRAMES - 1  # frames of a stack before the newest
SPIN = 2e-4  # s that the host polls the device before it sleeps


class Rollout:
    """The steps since the last update, on the device: [steps, games, ...] each.

    An index is a step and a game in one number, as in `flatten(0, 1)`. `now` has the indices of the current step, on
    the device, so that one captured graph serves every step. The frame at an index is `EARLIER` steps later in
    `frames`, which begins with the last frames of the previous rollout.
    """

    def __init__(self, steps: int, count: int, games: Games, resize: AreaResize, device: torch.device) -> None:
        self.steps, self.count, self.resize, self.device = steps, count, resize, device

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.frames = zeros(EARLIER + steps + 1, count, SIDE, SIDE, dtype=torch.uint8)
        self.age = zeros(steps + 1, count)  # of an episode, in frames before the current one
        self.actions = zeros(steps, count, dtype=torch.int64)
        self.logits, self.gumbel_noise = (zeros(steps, count, games.actions) for _ in range(2))
        self.log_probs, self.values, self.advantages, self.returns = (zeros(steps, count) for _ in range(4))
        self.outcomes = zeros(2, steps, count)
        self.rewards, self.ended = self.outcomes  # 1 where the episode ended with the step
        self.first = torch.arange(count, device=device)
        self.now = zeros(count, dtype=torch.int64)
        self.back = torch.arange(EARLIER, -1, -1, device=device)  # how many steps ago each frame of a stack was
        self.offsets = count * (EARLIER - self.back)  # from an index to the frames of its stack
        # Buffers of transfers, which from and to pinned memory do not block the host.
        pinned = device.type == "cuda"
        self.host_frames = torch.zeros(count, *games.screen, dtype=torch.uint8, pin_memory=pinned)
        self.host_outcome = torch.zeros(2, count, pin_memory=pinned)
        self.host_actions = torch.zeros(count, dtype=torch.int64, pin_memory=pinned)
        self.screens, self.outcome = torch.zeros_like(self.host_frames, device=device), zeros(2, count)
        self.done = torch.cuda.Event(blocking=True) if pinned else None

    def reset_(self, frames: np.ndarray[Any, Any]) -> None:
        """Store the first frames of all games."""
        np.copyto(self.host_frames.numpy(), frames)
        self.screens.copy_(self.host_frames)
        self.frames[self.steps + EARLIER] = self.resize(self.screens)
        self.age.zero_()

    def begin_(self, gumbel_noise: Tensor) -> None:
        """Start a rollout, which continues the previous one."""
        self.frames[:FRAMES] = self.frames[self.steps :].clone()
        self.age[0] = self.age[self.steps]
        self.gumbel_noise.copy_(gumbel_noise)
        self.now.copy_(self.first)

    def observations(self, indices: Tensor) -> Tensor:
        """Stacks of frames, the oldest first, black before an episode's first frame."""
        stacks = entries_at(indices[:, None] + self.offsets, self.frames)
        in_episode = self.back <= entries_at(indices, self.age)[:, None]
        return stacks * in_episode[:, :, None, None]

    def put_(self, **values: Tensor) -> None:
        """Store one value per game at the current step."""
        for name, value in values.items():
            getattr(self, name).flatten(0, 1).index_copy_(0, self.now, value)

    def observe_(self) -> None:
        """Store the uploaded outcome of the current step, go to the next one and store its frame."""
        self.screens.copy_(self.host_frames, non_blocking=True)
        self.outcome.copy_(self.host_outcome, non_blocking=True)
        self.outcomes.flatten(1).index_copy_(1, self.now, self.outcome)
        age = (entries_at(self.now, self.age) + 1) * (1 - self.outcome[1])
        self.now += self.count
        self.put_(age=age)
        self.frames[EARLIER:].flatten(0, 1).index_copy_(0, self.now, self.resize(self.screens))

    def upload(self, turn: Turn) -> None:
        # By numpy: torch would wake its threads for so few bytes.
        np.copyto(self.host_frames.numpy(), turn.frames)
        outcome = self.host_outcome.numpy()
        outcome[0], outcome[1] = np.sign(turn.rewards), turn.ended

    def wait(self) -> None:
        """Wait for the device: polling for a moment, since a sleeping thread wakes late, then asleep."""
        if self.done is None:
            return
        self.done.record()
        until = time.monotonic() + SPIN
        while not self.done.query() and time.monotonic() < until:
            pass
        self.done.synchronize()

    def last_frames(self) -> dict[str, Tensor]:
        """What the next rollout starts from. Copies, since saving a view saves the whole tensor."""
        return {"frames": self.frames[self.steps :].clone(), "age": self.age[self.steps].clone()}

    def restore_last_frames_(self, saved: Mapping[str, Tensor]) -> None:
        self.frames[self.steps :] = saved["frames"].to(self.device)
        self.age[self.steps] = saved["age"].to(self.device)


class EpisodeStatistics:
    """Returns of the running games, and returns and lengths (in steps) of the last `window` finished ones."""

    def __init__(self, count: int, window: int) -> None:
        self.returns, self.lengths = np.zeros(count), np.zeros(count, dtype=np.int64)
        self.finished: deque[tuple[float, float]] = deque(maxlen=window)
        self.steps = 0  # of all environments together

    def reset(self) -> None:
        self.returns[:], self.lengths[:] = 0.0, 0

    def add(self, turn: Turn) -> None:
        self.returns += turn.rewards
        self.lengths += 1
        self.steps += len(self.lengths)
        if turn.over.any():
            self.finished.extend(zip(self.returns[turn.over].tolist(), self.lengths[turn.over].tolist(), strict=True))
            self.returns[turn.over], self.lengths[turn.over] = 0.0, 0

    def means(self, games: int) -> tuple[float, float]:
        """Mean return and length of at most the last `games` finished games; NaN if there are none."""
        finished = list(self.finished)[-games:] or [(math.nan, math.nan)]
        score, length = np.mean(finished, axis=0).tolist()
        return score, length

    def state(self) -> dict[str, Any]:
        returns, lengths = self.returns.tolist(), self.lengths.tolist()
        return {"returns": returns, "lengths": lengths, "finished": list(self.finished), "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.returns[:], self.lengths[:] = state["returns"], state["lengths"]
        self.finished.clear()
        self.finished.extend(state["finished"])
        self.steps = state["steps"]


def entries_at(indices: Tensor, recorded: Tensor) -> Tensor:
    """Entries of one of a rollout's tensors."""
    return recorded.flatten(0, 1)[indices]


def as_input(stacks: Tensor) -> Tensor:
    """uint8 stacks of frames as the network takes them: from 0 to 1, in channels-last format."""
    return stacks.to(torch.float32, memory_format=torch.channels_last) / 255
