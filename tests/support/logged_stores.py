"""Stores of synthetic runs with complete files: config, log, provenance and summary agree."""

from pathlib import Path
from typing import Any

from nero.runs.logged import LoggedRun
from nero.runs.store import RunDirectory, Store
from support.fake_runs import cells_of, write_run

NERO, ADAM, REPARAM = "mnist_mlp100 nero", "mnist_mlp100 adam", "mnist_reparam adam 100"


def write_whole(
    store: Store, name: str = NERO, lr: float = 0.01, seed: int = 0, final: float | None = 0.75, **others: Any
) -> RunDirectory:
    """Write a run of a cell of `mnist`, with the config that its id is computed from and with its provenance."""
    cell = cells_of("mnist")[name]
    run = write_run(store, cell, lr, seed, final, **others)
    run.write_config(cell.identity_at(lr, seed))
    run.add_provenance({"commit": f"{seed:040x}", "dirty": bool(seed), "device": "cpu"})
    if final is None:
        change_summary(run, final_metrics={})
    return run


def write_unfinished(store: Store, name: str = NERO, lr: float = 0.01, seed: int = 0) -> RunDirectory:
    """Write a run that was interrupted after two of three epochs, with a checkpoint of the second."""
    run = write_whole(store, name, lr, seed, 0.5, curve=[0.25, 0.5], status="running")
    change_summary(run, final=None, final_metrics={}, epochs=3, epochs_done=0)
    run.save_checkpoint(b"the state after two epochs", {"epoch": 2, "step": 0})
    return run


def change_summary(run: RunDirectory, **changes: Any) -> None:
    summary = run.read_summary()
    assert summary is not None
    run.write_summary({**summary, **changes})


def logged(run: RunDirectory) -> LoggedRun:
    summary = run.read_summary()
    assert summary is not None
    return LoggedRun(run, summary)


def contents(folder: Path) -> dict[str, bytes]:
    """Contents of every file below a folder, keyed by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
