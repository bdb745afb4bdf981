#!/usr/bin/env python3
"""Milliseconds per optimiser step on this machine, compared with a copy of as many bytes as a step must move.

    python -m benchmarks.optim [--sets resnet50 mlp100] [--rows lamb madam] [--dtype bfloat16] [--out FILE]
    python -m benchmarks.optim --small                  a quick trial on a CPU, not a measurement

By default the sets are resnet50, mlp100, translation and billion, on a CPU resnet18, wikitext2, mlp100 and translation.
"""

import contextlib
import gc
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.optim_rows import COPY, FUSED_ADAM, GOALS, ROWS, SETS, Key, Row, Unavailable
from benchmarks.parameter_sets import PARAMETER_SETS, Shape, small
from benchmarks.tables import benchmark_parser, code_in_words, column_heads, with_versions
from nero.atomic import write_atomic
from nero.optim import LAMB, Madam, Nero
from nero.report.tables.sheets import markdown_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("eager", "replayed")
REPETITIONS = 5
"""Repetitions of a measurement; the median is reported."""
WARM_UP = 3
"""Steps before a capture: Triton compiles, and optimisers create their state."""
LR = 1e-3
"""Small, so that thousands of steps along one gradient keep weights of ordinary size."""

Cell = float | str
"""Milliseconds per step, or why there is no measurement."""
Cells = Mapping[tuple[str, Key, str], Cell]
"""By parameter set, row and mode."""


