"""Tests of the CIFAR-10 task on embedded images: batches, metrics and resumed runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torchvision.transforms import Compose, Normalize
from torchvision.transforms.functional import convert_image_dtype

from nero.data.augmentation import Augmentation
from nero.data.images.arrays import load_cifar10
from nero.data.sources import MissingData, default_root
from nero.data.synthetic.shapes import shapes
from nero.engine.seeding import SeedStreams
from nero.plans.config import RunConfig
from nero.runs.store import RunDirectory
from nero.tasks.base import BadSetting, Context
from nero.tasks.cifar10 import CIFAR10, MEAN, STD
from nero.tasks.classification import EVALUATION_BATCH, load_images
from nero.train.build import build_task
from nero.train.run import train
from support import whole_runs
from support.real_data import root_with
from support.whole_runs import assert_cut_runs_go_on, assert_follows_the_cpu, assert_one_line

CPU = torch.device("cpu")
TRAIN, BATCH = 50, 16  # three full batches and one of two images
SMALL = (
    f"task.train_examples={TRAIN}",
    f"task.batch_size={BATCH}",
    "task.epochs=3",
    "task.network.width=2",
)
WORDS = {
    "cifar10_vgg11": (*SMALL, "task.network.hidden=8"),
    "cifar10_resnet18": SMALL,
}
EVERY_TASK = pytest.mark.parametrize("task", WORDS)


class Pixels(nn.Module):
    """A linear network, which is fast and behaves the same in training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def make_task(augmentation: Augmentation | None = None, seed: int = 0, data: str = "embedded") -> CIFAR10:
    context = Context(CPU, SeedStreams(seed), data, default_root())
    torch.manual_seed(0)
    return CIFAR10(context, Pixels(), augmentation or Augmentation(4, True, 15), 4, BATCH, TRAIN)


def prepare(tmp_path: Path, task: str, *words: str) -> tuple[RunConfig, RunDirectory]:
    return whole_runs.prepare(tmp_path, task, *WORDS[task], *words)


