"""Tests of the GAN task on embedded images: its losses, samples, FID measurements and complete runs."""

import io
import math
import shutil
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import hflip, pil_to_tensor

from nero.data.augmentation import Augmentation
from nero.data.download.files import DamagedData
from nero.data.images.arrays import ImageSet, load_cifar10
from nero.data.synthetic.shapes import shapes
from nero.engine.precision import set_precision
from nero.engine.seeding import SeedStreams
from nero.models.biggan import Discriminator, Generator
from nero.models.inception import INSTALL, NoInception, StandIn
from nero.plans.config import RunConfig, compose
from nero.plans.plan import load_experiment
from nero.report.cells import variant_text
from nero.report.tables.table import build_table
from nero.runs.store import RunDirectory, Store, is_settled
from nero.tasks import fid
from nero.tasks.base import Context
from nero.tasks.cgan import ConditionalGAN, grid, to_jpeg
from nero.tasks.fid import Judge, judge
from nero.train.build import build_task
from nero.train.run import train
from support import whole_runs
from support.fake_runs import evidence_of
from support.real_data import root_with
from support.toy import make_loop
from support.whole_runs import assert_cut_runs_go_on, assert_follows_the_cpu, assert_one_line

CPU = torch.device("cpu")
Z, CLASSES, PIXELS = 80, 10, 3 * 32 * 32
TRAIN, BATCH = 14, 4  # three full batches and one of two images
SMALL = (f"task.train_examples={TRAIN}", f"task.batch_size={BATCH}", "task.epochs=3", "task.fid_every=1")
# NARROW: the paper's networks at their smallest. TINY: other networks, which take a few milliseconds per step.
NARROW = tuple(f"task.{name}.{word}" for name in ("generator", "discriminator") for word in ("width=4", "rows=10"))
TINY = (
    *(f"~task.{name}.{key}" for name in ("generator", "discriminator") for key in ("width", "rows")),
    "~task.generator.norm_bias_std",
    "task.split_passes=false",
    "task.generator._target_=tasks.test_cgan.TinyGenerator",
    "task.discriminator._target_=tasks.test_cgan.TinyDiscriminator",
)


class TinyGenerator(nn.Module):
    """Maps z and the class to pixels; its batch norm behaves differently in training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(Z + CLASSES, 16), nn.BatchNorm1d(16)
        self.last = nn.Linear(16, PIXELS)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        classes = (labels[:, None] == torch.arange(CLASSES, device=labels.device)).to(z.dtype)
        hidden = self.norm(self.hidden(torch.cat([z, classes], 1)))
        return torch.tanh(self.last(hidden)).unflatten(1, (3, 32, 32))


class TinyDiscriminator(nn.Module):
    """Gives scores on both sides of 1 and of -1, and records its weights at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.classes = nn.Linear(PIXELS, 1), nn.Linear(PIXELS, CLASSES, bias=False)
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(self.score.weight.detach().clone())
        x = images.flatten(1)
        return 4 * (self.score(x).squeeze(1) + self.classes(x).gather(1, labels[:, None]).squeeze(1))


class Steady(ConditionalGAN):
    """A GAN whose z is computed from a counter instead of drawn, so that it is the same on every device."""

    turn: Tensor | None = None

    def _z(self, count: int) -> Tensor:
        if self.turn is None:
            self.turn = torch.zeros((), device=self.device)
        self.turn += 1
        places = torch.arange(count * Z, device=self.device).reshape(count, Z)
        return 1.4 * torch.cos(places * self.turn)


def make_task(
    *,
    generator: nn.Module | None = None,
    discriminator: nn.Module | None = None,
    augmentation: Augmentation | None = None,
    epochs: int = 3,
    fid_every: int = 1,
    batch_size: int = BATCH,
    data: str = "embedded",
    data_root: Path = Path(),
    device: torch.device = CPU,
    fid: str = "plain",
    split_passes: bool = False,
) -> ConditionalGAN:
    context = Context(device, SeedStreams(0), data, data_root)
    torch.manual_seed(0)
    networks = generator or TinyGenerator(), discriminator or TinyDiscriminator()
    settings = (augmentation, epochs, batch_size, fid_every, TRAIN, fid, split_passes)
    return ConditionalGAN(context, *networks, *settings)


