"""Tests of `nero play` on a run trained on the embedded game."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nero.cli.trained import play as main
from nero.games.catch import Catch
from nero.models.policy import Policy
from nero.runs.store import RunDirectory
from support.animations import pictures, video
from support.whole_runs import assert_only_runs_of_a_kind, trained

TINY = (
    "task=pong_ppo",
    "task.epochs=2",
    "task.environments=2",
    "task.steps=16",
    "task.update_epochs=1",
    "task.minibatches=2",
    "task.network.hidden=16",
    "optim=adam",
    "optim.lr=0.01",
    "machine=cpu",
)
LENGTH = 57  # actions per game: three balls that fall for 19 steps each
Play = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("store"), [*TINY, "data=embedded"])


@pytest.fixture
def play(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> Play:
    def call(out: Path, *words: str) -> str:
        assert main([str(run.path), "--device", "cpu", "--out", str(out), *words]) == 0
        return capsys.readouterr().out

    return call


@pytest.mark.parametrize("suffix", [".gif", ".png", ".webp", ".GIF"])
def test_animation_has_one_frame_per_action(play: Play, tmp_path: Path, suffix: str) -> None:
    place = tmp_path / "new" / f"game{suffix}"
    lines = play(place, "--games", "2", "--scale", "3").splitlines()
    assert [line.split(":")[0] for line in lines] == ["game 1", "game 2", str(place)]
    assert all(line.endswith(f", {LENGTH} actions") for line in lines[:2])
    assert lines[2] == f"{place}: {place.stat().st_size / 1000:.0f} kB"
    shown = pictures(place)
    assert len(shown) == 2 * LENGTH, "the ball falls in each, so no two are the same"
    assert {picture.shape for picture, _ in shown} == {(252, 252, 3)}
    assert sum(stays for _, stays in shown) == pytest.approx(1000 * 2 * LENGTH / 15, abs=5)


def test_game_is_determined_by_seed(play: Play, tmp_path: Path) -> None:
    first, again, other = (tmp_path / f"{name}.gif" for name in ("first", "again", "other"))
    said = [play(place, "--seed", seed) for place, seed in ((first, "3"), (again, "3"), (other, "4"))]
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert said[0].splitlines()[0] == said[1].splitlines()[0]
    play(again, "--seed", "4")
    assert again.read_bytes() == other.read_bytes(), "what was there is replaced"


@torch.no_grad()
def test_greedy_actions_match_network(play: Play, run: RunDirectory, tmp_path: Path) -> None:
    """The reference loads the checkpoint into a network and plays in a plain loop."""
    network = Policy(actions=3, hidden=16).eval()
    (place,) = run.path.glob("checkpoint-*.pt")
    network.load_state_dict(torch.load(place, weights_only=True)["networks"]["network"])
    game = Catch(1)
    seen = [np.zeros((84, 84), np.uint8)] * 3 + [game.reset(5)[0]]
    scores = [0.0]
    shown = [seen[-1]]
    while len(scores) < 3:
        logits, _ = network(torch.from_numpy(np.stack(seen[-4:]))[None] / 255)
        game.send(logits.argmax(dim=1).numpy())
        turn = game.receive()
        scores[-1] += float(turn.rewards[0])
        seen.append(turn.frames[0])
        if turn.over[0]:
            scores.append(0.0)
            seen = [np.zeros((84, 84), np.uint8)] * 3 + seen[-1:]
        shown.append(seen[-1])

    place = tmp_path / "greedy.gif"
    said = play(place, "--greedy", "--seed", "5", "--games", "2").splitlines()
    assert said[:2] == [f"game {i + 1}: score {scores[i]:g}, {LENGTH} actions" for i in range(2)]
    found = pictures(place)
    assert len(found) == 2 * LENGTH
    for (ours, _), theirs in zip(found, shown[:-1], strict=True):
        assert np.array_equal(ours, np.repeat(theirs[..., None], 3, axis=-1))
    drawn = tmp_path / "drawn.gif"
    play(drawn, "--seed", "5", "--games", "2")
    assert drawn.read_bytes() != place.read_bytes()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_policy_plays_in_precision_of_run(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    config = copy / "config.yaml"
    config.write_text(re.sub("^precision: .*$", f"precision: {precision}", config.read_text(), flags=re.MULTILINE))
    seen, forward = set(), Policy.forward

    def noting(self: Policy, x: Tensor) -> tuple[Tensor, Tensor]:
        seen.add(torch.is_autocast_enabled("cpu"))
        return forward(self, x)

    monkeypatch.setattr(Policy, "forward", noting)
    assert main([str(copy), "--device", "cpu", "--out", str(tmp_path / "game.gif"), "--steps", "3"]) == 0
    assert seen == {precision == "bf16"}
    assert not torch.is_autocast_enabled("cpu")


def test_steps_option_limits_number_of_actions(play: Play, tmp_path: Path) -> None:
    place = tmp_path / "cut.gif"
    lines = play(place, "--games", "3", "--steps", "80").splitlines()
    assert [line.split(":")[0] for line in lines] == ["game 1", "game 2", str(place)]
    assert lines[0].endswith(f", {LENGTH} actions")
    assert lines[1].endswith(f", {80 - LENGTH} actions, cut off after 80 in all (--steps)")
    assert len(pictures(place)) == 80


def test_default_output_name_is_run_id(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([run.run_id, "--store", str(run.path.parents[1]), "--steps", "5"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [f"{run.run_id}.gif"]
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{run.run_id}.gif: ")


def test_play_writes_video(play: Play, tmp_path: Path) -> None:
    path = tmp_path / "game.mp4"
    play(path, "--steps", "7")
    frames, _ = video(path)
    assert [frame.shape for frame in frames] == [(84, 84, 3)] * 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("game.avi", "the name of an animation must end with one of .gif, .png, .webp, .mp4"),
        ("game", "the name of an animation must end with one of .gif, .png, .webp, .mp4"),
        ("game.mp4", "a video needs imageio-ffmpeg; get it with: pip install"),
        ("folder.gif", "is a directory"),
    ],
)
def test_invalid_output_path_is_rejected_before_run_is_loaded(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    (tmp_path / "folder.gif").mkdir()
    assert main(["no-such-run", "--out", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder.gif"]


def test_play_rejects_runs_of_other_tasks(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_only_runs_of_a_kind(main, run, "PPO", tmp_path, capsys)


@pytest.mark.parametrize("words", [["--games", "0"], ["--steps", "0"], ["--seed", "-1"], ["--scale", "9"]])
def test_invalid_options_are_rejected(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", *words])
    assert stop.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.slow
def test_play_writes_atari_game_in_colour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    run = trained(tmp_path / "store", [*TINY, "data=real"])
    place = tmp_path / "pong.gif"
    assert main([str(run.path), "--device", "cpu", "--out", str(place), "--steps", "50", "--scale", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "game 1: score 0, 50 actions, cut off after 50 in all (--steps)"
    shown = pictures(place)
    assert 25 < len(shown) <= 50, "some may be the same"
    assert {picture.shape for picture, _ in shown} == {(420, 320, 3)}
    assert sum(stays for _, stays in shown) == pytest.approx(1000 * 50 / 15, abs=5)
    red, green, blue = np.moveaxis(shown[-1][0], -1, 0)
    assert (red != green).mean() > 0.5, "Pong's ground is brown"
    assert (green != blue).mean() > 0.5
