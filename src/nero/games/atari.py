"""Atari games by ale-py's own vector environment, set to the wrappers that the paper's code put around Gym's.

Of those wrappers the emulator's threads do: FIRE and then no-ops at reset, up to 30 in all, each action for 4 frames
with the larger value of the last two in each pixel, grey pixels, an end at each lost life with the game going on, a new
game in the very step in which one ended, and no sticky actions.

Left for the device, which has time, are: the resizing to 84 x 84, a fifth of what a step would cost here; and the stack
of 4 frames, so that each is moved once. Rewards are the game's own, so that whole games can be told by their score; the
task learns from their sign. docs/reproduction.md lists what remains different.
"""

import difflib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nero.games.base import GameError, Turn

INSTALL = "playing Atari games needs the package ale-py: pip install -e '.[atari]'"
LARGEST_SEED = 2**31 - 1  # the emulator's seeds are 32-bit, and each game takes the next one


class AtariGames:
    """`count` games by ale-py's name for them, such as pong or ms_pacman.

    colour:  frames with a last axis of red, green and blue, to look at
    """

    def __init__(self, game: str, count: int, colour: bool = False) -> None:
        emulator = _emulator()
        rom = _rom(game)
        interface = emulator.ALEInterface()
        interface.loadROM(rom)
        rows, columns = interface.getScreenDims()
        self.count, self.screen = count, (int(rows), int(columns))
        self._games = emulator.vector_env.AtariVectorEnv(
            game,
            count,
            frameskip=4,
            maxpool=True,
            img_height=rows,  # its own, so that nothing is resized here
            img_width=columns,
            grayscale=not colour,
            stack_num=1,
            noop_max=30,
            use_fire_reset=True,
            # The name promises otherwise, but `episodic_life` begins a new game with each life.
            episodic_life=False,
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
        """None: the vector environment does not give its emulators' state away."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("emulators begin anew")


def known_games() -> list[str]:
    """Every game that the emulator can play alone; a few of its ROMs are for two players only."""
    emulator = _emulator()
    return [
        name
        for name in emulator.roms.get_all_rom_ids()
        if emulator.ALEInterface.isSupportedROM(emulator.roms.get_rom_path(name))
    ]


def _emulator() -> Any:
    try:
        import ale_py
        import ale_py.roms
        import ale_py.vector_env
    except ImportError as error:
        raise GameError(INSTALL) from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return ale_py


def _rom(game: str) -> Any:
    # Asked for beforehand: the emulator would end the process on a game that it does not know.
    known = known_games()
    if game not in known:
        near = difflib.get_close_matches(str(game).lower(), known) or ["pong", "breakout", "ms_pacman"]
        raise GameError(f"ale-py has no game {game!r} among its {len(known)}; it has {', '.join(near)} and others")
    return _emulator().roms.get_rom_path(game)
