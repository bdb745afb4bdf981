"""Tests of the ImageNet task on a GPU: graph capture, compilation, GPU decoding and ranks that share one GPU."""

from pathlib import Path

import pytest
import torch

from engine.test_distributed import WORDS, assert_alike, start_of, torchrun
from engine.test_distributed import prepare as prepare_ranks
from nero.train.run import train
from support.whole_runs import assert_follows_the_cpu, prepare

pytestmark = pytest.mark.gpu

SMALL = tuple(word for word in WORDS[1:] if not word.startswith(("data=", "machine=", "precision=", "task.epochs=")))


@pytest.mark.parametrize("optim", ["sgd", "nero"])
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_run_matches_cpu_run(tmp_path: Path, optim: str, compiled: bool) -> None:
    words = (*SMALL, f"optim={optim}", "machine.decode=cpu", "machine.workers=2", f"data_root={tmp_path}")
    gpu = [f"machine.compile={str(compiled).lower()}"]
    assert_follows_the_cpu(tmp_path, "imagenet_resnet50", 1e-3, words, gpu)


def test_gpu_decoding_trains_like_cpu_decoding(tmp_path: Path) -> None:
    losses = {}
    for decode in ("cpu", "gpu"):
        words = (*SMALL, "optim=sgd", "optim.lr=0.01", f"machine.decode={decode}", f"data_root={tmp_path}")
        config, run = prepare(tmp_path / decode, "imagenet_resnet50", *words, "task.epochs=4", "machine=gpu")
        assert train(config)["status"] == "done"
        losses[decode] = [record["train/loss"] for record in run.read_metrics()]
        assert all(0 <= record["train/waiting"] <= 1 for record in run.read_metrics())
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=0.02)
    assert losses["gpu"] != losses["cpu"], "decoded by other code"


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_sharing_a_gpu_match_single_process(tmp_path: Path, way: str) -> None:
    words = ["machine=gpu", "machine.decode=cpu", "optim=sgd", "optim.lr=0.01"]
    data = tmp_path / "data"
    config, one = prepare_ranks(tmp_path / "one", data, *words, "machine.capture=false")
    assert train(config)["status"] == "done"
    process = torchrun(tmp_path, data, 2, *words, "machine.backend=gloo", f"machine.parallel={way}")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    _, two = prepare_ranks(tmp_path / "runs", data, *words)
    summary = two.read_summary()
    assert summary is not None
    assert summary["device"] == f"2 x {torch.cuda.get_device_name()}"
    assert_alike(two, one, start_of(tmp_path, data, "sgd"), tolerance=1e-3)
