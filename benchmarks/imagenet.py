#!/usr/bin/env python3
"""Images per second of ResNet-50 on this machine: the training step alone, and with images read from JPEG files.

    python -m benchmarks.imagenet machine=gpu precision=bf16 --variant "machine.compile=true" ""
    python -m benchmarks.imagenet machine=gpu precision=bf16 --out results/tables/bench_imagenet.md

Arguments with `=` are overrides, as for `nero train`. Each quoted set of overrides after --variant is measured with
each optimiser of --optim; the values of --decode are measured for the input. "step" times the engine's training step on
batches in device memory. "input" times training from files: --images JPEG files of ImageNet's size (mostly 500 x 375
pixels, about 90 kB) are made in a temporary folder, and --epochs epochs are timed after some warm-up epochs, in which
steps are captured and prefetched batches are used up. "waiting" is the share of time in which the device was idle
because the next batch was not ready. Files that were just written are in the page cache: a disk may be slower.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from benchmarks.photographs import write_photographs
from benchmarks.tables import (
    benchmark_parser,
    code_in_words,
    exit_status,
    parse_with_overrides,
    print_lines,
    table_head,
    with_versions,
)
from nero.data.images.loading import DEVICE_PREFETCH
from nero.engine.loop import Loop
from nero.plans.config import RunConfig, compose
from nero.report.tables.sheets import markdown_line
from nero.runs.store import Store
from nero.tasks.imagenet import ImageNet
from nero.train.build import build_loop, build_task, choose_device, device_name, loop_settings

HEAD = ["what", "optimiser", "settings", "images/s", "range", "waiting", "workers"]
CLASSES = 1000
JOBS = 32
DECODERS = ("auto", "cpu", "gpu")
PREFETCH = 2  # batches per worker: torch's default
Measured = tuple[list[float], str, str]
"""Images per second of each repetition; the share of waiting and the number of workers, or empty."""

WARM_UP = 5  # steps after the first three, which compile and capture


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--optim", nargs="+", default=["sgd", "nero"])
    parser.add_argument("--variant", nargs="+", default=[""], metavar="OVERRIDES", help="to compare, in quotes")
    decoders = ["cpu", "gpu"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--decode", nargs="*", default=decoders, help="how to decode; empty: do not measure the input")
    parser.add_argument("--steps", type=int, default=20, help="timed at once, five times (default: 20)")
    parser.add_argument("--images", type=int, default=8000, help="JPEG files to make (default: 8000)")
    parser.add_argument("--epochs", type=int, default=4, help="timed, over those (default: 4)")
    options, overrides = parse_with_overrides(parser, arguments, lists=("optim", "decode"))
    if not options.optim:
        parser.error("--optim is empty")
    if options.steps < 1 or options.epochs < 1:
        parser.error("--steps and --epochs must be at least 1")
    for decode in options.decode:
        if decode not in DECODERS:
            parser.error(f"--decode: must be one of {', '.join(DECODERS)}, not {decode!r}")

    def work() -> int:
        lines = print_lines(_table(options, overrides), options.out, at_once=True)
        return 1 if any("| failed |" in line for line in lines) else 0

    return exit_status(work)


def _table(options: argparse.Namespace, overrides: list[str]) -> Iterator[str]:
    config = compose(["task=imagenet_resnet50", *overrides])
    device = choose_device(config.cfg.machine.device)
    batch, side = int(config.cfg.task.batch_size), config.cfg.task.image_size
    about = (
        f"{with_versions(device_name(device), packages=('torch', 'torchvision', 'triton'))}; "
        f"batches of {batch} images of {side} x {side} pixels; {code_in_words()}."
    )
    yield from table_head("ResNet-50: images per second", about, HEAD, numbers=(3, 4, 5, 6))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _make_images(folder / "imagenet", max(options.images, batch))
        shared = ["task=imagenet_resnet50", *overrides, f"data_root={folder}", f"store={folder / 'runs'}"]
        for variant, optim in itertools.product(options.variant, options.optim):
            settings = [*overrides, *variant.split()]
            config = compose([*shared, f"optim={optim}", *variant.split(), "machine.workers=0"])
            yield _row("step", optim, settings, partial(_step_rates, config, options.steps))
            if optim == options.optim[0] and variant == options.variant[0]:
                for decode in options.decode:
                    own = [*variant.split(), f"machine.decode={decode}"]
                    config = compose([*shared, f"optim={optim}", *own])
                    yield _row("input", optim, [*overrides, *own], partial(_input_rates, config, options.epochs))


def _row(what: str, optim: str, settings: list[str], measure: Callable[[], Measured]) -> str:
    """A row of the table; a failure is a row as well."""
    shown = ", ".join(word for word in settings if not word.startswith("machine=")) or "-"
    try:
        rates, waiting, workers = measure()
    except Exception as error:
        print(f"{what}, {optim}, {shown}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return markdown_line([what, optim, shown, "failed", "", "", ""])
    spread = f"{min(rates):,.0f} - {max(rates):,.0f}"
    return markdown_line([what, optim, shown, f"{statistics.median(rates):,.0f}", spread, waiting, workers])


def _make_images(root: Path, count: int) -> None:
    """Images in as many classes as ImageNet has; one of each for validation."""
    classes = [f"n{number:08}" for number in range(CLASSES)]
    each = -(-count // CLASSES)
    print(f"making {each * CLASSES:,} JPEG files", file=sys.stderr, flush=True)
    with ProcessPoolExecutor() as pool:
        jobs = []
        for number in range(JOBS):
            part = classes[number::JOBS]
            jobs.append(pool.submit(write_photographs, root / "train", part, each, number))
            jobs.append(pool.submit(write_photographs, root / "val", part, 1, JOBS + number))
        total = sum(job.result() for job in jobs)
    mean = total / (each + 1) / CLASSES
    print(f"{total / 1e6:,.0f} MB, {mean / 1e3:.0f} kB each", file=sys.stderr, flush=True)


def _loop(config: RunConfig) -> Loop:
    device = choose_device(config.cfg.machine.device)
    run = Store(config.cfg.store).run(config.task_name, config.run_id)
    run.path.mkdir(parents=True, exist_ok=True)
    loop = build_loop(config, build_task(config, device), run, loop_settings(config, device))
    loop.begin()
    return loop


def _step_rates(config: RunConfig, steps: int) -> Measured:
    """Images per second of five repetitions."""
    loop = _loop(config)
    task, device = loop.task, loop.settings.device
    assert isinstance(task, ImageNet)
    generator = torch.Generator().manual_seed(0)
    shape = (task.batch_size, 3, task.image_size, task.image_size)
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(task.classes, shape[:1], generator=generator)
    batch = (pixels.to(device).contiguous(memory_format=torch.channels_last), labels.to(device))
    for _ in range(3 + WARM_UP):
        loop.step(batch)
    rates = []
    for _ in range(5):
        _synchronize(device)
        start = time.monotonic()
        for _ in range(steps):
            loop.step(batch)
        _synchronize(device)
        rates.append(steps * task.batch_size / (time.monotonic() - start))
    _release(loop)
    return rates, "", ""


def _input_rates(config: RunConfig, epochs: int) -> Measured:
    """Images per second of each timed epoch, their share of waiting, and the number of workers."""
    loop = _loop(config)
    task, device = loop.task, loop.settings.device
    assert isinstance(task, ImageNet)
    untimed = 1 + -(-(PREFETCH * task.workers + DEVICE_PREFETCH) // task.steps_per_epoch)
    rates, seconds, waited = [], 0.0, 0.0
    try:
        for epoch in range(untimed + epochs):
            _synchronize(device)
            before, start = task.stream.waiting.read(), time.monotonic()
            for batch in task.batches(epoch):
                loop.step(batch)
            _synchronize(device)
            if epoch >= untimed:
                taken = time.monotonic() - start
                rates.append(task.steps_per_epoch * task.batch_size / taken)
                seconds += taken
                waited += task.stream.waiting.read() - before
    finally:
        task.after_training()
        _release(loop)
    return rates, f"{100 * waited / seconds:.1f} %", str(task.workers)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _release(loop: Loop) -> None:
    """Free the memory for the next measurement."""
    del loop.step
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
