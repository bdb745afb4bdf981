#!/usr/bin/env python3
"""Images per second of ResNet-50 on this machine: of the training step alone, and with images read from JPEG files.

    python -m benchmarks.imagenet machine=gpu precision=bf16 --variant "machine.compile=true" ""
    python -m benchmarks.imagenet machine=gpu precision=bf16 --out results/tables/bench_imagenet.md

Words with `=` are settings, as scripts/train.py takes them; those in quotes after --variant are tried one after the
other, with each optimiser of --optim, and so are those after --decode for the input. "step" takes the step of a run, as
the engine takes it, on batches that lie on the device. "input" is the whole of a run's training: --images JPEG files of
ImageNet's size (mostly 500 x 375 pixels, some 90 kB) are made in a temporary folder, and read, decoded, cropped and
trained on in --epochs epochs, after some that are not timed: until steps are captured, and what the workers had read
ahead by then is used up. The share of waiting is that of the time in which the device had nothing to do because the
next batch was not there. Files that were just written come from the system's memory: a disk may be slower.
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
from nero.atomic import write_atomic
from nero.data.images.loading import AHEAD
from nero.data.sources import MissingData
from nero.engine.loop import Loop
from nero.plans.argparse_types import parse_with_settings
from nero.plans.config import ConfigError, RunConfig, compose
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_in_words, versions
from nero.runs.store import Store
from nero.tasks.imagenet import ImageNet
from nero.train.run import build_loop, build_task, choose_capture, choose_device, device_name

HEAD = ["what", "optimiser", "settings", "images/s", "range", "waiting", "workers"]
CLASSES = 1000
JOBS = 32
WAYS = ("auto", "cpu", "gpu", "dali")
READ_AHEAD = 2  # batches of each worker: torch's default
Measured = tuple[list[float], str, str]
"""Images per second, several times over; the share of waiting and the number of workers, or nothing."""

WARM_UP = 5  # steps after the first three, which compile, warm up and capture


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optim", nargs="+", default=["sgd", "nero"])
    parser.add_argument("--variant", nargs="+", default=[""], metavar="WORDS", help="settings to compare, in quotes")
    ways = ["cpu", "gpu"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--decode", nargs="*", default=ways, help="ways to decode; none leaves the input out")
    parser.add_argument("--steps", type=int, default=20, help="timed at once, five times (default: 20)")
    parser.add_argument("--images", type=int, default=8000, help="JPEG files to make (default: 8000)")
    parser.add_argument("--epochs", type=int, default=4, help="timed, over those (default: 4)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a table to write")
    options, words = parse_with_settings(parser, arguments, lists=("optim", "decode"))
    if not options.optim:
        parser.error("--optim names none")
    if options.steps < 1 or options.epochs < 1:
        parser.error("--steps and --epochs must be at least 1")
    for way in options.decode:
        if way not in WAYS:
            parser.error(f"--decode: must be one of {', '.join(WAYS)}, not {way!r}")
    try:
        lines = []
        for line in _table(options, words):
            print(line, flush=True)
            lines.append(line)
            if options.out:
                write_atomic(options.out, "\n".join([*lines, ""]).encode())
        return 1 if any("| failed |" in line for line in lines) else 0
    except (ConfigError, MissingData) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _table(options: argparse.Namespace, words: list[str]) -> Iterator[str]:
    config = compose(["task=imagenet_resnet50", *words])
    device = choose_device(config.cfg.machine.device)
    packages = [f"{package} {version}" for package, version in versions(("torch", "torchvision", "triton")).items()]
    yield "# ResNet-50: images per second"
    yield ""
    yield (
        f"{', '.join([device_name(device), *packages])}; batches of {config.cfg.task.batch_size} images of "
        f"{config.cfg.task.image_size} x {config.cfg.task.image_size} pixels; {code_in_words()}."
    )
    yield ""
    yield markdown_line(HEAD)
    yield markdown_line(["---"] * 3 + ["---:"] * 4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        batch = int(config.cfg.task.batch_size)
        _make_images(folder / "imagenet", max(options.images, batch))
        shared = ["task=imagenet_resnet50", *words, f"data_root={folder}", f"store={folder / 'runs'}"]
        for variant, optim in itertools.product(options.variant, options.optim):
            settings = [*words, *variant.split()]
            config = compose([*shared, f"optim={optim}", *variant.split(), "machine.workers=0"])
            yield _row("step", optim, settings, partial(_step_rates, config, options.steps))
            if optim == options.optim[0] and variant == options.variant[0]:
                for decode in options.decode:
                    own = [*variant.split(), f"machine.decode={decode}"]
                    config = compose([*shared, f"optim={optim}", *own])
                    yield _row("input", optim, [*words, *own], partial(_input_rates, config, options.epochs))


def _row(what: str, optim: str, settings: list[str], measure: Callable[[], Measured]) -> str:
    """A line of the table; what cannot be measured is said in it, and the others still are."""
    shown = ", ".join(word for word in settings if not word.startswith("machine=")) or "-"
    try:
        rates, waiting, workers = measure()
    except Exception as error:
        print(f"{what}, {optim}, {shown}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return markdown_line([what, optim, shown, "failed", "", "", ""])
    spread = f"{min(rates):,.0f} - {max(rates):,.0f}"
    return markdown_line([what, optim, shown, f"{statistics.median(rates):,.0f}", spread, waiting, workers])


def _make_images(root: Path, count: int) -> None:
    """As many classes as ImageNet has; one image of each for validation."""
    classes = [f"n{number:08}" for number in range(CLASSES)]
    each = -(-count // CLASSES)
    print(f"making {each * CLASSES:,} JPEG files", file=sys.stderr, flush=True)
    with ProcessPoolExecutor() as pool:
        jobs = []
        for number in range(JOBS):
            mine = classes[number::JOBS]
            jobs.append(pool.submit(write_photographs, root / "train", mine, each, number))
            jobs.append(pool.submit(write_photographs, root / "val", mine, 1, JOBS + number))
        total = sum(job.result() for job in jobs)
    mean = total / (each + 1) / CLASSES
    print(f"{total / 1e6:,.0f} MB, {mean / 1e3:.0f} kB each", file=sys.stderr, flush=True)


def _loop(config: RunConfig) -> Loop:
    device = choose_device(config.cfg.machine.device)
    capture = choose_capture(config.cfg.machine.capture, device)
    run = Store(config.cfg.store).run(config.task_name, config.run_id)
    run.path.mkdir(parents=True, exist_ok=True)
    loop = build_loop(config, build_task(config, device), run, device, capture, [])
    loop.begin()
    return loop


def _step_rates(config: RunConfig, steps: int) -> Measured:
    """Images per second, five times over so many steps."""
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
        _wait(device)
        begun = time.monotonic()
        for _ in range(steps):
            loop.step(batch)
        _wait(device)
        rates.append(steps * task.batch_size / (time.monotonic() - begun))
    _forget(loop)
    return rates, "", ""


def _input_rates(config: RunConfig, epochs: int) -> Measured:
    """Images per second of each timed epoch, the share of waiting over these, and the number of workers."""
    loop = _loop(config)
    task, device = loop.task, loop.settings.device
    assert isinstance(task, ImageNet)
    untimed = 1 + -(-(READ_AHEAD * task.workers + AHEAD) // task.steps_per_epoch)
    rates, seconds, waited = [], 0.0, 0.0
    try:
        for epoch in range(untimed + epochs):
            _wait(device)
            before, begun = task.stream.waiting.read(), time.monotonic()
            for batch in task.batches(epoch):
                loop.step(batch)
            _wait(device)
            if epoch >= untimed:
                taken = time.monotonic() - begun
                rates.append(task.steps_per_epoch * task.batch_size / taken)
                seconds += taken
                waited += task.stream.waiting.read() - before
    finally:
        task.after_training()
        _forget(loop)
    return rates, f"{100 * waited / seconds:.1f} %", str(task.workers)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _forget(loop: Loop) -> None:
    """Leave the memory to what is measured next."""
    del loop.step
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
