"""Tests of the FID benchmark with stand-in networks on the CPU."""

import re
from pathlib import Path

import pytest
from torch import Tensor

from conftest import bench_module, exit_status
from nero.data.synthetic.shapes import shapes
from nero.models.inception import StandIn
from nero.tasks.fid import Statistics

SMALL = [
    "machine=cpu",
    "task.train_examples=40",
    *(f"task.{network}.{word}" for network in ("generator", "discriminator") for word in ("width=4", "rows=10")),
]
NUMBER = r"\d+\.\d\d"


def test_table_is_printed_and_written_to_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.md"
    words = ["data=embedded", *SMALL, "--out", str(out)]
    assert bench_module("fid").main(["--repeats", "2", *words]) == 0
    text = out.read_text()
    title, _, told, _, head, rule, once, each, _, apart = text.splitlines()
    assert title == "# stand-in FID", "and not FID"
    assert re.fullmatch(r"CPU, \d+ threads, torch [\d.]+.*; code .*\.", told)
    assert head == "| what | seconds | range |"
    assert rule == "| --- | ---: | ---: |"
    assert re.fullmatch(rf"\| statistics of 40 and 100 real images, once \| {NUMBER} \|  \|", once)
    what = r"stand-in FID of 100 samples from both, and the picture of samples"
    row = re.fullmatch(rf"\| {what} \| ({NUMBER}) \| ({NUMBER}) - ({NUMBER}) \|", each)
    assert row is not None
    middle, low, high = map(float, row.groups())
    assert 0 <= low <= middle <= high
    assert capsys.readouterr().out == text
    data = shapes(train=40, test=100)
    train, test = (Statistics.of(StandIn(), [images]) for images in (data.train_images, data.test_images))
    assert apart == f"stand-in FID of the training images from the test images: {train.distance(test):.4f}"


def test_one_untimed_warm_up_precedes_timed_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    bench = bench_module("fid")
    evaluate = bench.ConditionalGAN.evaluate

    def counted(self) -> dict[str, float]:  # type: ignore[no-untyped-def]
        taken.append(evaluate(self))
        return taken[-1]

    monkeypatch.setattr(bench.ConditionalGAN, "evaluate", counted)
    assert bench.main(["data=embedded", *SMALL, "--repeats", "4"]) == 0
    assert len(taken) == 5
    assert all("val/stand_in_fid" in metrics for metrics in taken)


def test_without_out_table_is_only_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench_module("fid").main(["data=embedded", *SMALL, "--repeats", "1"]) == 0
    assert capsys.readouterr().out.count("\n") == 10
    assert list(tmp_path.iterdir()) == []


def test_fid_of_real_images_is_compared_across_precisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All networks are stand-ins; the one that is not in float32 returns halved features."""
    bench = bench_module("fid")

    class Half(StandIn):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) / 2

    monkeypatch.setattr("nero.tasks.cgan.load_cifar10", lambda root: shapes(train=40, test=30))
    monkeypatch.setattr("nero.tasks.fid.load_weights", lambda path: {})
    monkeypatch.setattr("nero.tasks.fid.inception", lambda weights: StandIn())
    monkeypatch.setattr(bench, "load_weights", lambda path: {})
    monkeypatch.setattr(bench, "plain_inception", lambda weights: StandIn())
    monkeypatch.setattr(bench, "FastInception", lambda network: Half())
    (tmp_path / "inception-fid.pth").touch()
    assert bench.main([*SMALL, f"data_root={tmp_path}", f"inception={tmp_path / 'inception-fid.pth'}"]) == 0
    said = capsys.readouterr().out
    assert "FID of 30 images from the test images, and what it differs from float32:" in said
    head, _, exact, *others = [line.strip("| ").split(" | ") for line in said.splitlines()[-4:]]
    noisy = [f"with noise of {level} levels" for level in bench.NOISES]
    assert head[2:] == ["training images", *noisy, "an untrained generator"]
    for value in exact[2:]:
        assert value.endswith(" (+0.0000)")
    assert [name for name, *_ in others] == ["TF32, as in runs"]
    for _, _, *found in others:
        for value, full in zip(found, exact[2:], strict=True):
            fid, difference = map(float, re.fullmatch(r"(\S+) \((\S+)\)", value).groups())  # type: ignore[union-attr]
            assert 4 * fid == pytest.approx(float(full.split()[0]), rel=1e-2, abs=1e-3)
            assert difference == pytest.approx(-3 * fid, rel=1e-2, abs=1e-3)


def test_missing_weights_give_one_line_error_and_no_output_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NERO_INCEPTION", raising=False)
    monkeypatch.setattr("nero.tasks.cgan.load_cifar10", lambda root: shapes(train=40, test=10))
    out = tmp_path / "table.md"
    words = [*SMALL, f"data_root={tmp_path}", "--out", str(out)]
    assert bench_module("fid").main(words) == 2
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith(
        f"error: FID is not measured: {tmp_path / 'inception-fid.pth'} does not exist; get it with: "
    )
    assert said.out == ""
    assert not out.exists()


def test_missing_images_error_includes_download_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_module("fid").main([*SMALL, f"data_root={tmp_path}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "nero data cifar10" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quick"], "unknown argument quick"),
        (["--samples=8"], "unknown argument --samples=8"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--out", "nowhere/table.md"], "--out: there is no folder nowhere"),
        (["--repeats", "three"], "invalid int value: 'three'"),
        (["data=imagined"], "error: data must be one of real, embedded, not 'imagined'"),
        (["data=embedded", *SMALL, "task.fid_every=0"], "error: task: fid_every must be a positive integer, not 0"),
        (["optim=nerro"], "error: there is no optim=nerro (did you mean nero?); there are: adam, "),
    ],
)
def test_invalid_arguments_give_one_line_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status("benchmarks.fid", words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