def joined(batches: Iterator[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    pixels, labels = zip(*batches, strict=True)
    return torch.cat(pixels), torch.cat(labels)


def test_epoch_has_every_image_once_including_last_smaller_batch() -> None:
    task = make_task(Augmentation())
    batches = list(task.batches(0))
    assert [len(labels) for _, labels in batches] == [16, 16, 16, 2]
    assert task.steps_per_epoch == 4
    pixels, labels = joined(iter(batches))
    data = shapes(train=TRAIN, test=100)
    sums = {int(image.sum()): int(label) for image, label in zip(data.train_images, data.train_labels, strict=True)}
    assert len(sums) == TRAIN
    assert {int(image.sum()): int(label) for image, label in zip(pixels, labels, strict=True)} == sums


def test_epochs_differ_and_are_reproducible_from_seed() -> None:
    task = make_task()
    first, second = joined(task.batches(0)), joined(task.batches(1))
    assert not torch.equal(first[1], second[1])
    again = joined(make_task().batches(1))  # not prefetched during the previous epoch
    assert torch.equal(second[0], again[0])
    assert torch.equal(second[1], again[1])
    assert not torch.equal(first[0], joined(make_task(seed=1).batches(0))[0])


def test_epoch_can_resume_midway() -> None:
    whole, rest = list(make_task().batches(2)), list(make_task().batches(2, start=1))
    assert len(rest) == 3
    for (pixels, labels), (again, others) in zip(whole[1:], rest, strict=True):
        assert torch.equal(pixels, again)
        assert torch.equal(labels, others)


def test_prefetch_is_only_for_the_next_epoch() -> None:
    task = make_task()
    list(task.batches(0))
    skipped = joined(task.batches(2))
    assert torch.equal(skipped[0], joined(make_task().batches(2))[0])
    list(task.batches(3))
    assert not task.training.prefetch, "nothing follows the last epoch"


def test_batches_are_channels_last_bytes() -> None:
    pixels, labels = next(make_task().batches(0))
    assert (pixels.dtype, labels.dtype) == (torch.uint8, torch.int64)
    assert pixels.shape == (BATCH, 3, 32, 32)
    assert pixels.is_contiguous(memory_format=torch.channels_last)


def test_normalisation_matches_torchvision() -> None:
    task = make_task()
    pixels, _ = next(task.batches(0))
    transform = Compose([lambda image: convert_image_dtype(image, torch.float32), Normalize(MEAN, STD)])
    torch.testing.assert_close(task.prepare(pixels), torch.stack([transform(image) for image in pixels]))


def test_metrics_cover_training_batches_and_all_test_images() -> None:
    task = make_task()
    loss, wrong, steps = 0.0, 0, list(task.batches(0))
    for batch in steps:
        pixels, labels = batch
        for _, batch_loss in task.losses(batch):
            loss += batch_loss.item() * len(labels)
        wrong += int((task.network(task.prepare(pixels)).argmax(1) != labels).sum())
        with torch.no_grad():  # as a step would, so that later batches see other weights
            task.network.linear.weight.add_(0.01 * torch.randn_like(task.network.linear.weight))
    metrics = task.evaluate()
    assert set(metrics) == {"train/loss", "train/error", "val/loss", "val/error"}
    assert metrics["train/error"] == wrong / TRAIN
    assert metrics["train/loss"] == pytest.approx(loss / TRAIN, rel=1e-6)
    data = shapes(train=TRAIN, test=100)
    logits = task.network(task.prepare(data.test_images)).detach()
    assert metrics["val/error"] == int((logits.argmax(1) != data.test_labels).sum()) / 100
    assert metrics["val/loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, data.test_labels)), rel=1e-5)
    assert task.network.training


def test_partial_last_evaluation_batch_is_weighted_correctly(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    whole = task.test_score()
    monkeypatch.setattr("nero.tasks.classification.EVALUATION_BATCH", 33)
    parts = task.test_score()
    assert EVALUATION_BATCH != 33
    assert parts[1:] == whole[1:]
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)


@EVERY_TASK
def test_convolution_weights_are_channels_last(tmp_path: Path, task: str) -> None:
    network = build_task(prepare(tmp_path, task)[0], CPU).networks()["network"]
    weights = [param for param in network.parameters() if param.ndim == 4 and param.shape[1] > 1]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


@EVERY_TASK
def test_run_logs_errors_and_final_validation_error(tmp_path: Path, task: str) -> None:
    config, run = prepare(tmp_path, task)
    outcome = train(config)
    assert outcome["status"] == "done"
    records = run.read_metrics()
    assert outcome["final"] == records[-1]["val/error"]
    assert outcome["metric"] == {"key": "val/error", "goal": "min", "label": "top-1 error"}
    assert [record["step"] for record in records] == [4, 8, 12]
    # The warm-up is linear over five epochs (20 steps); the last step of the first epoch has index 3.
    assert records[0]["lr"] == pytest.approx(0.01 * 3 / 20)


@pytest.mark.slow
@EVERY_TASK
def test_interrupted_run_ends_like_uninterrupted_run(tmp_path: Path, task: str) -> None:
    assert_cut_runs_go_on(tmp_path, task, *WORDS[task])


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@EVERY_TASK
def test_every_precision_trains(tmp_path: Path, task: str, precision: str) -> None:
    config, _ = prepare(tmp_path, task, f"precision={precision}", "task.epochs=1")
    assert train(config)["status"] == "done"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("task.augmentation.degrees=-1", "task: degrees must be from 0 to 180, not -1"),
        ("task.augmentation.padding=-2", "task: padding must be a non-negative integer, not -2"),
        ("task.augmentation.flip=0.5", "task.augmentation.flip must be true or false, not 0.5"),
        ("task.network.width=-1", "task: .*negative"),
        ("+task.network.colour=3", "task: .*unexpected keyword argument 'colour'"),
        ("task.network._target_=nero.models.vgg.VGG12", "task: .*Are you sure that 'VGG12' is importable"),
        ("task.schedule._target_=nero.engine.schedules.no", r"task\.schedule: .*Are you sure that 'no' is importable"),
        ("task.batch_size=0", "task: batch_size must be a positive integer, not 0"),
        ("task.batch_size=1.5", "task: batch_size must be a positive integer, not 1.5"),
        ("task.train_examples=0", "task: train_examples must be a positive integer, not 0"),
        ("task.train_examples=-3", "task: train_examples must be a positive integer, not -3"),
    ],
)
def test_invalid_setting_gives_one_line_error(tmp_path: Path, word: str, message: str) -> None:
    assert_one_line(tmp_path, "cifar10_resnet18", [*WORDS["cifar10_resnet18"], word], message)


def test_exception_in_user_network_keeps_traceback(tmp_path: Path) -> None:
    words = [
        "task.network._target_=tasks.test_cifar10.Broken",
        "~task.network.width",
        "~task.network.fan_out",
        "~task.network.stem_relu",
    ]
    config, run = prepare(tmp_path, "cifar10_resnet18", *words)
    assert train(config)["status"] == "failed"
    summary = run.read_summary()
    assert summary is not None
    assert "in __init__" in summary["traceback"]
    assert summary["traceback"].strip().endswith("KeyError: 'forgotten'")


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wrong = {}["forgotten"]


def test_train_examples_beyond_dataset_size_raises() -> None:
    context = Context(CPU, SeedStreams(0), "real", Path())
    there = shapes(train=20, test=10)
    some = load_images(context, 7, real=lambda root: there, embedded=shapes)
    assert torch.equal(some.train_images, there.train_images[:7])
    with pytest.raises(BadSetting, match="train_examples must be at most 20, not 21"):
        load_images(context, 21, real=lambda root: there, embedded=shapes)


def test_images_are_unchanged_without_augmentation(tmp_path: Path) -> None:
    task = make_task(Augmentation())
    still = CIFAR10(Context(CPU, SeedStreams(0), "embedded", Path()), Pixels(), None, 4, BATCH, TRAIN)
    for ours, theirs in zip(joined(task.batches(1)), joined(still.batches(1)), strict=True):
        assert torch.equal(ours, theirs)
    config, _ = prepare(tmp_path, "cifar10_resnet18", "task.augmentation=null", "task.epochs=1")
    assert train(config)["status"] == "done"


def test_network_can_be_configured_by_target(tmp_path: Path) -> None:
    words = ["task.network._target_=torchvision.models.squeezenet1_1", "+task.network.num_classes=10"]
    words += [f"~task.network.{key}" for key in ("width", "fan_out", "stem_relu")]
    words += ["task.epochs=1", "task.train_examples=8", "task.batch_size=8"]
    config, _ = prepare(tmp_path, "cifar10_resnet18", *words)
    assert train(config)["status"] == "done"


def test_missing_data_error_names_download_command(tmp_path: Path) -> None:
    config, _ = prepare(tmp_path, "cifar10_vgg11", "data=real", f"data_root={tmp_path / 'none'}")
    with pytest.raises(MissingData, match=r"nero data cifar10"):
        train(config)


@pytest.mark.data
def test_real_images_come_from_cifar10() -> None:
    root = root_with("cifar10")
    whole = load_cifar10(root)
    task = CIFAR10(Context(CPU, SeedStreams(0), "real", root), Pixels(), None, 1, BATCH, 70)
    assert torch.equal(task.training.images, whole.train_images[:70])
    assert len(task.test_labels) == 10_000


@pytest.mark.slow
def test_compiled_run_equals_eager_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()  # a backend that runs graphs unchanged
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    losses = []
    for compiled in (False, True):
        words = [f"machine.compile={str(compiled).lower()}", "task.epochs=2"]
        config, run = prepare(tmp_path / str(compiled), "cifar10_resnet18", *words)
        assert train(config)["status"] == "done"
        losses.append([record["val/loss"] for record in run.read_metrics()])
    assert losses[0] == losses[1]
    assert counter.frame_count == 1, "a graph for whole batches, none for the last, none for evaluation"


@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["nero", "sgd", "adam", "lamb", "madam_constrained"])
@EVERY_TASK
def test_captured_run_matches_cpu_run(tmp_path: Path, task: str, optim: str) -> None:
    assert_captured_follows(tmp_path, task, optim)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "optim"), [("cifar10_resnet18", "nero"), ("cifar10_vgg11", "adam"), ("cifar10_vgg11", "lamb")]
)
def test_compiled_and_captured_run_matches_cpu_run(tmp_path: Path, task: str, optim: str) -> None:
    assert_captured_follows(tmp_path, task, optim, "machine.compile=true")


