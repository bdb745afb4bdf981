#!/usr/bin/env python3
"""Seconds that FID takes on this machine, and a check of its value.

    python -m benchmarks.fid
    python -m benchmarks.fid --out results/tables/bench_fid.md machine=gpu

Arguments with `=` are overrides, as for `nero train`. Timed are: the statistics of all real images, which runs
compute once and store; and, --repeats times after a warm-up, an evaluation of a run: as many samples as there are test
images, their features, and the distances from training and test images. The generator is untrained, so its FID means
nothing; the FID of the training images from the test images is 3.15 with the right weights and the right resizing.
Last, the FID of several sets of images is compared between float32 and TF32. Needs CIFAR-10 and Inception's weights
(`nero data cifar10 inception`), and hours on a CPU.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from benchmarks.tables import (
    NotMeasured,
    benchmark_parser,
    code_in_words,
    exit_status,
    parse_with_overrides,
    print_lines,
    table_head,
    with_versions,
)
from nero.data.download.files import INCEPTION_FILE
from nero.data.download.inception import load_weights
from nero.engine.precision import autocast, set_precision
from nero.models.biggan import Z
from nero.models.inception import FastInception, plain_inception
from nero.plans.config import compose
from nero.report.tables.sheets import markdown_line
from nero.tasks.cgan import PLAIN, ConditionalGAN
from nero.tasks.fid import Judge
from nero.train.build import build_task, choose_device, device_name

T = TypeVar("T")

NOISES = (4, 6, 8, 16)
"""Standard deviations, on a scale of 0 to 255, of noise that gives images FIDs like those of trained GANs."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="timed FIDs (default: 3)")
    options, overrides = parse_with_overrides(parser, arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return exit_status(lambda: print_lines(_lines(options.repeats, overrides), options.out))


def _lines(repeats: int, overrides: list[str]) -> Iterator[str]:
    config = compose(["task=cifar10_cgan", *overrides])
    device = choose_device(config.cfg.machine.device)
    set_precision(config.cfg.precision)
    torch.backends.cudnn.benchmark = True
    task = build_task(config, device)
    assert isinstance(task, ConditionalGAN)
    judge = task.judges[PLAIN]
    if judge.network is None:
        raise NotMeasured("; ".join(task.remarks))
    judge.folder = None  # as in a run without stored statistics
    about = f"{with_versions(device_name(device), packages=('torch', 'torchmetrics'))}; {code_in_words()}."
    head = table_head(judge.label, about, ["what", "seconds", "range"], numbers=(1, 2))
    seconds, references = _timed(lambda: judge.references, device)
    counts = " and ".join(f"{reference.count:,}" for reference in references.values())
    yield from head
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
    apart = references["train"].distance(references["val"])
    yield f"{judge.label} of the training images from the test images: {apart:.4f}"
    if config.cfg.data == "real":
        weights = load_weights(Path(config.cfg.inception or Path(config.cfg.data_root, INCEPTION_FILE)).expanduser())
        yield ""
        yield from _arithmetic(task, judge, weights)


def _arithmetic(task: ConditionalGAN, judge: Judge, weights: Mapping[str, Tensor]) -> Iterator[str]:
    """Seconds for features, and FID from the test images, in float32 and TF32."""
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
    """Seconds, and the result."""
    start = time.monotonic()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.monotonic() - start, result


if __name__ == "__main__":
    sys.exit(main())
