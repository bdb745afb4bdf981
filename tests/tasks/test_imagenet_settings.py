"""Tests of the ImageNet task's settings: invalid values, defaults that depend on the machine, and the paper's."""

import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.utils import instantiate

from nero.engine.schedules import cosine
from nero.engine.seeding import SeedStreams
from nero.plans.config import compose
from nero.plans.plan import load_experiment
from nero.tasks.base import BadSetting, Context, Machine
from nero.tasks.imagenet import ImageNet
from support.image_files import class_folders
from support.tiny_network import Tiny
from support.whole_runs import assert_one_line
from tasks.test_imagenet_task import CPU, RESIZE, SIZE, TASK, WORDS, make_task


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared data root, so that the embedded images are created only once."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with 24 training images in place of ImageNet."""
    root = tmp_path_factory.mktemp("photographs")
    for split, each in (("train", 12), ("val", 5)):
        class_folders(root / "imagenet" / split, 2, each)
    return root


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.resize=15"], "task: resize must be at least image_size, 16, not 15"),
        (["task.resize=0"], "task: resize must be a positive integer, not 0"),
        (["task.image_size=1.5"], "task: image_size must be a positive integer, not 1.5"),
        (["task.batch_size=111"], "task: batch_size must be at most 110, the number of images, not 111"),
        (["task.batch_size=true"], "task.batch_size must be a number, not True"),
        (["task.network.norm_parts=3"], "norm_parts: a batch of 20 images cannot be divided into 3 equal parts"),
        (["task.network.norm_parts=0"], "norm_parts: a batch of 20 images cannot be divided into 0 equal parts"),
        (["task.train_examples=5"], "task: train_examples: 5 images do not fill 10 classes"),
        (["task.train_examples=0"], "task: train_examples must be a positive integer, not 0"),
        (["+task.network.colour=3"], "task: network: .*unexpected keyword argument 'colour'"),
        (["+task.network.width=-1"], "task: network: .*negative"),
        (["task.schedule.warmup=2"], r"task\.schedule: a warm-up of 2 epochs leaves nothing of 2 epochs"),
        (["machine.workers=-1"], "machine.workers must be null or a non-negative integer, not -1"),
        (["machine.decode=tpu"], "machine.decode must be one of auto, cpu, gpu, not 'tpu'"),
        (["machine.decode=gpu"], "machine.decode=gpu needs a CUDA GPU"),
        (["machine.channels_last=maybe"], "machine.channels_last must be true or false, not 'maybe'"),
    ],
)
def test_invalid_setting_gives_one_line_error(tmp_path: Path, data: Path, words: list[str], message: str) -> None:
    assert_one_line(tmp_path, TASK, [*WORDS, f"data_root={data}", *words], message)


def test_train_examples_beyond_dataset_size_gives_one_line_error(tmp_path: Path, photographs: Path) -> None:
    words = [*WORDS, f"data_root={photographs}", "data=real", "task.train_examples=25"]
    assert_one_line(tmp_path / "runs", TASK, words, "task: train_examples must be at most 24, not 25")


def test_one_worker_per_core_except_for_embedded_images(
    photographs: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ["data=real", "task.train_examples=null", "task.batch_size=8"]
    for cores, workers in ((1, 1), (6, 6), (200, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: set(range(cores)), raising=False)
        assert make_task(photographs, *real).workers == workers
    assert make_task(photographs, *real, "machine.workers=3").workers == 3
    assert make_task(data).workers == 0


def test_ranks_share_cores_and_split_each_batch(data: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)

    def task_of(rank: int, size: int, root: Path = photographs) -> ImageNet:
        ranks: Any = SimpleNamespace(rank=rank, size=size, local_size=size, sum_=lambda tensor: None)
        context = Context(CPU, SeedStreams(0), "real", root, ranks=ranks, machine=Machine())
        return ImageNet(context, Tiny, 1, 8, SIZE, RESIZE)

    tasks = [task_of(rank, 3) for rank in range(3)]
    assert [task.workers for task in tasks] == [2, 2, 2]
    assert [place for task in tasks for place in task.stream.part] == list(range(8))
    for task in tasks:
        assert task.network.stages[0][1].local_parts == 0, "a part of two images is cut, so that all exchange sums"
    assert [task.network.stages[0][1].local_parts for task in (task_of(rank, 2) for rank in range(2))] == [2, 2]
    with pytest.raises(BadSetting, match="batch_size must be at least 9, the number of ranks"):
        task_of(0, 9)


# the paper's settings


def test_schedule_is_one_epoch_warmup_then_cosine_to_zero() -> None:
    schedule = instantiate(compose([f"task={TASK}"]).cfg.task.schedule)
    assert [schedule(progress) for progress in (0, 0.25, 0.5, 1)] == [0, 0.25, 0.5, 1]
    for progress in (1, 10.5, 45.5, 77, 89.99, 90):
        expected = 0.5 * (1 + math.cos(math.pi * (progress - 1) / 89))
        assert schedule(progress) == pytest.approx(expected, abs=1e-12)
    assert schedule(45.5) == pytest.approx(0.5)
    assert schedule(90) == pytest.approx(0)
    with pytest.raises(ValueError, match="leaves nothing"):
        cosine(epochs=1, warmup=1)


def test_figure_9_runs_follow_protocol() -> None:
    runs = {}
    for cell in load_experiment("imagenet").cells:
        (lr,) = cell.lrs
        cfg = compose(cell.run(lr, cell.search_seed).overrides).cfg
        assert (cfg.task.batch_size, cfg.task.epochs, cfg.task.train_examples) == (400, 90, None)
        assert (cfg.task.image_size, cfg.task.resize, cfg.data) == (224, 256, "real")
        assert list(cfg.task.network.layers) == [3, 4, 6, 3]
        assert cfg.task.network.norm_parts == 4
        runs[(cell.optim, *(value for _, value in cell.variant))] = cfg.optim
    assert set(runs) == {("sgd", 0.0), ("sgd", 0.0001), ("nero",), ("nero_tuned",)}
    for decay in (0.0, 1e-4):
        sgd = runs["sgd", decay]
        assert (sgd.lr, sgd.momentum, sgd.weight_decay, sgd._target_) == (0.1, 0.9, decay, "torch.optim.SGD")
    plain, tuned = runs["nero",], runs["nero_tuned",]
    assert (plain.lr, plain.beta, plain._target_) == (0.01, 0.999, "nero.optim.Nero")
    assert (plain.get("sigma_b"), plain.get("gain_penalty")) == (None, None), "out of the box"
    assert (tuned.lr, tuned.beta, tuned.sigma_b, tuned._target_) == (0.02, 0.999, 1.0, "nero.optim.Nero")
    assert tuned.gain_penalty > 0