RATES = {
    "cifar10_vgg11": {"nero": 1e-4, "sgd": 1e-3, "adam": 1e-5, "lamb": 1e-4, "madam_constrained": 1e-4},
    "cifar10_resnet18": {"nero": 5e-5, "sgd": 1e-5, "adam": 1e-6, "lamb": 1e-5, "madam_constrained": 5e-5},
}
"""Small enough that rounding errors do not grow. At the paper's rates, a relative change of 1e-7 in this ResNet-18's
initial weights changes the final ones by half the distance trained."""


def assert_captured_follows(tmp_path: Path, task: str, optim: str, *gpu: str) -> None:
    still = ["task.network.dropout=0"] if task == "cifar10_vgg11" else []
    words = [*WORDS[task], f"optim={optim}", "task.schedule.warmup=0", "task.network.width=8", *still]
    assert_follows_the_cpu(tmp_path, task, RATES[task][optim], words, gpu)


@pytest.mark.gpu
@pytest.mark.parametrize("words", [[], pytest.param(["machine.compile=true"], marks=pytest.mark.slow)])
def test_dropout_differs_between_graph_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    # One batch has all images in the same order, and the weights do not change: only dropout changes the loss.
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.arange(count))
    still = ["task.batch_size=50", "task.augmentation=null", "optim=sgd", "optim.lr=1e-12", "machine=gpu"]
    config, run = prepare(tmp_path, "cifar10_vgg11", *still, "task.network.width=8", "task.epochs=8", *words)
    assert train(config)["status"] == "done"
    losses = [record["train/loss"] for record in run.read_metrics()]
    assert len(set(losses)) == 8
    assert max(losses) - min(losses) > 1e-3
