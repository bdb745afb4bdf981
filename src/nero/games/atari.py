"""Atari games by ale-py's vector environment, configured like the Gym wrappers of the paper's code.

The emulator's threads do: FIRE and then no-ops at reset, up to 30 in all; each action for 4 frames with the maximum of
the last two; grey pixels; an episode's end at each lost life while the game continues; a new game in the very step in
which one ended; no sticky actions. The device does the resizing to 84 x 84, which would be a fifth of a step here, and
the stacking of 4 frames, so that each is transferred once. Rewards are the game's own, so that whole games can be
scored; the task learns from their sign. docs/reproduction.md lists the remaining differences.
"""

import difflib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nero.games.base import GameError, Turn

INSTALL = "playing Atari games needs the package ale-py: pip install -e '.[suite]'"
LARGEST_SEED = 2**31 - 1  # the emulator's seeds are 32-bit, and each game takes the next one


class AtariGames:
    """`count` games by ale-py's name, such as pong or ms_pacman. colour: frames [games, rows, columns, 3], to watch."""

    def __init__(self, game: str, count: int, colour: bool = False) -> None:
        emulator = _emulator()
        known = known_games()
        if game not in known:  # the emulator would end the process
            near = difflib.get_close_matches(str(game).lower(), known) or ["pong", "breakout", "ms_pacman"]
            raise GameError(f"ale-py has no game {game!r} among its {len(known)}; it has {', '.join(near)} and others")
        interface = emulator.ALEInterface()
        interface.loadROM(emulator.roms.get_rom_path(game))
        rows, columns = interface.getScreenDims()
        self.count, self.screen = count, (int(rows), int(columns))
        self._games = emulator.vector_env.AtariVectorEnv(
            game,
            count,
            frameskip=4,
            maxpool=True,
            img_height=rows,  # the native size: no resizing here
            img_width=columns,
            grayscale=not colour,
            stack_num=1,
            noop_max=30,
            use_fire_reset=True,
            episodic_life=False,  # despite its name, it would begin a new game with each life
            life_loss_info=True,
            reward_clipping=False,
            repeat_action_probability=0.0,
            autoreset_mode="SameStep",
        )
        self.actions = int(self._games.single_action_space.n)
        self._frame_number = np.zeros(count, dtype=np.int32)

    def reset(self, seed: int) -> NDArray[np.uint8]:
        frames, info = self._games.reset(seed=1 + seed % (LARGEST_SEED - self.count))
        self._frame_number = info["episode_frame_number"]
        return frames[:, 0]

    def send(self, actions: NDArray[np.int64]) -> None:
        self._games.send(actions)

    def receive(self) -> Turn:
        frames, rewards, terminated, truncated, info = self._games.recv()
        frame_number = info["episode_frame_number"]
        over = frame_number <= self._frame_number  # it counts from the beginning of the game
        self._frame_number = frame_number
        return Turn(frames[:, 0], rewards.astype(np.float32), terminated | truncated, over)

    def state(self) -> dict[str, Any] | None:
        """None: the vector environment does not expose the state of its emulators."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("emulators can only be restarted")


def known_games() -> list[str]:
    """Every single-player game of the emulator."""
    emulator = _emulator()
    supported, path_of = emulator.ALEInterface.isSupportedROM, emulator.roms.get_rom_path
    return [name for name in emulator.roms.get_all_rom_ids() if supported(path_of(name))]


def _emulator() -> Any:
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError as error:
        raise GameError(INSTALL) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py