@dataclass(frozen=True)
class Bench:
    """The device and dtype of timed steps, and the seconds per measurement."""

    device: torch.device
    dtype: torch.dtype
    seconds: float

    def optimiser(self, row: Row, shapes: Sequence[Shape], mode: str) -> Cell:
        """Milliseconds per step of one row."""
        no_kernels = self.device.type == "cpu" and row.options.get("fused") and row.make in (Nero, LAMB, Madam)
        if no_kernels or (mode == "replayed" and row.captured is None):
            return "-"
        return self._guarded(lambda: self._optimiser_step(row, shapes, mode))

    def copy(self, shapes: Sequence[Shape], mode: str) -> Cell:
        """Milliseconds to move as many bytes as a step must, which reads weight and gradient and writes the weight.

        Half of them are read and half written, by the driver's own copy or by a kernel, whichever is faster.
        """
        moved = 3 * self.dtype.itemsize * sum(math.prod(shape) for shape in shapes)
        cells = [self._guarded(partial(self._copy_step, moved // 8, mode, by_driver)) for by_driver in (True, False)]
        return min(cells, key=lambda cell: cell if isinstance(cell, float) else math.inf)

    def _optimiser_step(self, row: Row, shapes: Sequence[Shape], mode: str) -> Callable[[], object]:
        torch.manual_seed(0)
        params = [torch.randn(shape, device=self.device, dtype=self.dtype) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        if mode == "eager":
            return row.make(params, lr=LR, **row.options).step
        # A tensor, as in training: a graph would never update a plain number.
        lr = torch.tensor(LR, device=self.device)
        return captured(row.make(params, lr=lr, **row.options, **(row.captured or {})).step)

    def _copy_step(self, numbers: int, mode: str, by_driver: bool) -> Callable[[], object]:
        source, target = (torch.zeros(numbers, dtype=torch.int32, device=self.device) for _ in range(2))

        def step() -> object:
            return target.copy_(source) if by_driver else torch.add(source, 0, out=target)

        return step if mode == "eager" else captured(step)

    def _guarded(self, make_step: Callable[[], Callable[[], object]]) -> Cell:
        """Time a step; an error in one row must not stop the others."""
        try:
            cell: Cell = self._milliseconds(make_step())
        except Unavailable as error:
            cell = str(error)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            cell = f"{type(error).__name__}: {first_line}"[:120].replace("|", "/")
        # Parameters, gradients and state of the largest set take tens of gigabytes: free them for the next row.
        gc.collect()
        with contextlib.suppress(RuntimeError):  # raised by every call after a device error
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return cell

    def _milliseconds(self, step: Callable[[], object]) -> float:
        step()  # compiles, and creates state
        steps, elapsed = 1, self._elapsed(step, 1)
        while elapsed < self.seconds / 10:
            steps *= 2
            elapsed = self._elapsed(step, steps)
        steps = max(1, round(self.seconds / REPETITIONS / (elapsed / steps)))
        return 1000 * statistics.median(self._elapsed(step, steps) / steps for _ in range(REPETITIONS))

    def _elapsed(self, step: Callable[[], object], steps: int) -> float:
        self._synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def captured(step: Callable[[], object]) -> Callable[[], None]:
    """Capture the step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # the graph has its own memory pool
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(keep_alive: object = step) -> None:
        # A graph has the addresses of its tensors, but does not keep them alive.
        graph.replay()

    return replay


def main(arguments: Sequence[str] | None = None) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--sets", nargs="+", choices=list(PARAMETER_SETS), metavar="SET", help=", ".join(PARAMETER_SETS)
    )
    parser.add_argument(
        "--rows", nargs="+", metavar="WORD", help="only optimisers or paths with one of these in their name"
    )
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--seconds", type=float, default=0.3, help="for one measurement (default: 0.3)")
    parser.add_argument("--small", action="store_true", help="no dimension above 16: a trial, not a measurement")
    options = parser.parse_args(arguments)
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds must be positive and finite, not {options.seconds}")
    if options.out and options.out.is_dir():
        parser.error(f"--out {options.out} is a folder")
    cuda = torch.cuda.is_available()
    if options.device == "cuda" and not cuda:
        parser.error("--device cuda: torch finds no CUDA device")
    device = torch.device("cpu" if options.device == "cpu" or not cuda else "cuda")
    names = list(dict.fromkeys(options.sets or SETS[device.type]))
    rows = chosen_rows(options.rows)
    if not rows:
        parser.error(f"--rows {' '.join(options.rows)}: there is no such row")

    bench = Bench(device, DTYPES[options.dtype], options.seconds)
    sets = {name: PARAMETER_SETS[name].shapes() for name in names}
    if options.small:
        sets = {name: small(shapes) for name, shapes in sets.items()}
    head = header(bench, shrunk=options.small)
    gc.freeze()  # objects of torch, which slow down every collection between rows
    cells: dict[tuple[str, Key, str], Cell] = {}
    # Captures last: a failure must not affect the other measurements.
    for mode in MODES if device.type == "cuda" else MODES[:1]:
        for name, shapes in sets.items():
            for key, cell in measurements(bench, rows, shapes, mode):
                cells[name, key, mode] = cell
                print(f"{name}, {mode}: {' '.join(key)}: {shown(cells, name, key, mode)}", file=sys.stderr, flush=True)
            text = report(head, sets, rows, cells, goals(cells, bench))
            if options.out:  # after each set: an interrupted benchmark keeps its results
                options.out.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(options.out, text.encode())
    print(text, end="")


def chosen_rows(words: Sequence[str] | None) -> list[Row]:
    """The rows with one of the words in their name, and fused Adam, with which all are compared; by default all."""
    if words is None:
        return list(ROWS)
    rows = [row for row in ROWS if any(word.lower() in " ".join(row.key).lower() for word in words)]
    return rows and [row for row in ROWS if row in rows or row.key == FUSED_ADAM]


def measurements(bench: Bench, rows: Sequence[Row], shapes: Sequence[Shape], mode: str) -> Iterator[tuple[Key, Cell]]:
    """Yield each row of a set's table as soon as it is measured."""
    yield COPY, bench.copy(shapes, mode)
    for row in rows:
        yield row.key, bench.optimiser(row, shapes, mode)


def report(
    head: Sequence[str], sets: Mapping[str, Sequence[Shape]], rows: Sequence[Row], cells: Cells, ending: Sequence[str]
) -> str:
    """Markdown: the setup, a table per set, and the goals."""
    lines = ["# Milliseconds per optimiser step", "", *head]
    for name, shapes in sets.items():
        lines += ["", *table(name, shapes, rows, cells)]
    return "\n".join([*lines, "", *ending, ""])


def header(bench: Bench, shrunk: bool) -> list[str]:
    """The setup, and the meaning of the numbers."""
    cuda = bench.device.type == "cuda"
    cpu = f"CPU ({platform.machine()}, threads: {torch.get_num_threads()})"
    facts = with_versions(
        torch.cuda.get_device_name(bench.device) if cuda else cpu,
        code_in_words(),
        f"torch {torch.__version__}",  # with its build
        packages=("triton", "pytorch_optimizer"),
    )
    lines = [
        f"{facts}, {str(bench.dtype).removeprefix('torch.')}, median of {REPETITIONS} repetitions.",
        "",
        "Eager: wall clock per step, the host's time or the device's, whichever is longer; the learning rate is a "
        "number. Replayed: from a CUDA graph, the device's time alone; the learning rate is a tensor. Copy: "
        f"{3 * bench.dtype.itemsize} bytes moved per parameter, half read and half written, as many as a step moves "
        "that reads weight and gradient once and writes the weight once; the faster of the driver's copy and a "
        "kernel's. LAMB and Adam have betas (0.9, 0.999), SGD no momentum.",
    ]
    if not cuda:
        lines += ["", "On a CPU only the ratios within one run mean anything."]
    if shrunk:
        lines += ["", "Shrunk sets: a trial of the script. These numbers measure nothing."]
    return lines


def table(name: str, shapes: Sequence[Shape], rows: Sequence[Row], cells: Cells) -> list[str]:
    head = ["optimiser", "path", *(f"ms {mode}" for mode in MODES)]
    head += [f"x {what}, {mode}" for what in ("copy", "fused Adam") for mode in MODES]
    count = sum(math.prod(shape) for shape in shapes)
    lines = [
        f"## {name}: {PARAMETER_SETS[name].description}",
        "",
        f"{len(shapes)} tensors, {count:,} parameters.",
        "",
        *column_heads(head, numbers=range(2, len(head))),
    ]
    for key in [COPY, *(row.key for row in rows)]:
        values = [shown(cells, name, key, mode) for mode in MODES]
        for other in (COPY, FUSED_ADAM):
            ratios = [ratio(cells, name, key, other, mode) for mode in MODES]
            values += ["-" if value is None else f"{value:.2f}" for value in ratios]
        lines.append(markdown_line([*key, *values]))
    return lines


def goals(cells: Cells, bench: Bench) -> list[str]:
    """The goals for this device and dtype, and whether they are met."""
    lines = ["## Goals", "", *column_heads(["time of", "over that of", "at most", "set", *MODES], numbers=(2,))]
    for goal in GOALS:
        if goal.device != bench.device.type or goal.dtype not in (None, bench.dtype):
            continue
        for name in goal.sets:
            if not any(measured == name for measured, _, _ in cells):
                continue
            ratios = [verdict(ratio(cells, name, goal.row, goal.over, mode), goal.bound) for mode in MODES]
            lines.append(markdown_line([" ".join(goal.row), " ".join(goal.over), str(goal.bound), name, *ratios]))
    return lines


def verdict(value: float | None, bound: float) -> str:
    if value is None:
        return "not measured"
    return f"{value:.3f} {'met' if value <= bound else 'not met'}"


def shown(cells: Cells, name: str, key: Key, mode: str) -> str:
    cell = cells.get((name, key, mode), "-")
    return cell if isinstance(cell, str) else f"{cell:.4f}"


def ratio(cells: Cells, name: str, key: Key, other: Key, mode: str) -> float | None:
    ours, theirs = cells.get((name, key, mode)), cells.get((name, other, mode))
    return ours / theirs if isinstance(ours, float) and isinstance(theirs, float) else None


if __name__ == "__main__":
    main()
