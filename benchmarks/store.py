#!/usr/bin/env python3
"""Cost of plans and the store: the overhead of one run of VGG-11, large stores, and commands that train nothing.

    python -m benchmarks.store                            5,000 to 20,000 synthetic runs, in a temporary folder
    python -m benchmarks.store --parts commands           seconds of commands that train nothing
    python -m benchmarks.store --runs 100 --growth 100 200 --repeats 1    a quick trial
    python -m benchmarks.store --out results/tables/bench_store.md

Parts: `overhead` of a run, `growth` with the number of runs, and `commands`.

The overhead of a run is all work besides its training: planning `table1` on the logged runs, composing its config, and
every write into its directory as in `nero.train.run`, each line flushed to disk. Needs no GPU. Repeated measurements
are reported by their median. The other parts measure commands as they are, with the start of Python.
"""

import io
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import torch

from benchmarks.report import Measured, Took, measure_command
from benchmarks.synthetic_store import experiment_of_runs, write_experiment, write_store
from benchmarks.tables import benchmark_parser, code_in_words, column_heads, print_lines
from nero.models.vgg import VGG11
from nero.optim import Nero
from nero.plans.argparse_types import check_out, positive_int
from nero.plans.config import ROOT, RunConfig, compose
from nero.plans.plan import load_experiment, pending, survey
from nero.report.frame import load_runs
from nero.report.tables.sheets import markdown_line
from nero.runs.provenance import provenance
from nero.runs.store import RunDirectory, Status, Store

EXPERIMENT, TASK, EPOCHS = "table1", "cifar10_vgg11", 200
PARTS = ("overhead", "growth", "commands")
NERO = (sys.executable, "-m", "nero.cli.main")
GROWTH = (
    "Stores of runs of Table 1 with many seeds, one line of log each. `logged` is an experiment of all these runs, "
    "`half_logged` one of twice as many: as many are pending as are logged. Ratio: of the CPU-seconds for the two "
    "sizes; 2 is linear."
)
ON_STORES = ("plan half_logged", "runs list", "runs check", "report logged --page")
COMMANDS_NOTE = (
    "On the committed runs. Composed configs are cached in `~/.cache/nero` until a YAML file or the code that reads "
    "it changes: the first time is without that cache."
)
# Commands that train nothing, and their exit status.
COMMANDS = {
    "--help": 0,
    "plan table1": 0,
    "plan mnist table1 cgan pong ablation imagenet checks modern theory": 0,
    "train task=mnist_mlp100 optim=nero optim.lr=0.001 seed=0": 0,
    "train --help": 0,
    "sweep mnist": 0,
    "runs": 0,
    "runs check": 0,
    "runs export TMP/runs.csv --force": 0,
    "runs export TMP/curves.csv --curves --force": 0,
    "runs compare cifar10_vgg11-nero-0.01-s1-500f48f9 cifar10_vgg11-nero-0.01-s0-16756": 0,
    "report --check": 0,
    "report mnist --check": 0,
    "data --help": 0,
    "sample no_run": 2,
    "translate no_run": 2,
    "generate no_run": 2,
    "play no_run": 2,
    "theory --help": 0,
    "compare --help": 0,
    "compare my.Optim --plan": 2,
    "bundle --help": 0,
    "notebooks --help": 0,
    "trian": 2,
    "plan no_experiment": 1,
    "sweep no_experiment": 1,
    "train optim.lr=x": 1,
    "train optim=nreo": 1,
}
WORDS = (f"task={TASK}", "optim=nero", "optim.lr=0.01")
LINE = {
    "seconds": 1.4338,
    "lr": 0.01,
    "train/loss": 0.008265134632773697,
    "train/error": 0.00292,
    "val/loss": 1.11681650390625,
    "val/error": 0.1619,
}


