"""Logged runs keep their ids, as computed from their config.yaml and from the experiments' YAML."""

import pytest

from conftest import ROOT
from nero.plans.config import RENAMED, _rename, compose, current_names, run_id
from nero.plans.plan import EXPERIMENTS, load_experiment
from nero.runs.store import Store

RUNS = {run.run_id: run for run in Store(ROOT / "results" / "runs").runs()}


def test_committed_run_ids_match_their_configs() -> None:
    for name, run in RUNS.items():
        logged = run.read_config()
        assert run_id(logged) == name
        today = current_names(logged)
        _rename(today, RENAMED)
        assert today == logged


@pytest.mark.slow
def test_every_committed_run_is_planned_by_an_experiment() -> None:
    planned = {}
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        for cell in load_experiment(path.stem).cells:
            for lr in cell.lrs:
                for seed in cell.seeds:
                    planned[cell.run(lr, seed).run_id] = cell.identity_at(lr, seed)
    assert set(planned) >= set(RUNS)
    for name, run in RUNS.items():
        assert planned[name] == run.read_config()


@pytest.mark.slow
def test_planned_overrides_compose_to_planned_run_ids() -> None:
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        for cell in load_experiment(path.stem).cells:
            run = cell.run(cell.lrs[-1], cell.seeds[-1])
            assert compose(run.overrides).run_id == run.run_id
