"""Plans: experiments, learning-rate searches and repeats."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nero.cli.plan import main as plan_command
from nero.plans.config import ConfigError
from nero.plans.listing import describe_logged, describe_outcomes, describe_plan
from nero.plans.plan import (
    EXPERIMENTS,
    Cell,
    PlannedRun,
    best_lr,
    load_experiment,
    pending,
    survey,
)

SHIPPED = sorted(path.stem for path in EXPERIMENTS.glob("*.yaml"))


def summary(run: PlannedRun, final: float | None, status: str = "done", goal: str = "max") -> dict:
    return {
        "run_id": run.run_id,
        "task": run.task,
        "optim": run.optim,
        "status": status,
        "final": final,
        "final_metrics": {"train/accuracy": final} if status == "done" else {},
        "metric": {"key": "train/accuracy", "goal": goal, "label": ""},
        "epochs_done": run.epochs,
        "seconds": 10.0,
    }


@pytest.mark.slow  # if there is no cache of composed configs
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_experiment_can_be_loaded_and_described(name: str) -> None:
    experiment = load_experiment(name)
    states = [survey(cell, {}) for cell in experiment.cells]
    assert experiment.name in describe_plan(experiment, states, {})
    for state in states:
        assert state.pending or state.cell.missing_config


def test_run_counts_match_the_paper() -> None:
    counts = {name: sum(cell.run_count for cell in load_experiment(name).cells) for name in SHIPPED}
    assert counts["table1"] == 168
    assert counts["ablation"] == 8 * (6 + 2)
    assert counts["mnist"] == 2 * 3 + 4 * (4 + 2) + 3
    assert counts["imagenet"] == 12
    assert counts["pong"] == 4 * (5 + 2) + 3


def test_plan_reports_unavailable_task(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("title: x\nrows: [{task: [mnist_mlp100, no_such_task], optim: nero, lr: [1, 2]}]")
    experiment = load_experiment("x", folder=tmp_path)
    text = describe_plan(experiment, [survey(cell, {}) for cell in experiment.cells], {})
    assert "task no_such_task is not available: there is no configs/task/no_such_task.yaml (2 runs)" in text
    assert text.count("pending  mnist_mlp100") == 2


def test_search_is_followed_by_repeats_at_best_lr() -> None:
    cell = next(c for c in load_experiment("mnist").cells if c.task == "mnist_mlp100" and c.optim == "nero")
    logged: dict[str, dict] = {}
    state = survey(cell, logged)
    assert [run.lr for run in state.pending] == [0.0001, 0.001, 0.01, 0.1]
    assert state.undecided == 2
    finals = {0.0001: 0.2, 0.001: 0.9, 0.01: 0.5, 0.1: None}
    for run in state.pending:
        logged[run.run_id] = summary(run, finals[run.lr], "diverged" if finals[run.lr] is None else "done")
        if run.lr < 0.1:
            state = survey(cell, logged)
            assert {run.seed for run in state.pending} == {0}, "no repeat may start before the search has ended"
            assert state.best_lr is None
    state = survey(cell, logged)
    assert state.best_lr == 0.001
    assert [(run.lr, run.seed) for run in state.pending] == [(0.001, 1), (0.001, 2)]
    for run in state.pending:
        logged[run.run_id] = summary(run, 0.8)
    state = survey(cell, logged)
    assert state.complete
    assert [s["final"] for s in state.at_leading.values() if s] == [0.9, 0.8, 0.8]


def test_leading_lr_during_search_uses_search_seed_only() -> None:
    cell = next(c for c in load_experiment("mnist").cells if c.task == "mnist_mlp100" and c.optim == "nero")
    first = {seed: cell.run(0.001, seed) for seed in cell.seeds}
    logged = {run.run_id: summary(run, 0.5 + 0.1 * seed) for seed, run in first.items()}
    state = survey(cell, logged)
    assert (state.leading_lr, state.best_lr, state.searching) == (0.001, None, True)
    assert [s["final"] for s in state.at_leading.values() if s] == [0.5, 0.6, 0.7]
    assert [(run.lr, run.seed) for run in state.pending] == [(0.0001, 0), (0.01, 0), (0.1, 0)]
    assert (state.undecided, state.complete) == (2, False)
    assert state.to_follow == 0, "as long as that rate leads"
    overtaking = cell.run(0.01, 0)
    state = survey(cell, logged | {overtaking.run_id: summary(overtaking, 0.55)})
    assert state.leading_lr == 0.01, "seeds that no other rate has do not count in the search"
    assert state.to_follow == 2
    assert {seed: s is not None for seed, s in state.at_leading.items()} == {0: True, 1: False, 2: False}
    assert {run.seed for run in state.pending} == {0}


def test_leading_lr_is_best_lr_once_search_is_complete() -> None:
    cell = next(c for c in load_experiment("mnist").cells if c.task == "mnist_mlp100" and c.optim == "sgd")
    logged = {run.run_id: summary(run, run.lr) for run in survey(cell, {}).pending}
    state = survey(cell, logged)
    assert state.leading_lr == state.best_lr == 0.1
    assert not state.searching
    assert [run.seed for run in state.pending] == [1, 2]


def test_no_leading_lr_if_all_searched_runs_diverged() -> None:
    cell = next(c for c in load_experiment("mnist").cells if len(c.lrs) > 1)
    run = cell.run(0.1, 0)
    state = survey(cell, {run.run_id: summary(run, None, "diverged")})
    assert (state.leading_lr, state.at_leading, state.diverged) == (None, {}, False)


def test_setting_returns_value_from_composed_config() -> None:
    cells = {(cell.optim, cell.variant): cell for cell in load_experiment("ablation").cells}
    swept = cells["nero", (("optim.mean", True), ("optim.norm", False))]
    assert (swept.setting("optim.mean"), swept.setting("optim.norm"), swept.setting("optim.beta")) == (
        True,
        False,
        0.999,
    )
    assert cells["madam_constrained", ()].setting("optim.norm") is True
    assert cells["madam", ()].setting("optim.norm") is None
    to_come = Cell("a_task_to_come", "nero", (0.1,), 0, (), variant=(("optim.mean", False),))
    assert to_come.setting("optim.mean") is False
    assert replace(to_come, overrides=("+optim.mean=true", "optim.norm=true")).setting("optim.mean") is False
    assert replace(to_come, overrides=("data=real", "data=embedded")).setting("data") == "embedded"
    assert to_come.setting("data") is None
    assert replace(to_come, variant=(("+task.width", 8),)).setting("task.width") == 8


def test_failed_and_running_runs_are_pending() -> None:
    cell = load_experiment("mnist").cells[0]
    first = survey(cell, {}).pending[0]
    for status in ("failed", "running"):
        assert first in survey(cell, {first.run_id: summary(first, None, status)}).pending


def test_run_without_its_metric_is_pending() -> None:
    cell = load_experiment("mnist").cells[0]
    first = survey(cell, {}).pending[0]
    unmeasured = summary(first, None) | {"final_metrics": {"train/loss": 0.5}}
    state = survey(cell, {first.run_id: unmeasured})
    assert first in state.pending
    assert first.run_id not in state.logged
    not_finite = survey(cell, {first.run_id: summary(first, None)})
    assert first not in not_finite.pending, "a metric that is there as null has been measured"
    assert first.run_id in not_finite.logged


def test_search_is_incomplete_until_every_lr_is_measured() -> None:
    cell = next(c for c in load_experiment("mnist").cells if len(c.lrs) > 1)
    runs = survey(cell, {}).pending
    logged = {run.run_id: summary(run, run.lr) for run in runs}
    logged[runs[-1].run_id] |= {"final": None, "final_metrics": {}}
    state = survey(cell, logged)
    assert state.pending == (runs[-1],), "no repeat, though every rate has a run that is done"
    assert (state.searching, state.best_lr, state.leading_lr) == (True, None, runs[-2].lr)


def test_cell_with_all_runs_diverged_needs_no_repeats() -> None:
    cell = next(c for c in load_experiment("mnist").cells if len(c.lrs) > 1)
    logged = {run.run_id: summary(run, None, "diverged") for run in survey(cell, {}).pending}
    state = survey(cell, logged)
    assert state.diverged
    assert state.complete
    assert state.best_lr is None


@given(
    st.dictionaries(
        st.sampled_from([1e-4, 1e-3, 1e-2, 1e-1, 1.0]),
        st.one_of(st.none(), st.floats(-100, 100)),
        min_size=1,
    ),
    st.sampled_from(["min", "max"]),
)
def test_best_lr_has_best_final_value_and_ties_go_to_larger_lr(finals: dict, goal: str) -> None:
    run = PlannedRun("x", "t", "o", 0.1, 0, 1, ())
    search = {lr: summary(run, v, "done" if v is not None else "diverged", goal) for lr, v in finals.items()}
    best = best_lr(search)
    values = {lr: v for lr, v in finals.items() if v is not None}
    if not values:
        assert best is None
        return
    target = min(values.values()) if goal == "min" else max(values.values())
    assert best == max(lr for lr, v in values.items() if v == target)


def test_run_ids_within_an_experiment_are_unique() -> None:
    cells = [cell for cell in load_experiment("mnist").cells if not dict(cell.variant).get("optim.lr")]
    runs = [cell.run(lr, seed) for cell in cells for lr in cell.lrs for seed in cell.seeds]
    assert Counter(run.run_id for run in runs).most_common(1)[0][1] == 1


def test_equivalent_cells_share_the_same_run() -> None:
    search, chosen = (c for c in load_experiment("mnist").cells if (c.task, c.optim) == ("mnist_mlp100", "nero"))
    assert chosen.lrs == (0.001,)
    run = chosen.run(0.001, 0)
    assert run.run_id == search.run(0.001, 0).run_id
    states = [survey(cell, {run.run_id: summary(run, 0.9)}) for cell in (search, chosen)]
    assert "1 runs done; 5 pending" in describe_plan(load_experiment("mnist"), states, {})


def test_run_shared_by_two_cells_is_pending_once() -> None:
    cell = load_experiment("mnist").cells[0]
    assert len(pending([survey(cell, {}), survey(cell, {})])) == 3


def test_unknown_row_key_or_experiment_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("title: x\nrows: [{task: mnist_mlp100, optim: nero, lrs: [1]}]")
    with pytest.raises(ConfigError, match=r"a row of x\.yaml has an unknown key 'lrs'"):
        load_experiment("x", folder=tmp_path)
    with pytest.raises(ConfigError, match=r"there is no experiment 'nope'; there are: .*mnist.*table1"):
        load_experiment("nope")


TASKS = {cell.task for cell in load_experiment("table1").cells}


@pytest.mark.parametrize(
    ("words", "tasks", "optims"),
    [
        (["only.task=cifar10_resnet18", "only.optim=sgd"], {"cifar10_resnet18"}, {"sgd"}),
        (["only.optim=sgd,adam"], TASKS, {"sgd", "adam"}),
        (["only.optim=[sgd, 'adam']", "only.task=pong_ppo"], {"pong_ppo"}, {"sgd", "adam"}),
        (["only.optim=nero", "only.optim=sgd"], TASKS, {"sgd"}),
        (["only.task=null", "+only.optim=lamb"], TASKS, {"lamb"}),
    ],
)
def test_only_overrides_select_cells_by_task_and_optimiser(words: list[str], tasks: set[str], optims: set[str]) -> None:
    whole, part = (load_experiment("table1", [*each, "task.epochs=1"]).cells for each in ([], words))
    assert {cell.task for cell in part} == tasks
    assert {cell.optim for cell in part} == optims
    # The cells are the same, and their overrides do not mention the selection.
    assert part == tuple(cell for cell in whole if cell.task in tasks and cell.optim in optims)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["only.optim=sdg"], "only.optim: mnist has no 'sdg' (did you mean sgd?); it has: adam, lamb, nero, sgd"),
        (
            ["only.task=mnist_mlp100,pong_ppo"],
            "only.task: mnist has no 'pong_ppo'; it has: mnist_mlp100, mnist_reparam",
        ),
        (["only.task="], "only.task: mnist has no ''; it has: mnist_mlp100, mnist_reparam"),
        (
            ["only.task=mnist_reparam", "only.optim=sgd,lamb"],
            "mnist has no run with only.task=mnist_reparam only.optim=sgd,lamb",
        ),
        *(
            ([word], f"{word}: use only.task=NAMES or only.optim=NAMES for a part of an experiment")
            for word in ("only.tasks=mnist_mlp100", "only={task: mnist_mlp100}", "~only.task")
        ),
    ],
)
def test_selecting_missing_part_of_experiment_raises_config_error(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        load_experiment("mnist", words)


def test_plan_of_selected_part_lists_only_its_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["mnist", "only.optim=lamb", "--store", str(tmp_path)]
    assert plan_command(words) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "mnist: MNIST perceptrons (Figure 3), only.optim=lamb"
    assert ["-lamb-" in line for line in lines] == [True] * 4 + [False] * 2
    assert "0 runs done; 4 pending; 2 repeats to follow" in lines[-2]
    assert lines[-1].startswith("  expected on this machine (")
    assert lines[-1].endswith("): unknown")


ROW = {"task": "mnist_mlp100", "optim": "nero", "lr": 0.1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "x.yaml must be a mapping, not None"),
        ({"rows": [ROW]}, "x.yaml needs 'title'"),
        ({"title": "x"}, "x.yaml needs 'rows'"),
        ({"title": "x", "rows": None}, "x.yaml needs 'rows'"),
        ({"title": "x", "rows": [ROW], "override": []}, "x.yaml has an unknown key 'override'; there are: note"),
        ({"title": "x", "rows": ROW}, "x.yaml: 'rows' must be a list"),
        ({"title": "x", "rows": [ROW], "note": ["x"]}, "x.yaml: 'note' must be a string"),
        ({"title": "x", "rows": ["task"]}, "a row of x.yaml must be a mapping, not 'task'"),
        ({"title": "x", "rows": [ROW], "overrides": "seed=1"}, "x.yaml: 'overrides' must be a list, not 'seed=1'"),
        *(
            ({"title": "x", "rows": [{k: v for k, v in ROW.items() if k != key}]}, f"a row of x.yaml needs '{key}'")
            for key in ROW
        ),
        ({"title": "x", "rows": [ROW | {"lr": []}]}, "a row of x.yaml needs 'lr'"),
        *(
            ({"title": "x", "rows": [ROW | {key: value}]}, f"a row of x.yaml: '{key}' must be a list, not {value!r}")
            for key, value in {"overrides": "seed=1", "repeat_seeds": 1}.items()
        ),
        (
            {"title": "x", "rows": [ROW | {"sweep": {"task.depth": 3}}]},
            "`sweep` in a row of x.yaml: 'task.depth' must be a list, not 3",
        ),
        ({"title": "x", "rows": [ROW | {"sweep": [1]}]}, "`sweep` in a row of x.yaml must be a mapping, not [1]"),
        *(
            (
                {"title": "x", "rows": [ROW | setting]},
                f"a row of x.yaml: seeds must be integers from 0 to 2**63 - 1, not {said}",
            )
            for setting, said in (
                ({"search_seed": "zero"}, "'zero'"),
                ({"search_seed": True}, "True"),
                ({"repeat_seeds": [1, 2.5]}, "2.5"),
                ({"repeat_seeds": [-1]}, "-1"),
                ({"repeat_seeds": [2**63]}, str(2**63)),
            )
        ),
        *(
            ({"title": "x", "rows": [ROW | {"lr": value}]}, f"a row of x.yaml: {said}")
            for value, said in (
                ("fast", "learning rates must be positive numbers, not 'fast'"),
                ([0.1, 0], "learning rates must be positive numbers, not 0"),
                ([float("inf")], "learning rates must be positive numbers, not inf"),
                ([True], "learning rates must be positive numbers, not True"),
                ([[0.1]], "learning rates must be positive numbers, not [0.1]"),
                ([0.1, "1e-1"], "the learning rate 0.1 is given twice"),
            )
        ),
        *(
            (
                {"title": "x", "rows": [ROW | {"label": value}]},
                f"a row of x.yaml: 'label' must be a string, not {value}",
            )
            for value in (3, None, ["a label"])
        ),
    ],
)
def test_invalid_experiment_file_raises_config_error(text: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(text))
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_experiment("x", folder=tmp_path)


def test_file_that_is_not_yaml_raises_config_error(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("title: [")
    with pytest.raises(ConfigError, match=r"^x\.yaml is not valid YAML: .*$"):
        load_experiment("x", folder=tmp_path)


def test_learning_rate_in_scientific_notation_is_a_number(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("title: x\nrows: [{task: mnist_mlp100, optim: nero, lr: [1e-3, 1e-2]}]\n")
    assert load_experiment("x", folder=tmp_path).cells[0].lrs == (0.001, 0.01)


def test_logged_runs_are_counted_with_a_way_to_rerun_them() -> None:
    experiment = load_experiment("mnist", ["only.optim=lamb"])
    [cell] = experiment.cells
    assert describe_logged(experiment, [survey(cell, {})]) == ""
    run = cell.run(0.01, 0)
    summaries = {run.run_id: summary(run, 0.5)}
    assert describe_logged(experiment, [survey(cell, summaries)]) == (
        "1 of 6 runs are logged already; make mnist FRESH=1 reruns them in a store of its own, as does store=DIR"
    )


def test_label_does_not_affect_run(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"label": "another start"}]
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"title": "x", "rows": rows}))
    plain, labelled = load_experiment("x", folder=tmp_path).cells
    assert (plain.label, labelled.label) == ("", "another start")
    assert plain.run(0.1, 0) == labelled.run(0.1, 0)


def test_single_task_optimiser_or_lr_may_be_a_scalar(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"title": "x", "rows": [ROW]}))
    [cell] = load_experiment("x", folder=tmp_path).cells
    assert (cell.task, cell.optim, cell.lrs) == ("mnist_mlp100", "nero", (0.1,))


def test_describe_outcomes_has_one_line_per_run() -> None:
    outcomes = [
        {"run_id": "a", "status": "done", "final": 0.5, "metric": {"key": "val/error"}, "seconds": 61},
        {"run_id": "b", "status": "failed", "message": "RuntimeError: no", "seconds": None},
        {"run_id": "c", "status": "done", "final": 6.4e269, "metric": {"key": "val/perplexity"}, "seconds": 1},
        {"run_id": "d", "status": "done", "final": None, "metric": {"key": "val/perplexity"}, "seconds": 1},
    ]
    lines = describe_outcomes(outcomes).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["a", "done", "val/error", "0.5000", "1:01"],
        ["b", "failed", "RuntimeError:", "no", "-"],
        ["c", "done", "val/perplexity", "6.400e+269", "0:01"],
        ["d", "done", "val/perplexity", "not", "finite", "0:01"],
    ]