NOTHING = Took(0.0, 0.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--runs", type=positive_int, default=5000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument(
        "--growth", type=positive_int, nargs=2, default=[10000, 20000], metavar="N", help="default: 10000 20000"
    )
    parser.add_argument("--repeats", type=positive_int, default=5, help="measurements of each (default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where to write (default: the folder of temporary files)"
    )
    options = parser.parse_args(arguments)
    check_out(parser, options.out)
    if options.folder and not options.folder.is_dir():
        parser.error(f"--folder: there is no folder {options.folder}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        parts = {
            "overhead": lambda: _overhead(Path(folder), options.runs, options.repeats),
            "growth": lambda: _growth(Path(folder), options.growth),
            "commands": lambda: _commands(Path(folder), options.repeats),
        }
        about = f"{os.cpu_count()} CPU cores, no GPU; {code_in_words()}. The median of {options.repeats}."
        head = ["# What plans and the store take", "", about]
        print_lines(chain(head, *(parts[part]() for part in PARTS if part in options.parts)), options.out)
    return 0


def _overhead(folder: Path, count: int, repeats: int) -> Iterator[str]:
    logged = Store(ROOT / "results" / "runs")
    yield from ["", *column_heads(["what", "seconds", "of those on the CPU"])]
    store = Store(folder / "many")
    written, _ = write_store(store, count, epochs=1)
    yield _row(f"loading a store of {written:,} runs into the frame", measure(lambda: load_runs(store), repeats))
    planned, description = _planning(logged, repeats)
    parts = {description: planned, "composing its config": _composing(repeats), **_writing(folder, repeats)}
    for what, took in parts.items():
        yield _row(what, took)
    total = sum(parts.values(), NOTHING)
    yield _row("**plan and store, for one run of VGG-11**", total)
    yield ""
    yield _share(logged, total.seconds)


def _growth(folder: Path, counts: Sequence[int]) -> Iterator[str]:
    """Commands on stores of these sizes."""
    columns = [f"{count:,} runs: {what}" for count in counts for what in ("seconds", "CPU-ms per run")]
    yield from ["", "## Large stores", "", GROWTH, "", *column_heads(["command", *columns, "ratio"], range(1, 6))]
    took: dict[str, list[Measured]] = {words: [] for words in ON_STORES}
    for count in counts:
        store, local = folder / f"{count}", folder / f"local-{count}"
        write_store(Store(store), count, epochs=1)
        write_experiment(local / "experiments" / "logged.yaml", experiment_of_runs(count))
        write_experiment(local / "experiments" / "half_logged.yaml", experiment_of_runs(2 * count))
        for words, measured in took.items():
            command = [*NERO, *words.split(), "--store", str(store)]
            command += ["--out", str(folder / f"report-{count}")] if words.startswith("report") else []
            measured.append(measure_command(command, (0, 1), {"NERO_LOCAL": str(local)}))
        shutil.rmtree(store)
    for words, measured in took.items():
        cells = [
            cell
            for one, count in zip(measured, counts, strict=True)
            for cell in (f"{one.seconds:.1f}", f"{1e3 * one.cpu / count:.2f}")
        ]
        yield markdown_line([f"`nero {words}`", *cells, f"{measured[1].cpu / measured[0].cpu:.2f}"])


def _commands(folder: Path, repeats: int) -> Iterator[str]:
    """Each command without the cache of composed configs, and with it."""
    columns = ["command", "seconds", "of those on the CPU", "first time: seconds", "of those on the CPU"]
    yield from ["", "## Commands that train nothing", "", COMMANDS_NOTE, "", *column_heads(columns, range(1, 5))]
    for number, (words, status) in enumerate(COMMANDS.items()):
        cache = {"XDG_CACHE_HOME": str(folder / f"cache-{number}"), "NERO_LOCAL": str(folder / "local")}
        command = [*NERO, *shlex.split(words.replace("TMP", str(folder)))]
        first, *again = (measure_command(command, (status,), cache) for _ in range(1 + repeats))
        warm = median(again)
        values = (warm.seconds, warm.cpu, first.seconds, first.cpu)
        yield markdown_line([f"`nero {words}`", *(f"{value:.2f}" for value in values)])


def _row(words: str, took: Took) -> str:
    return markdown_line(
        [words, *(f"{value:.3f}" if value >= 0.1 else f"{value:.4f}" for value in (took.seconds, took.cpu))]
    )


def measure(work: Callable[[], object], repeats: int) -> Took:
    found = []
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        work()
        found.append(Took(time.perf_counter() - start, time.process_time() - cpu_start))
    return median(found)


