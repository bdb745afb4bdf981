"""Tests of the ImageNet task on small synthetic images: training, validation and skipped images."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import decode_image
from torchvision.transforms import v2

from conftest import ROOT, script_environment
from nero.data.images import jpeg_folders
from nero.data.images.arrays import ImageSet
from nero.data.sources import MissingData
from nero.engine.seeding import SeedStreams
from nero.plans.config import RunConfig, compose
from nero.plans.schema import ConfigError
from nero.runs.store import RunDirectory, Store
from nero.tasks.base import Context, Machine
from nero.tasks.imagenet import ImageNet, _decoder
from nero.train.build import build_task
from nero.train.run import train
from support import whole_runs
from support.image_files import class_folders, colour_folders
from support.tiny_network import Tiny
from support.toy import without_times
from support.whole_runs import assert_cut_runs_go_on, final_weights

TASK = "imagenet_resnet50"
CPU = torch.device("cpu")
BATCH, TRAIN, SIZE, RESIZE = 20, 110, 16, 18  # five full batches; ten images are left over
STEPS = TRAIN // BATCH
WORDS = (
    f"task.batch_size={BATCH}",
    f"task.train_examples={TRAIN}",
    f"task.image_size={SIZE}",
    f"task.resize={RESIZE}",
    "task.network._target_=support.tiny_network.Tiny",
    "~task.network.layers",
    "task.schedule.warmup=0",
    "task.epochs=2",
    "precision=fp32",
)
NORMALISE = v2.Compose(
    [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared data root, so that the embedded images are created only once."""
    return tmp_path_factory.mktemp("data")


