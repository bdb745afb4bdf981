"""Tests that the committed tables match the committed runs, and that these runs are complete."""

import subprocess
import sys

import pytest

from conftest import ROOT
from nero.plans.config import digest
from nero.runs.store import SETTLED, RunDirectory, Store

RUNS = Store(ROOT / "results" / "runs").runs()


@pytest.mark.slow
def test_committed_tables_are_up_to_date() -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts" / "report.py"),
        "--check",
        "--store",
        str(ROOT / "results" / "runs"),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr + "run `make report` and commit what it writes"


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.run_id)
def test_committed_run_is_settled_complete_and_has_clean_provenance(run: RunDirectory) -> None:
    summary, config = run.read_summary(), run.read_config()
    assert summary is not None
    assert summary["status"] in SETTLED
    assert summary["data"] == config["data"] == "real"
    assert run.run_id == summary["run_id"]
    assert run.run_id.endswith(digest(config)), "the id is not that of the config beside it"
    records, epochs = run.read_metrics(), config["task"]["epochs"]
    every = config["task"].get("log_every", 1)
    logged = [epoch for epoch in range(1, summary["epochs_done"] + 1) if epoch % every == 0 or epoch == epochs]
    assert [record["epoch"] for record in records] == logged
    if summary["status"] == "done":
        assert summary["epochs_done"] == summary["epochs"] == epochs
        assert summary["final"] == records[-1][summary["metric"]["key"]]
    starts = run.read_provenance()
    assert starts
    for start in starts:
        assert start["commit"]
        assert start["dirty"] is False
