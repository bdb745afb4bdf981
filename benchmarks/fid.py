#!/usr/bin/env python3
"""Seconds that FID takes on this machine, and whether it is the right number: CIFAR-10 itself has one that is known.

    python -m benchmarks.fid
    python -m benchmarks.fid --out results/tables/bench_fid.md machine=gpu

Words with `=` are settings, as scripts/train.py takes them. Measured are: a look at all real images, which runs do once
and keep; and, --repeats times after one that is not timed, what a run does each time: as many samples as there are test
images, their features, and the distances from training and test images. The generator is untrained, so its FID means
nothing; that of the training images from the test images is 3.15 with the right weights and the right resizing. Last,
sets of images of very different FIDs are measured in several arithmetics. Needs CIFAR-10 and Inception's weights
(scripts/prepare_data.py cifar10 inception), and on a CPU hours.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from nero.atomic import write_atomic
from nero.data.download.inception import FILE, load_weights
from nero.data.sources import MissingData
from nero.engine.precision import autocast, set_precision
from nero.models.biggan import Z
from nero.plans.argparse_types import parse_with_settings
from nero.plans.config import ConfigError, compose
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_in_words, versions
from nero.tasks.cgan import PLAIN, ConditionalGAN
from nero.tasks.fid import FastInception, plain_inception
from nero.tasks.fid_of_images import Judge, NoJudge
from nero.train.run import build_task, choose_device, device_name

T = TypeVar("T")

NOISES = (4, 6, 8, 16)
"""Standard deviations, in levels of 256, of the noise that makes sets of images with FIDs as trained GANs have them."""


class NoFID(Exception):
    """There is nothing to measure; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed FIDs (default: 3)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table to write")
    options, words = parse_with_settings(parser, arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    try:
        lines = list(_table(options.repeats, words))
    except (ConfigError, MissingData, NoFID) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.out:
        write_atomic(options.out, "\n".join([*lines, ""]).encode())
    return 0


def _table(repeats: int, words: list[str]) -> Iterator[str]:
    """The lines of the table, printed as they come."""
    for line in _lines(repeats, words):
        print(line, flush=True)
        yield line


def _lines(repeats: int, words: list[str]) -> Iterator[str]:
    config = compose(["task=cifar10_cgan", *words])
    device = choose_device(config.cfg.machine.device)
    set_precision(config.cfg.precision)
    torch.backends.cudnn.benchmark = True
    task = build_task(config, device)
    assert isinstance(task, ConditionalGAN)
    judge = task.judges[PLAIN]
    if isinstance(judge, NoJudge):
        raise NoFID("; ".join(task.remarks))
    judge.folder = None  # measured is what a run without kept statistics does
    packages = [f"{package} {version}" for package, version in versions(("torch", "torchmetrics")).items()]
    yield f"# {judge.label}"
    yield ""
    yield f"{', '.join([device_name(device), *packages])}; {code_in_words()}."
    yield ""
    yield markdown_line(["what", "seconds", "range"])
    yield markdown_line(["---", "---:", "---:"])
    seconds, references = _timed(lambda: judge.references, device)
    counts = " and ".join(f"{reference.statistics.count:,}" for reference in references.values())
    yield markdown_line([f"statistics of {counts} real images, once", f"{seconds:.2f}", ""])

    def take() -> dict[str, float]:
        task.meters.reset_()
        with autocast(config.cfg.precision, device):
            return task.evaluate()

    take()
    times = [_timed(take, device)[0] for _ in range(repeats)]
    what = f"{judge.label} of {len(task.labels):,} samples from both, and the picture of samples"
    yield markdown_line([what, f"{statistics.median(times):.2f}", f"{min(times):.2f} - {max(times):.2f}"])
    yield ""
    apart = references["train"].distance(references["val"].statistics)
    yield f"{judge.label} of the training images from the test images: {apart:.4f}"
    if config.cfg.data == "real":
        weights = load_weights(Path(config.cfg.inception or Path(config.cfg.data_root, FILE)).expanduser())
        yield ""
        yield from _arithmetic(task, judge, weights)


def _arithmetic(task: ConditionalGAN, judge: Judge, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Seconds for features, and FID from the test images, of the same images in several arithmetics."""
    count = len(task.labels)
    real = judge.real["train"][:count]
    noise = torch.randn(real.shape, generator=torch.Generator().manual_seed(0))
    noisy = {
        f"with noise of {level} levels": (real + level * noise).round().clamp(0, 255).to(torch.uint8)
        for level in NOISES
    }
    z = torch.randn(count, Z, generator=torch.Generator().manual_seed(0))
    samples = torch.cat(list(task.samples(z, task.labels))).cpu()
    sets = {"training images": real, **noisy, "an untrained generator": samples}
    yield f"{judge.label} of {count:,} images from the test images, and what it differs from float32:"
    yield ""
    yield markdown_line(["arithmetic", f"s per {count:,}", *sets])
    yield markdown_line(["---"] + ["---:"] * (1 + len(sets)))
    exact: list[float] = []
    networks: dict[str, tuple[nn.Module, bool]] = {
        "float32, as torchmetrics has it": (plain_inception(weights), False),
        "TF32, as in runs": (FastInception(plain_inception(weights)), True),
    }
    for name, (network, tf32) in networks.items():
        own = Judge(network, judge.name, judge.label, {"val": judge.real["val"]}, task.device, tf32=tf32)
        _ = own.references
        timed = [_timed(partial(own.distances, [images]), task.device) for images in sets.values()]
        found = [distances[own.key("val")] for _, distances in timed]
        exact = exact or found
        differences = [f"{fid:.4f} ({fid - full:+.4f})" for fid, full in zip(found, exact, strict=True)]
        yield markdown_line([name, f"{min(seconds for seconds, _ in timed):.2f}", *differences])


def _timed(work: Callable[[], T], device: torch.device) -> tuple[float, T]:
    """Seconds, and what it gave."""
    begun = time.monotonic()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic() - begun, result


if __name__ == "__main__":
    sys.exit(main())