def prepare(store: Path, data: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    return whole_runs.prepare(store, TASK, *WORDS, f"data_root={data}", *words)


def make_task(data: Path, *words: str) -> ImageNet:
    task = build_task(prepare(data / "none", data, *words)[0], CPU)
    assert isinstance(task, ImageNet)
    return task


def plain_network(task: ImageNet) -> Tiny:
    """A network with the same weights that takes normalised images."""
    network = Tiny(task.classes)
    network.load_state_dict(task.network.state_dict())
    return network


@pytest.mark.parametrize(
    ("device", "workers", "decode", "on_device"),
    [
        ("cuda", 15, "auto", True),
        ("cuda", 16, "auto", False),
        ("cuda", 15, "cpu", False),
        ("cuda", 16, "gpu", True),
        ("cpu", 0, "auto", False),
    ],
)
def test_gpu_decodes_when_there_are_few_workers(device: str, workers: int, decode: str, on_device: bool) -> None:
    context = Context(torch.device(device), SeedStreams(0), "real", Path(), machine=Machine(workers, decode))
    assert (_decoder(context, 8, workers) is not None) == on_device


# complete runs


@pytest.mark.parametrize("optim", ["nero", "sgd", "nero_tuned"])
def test_few_epochs_beat_chance(tmp_path: Path, optim: str) -> None:
    """The error of guessing is 2/3."""
    for split, each in (("train", 20), ("val", 5)):
        colour_folders(tmp_path / "imagenet" / split, each, seed=each)
    words = ["data=real", "task.train_examples=null", "machine.workers=0", "task.epochs=4", "task.batch_size=12"]
    config, run = prepare(tmp_path / "runs", tmp_path, *words, f"optim={optim}", "optim.lr=0.02")
    outcome = train(config)
    assert outcome["status"] == "done"
    records = run.read_metrics()
    assert outcome["final"] == records[-1]["val/error"] < 0.2
    assert records[-1]["train/error"] < 0.4
    assert records[-1]["val/loss"] < records[0]["val/loss"]


def test_run_logs_all_metrics(tmp_path: Path, data: Path) -> None:
    config, run = prepare(tmp_path, data)
    outcome = train(config)
    assert outcome["status"] == "done"
    assert outcome["metric"] == {"key": "val/error", "goal": "min", "label": "top-1 error"}
    records = run.read_metrics()
    assert [record["step"] for record in records] == [STEPS, 2 * STEPS]
    for record in records:
        assert {"train/loss", "train/error", "val/loss", "val/error", "val/top5_error"} < set(record)
        assert record["train/skipped"] == record["val/skipped"] == 0
        assert 0 < record["train/waiting"] < 1
    assert "remarks" not in outcome, "embedded images are nobody's ImageNet"
    assert (data / "embedded").is_dir()


@pytest.mark.slow
def test_interrupted_run_ends_like_uninterrupted_run(tmp_path: Path, data: Path) -> None:
    assert_cut_runs_go_on(tmp_path, TASK, *WORDS, f"data_root={data}", "task.epochs=3")


@pytest.mark.slow
def test_machine_settings_do_not_change_results(tmp_path: Path, data: Path) -> None:
    logged: dict[str, list[dict]] = {}
    for word in ("machine.workers=null", "machine.workers=2", "machine.decode=cpu", "machine.channels_last=false"):
        config, run = prepare(tmp_path / str(len(logged)), data, word)
        assert train(config)["status"] == "done"
        assert multiprocessing.active_children() == []
        logged[f"{config.run_id} {word}"] = without_times(run.read_metrics())
    assert len({name.split()[0] for name in logged}) == 1, "nor what a run is"
    plain, workers, decoded, contiguous = logged.values()
    assert plain == workers == decoded
    for ours, theirs in zip(contiguous, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4), "other kernels round otherwise"


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_and_weights_have_requested_memory_format(data: Path, channels_last: bool) -> None:
    task = make_task(data, f"machine.channels_last={str(channels_last).lower()}")
    order = torch.channels_last if channels_last else torch.contiguous_format
    pixels, _ = next(task.batches(0))
    assert task.prepare(pixels).is_contiguous(memory_format=order)
    assert all(p.is_contiguous(memory_format=order) for p in task.network.parameters() if p.ndim == 4)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_precision_trains(tmp_path: Path, data: Path, precision: str) -> None:
    config, _ = prepare(tmp_path, data, f"precision={precision}", "task.epochs=1")
    assert train(config)["status"] == "done"


@pytest.mark.slow
def test_compiled_run_matches_eager_run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()  # a backend that runs graphs unchanged
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    losses = []
    for compiled in ("false", "true"):
        config, run = prepare(tmp_path / compiled, data, f"machine.compile={compiled}")
        assert train(config)["status"] == "done"
        losses.append([record["val/loss"] for record in run.read_metrics()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert 1 <= counter.frame_count <= 2, "normalised images and the network; evaluation is not compiled"


# batches and losses


def test_each_epoch_has_its_own_order_and_drops_the_remainder(data: Path) -> None:
    """The order depends only on the seed and the epoch, so another task with the same seed has the same order."""
    orders = [make_task(data).stream.order(epoch)[0].tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == list(range(TRAIN))
    assert make_task(data, "seed=1").stream.order(0)[0].tolist() != orders[0]
    task = make_task(data)
    assert task.steps_per_epoch == STEPS
    labels = torch.cat([labels for _, labels in task.batches(1)])
    listed = task.stream.reader.images
    assert labels.tolist() == listed.labels[orders[1][: STEPS * BATCH]].tolist()


def test_subset_of_images_is_balanced_over_classes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        class_folders(tmp_path / "imagenet" / split, classes=4, each=9)
    task = make_task(tmp_path, "data=real", "machine.workers=0", "task.train_examples=12", "task.batch_size=4")
    listed = task.stream.reader.images
    assert listed.labels[task.numbers.numpy()].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert len(set(task.numbers.tolist())) == 12
    batches = [labels for epoch in range(2) for _, labels in task.batches(epoch)]
    assert [len(labels) for labels in batches] == [4] * 6


def test_normalisation_matches_torchvision(data: Path) -> None:
    task = make_task(data)
    pixels, _ = next(task.batches(0))
    torch.testing.assert_close(task.prepare(pixels), NORMALISE(pixels), rtol=1e-5, atol=1e-5)


def test_loss_is_mean_over_batch(data: Path) -> None:
    task = make_task(data)
    batch = next(task.batches(0))
    pixels, labels = batch
    expected = F.cross_entropy(plain_network(task)(NORMALISE(pixels)).double(), labels)
    ((name, loss),) = task.losses(batch)
    assert name == "network"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert task.meters.read() == pytest.approx({**task.meters.read(), "loss": loss.item() * BATCH, "count": BATCH})


class Linear(nn.Module):
    """A network in which the images of a batch do not influence each other."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * SIZE * SIZE, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def test_skipped_images_do_not_contribute_to_gradient(data: Path) -> None:
    """The gradients of the other images are unchanged: their sum is still divided by the full batch size."""
    words = ["task.network._target_=tasks.test_imagenet_task.Linear", "~task.network.norm_parts"]
    task = make_task(data, *words)
    pixels, labels = next(task.batches(0))
    gone = torch.tensor([3, 4, 19])
    left = torch.tensor([place for place in range(BATCH) if place not in gone])
    skipped = labels.index_fill(0, gone, -100)
    ((_, loss),) = task.losses((pixels, skipped))
    loss.backward()
    weight = task.network.linear.weight
    found = weight.grad.double()
    weights, bias = weight.detach().double().requires_grad_(), task.network.linear.bias.detach().double()
    logits = F.linear(NORMALISE(pixels[left]).double().flatten(1), weights, bias)
    (F.cross_entropy(logits, labels[left], reduction="sum") / BATCH).backward()
    torch.testing.assert_close(found, weights.grad, rtol=1e-4, atol=1e-6)
    sums = task.meters.read()
    assert (sums["count"], sums["skipped"]) == (17, 3)
    assert sums["correct"] == int((logits.argmax(1) == labels[left]).sum())


# validation


def by_torchvision(task: ImageNet, folder: Path) -> dict[str, float]:
    """Metrics of a plain validation loop: ImageFolder and torchvision's transforms, one image at a time."""
    transform = v2.Compose([v2.Resize(RESIZE, antialias=True), v2.CenterCrop(SIZE), NORMALISE])
    # ImageFolder's default loader is Pillow, which brings its own libjpeg and may round differently.
    images = ImageFolder(str(folder), transform, loader=lambda path: decode_image(path, mode="RGB"))
    network = plain_network(task).eval()
    loss, wrong, missed, count = 0.0, 0, 0, 0
    for image, label in DataLoader(images):
        logits = network(image).detach()
        loss += F.cross_entropy(logits.double(), label).item()
        better = int((logits > logits[0, label]).sum())
        wrong, missed, count = wrong + (better >= 1), missed + (better >= 5), count + 1
    return {"val/loss": loss / count, "val/error": wrong / count, "val/top5_error": missed / count}


@pytest.mark.parametrize("at_a_time", [250, 6])
def test_validation_matches_plain_torchvision_loop(data: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr("nero.tasks.imagenet.EVALUATION_BATCH", at_a_time)
    task = make_task(data)
    torch.manual_seed(0)
    for buffer in task.network.buffers():  # statistics unlike the initial ones, as after training
        if buffer.is_floating_point():
            buffer.copy_(0.5 + torch.rand_like(buffer))
    found = task.evaluate()
    expected = by_torchvision(task, data / "embedded" / f"shapes-{TRAIN}-22-seed0-v1" / "val")
    assert len(task.val) == 22
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-4), key
    assert found["val/skipped"] == 0
    assert task.network.training
    assert 0 < found["val/top5_error"] < found["val/error"]


# images that cannot be read


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data root in which 3 of 24 training images and 1 of 10 validation images are garbage, with a text file."""
    class_folders(tmp_path / "imagenet" / "train", 2, 12, damaged=(2, 3, 20))
    class_folders(tmp_path / "imagenet" / "val", 2, 5, damaged=(7,))
    (tmp_path / "imagenet" / "train" / "class0" / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("workers", ["null", "0"])
def test_damaged_images_are_reported_and_counted_without_ending_run(
    tmp_path: Path, damaged: Path, capfd: pytest.CaptureFixture[str], workers: str
) -> None:
    words = ["data=real", "task.train_examples=null", "task.batch_size=8", f"machine.workers={workers}"]
    config, run = prepare(tmp_path / "runs", damaged, *words)
    outcome = train(config)
    assert outcome["status"] == "done", outcome
    records = run.read_metrics()
    assert [(record["train/skipped"], record["val/skipped"]) for record in records] == [(3, 1), (3, 1)]
    assert all(math.isfinite(record["train/loss"]) and math.isfinite(record["val/loss"]) for record in records)
    said = capfd.readouterr().err
    for name in ("train/class0/002-bad.jpg", "train/class0/003-bad.jpg", "train/class1/020-bad.jpg"):
        assert said.count(f"skipped: {name}: no image\n") == 1
    assert said.count("skipped: val/class1/007-bad.jpg: no image\n") == 1
    assert "not ImageNet: 24 training and 10 validation images in 2 classes\n" in said
    assert "1 file in train skipped (not an image by suffix): class0/notes.txt\n" in said
    assert len(outcome["remarks"]) == 2
    assert multiprocessing.active_children() == []


def test_errors_are_over_readable_images_only(damaged: Path) -> None:
    task = make_task(damaged, "data=real", "task.train_examples=null", "task.batch_size=8", "machine.workers=0")
    task.val_faults.log = lambda line: None
    with torch.no_grad():
        task.network.head.weight.zero_()
        task.network.head.bias.copy_(torch.tensor([1.0, 0.0]))  # always class 0
    found = task.evaluate()
    assert found["val/error"] == pytest.approx(4 / 9), "of class 1, one image of five is damaged"
    assert found["val/top5_error"] == 0, "of two classes the best five are all"


def test_entirely_unreadable_folder_fails_with_one_line_message(tmp_path: Path) -> None:
    class_folders(tmp_path / "imagenet" / "train", 2, 12, damaged=tuple(range(24)))
    class_folders(tmp_path / "imagenet" / "val", 2, 5)
    words = ["data=real", "task.train_examples=null", "task.batch_size=12"]
    config, run = prepare(tmp_path / "runs", tmp_path, *words)
    outcome = train(config)
    assert outcome["status"] == "failed"
    assert outcome["message"].startswith("RuntimeError: none of 12 images in a row could be read; of train/class")
    assert run.read_metrics() == []
    assert multiprocessing.active_children() == []


def test_missing_data_error_names_command_on_one_line(tmp_path: Path) -> None:
    config, run = prepare(tmp_path, tmp_path / "none", "data=real")
    with pytest.raises(MissingData, match=r"^imagenet: .*nero data imagenet") as error:
        train(config)
    assert "\n" not in str(error.value)
    assert run.read_summary() is None


def test_missing_cifar10_is_named_before_training(tmp_path: Path) -> None:
    config, run = prepare(tmp_path / "runs", tmp_path, "data=real", "+task.images=cifar10")
    with pytest.raises(MissingData, match=r"^cifar10: .*nero data cifar10"):
        train(config)
    assert run.read_summary() is None


def test_cifar10_images_are_read_from_jpeg_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = torch.zeros(30, 3, 32, 32, dtype=torch.uint8), torch.arange(30) % 10
    small = ImageSet(pixels, labels, pixels[:10], labels[:10], classes=10)
    monkeypatch.setattr(jpeg_folders, "load_cifar10", lambda root: small)
    task = make_task(tmp_path, "data=real", "+task.images=cifar10", "task.train_examples=20")
    assert (task.classes, len(task.val), task.steps_per_epoch, task.remarks) == (10, 10, 1, ())
    assert task.val.root.parent.parent == tmp_path


def test_unknown_images_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^task: images must be imagenet or cifar10, not cifar"):
        make_task(tmp_path, "data=real", "+task.images=cifar")


# stopping


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_process_group_stops_run_with_checkpoint(tmp_path: Path, data: Path, number: signal.Signals) -> None:
    """Schedulers and terminals signal workers too, which must continue until the run has checkpointed."""
    words = [f"task={TASK}", "data=embedded", "machine=cpu", *WORDS, f"data_root={data}"]
    words += ["task.epochs=4000", "machine.workers=2"]
    config = compose(words)
    run = Store(tmp_path / "runs").run(TASK, config.run_id)
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *words]
    env = {**script_environment(tmp_path), "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    end = time.monotonic() + 60
    while len(run.read_metrics()) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, number)
    begun = time.monotonic()
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert time.monotonic() - begun < 10, "no worker was waited for"
    assert f"stopped ({number.name})" in said
    assert run.load_checkpoint() is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert len(final_weights(run)) > 0