def prepare(tmp_path: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    return whole_runs.prepare(tmp_path, "cifar10_cgan", *SMALL, *words)


def summary_of(run: RunDirectory) -> dict:
    summary = run.read_summary()
    assert summary is not None
    return summary


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("task.fid_every=0", "task: fid_every must be a positive integer, not 0"),
        ("task.fid_every=2.5", "task: fid_every must be a positive integer, not 2.5"),
        ("task.batch_size=0", "task: batch_size must be a positive integer, not 0"),
        ("task.train_examples=-3", "task: train_examples must be a positive integer, not -3"),
        ("+task.generator.colour=3", "task: .*unexpected keyword argument 'colour'"),
        ("task.generator.width=-4", "task: .*negative"),
        ("task.discriminator.width=3", "task: .*multiple of 8 channels, not 6"),
    ],
)
def test_invalid_setting_gives_one_line_error(tmp_path: Path, word: str, message: str) -> None:
    assert_one_line(tmp_path, "cifar10_cgan", [*SMALL, *NARROW, word], message)


# ------------------------------------------------------------------------------------------------------------- losses


def hinge(fake: Tensor, real: Tensor) -> Tensor:
    """The hinge loss in its usual form, minus the constant 2."""
    return (1 + fake).relu().mean() + (1 - real).relu().mean() - 2


def gradients(network: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in network.parameters()]


def as_pixels(images: Tensor) -> Tensor:
    """The discriminator's input for uint8 images."""
    return images.to(torch.float32) * (2 / 255) - 1


