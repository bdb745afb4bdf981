"""The ImageNet task on small images, embedded and fabricated: what is learnt, what is measured, what is skipped."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import whole_runs
from conftest import ROOT, script_environment
from image_files import class_folders, colour_folders
from nero.data.sources import MissingData
from nero.engine.schedules import cosine
from nero.engine.seeding import SeedStreams
from nero.plans.config import RunConfig, compose
from nero.plans.plan import load_experiment
from nero.runs.store import RunDirectory, Store
from nero.tasks.base import BadSetting, Context, Machine
from nero.tasks.imagenet import ImageNet
from nero.train import build_task, train
from tiny_network import Tiny
from toy import without_times
from whole_runs import assert_cut_runs_go_on, assert_one_line, final_weights

TASK = "imagenet_resnet50"
CPU = torch.device("cpu")
BATCH, TRAIN, SIZE, RESIZE = 20, 110, 16, 18  # five whole batches; ten images are left over
STEPS = TRAIN // BATCH
WORDS = (
    f"task.batch_size={BATCH}",
    f"task.train_examples={TRAIN}",
    f"task.image_size={SIZE}",
    f"task.resize={RESIZE}",
    "task.network._target_=tiny_network.Tiny",
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
    """One for all: the embedded images are made once."""
    return tmp_path_factory.mktemp("data")


def prepare(store: Path, data: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    return whole_runs.prepare(store, TASK, *WORDS, f"data_root={data}", *words)


def make_task(data: Path, *words: str) -> ImageNet:
    task = build_task(prepare(data / "none", data, *words)[0], CPU)
    assert isinstance(task, ImageNet)
    return task


def plain_network(task: ImageNet) -> Tiny:
    """A network of the same weights that takes images which somebody else has normalised."""
    network = Tiny(task.classes)
    network.load_state_dict(task.network.state_dict())
    return network


# whole runs


@pytest.mark.parametrize("optim", ["nero", "sgd", "nero_tuned"])
def test_a_few_epochs_learn_what_chance_does_not_know(tmp_path: Path, optim: str) -> None:
    """Two of three guesses would be wrong."""
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


def test_what_a_run_logs(tmp_path: Path, data: Path) -> None:
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


def test_a_run_that_was_cut_ends_as_if_it_had_not_been(tmp_path: Path, data: Path) -> None:
    assert_cut_runs_go_on(tmp_path, TASK, *WORDS, f"data_root={data}", "task.epochs=3")


@pytest.mark.parametrize(
    ("word", "tolerance"), [("machine.workers=2", 0.0), ("machine.channels_last=false", 1e-4), ("machine.decode=cpu", 0)]
)
def test_how_the_machine_is_used_changes_nothing(tmp_path: Path, data: Path, word: str, tolerance: float) -> None:
    (config, plain), (other, run) = prepare(tmp_path / "plain", data), prepare(tmp_path / "other", data, word)
    assert config.run_id == other.run_id
    for each in (config, other):
        assert train(each)["status"] == "done"
    assert multiprocessing.active_children() == []
    ours, theirs = (without_times(each.read_metrics()) for each in (run, plain))
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == (pytest.approx(expected, rel=tolerance) if tolerance else expected)


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_and_weights_lie_in_memory_as_was_asked(data: Path, channels_last: bool) -> None:
    task = make_task(data, f"machine.channels_last={str(channels_last).lower()}")
    order = torch.channels_last if channels_last else torch.contiguous_format
    pixels, _ = next(task.batches(0))
    assert task.prepare(pixels).is_contiguous(memory_format=order)
    assert all(p.is_contiguous(memory_format=order) for p in task.network.parameters() if p.ndim == 4)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_every_precision_trains(tmp_path: Path, data: Path, precision: str) -> None:
    config, _ = prepare(tmp_path, data, f"precision={precision}", "task.epochs=1")
    assert train(config)["status"] == "done"


def test_a_compiled_run_is_the_plain_one(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = CompileCounter()  # runs what it is given as it stands
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    losses = []
    for compiled in ("false", "true"):
        config, run = prepare(tmp_path / compiled, data, f"machine.compile={compiled}")
        assert train(config)["status"] == "done"
        losses.append([record["val/loss"] for record in run.read_metrics()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert counter.frame_count <= 2, "one for images as the network takes them, one for the network; none to evaluate"


# batches and losses


def test_an_epoch_has_its_images_in_an_order_of_its_own_and_leaves_the_rest_out(data: Path) -> None:
    """Drawn from the seed and the epoch alone: another task of the same seed has the same."""
    orders = [make_task(data).stream.order(epoch)[0].tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == list(range(TRAIN))
    assert make_task(data, "seed=1").stream.order(0)[0].tolist() != orders[0]
    task = make_task(data)
    assert task.steps_per_epoch == STEPS
    labels = torch.cat([labels for _, labels in task.batches(1)])
    listed = task.stream.reader.images
    assert labels.tolist() == listed.labels[orders[1][: STEPS * BATCH]].tolist()


def test_some_of_the_images_are_of_all_classes_alike(tmp_path: Path) -> None:
    for split in ("train", "val"):
        class_folders(tmp_path / "imagenet" / split, classes=4, each=9)
    task = make_task(tmp_path, "data=real", "machine.workers=0", "task.train_examples=12", "task.batch_size=4")
    listed = task.stream.reader.images
    assert listed.labels[task.numbers.numpy()].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert len(set(task.numbers.tolist())) == 12
    batches = [labels for epoch in range(2) for _, labels in task.batches(epoch)]
    assert [len(labels) for labels in batches] == [4] * 6


def test_pixels_are_normalised_as_torchvision_does(data: Path) -> None:
    task = make_task(data)
    pixels, _ = next(task.batches(0))
    torch.testing.assert_close(task.prepare(pixels), NORMALISE(pixels), rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_mean_over_the_batch(data: Path) -> None:
    task = make_task(data)
    batch = next(task.batches(0))
    pixels, labels = batch
    expected = F.cross_entropy(plain_network(task)(NORMALISE(pixels)).double(), labels)
    ((name, loss),) = task.losses(batch)
    assert name == "network"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert task.meters.read() == pytest.approx({**task.meters.read(), "loss": loss.item() * BATCH, "count": BATCH})


class Linear(nn.Module):
    """With nothing in which one image has to do with another."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * SIZE * SIZE, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