def median(measured: Sequence[Took]) -> Took:
    """The medians of wall-clock and of CPU seconds."""
    return Took(statistics.median(took.seconds for took in measured), statistics.median(took.cpu for took in measured))


def _planning(logged: Store, repeats: int) -> tuple[Took, str]:
    """Seconds per pending run, and a description."""
    counts = []

    def plan() -> None:
        summaries = logged.summaries()
        states = [survey(cell, summaries) for cell in load_experiment(EXPERIMENT).cells]
        counts.append((len(states), len(pending(states))))

    took = measure(plan, repeats)
    cells, runs = counts[-1]
    words = f"planning `{EXPERIMENT}` on the {len(logged.runs())} committed runs ({took.seconds:.2f} s, {cells} cells)"
    return took.over(max(1, runs)), f"{words}, per run of the {runs} pending"


def _composing(repeats: int) -> Took:
    seeds = iter(range(repeats))
    return measure(lambda: compose([*WORDS, f"seed={next(seeds)}"]).run_id, repeats)


def _writing(folder: Path, repeats: int) -> dict[str, Took]:
    """Time of each kind of write of a run of VGG-11 with Nero."""
    config, network = compose(WORDS), VGG11()
    optimizer = Nero(network.parameters())
    measured = []
    for number in range(repeats):
        run = Store(folder / "runs").run(TASK, f"{config.run_id}-{number}")
        measured.append(_write_run(run, config, lambda: _state(network, optimizer)))
        run.drop_checkpoints()  # limits the disk space
    named = {"checkpoint": f"its last checkpoint ({len(_state(network, optimizer)) / 1e6:.0f} MB)"}
    return {named.get(part, part): median([took[part] for took in measured]) for part in measured[0]}


def _write_run(run: RunDirectory, config: RunConfig, state: Callable[[], bytes]) -> dict[str, Took]:
    """The writes of one run, in the order of `nero.train.run`; only its last epoch has a checkpoint."""
    own, log = "its lock, config, provenance and summaries", f"{EPOCHS} lines of its log, each flushed to disk"
    took: dict[str, Took] = {}

    def part(words: str, work: Callable[[], object]) -> None:
        took[words] = took.get(words, NOTHING) + measure(work, 1)

    def write_lines() -> None:
        for epoch in range(1, EPOCHS + 1):
            run.append_metrics({"epoch": epoch, "step": 391 * epoch, **LINE})

    with ExitStack() as held:
        summary = {"run_id": run.run_id, "status": Status.RUNNING, "final_metrics": {}}
        part(own, lambda: held.enter_context(run.exclusive()))
        part(own, lambda: run.write_config(config.identity))
        part(own, lambda: run.add_provenance(provenance("CPU")))
        part(own, lambda: run.write_summary(summary))
        part(log, write_lines)
        part("checkpoint", lambda: run.save_checkpoint(state(), {"epoch": EPOCHS, "step": 0}))
        part(own, lambda: run.write_summary({**summary, "final_metrics": run.read_metrics()[-1]}))
        part(own, held.close)
    return took


def _state(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> bytes:
    buffer = io.BytesIO()
    torch.save({"networks": network.state_dict(), "optimizers": optimizer.state_dict()}, buffer)
    return buffer.getvalue()


def _share(logged: Store, seconds: float) -> str:
    done = [run for run in logged.summaries().values() if run["task"] == TASK and run["status"] == Status.DONE]
    if not done:
        return f"There is no run of `{TASK}` to compare with."
    middle, shortest = statistics.median(run["seconds"] for run in done), min(done, key=lambda run: run["seconds"])
    device = f"{shortest['device']}{' for itself' if shortest.get('gpu_processes') == 1 else ''}"
    return (
        f"That is {seconds / middle:.2%} of a run of `{TASK}`, of {EPOCHS} epochs, by the median of the {len(done)} "
        f"that came to their end in `results/runs` ({middle:.0f} s); and {seconds / shortest['seconds']:.2%} of the "
        f"shortest of them, `{shortest['run_id']}`, which had one {device} and took {shortest['seconds']:.0f} s."
    )


if __name__ == "__main__":
    sys.exit(main())