def test_discriminator_loss_is_hinge_without_generator_gradients() -> None:
    task = make_task(batch_size=TRAIN)
    generator, discriminator = deepcopy(task.generator), deepcopy(task.discriminator)
    pixels, labels = batch = next(task.batches(0))
    torch.manual_seed(7)
    name, loss = next(task.losses(batch))
    loss.backward()
    torch.manual_seed(7)
    fake = generator(torch.randn(TRAIN, Z), labels).detach()
    scores = [discriminator(images, labels) for images in (fake, as_pixels(pixels))]
    expected = hinge(*scores)
    expected.backward()
    assert name == "discriminator"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for ours, theirs in zip(task.discriminator.parameters(), discriminator.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert gradients(task.generator) == [None] * len(gradients(task.generator))
    beyond = (scores[0] < -1, scores[1] > 1)
    assert all(some.any() and not some.all() for some in beyond), "both sides of each hinge are looked at"


def test_generator_loss_comes_second_without_discriminator_gradients() -> None:
    task = make_task()
    generator, discriminator = deepcopy(task.generator), deepcopy(task.discriminator)
    _, labels = batch = next(task.batches(0))
    torch.manual_seed(7)
    losses = task.losses(batch)
    next(losses)
    name, loss = next(losses)
    loss.backward()
    torch.manual_seed(7)
    generator(torch.randn(BATCH, Z), labels)  # as for the first loss
    expected = -discriminator(generator(torch.randn(BATCH, Z), labels), labels).mean()
    expected.backward()
    assert name == "generator"
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert gradients(task.discriminator) == [None] * len(gradients(task.discriminator))
    for ours, theirs in zip(task.generator.parameters(), generator.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-7)
    assert next(losses, None) is None
    assert all(parameter.requires_grad for parameter in task.discriminator.parameters())


def test_discriminator_requires_grad_is_restored_when_step_ends_early() -> None:
    task = make_task()
    losses = task.losses(next(task.batches(0)))
    next(losses)
    next(losses)
    assert not any(parameter.requires_grad for parameter in task.discriminator.parameters())
    losses.close()  # type: ignore[attr-defined]  # it is a generator
    assert all(parameter.requires_grad for parameter in task.discriminator.parameters())


def test_generator_loss_uses_updated_discriminator(tmp_path: Path) -> None:
    discriminator = TinyDiscriminator()
    task = make_task(discriminator=discriminator, epochs=1, batch_size=TRAIN)
    make_loop(task, RunDirectory(tmp_path / "run")).run()
    first, second = discriminator.seen
    assert not torch.equal(first, second)
    assert torch.equal(second, discriminator.score.weight), "and the generator's loss does not step it"


def test_single_pass_over_fake_and_real_matches_two_passes() -> None:
    networks = Generator(width=4, rows=10).eval(), Discriminator(width=4, rows=10).eval()  # eval: no power iterations
    task = make_task(generator=networks[0], discriminator=networks[1])
    pixels, labels = batch = next(task.batches(0))
    torch.manual_seed(7)
    _, loss = next(task.losses(batch))
    torch.manual_seed(7)
    with torch.no_grad():
        fake = task.generator(torch.randn(BATCH, Z), labels)
        expected = hinge(task.discriminator(fake, labels), task.discriminator(as_pixels(pixels), labels))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_split_passes_do_one_power_iteration_each_fake_first() -> None:
    """Compare with plain calls of a copy: D(fake), then D(real), each with its own spectral norm estimate."""
    torch.manual_seed(3)
    networks = Generator(width=4, rows=10), Discriminator(width=4, rows=10)
    with torch.no_grad():
        for weight in networks[1].parameters():
            weight.add_(0.3 * torch.randn_like(weight))  # not orthogonal, since one iteration would be exact
    task = make_task(generator=networks[0], discriminator=networks[1], split_passes=True)
    copy = deepcopy(task.discriminator)
    pixels, labels = batch = next(task.batches(0))
    torch.manual_seed(7)
    _, loss = next(task.losses(batch))
    torch.manual_seed(7)
    with torch.no_grad():
        fake = deepcopy(task.generator)(torch.randn(BATCH, Z), labels)
    expected = hinge(copy(fake, labels), copy(as_pixels(pixels), labels))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(task.discriminator.score.spectral_norm.u, copy.score.spectral_norm.u)
    loss.backward()
    expected.backward()
    for ours, theirs in zip(task.discriminator.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_default_settings_match_authors() -> None:
    settings = compose(["task=cifar10_cgan"]).cfg.task
    assert (settings.fid, settings.split_passes, settings.generator.norm_bias_std) == ("released", True, 0.01)


def test_losses_are_logged_as_means_over_epoch_images() -> None:
    task = make_task(fid_every=3)
    sums = {"discriminator": 0.0, "generator": 0.0}
    for batch in task.batches(0):
        for name, loss in task.losses(batch):
            sums[name] += loss.item() * len(batch[1])  # the last batch is smaller
    metrics = task.evaluate()
    assert set(metrics) == {"train/d_loss", "train/g_loss"}
    assert metrics["train/d_loss"] == pytest.approx(sums["discriminator"] / TRAIN, rel=1e-6)
    assert metrics["train/g_loss"] == pytest.approx(sums["generator"] / TRAIN, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------- pixels


def test_pixels_are_scaled_to_minus_one_to_one() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(make_task().prepare(every), torch.linspace(-1, 1, 256))


def test_samples_come_from_generator_in_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task()
    for batch in task.batches(0):
        list(task.losses(batch))  # changes the running statistics
    frozen = deepcopy(task.generator).eval()
    z, labels = torch.randn(20, Z, generator=torch.Generator().manual_seed(0)), torch.arange(20) % CLASSES
    [images] = task.samples(z, labels)
    expected = frozen(z, labels)
    assert images.dtype == torch.uint8
    assert (task.prepare(images) - expected).abs().max() < 0.5 / 127.5 + 1e-6, "half a grey level"
    assert (task.prepare(images) - task.generator.train()(z, labels)).abs().max() > 0.1, "training looks otherwise"
    monkeypatch.setattr("nero.tasks.cgan.SAMPLE_BATCH", 7)
    task.generator.load_state_dict(frozen.state_dict())
    parts = list(task.samples(z, labels))
    assert [len(part) for part in parts] == [7, 7, 6]
    assert (torch.cat(parts).int() - images.int()).abs().max() <= 1, "rounding apart"


def test_sampling_restores_training_mode_and_state() -> None:
    task = make_task()
    before = deepcopy(task.generator.state_dict())
    samples = task.samples(torch.zeros(3, Z), torch.arange(3))
    assert not next(samples).requires_grad
    assert not task.generator.training
    samples.close()  # type: ignore[attr-defined]  # a caller may not need the rest
    assert task.generator.training
    list(task.samples(torch.zeros(3, Z), torch.arange(3)))
    assert task.generator.training
    for name, value in task.generator.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_samples_are_clamped_to_byte_range() -> None:
    class Extreme(TinyGenerator):
        def forward(self, z: Tensor, labels: Tensor) -> Tensor:
            values = torch.tensor([-1.001, -1.0, 1.0, 1.001])[: len(z)]
            return values[:, None, None, None].expand(-1, 3, 32, 32)

    [images] = make_task(generator=Extreme()).samples(torch.zeros(4, Z), torch.zeros(4, dtype=torch.int64))
    assert images[:, 0, 0, 0].tolist() == [0, 0, 255, 255]


def test_training_images_are_only_flipped() -> None:
    task = make_task(augmentation=Augmentation(flip=True))
    data = shapes(train=TRAIN, test=100)
    there = list(zip(data.train_images, data.train_labels.tolist(), strict=True))
    flipped = 0
    for pixels, labels in [*task.batches(0), *task.batches(1)]:
        for image, label in zip(pixels, labels.tolist(), strict=True):
            as_is = any(torch.equal(image, other) and label == its for other, its in there)
            mirrored = any(torch.equal(image, hflip(other)) and label == its for other, its in there)
            assert as_is or mirrored
            flipped += mirrored and not as_is
    assert 0 < flipped < 2 * TRAIN


def test_paper_config_flips_images() -> None:
    config = compose(["task=cifar10_cgan"]).identity["task"]["augmentation"]
    assert config == {"_target_": "nero.data.augmentation.Augmentation", "flip": True}
    assert Augmentation(flip=True) == replace(Augmentation(), flip=True)


# ------------------------------------------------------------------------------------------------- when FID is measured


@pytest.mark.parametrize(
    ("epochs", "fid_every", "measured"), [(5, 2, [2, 4, 5]), (4, 2, [2, 4]), (2, 3, [2]), (2, 1, [1, 2])]
)
def test_fid_and_pictures_are_made_every_few_epochs_and_at_end(
    tmp_path: Path, epochs: int, fid_every: int, measured: list[int]
) -> None:
    config, run = prepare(tmp_path, *TINY, f"task.epochs={epochs}", f"task.fid_every={fid_every}")
    assert train(config)["status"] == "done"
    records = run.read_metrics()
    assert [record["epoch"] for record in records] == list(range(1, epochs + 1))
    assert all({"train/d_loss", "train/g_loss"} <= record.keys() for record in records)
    for key in ("train/stand_in_fid", "val/stand_in_fid"):
        assert [record["epoch"] for record in records if key in record] == measured
        assert all(record[key] > 0 for record in records if key in record)
    names = [f"samples-epoch{epoch:04}.jpg" for epoch in measured]
    assert sorted(path.name for path in (run.path / "pictures").iterdir()) == names
    assert list(run.pictures("samples")) == measured
    for path in run.pictures("samples").values():
        with Image.open(path) as picture:
            assert (picture.size, picture.format, picture.mode) == ((320, 256), "JPEG", "RGB")


def test_pictures_use_fixed_z_and_fid_uses_fresh_z() -> None:
    task = make_task(epochs=2)
    shown, distances = [], []
    for epoch in range(2):
        task.batches(epoch)
        distances.append(task.evaluate()["val/stand_in_fid"])
        shown.append(task.pictures())
    assert shown[0].keys() == {"samples.jpg"}
    assert shown[0] == shown[1]
    assert distances[0] != distances[1]
    other = ConditionalGAN(
        Context(CPU, SeedStreams(1), "embedded", Path()), task.generator, task.discriminator, None, 2, BATCH, 1, TRAIN
    )
    other.evaluate()
    assert other.pictures() != shown[0], "each seed has its own"


def test_picture_of_one_epoch_is_not_repeated_in_next() -> None:
    task = make_task(epochs=4, fid_every=2)
    for epoch, pictures in enumerate([0, 1, 0, 1]):
        task.batches(epoch)
        task.evaluate()
        assert len(task.pictures()) == pictures


def test_picture_has_one_column_per_class() -> None:
    class Grey(TinyGenerator):
        def forward(self, z: Tensor, labels: Tensor) -> Tensor:
            return (labels / 4.5 - 1)[:, None, None, None].expand(-1, 3, 32, 32)

    task = make_task(generator=Grey())
    task.evaluate()
    with Image.open(io.BytesIO(task.pictures()["samples.jpg"])) as picture:
        pixels = pil_to_tensor(picture).float()
    expected = (torch.arange(CLASSES) / 9 * 255).round().repeat_interleave(32).expand(3, 256, -1)
    assert (pixels - expected).abs().max() < 3, "JPEG apart"


def test_grid_places_images_row_by_row() -> None:
    images = torch.randint(0, 256, (6, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = grid(images, rows=2)
    assert picture.shape == (8, 15, 3)
    for place, image in enumerate(images):
        row, column = divmod(place, 3)
        part = picture[4 * row : 4 * row + 4, 5 * column : 5 * column + 5]
        assert torch.equal(part, image.permute(1, 2, 0))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        grid(images, rows=4)
    assert to_jpeg(picture) == to_jpeg(picture.clone())


def test_samples_have_labels_of_test_set(monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = make_task(), []
    samples = task.samples

    def watched(z: Tensor, labels: Tensor) -> Iterator[Tensor]:
        asked.append(labels)
        return samples(z, labels)

    monkeypatch.setattr(task, "samples", watched)
    task.evaluate()
    assert torch.equal(asked[0], shapes(train=TRAIN, test=100).test_labels)


# ------------------------------------------------------------------------------------------------------- the FID judge


def test_embedded_data_metric_is_stand_in_fid(tmp_path: Path) -> None:
    config, run = prepare(tmp_path, *TINY, "task.epochs=1")
    train(config)
    summary = summary_of(run)
    assert summary["metric"] == {"key": "val/stand_in_fid_released", "goal": "min", "label": "stand-in FID"}
    assert summary["final"] == summary["final_metrics"]["val/stand_in_fid_released"]
    assert summary["final"] != summary["final_metrics"]["val/stand_in_fid"]
    assert not any(key.endswith("/fid") for record in run.read_metrics() for key in record)
    assert "remarks" not in summary


class Watched(StandIn):
    """A replacement for Inception that counts its images and records whether convolutions may use TF32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.tf32: set[bool] = set()

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.tf32.add(torch.backends.cudnn.allow_tf32)
        return super().forward(images)


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with small images in place of CIFAR-10; any file with the text "weights" gives a fake Inception."""
    monkeypatch.delenv("NERO_INCEPTION", raising=False)
    monkeypatch.setattr("nero.tasks.cgan.load_cifar10", lambda root: shapes(train=TRAIN, test=30))
    monkeypatch.setattr(fid, "load_weights", load_weights)
    monkeypatch.setattr(fid, "inception", lambda weights: Watched())
    root = tmp_path / "data"
    root.mkdir()
    return root


def load_weights(path: Path) -> dict[str, Tensor]:
    """Accept files with the text "weights" as Inception's; report all others as damaged."""
    if path.read_text() != "weights":
        raise DamagedData(f"{path} is damaged: these are not Inception's weights")
    return {}


def prepare_real(tmp_path: Path, root: Path, *words: str) -> tuple[RunConfig, RunDirectory]:
    return prepare(tmp_path / "runs", *TINY, "data=real", f"data_root={root}", *words)


def test_run_without_inception_is_measured_later_without_retraining(
    tmp_path: Path, real: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = prepare_real(tmp_path, real)
    outcome = train(config)
    [remark] = outcome["remarks"]
    file = real / "inception-fid.pth"
    assert remark.startswith(f"FID is not measured: {file} does not exist; get it with: ")
    assert "nero data inception" in remark
    assert f"{config.run_id}  {remark}\n" in capsys.readouterr().err
    assert (outcome["status"], outcome["final"]) == ("done", None)
    assert outcome["metric"] == {"key": "val/fid_released", "goal": "min", "label": "FID"}
    assert not is_settled(summary_of(run))
    lines, weights, pictures = run.read_metrics(), whole_runs.final_weights(run), list(run.pictures("samples"))
    assert not any("fid" in key for line in lines for key in line)
    assert pictures == [1, 2, 3], "samples are shown whether or not they are judged"

    file.write_text("weights")
    with monkeypatch.context() as patch:
        patch.setattr(ConditionalGAN, "losses", lambda self, batch: pytest.fail("trained again"))
        measured = train(config)
    again = run.read_metrics()
    assert again[:-1] == lines[:-1]
    assert {key: value for key, value in again[-1].items() if "fid" not in key} == lines[-1]
    assert measured["final"] == again[-1]["val/fid_released"] > 0
    both = {"val/fid", "train/fid", "val/fid_released", "train/fid_released"}
    assert again[-1].keys() - lines[-1].keys() == both
    assert "remarks" not in summary_of(run)
    assert is_settled(summary_of(run))
    for ours, theirs in zip(whole_runs.final_weights(run), weights, strict=True):
        assert torch.equal(ours, theirs)
    assert train(config)["skipped"]

    shutil.rmtree(run.path)
    assert train(config)["final"] == measured["final"], "as if Inception had been there from the first"
    assert run.read_metrics()[-1]["val/fid_released"] == measured["final"]


@pytest.mark.parametrize("kept", ["true", "false"])
def test_run_without_inception_is_unchanged_and_keeps_checkpoint(tmp_path: Path, real: Path, kept: str) -> None:
    config, run = prepare_real(tmp_path, real, f"machine.keep_checkpoint={kept}")
    train(config)
    lines = run.read_metrics()
    outcome = train(config)
    assert (outcome["status"], outcome["final"], len(outcome["remarks"])) == ("done", None, 1)
    assert run.read_metrics() == lines
    assert run.load_checkpoint() is not None, "whoever keeps no checkpoints keeps this one until it is measured"
    (real / "inception-fid.pth").write_text("weights")
    assert train(config)["final"] > 0
    assert (run.load_checkpoint() is not None) == (kept == "true")


@pytest.mark.parametrize("problem", ["damaged", "packages"])
def test_inception_problem_is_reported_and_run_continues(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: str
) -> None:
    def not_installed(weights: dict[str, Tensor]) -> nn.Module:
        raise NoInception(INSTALL)

    file = real / "inception-fid.pth"
    if problem == "damaged":
        monkeypatch.undo()  # use the real `load_weights`, on a file without a state dict
        monkeypatch.setattr("nero.tasks.cgan.load_cifar10", lambda root: shapes(train=TRAIN, test=30))
        file.write_bytes(b"weights and more")
        message = f"FID is not measured: {file} is damaged: no state dict can be read from it"
    else:
        file.write_text("weights")
        monkeypatch.setattr(fid, "inception", not_installed)
        message = f"FID is not measured: {INSTALL}"
    outcome = train(prepare_real(tmp_path, real, "task.epochs=1")[0])
    assert (outcome["status"], outcome["final"], outcome["remarks"]) == ("done", None, [message])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("told", ["by a word", "by the environment"])
def test_inception_path_is_configurable_without_changing_run_id(
    tmp_path: Path, real: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    plain, _ = prepare_real(tmp_path, real)
    elsewhere = tmp_path / "elsewhere.pth"
    elsewhere.write_text("weights")
    if told == "by the environment":
        monkeypatch.setenv("NERO_INCEPTION", str(elsewhere))
    words = [f"inception={elsewhere}"] if told == "by a word" else []
    config, run = prepare_real(tmp_path, real, *words, "task.epochs=3")
    assert config.run_id == plain.run_id
    assert train(config)["final"] > 0
    assert "elsewhere" not in (run.path / "config.yaml").read_text()


def test_remark_names_configured_inception_file_if_missing(tmp_path: Path, real: Path) -> None:
    (real / "inception-fid.pth").write_text("weights")
    config, _ = prepare_real(tmp_path, real, f"inception={tmp_path / 'none.pth'}", "task.epochs=1")
    [remark] = train(config)["remarks"]
    assert str(tmp_path / "none.pth") in remark


def test_real_images_are_judged_by_inception(real: Path) -> None:
    (real / "inception-fid.pth").write_text("weights")
    task = make_task(data="real", data_root=real)
    assert all(isinstance(judge.network, Watched) for judge in task.judges.values())
    assert (task.metric.key, task.metric.label, task.remarks) == ("val/fid", "FID", ())
    released = make_task(data="real", data_root=real, fid="released")
    assert (released.metric.key, released.metric.label) == ("val/fid_released", "FID")


def test_statistics_of_real_images_are_computed_once(
    real: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (real / "inception-fid.pth").write_text("weights")

    def seen() -> int:
        """Number of real images that a new task evaluates for both FIDs, each of which also evaluates 30 samples."""
        network = (task := make_task(data="real", data_root=real)).judges["plain"].network
        distances.append(task.evaluate())
        return network.seen - 2 * 30

    distances: list[dict[str, float]] = []
    assert seen() == 2 * (TRAIN + 30)
    names = ("fid", "fid_released")
    kept = {real / f"{name}-statistics-{part}.pt" for name in names for part in (f"train-{TRAIN}", "val-30")}
    assert set(real.glob("*.pt")) == kept
    said = capsys.readouterr().err
    assert all(f"for {file}" in said for file in kept)
    assert seen() == 0
    assert distances[0] == distances[1]
    assert capsys.readouterr().err == ""
    data = shapes(train=TRAIN, test=30)
    mirrored = replace(data, test_images=hflip(data.test_images))
    monkeypatch.setattr("nero.tasks.cgan.load_cifar10", lambda root: mirrored)
    assert seen() == 2 * 30, "as many, but others"
    assert distances[2]["train/fid"] == distances[0]["train/fid"]
    assert distances[2]["val/fid"] != distances[0]["val/fid"]


def test_cached_statistics_belong_to_one_network(tmp_path: Path) -> None:
    real = {"val": shapes(train=TRAIN, test=30).test_images}
    Judge(Watched(), "fid", "FID", real, CPU, folder=tmp_path).references  # noqa: B018 - computes the statistics
    same, other = Watched(), StandIn()
    assert Judge(same, "fid", "FID", real, CPU, folder=tmp_path).references.keys() == {"val"}
    assert same.seen == 0
    key = torch.load(io.BytesIO((tmp_path / "fid-statistics-val-30.pt").read_bytes().split(b"\n", 1)[1]))["key"]
    assert key.startswith("Watched, cpu, ")
    Judge(other, "fid", "FID", real, CPU, folder=tmp_path).references  # noqa: B018
    key = torch.load(io.BytesIO((tmp_path / "fid-statistics-val-30.pt").read_bytes().split(b"\n", 1)[1]))["key"]
    assert key.startswith("StandIn, cpu, ")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_features_do_not_depend_on_precision_of_run(tmp_path: Path, real: Path, precision: str) -> None:
    network = Watched()
    data = shapes(train=TRAIN, test=30)
    judging = Judge(network, "fid", "FID", {"val": data.test_images}, CPU)
    set_precision(precision)
    allowed = torch.backends.cudnn.allow_tf32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        found = judging.distances([data.train_images])
    assert network.tf32 == {True}
    assert torch.backends.cudnn.allow_tf32 == allowed == (precision != "fp32")
    set_precision("fp32")
    assert found == Judge(StandIn(), "fid", "FID", {"val": data.test_images}, CPU).distances([data.train_images])


def test_distance_is_nan_for_non_finite_features(tmp_path: Path) -> None:
    class Broken(StandIn):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * math.nan

    data = shapes(train=TRAIN, test=30)
    real = {"val": data.test_images}
    judging = Judge(StandIn(), "fid", "FID", real, CPU)
    judging.references  # noqa: B018 - computed before the network is replaced
    judging.network = Broken()
    assert math.isnan(judging.distances([data.train_images])["val/fid"])


# ------------------------------------------------------------------------------------------------------- complete runs


@pytest.mark.slow
def test_run_reduces_stand_in_fid(tmp_path: Path) -> None:
    words = ["optim=adam", "optim.lr=0.001", "task.epochs=1", "task.train_examples=96", "task.batch_size=8"]
    wider = [word.replace("width=4", "width=8") for word in NARROW]
    config, run = prepare(tmp_path, *wider, *words)
    start = build_task(config, CPU).evaluate()
    outcome = train(config)
    assert outcome["status"] == "done"
    [record] = run.read_metrics()
    assert math.isfinite(record["train/d_loss"])
    assert math.isfinite(record["train/g_loss"])
    for key in ("train/stand_in_fid", "val/stand_in_fid"):
        assert record[key] < 0.8 * start[key]


@pytest.mark.slow
def test_nero_run_of_smoke_experiment_reduces_stand_in_fid(tmp_path: Path) -> None:
    [cell] = [cell for cell in load_experiment("smoke").cells if (cell.task, cell.optim) == ("cifar10_cgan", "nero")]
    config = compose([*cell.run(*cell.lrs, cell.search_seed).overrides, "machine=cpu", f"store={tmp_path}"])
    train(config)
    records = Store(tmp_path).run(config.task_name, config.run_id).read_metrics()
    distances = [record["val/stand_in_fid"] for record in records]
    assert len(distances) == 3
    assert distances[2] < distances[0]


@pytest.mark.slow
@pytest.mark.parametrize("networks", [TINY, NARROW], ids=["tiny", "narrow"])
def test_interrupted_run_ends_like_uninterrupted_run(tmp_path: Path, networks: tuple[str, ...]) -> None:
    assert_cut_runs_go_on(tmp_path, "cifar10_cgan", *SMALL, *networks, "task.augmentation.flip=true")


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_precision_trains(tmp_path: Path, precision: str) -> None:
    words = [f"precision={precision}", "task.epochs=1", "task.train_examples=2", "task.batch_size=2"]
    config, run = prepare(tmp_path, *NARROW, *words)
    outcome = train(config)
    assert outcome["status"] == "done"
    [record] = run.read_metrics()
    assert record["step"] == 1
    assert all(math.isfinite(record[key]) for key in ("train/d_loss", "train/g_loss", "val/stand_in_fid"))


def test_convolution_weights_are_channels_last(tmp_path: Path) -> None:
    networks = build_task(prepare(tmp_path, *NARROW)[0], CPU).networks()
    assert list(networks) == ["generator", "discriminator"]
    for network in networks.values():
        weights = [weight for weight in network.parameters() if weight.ndim == 4 and weight.shape[1] > 1]
        assert weights
        assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


# -------------------------------------------------------------------------------------- the paper's search for momentum


def test_momentum_search_shares_runs_without_momentum_with_table_1() -> None:
    table1 = {cell.optim: cell for cell in load_experiment("table1").cells if cell.task == "cifar10_cgan"}
    *searched, released = load_experiment("cgan").cells
    ids = [cell.run(lr, cell.search_seed).run_id for cell in (*searched, released) for lr in cell.lrs]
    assert len(set(ids)) == len(ids) == 31
    assert list(released.setting("optim.networks.discriminator.betas")) == [0.9, 0.999]
    assert (_beta1(released), released.setting("precision")) == (0, "bf16")
    without = [cell for cell in searched if cell.setting("optim.momentum") == 0 or _beta1(cell) == 0]
    assert [cell.optim for cell in without] == ["sgd", "adam", "lamb"]
    for cell in without:
        theirs = table1[cell.optim]
        assert (cell.lrs, cell.search_seed) == (theirs.lrs, theirs.search_seed)
        assert all(cell.run(lr, 0).run_id == theirs.run(lr, 0).run_id for lr in cell.lrs)
    others = [cell for cell in searched if cell not in without]
    assert [cell.setting("optim.momentum") or _beta1(cell) for cell in others] == [0.9] * 3
    assert not any(cell.repeat_seeds for cell in searched)


def _beta1(cell) -> float | None:  # type: ignore[no-untyped-def]
    betas = cell.setting("optim.betas")
    return None if betas is None else float(betas[0])


def test_momentum_search_table_distinguishes_its_rows(tmp_path: Path) -> None:
    table = build_table(evidence_of(Store(tmp_path), "cgan"))
    rows = [(dict(row.key.variant), list(row.entries)) for row in table.rows]
    assert [optims for _, optims in rows] == [["sgd"], ["sgd"], ["adam", "lamb"], ["adam", "lamb"], ["adam"]]
    assert [variant["optim.momentum"] for variant, _ in rows[:2]] == [0.0, 0.9]
    assert [list(variant["optim.betas"]) for variant, _ in rows[2:4]] == [[0.0, 0.999], [0.9, 0.999]]
    texts = [variant_text(row.key.variant) for row in table.rows]
    assert texts[3:] == ["betas = (0.9, 0.999)", "discriminator.betas = (0.9, 0.999)"]


# --------------------------------------------------------------------------------------------------------------- GPU

RATES = {"nero": 1e-3, "adam": 1e-5}
"""Learning rates at which CPU runs with different convolution kernels end within 1/300 of the distance trained."""


@pytest.mark.gpu
@pytest.mark.parametrize("optim", RATES)
def test_captured_run_matches_cpu_run(tmp_path: Path, optim: str) -> None:
    assert_captured_follows(tmp_path, optim)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("optim", RATES)
def test_compiled_and_captured_run_matches_cpu_run(tmp_path: Path, optim: str) -> None:
    assert_captured_follows(tmp_path, optim, "machine.compile=true")


def assert_captured_follows(tmp_path: Path, optim: str, *gpu: str) -> None:
    words = [*SMALL, *NARROW, "task._target_=tasks.test_cgan.Steady", f"optim={optim}", "task.fid_every=10"]
    assert_follows_the_cpu(tmp_path, "cifar10_cgan", RATES[optim], words, gpu)


@pytest.mark.gpu
@pytest.mark.parametrize("words", [[], pytest.param(["machine.compile=true"], marks=pytest.mark.slow)])
def test_z_differs_between_graph_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    # One batch has all images in the same order, and the weights do not change: only z changes the loss.
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.arange(count))
    still = [f"task.batch_size={TRAIN}", "task.augmentation=null", "optim=sgd", "optim.lr=1e-12", "machine=gpu"]
    config, run = prepare(tmp_path, *TINY, *still, "task.epochs=8", *words)
    assert train(config)["status"] == "done"
    losses = [record["train/g_loss"] for record in run.read_metrics()]
    assert len(set(losses)) == 8
    assert max(losses) - min(losses) > 1e-3


@pytest.mark.gpu
def test_gpu_features_do_not_depend_on_tf32_setting() -> None:
    device, data = torch.device("cuda"), shapes(train=300, test=200)
    assert_the_same_with_tf32(Judge(StandIn(), "fid", "FID", {"val": data.test_images}, device), data.train_images)


@pytest.mark.gpu
@pytest.mark.data
@pytest.mark.slow
def test_fid_between_cifar10_train_and_test_matches_known_value() -> None:
    data = load_cifar10(root_with("cifar10"))
    judging = real_judge(data)
    references = judging.references
    assert references["train"].distance(references["val"]) == pytest.approx(3.15, abs=0.01)


@pytest.mark.gpu
@pytest.mark.data
@pytest.mark.slow
def test_inception_features_do_not_depend_on_tf32_setting() -> None:
    data = load_cifar10(root_with("cifar10"))
    few = replace(data, test_images=data.test_images[:1000], test_labels=data.test_labels[:1000])
    judging = real_judge(few)
    judging.real = {"val": few.test_images}
    assert_the_same_with_tf32(judging, data.train_images[:1000])


def real_judge(data: ImageSet) -> Judge:
    """A judge with Inception on a GPU that does not cache statistics."""
    context = Context(torch.device("cuda"), SeedStreams(0), "real", root_with("inception"))
    judging, remarks = judge(context, data)
    assert remarks == ()
    judging.folder = None
    return judging


def assert_the_same_with_tf32(judging: Judge, images: Tensor) -> None:
    found = []
    for precision in ("fp32", "tf32"):
        set_precision(precision)
        found.append(judging._statistics([images]))
    set_precision("fp32")
    plain, allowed = found
    torch.testing.assert_close(allowed.mean, plain.mean, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(allowed.covariance, plain.covariance, rtol=1e-4, atol=1e-7)