def test_nothing_is_learnt_of_images_that_were_skipped(data: Path) -> None:
    """And what is learnt of the others is what would have been learnt of them anyway."""
    words = ["task.network._target_=test_imagenet_task.Linear", "~task.network.norm_parts"]
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
    """As anybody would validate: ImageFolder, torchvision's transforms, one image after the other."""
    transform = v2.Compose([v2.PILToTensor(), v2.Resize(RESIZE, antialias=True), v2.CenterCrop(SIZE), NORMALISE])
    network = plain_network(task).eval()
    loss, wrong, missed, count = 0.0, 0, 0, 0
    for image, label in DataLoader(ImageFolder(str(folder), transform)):
        logits = network(image).detach()
        loss += F.cross_entropy(logits.double(), label).item()
        better = int((logits > logits[0, label]).sum())
        wrong, missed, count = wrong + (better >= 1), missed + (better >= 5), count + 1
    return {"val/loss": loss / count, "val/error": wrong / count, "val/top5_error": missed / count}


@pytest.mark.parametrize("at_a_time", [250, 6])
def test_validation_is_what_a_plain_loop_measures(data: Path, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr("nero.tasks.imagenet.EVALUATION_BATCH", at_a_time)
    task = make_task(data)
    torch.manual_seed(0)
    for buffer in task.network.buffers():  # such as training leaves behind, and not those of the start
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
    """Three of 24 training images and one of 10 validation images are garbage, and a file is no image by its name."""
    class_folders(tmp_path / "imagenet" / "train", 2, 12, damaged=(2, 3, 20))
    class_folders(tmp_path / "imagenet" / "val", 2, 5, damaged=(7,))
    (tmp_path / "imagenet" / "train" / "class0" / "notes.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("workers", ["null", "0"])
def test_damaged_images_are_named_counted_and_do_not_end_a_run(
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
    assert "1 file under train is no image by its suffix, and skipped: class0/notes.txt\n" in said
    assert len(outcome["remarks"]) == 2
    assert multiprocessing.active_children() == []


def test_errors_are_of_the_images_that_could_be_read(damaged: Path) -> None:
    task = make_task(damaged, "data=real", "task.train_examples=null", "task.batch_size=8", "machine.workers=0")
    task.val_faults.say = lambda line: None
    with torch.no_grad():
        task.network.head.weight.zero_()
        task.network.head.bias.copy_(torch.tensor([1.0, 0.0]))  # always class 0
    found = task.evaluate()
    assert found["val/error"] == pytest.approx(4 / 9), "of class 1, one image of five is damaged"
    assert found["val/top5_error"] == 0, "of two classes the best five are all"


def test_a_folder_of_which_nothing_can_be_read_fails_in_one_line(tmp_path: Path) -> None:
    class_folders(tmp_path / "imagenet" / "train", 2, 12, damaged=tuple(range(24)))
    class_folders(tmp_path / "imagenet" / "val", 2, 5)
    words = ["data=real", "task.train_examples=null", "task.batch_size=12"]
    config, run = prepare(tmp_path / "runs", tmp_path, *words)
    outcome = train(config)
    assert outcome["status"] == "failed"
    assert outcome["message"].startswith("RuntimeError: none of 12 images in a row could be read; of train/class")
    assert run.read_metrics() == []
    assert multiprocessing.active_children() == []


def test_missing_images_are_said_in_one_line_with_how_to_get_them(tmp_path: Path) -> None:
    config, run = prepare(tmp_path, tmp_path / "none", "data=real")
    with pytest.raises(MissingData, match=r"^imagenet: .*prepare_data\.py imagenet") as error:
        train(config)
    assert "\n" not in str(error.value)
    assert run.read_summary() is None


# settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task.resize=15"], "task: resize must be at least image_size, 16, not 15"),
        (["task.resize=0"], "task: resize must be a whole number from 1, not 0"),
        (["task.image_size=1.5"], "task: image_size must be a whole number from 1, not 1.5"),
        (["task.batch_size=111"], "task: batch_size must be at most 110, the images there are, not 111"),
        (["task.batch_size=true"], "task: batch_size must be a whole number from 1, not True"),
        (["task.network.norm_parts=3"], r"task: network.norm_parts: a batch of 20 images is no 3 equal parts"),
        (["task.network.norm_parts=0"], r"task: network.norm_parts: a batch of 20 images is no 0 equal parts"),
        (["task.train_examples=5"], "task: train_examples: 5 images do not fill 10 classes"),
        (["task.train_examples=0"], "task: train_examples must be a whole number from 1, not 0"),
        (["+task.network.colour=3"], "task: network: .*unexpected keyword argument 'colour'"),
        (["+task.network.width=-1"], "task: network: .*negative"),
        (["task.schedule.warmup=2"], r"task\.schedule: a warm-up of 2 epochs leaves nothing of 2 epochs"),
        (["machine.workers=-1"], "machine.workers must be null or a whole number from 0, not -1"),
        (["machine.decode=tpu"], "machine.decode must be one of auto, cpu, gpu, dali, not 'tpu'"),
        (["machine.decode=gpu"], "machine.decode=gpu needs a CUDA GPU"),
        (["machine.channels_last=1"], "machine.channels_last must be true or false, not 1"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(tmp_path: Path, data: Path, words: list[str], message: str) -> None:
    assert_one_line(tmp_path, TASK, [*WORDS, f"data_root={data}", *words], message)


def test_more_images_than_there_are_cannot_be_asked_for(tmp_path: Path, damaged: Path) -> None:
    words = [*WORDS, f"data_root={damaged}", "data=real", "task.train_examples=25"]
    assert_one_line(tmp_path / "runs", TASK, words, "task: train_examples must be at most 24, not 25")


def test_without_dali_it_is_said_what_to_install(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    words = [*WORDS, f"data_root={data}", "machine.decode=dali"]
    assert_one_line(tmp_path, TASK, words, "machine.decode=dali: .*pip install nvidia-dali")


def test_there_is_a_worker_for_each_core_but_for_embedded_images(
    damaged: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ["data=real", "task.train_examples=null", "task.batch_size=8"]
    for cores, workers in ((1, 1), (6, 6), (200, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: set(range(cores)), raising=False)
        assert make_task(damaged, *real).workers == workers
    assert make_task(damaged, *real, "machine.workers=3").workers == 3
    assert make_task(data).workers == 0


def test_ranks_of_a_machine_share_its_cores_and_each_has_its_part_of_a_batch(
    data: Path, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)

    def task_of(rank: int, size: int, root: Path = damaged) -> ImageNet:
        ranks: Any = SimpleNamespace(rank=rank, size=size, local_size=size, sum_=lambda tensor: None)
        context = Context(CPU, SeedStreams(0), "real", root, ranks=ranks, machine=Machine())
        return ImageNet(context, Tiny, 1, 8, SIZE, RESIZE)

    tasks = [task_of(rank, 3) for rank in range(3)]
    assert [task.workers for task in tasks] == [2, 2, 2]
    assert [place for task in tasks for place in task.stream.part] == list(range(8))
    for task in tasks:
        assert task.network.stages[0][1].own == 0, "a part of two images is cut, so that all exchange sums"
    assert [task.network.stages[0][1].own for task in (task_of(rank, 2) for rank in range(2))] == [2, 2]
    with pytest.raises(BadSetting, match="batch_size must be at least 9, the number of ranks"):
        task_of(0, 9)


# the paper's settings


def test_the_schedule_warms_up_for_an_epoch_and_then_follows_a_cosine_to_zero() -> None:
    schedule = instantiate(compose([f"task={TASK}"]).cfg.task.schedule)
    assert [schedule(progress) for progress in (0, 0.25, 0.5, 1)] == [0, 0.25, 0.5, 1]
    for progress in (1, 10.5, 45.5, 77, 89.99, 90):
        expected = 0.5 * (1 + math.cos(math.pi * (progress - 1) / 89))
        assert schedule(progress) == pytest.approx(expected, abs=1e-12)
    assert schedule(45.5) == pytest.approx(0.5)
    assert schedule(90) == pytest.approx(0)
    with pytest.raises(ValueError, match="leaves nothing"):
        cosine(epochs=1, warmup=1)


def test_the_runs_of_figure_9_are_the_protocols() -> None:
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


# stopping


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_run_ends_it_with_a_checkpoint(
    tmp_path: Path, data: Path, number: signal.Signals
) -> None:
    """As a scheduler or a terminal sends it: workers are among them, and are not what it is meant for."""
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
