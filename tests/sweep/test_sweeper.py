"""Decisions of the sweeper: which runs are next, when to wait for other processes, and how launcher failures end."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nero.plans.config import CONFIG_DIR, ConfigError, compose
from nero.plans.plan import load_experiment
from nero.runs.stopping import Limits
from nero.runs.store import RunDirectory, Store
from nero.sweep import sweeper
from nero.sweep.launching import FaultTolerantLauncher
from nero.sweep.sweeper import PlanSweeper

PLAN = """
title: two learning rates, then another seed
rows:
  - task: mnist_mlp100
    optim: nero
    lr: [0.001, 0.01]
    repeat_seeds: [1]
"""


@pytest.fixture(autouse=True)
def _runs_in_test_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_RUNS", str(store.root))


class Launcher:
    """A fake launcher, which calls a function with each run directory; the function returns the outcome or raises."""

    def __init__(self, store: Store, carry_out: Callable[[RunDirectory], dict]) -> None:
        self.store, self.carry_out = store, carry_out
        self.launched: list[list[str]] = []
        self.words: list[str] = []  # that name a store

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        runs = [self.run(words) for words in job_overrides]
        self.launched.append([run.run_id for run in runs])
        self.words += [word for words in job_overrides for word in words if word.startswith("store=")]
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=self.carry_out(run)) for run in runs]

    def run(self, words: Sequence[str]) -> RunDirectory:
        config = compose([word for word in words if not word.startswith("machine.")])
        return self.store.run(config.task_name, config.run_id)


def write_finished_summary(run: RunDirectory, status: str = "done") -> dict:
    run.path.mkdir(parents=True, exist_ok=True)
    config = dict(zip(("task", "optim", "lr", "seed"), run.run_id.split("-"), strict=False))
    final = float(config["lr"])
    metric = {"key": "train/accuracy", "goal": "max", "label": "accuracy"}
    fixed = {"version": 1, "run_id": run.run_id, "task": "mnist_mlp100", "optim": "nero", "lr": final, "seed": 0}
    summary = {**fixed, "status": status, "metric": metric, "final": final, "final_metrics": {"train/accuracy": final}}
    run.write_summary({**summary, "epochs": 1, "epochs_done": 1, "seconds": 1.0, "data": "real"})
    return {**summary, "seconds": 1.0}


def sweep(
    store: Store,
    launcher: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits | None = None,
    plans: tuple[str, ...] = (PLAN,),
) -> list[dict]:
    for number, plan in enumerate(plans):
        (tmp_path / f"plan{number}.yaml").write_text(plan)
    experiments = [load_experiment(f"plan{number}", folder=tmp_path) for number in range(len(plans))]
    monkeypatch.setattr(sweeper, "POLL_SECONDS", 0.02)
    own = PlanSweeper(max_batch_size=None)
    own.cfg = OmegaConf.create({"store": str(store.root)})
    own.basic.launcher = FaultTolerantLauncher(launcher, lambda: False)  # type: ignore[arg-type]
    return own._sweep_experiments(experiments, [], limits or Limits())


def test_sweep_replans_after_each_batch_until_nothing_is_pending(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher(store, write_finished_summary)
    outcomes = sweep(store, launcher, tmp_path, monkeypatch)
    assert [len(batch) for batch in launcher.launched] == [2, 1]
    assert "0.01-s1" in launcher.launched[1][0], "the other seed at the better rate"
    assert [outcome["status"] for outcome in outcomes] == ["done"] * 3


def test_failed_run_is_launched_only_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(store, lambda run: {"run_id": run.run_id, "status": "failed", "message": "no"})
    outcomes = sweep(store, launcher, tmp_path, monkeypatch)
    assert len(launcher.launched) == 1
    assert [outcome["status"] for outcome in outcomes] == ["failed"] * 2


OTHER = """
title: one of the other's runs, and one of its own
rows:
  - task: mnist_mlp100
    optim: nero
    lr: [0.001]
    repeat_seeds: [5]
"""


def test_experiments_run_in_order_and_shared_runs_only_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = Launcher(store, write_finished_summary)
    outcomes = sweep(store, launcher, tmp_path, monkeypatch, plans=(PLAN, OTHER))
    told = [[run_id.removeprefix("mnist_mlp100-nero-")[:-9] for run_id in batch] for batch in launcher.launched]
    assert told == [["0.001-s0", "0.01-s0"], ["0.01-s1"], ["0.001-s5"]]
    assert [outcome["status"] for outcome in outcomes] == ["done"] * 4


@pytest.mark.parametrize(("status", "batches"), [("failed", [2, 1]), ("interrupted", [2])])
def test_second_experiment_runs_after_failure_but_not_after_interruption(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, batches: list[int]
) -> None:
    launcher = Launcher(store, lambda run: {"run_id": run.run_id, "status": status, "message": "no"})
    sweep(store, launcher, tmp_path, monkeypatch, plans=(PLAN, OTHER))
    assert [len(batch) for batch in launcher.launched] == batches, "what failed in the first is not asked for again"


def test_sweep_fails_if_nothing_can_be_trained_for_want_of_a_config(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "local" / "experiments"
    folder.mkdir(parents=True)
    (folder / "typo.yaml").write_text(PLAN.replace("optim: nero", "optim: nerro"))
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    launcher = Launcher(store, write_finished_summary)
    own = PlanSweeper(max_batch_size=None)
    overrides = [f"hydra.sweep.dir={tmp_path}", "machine=cpu"]
    with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
        own.cfg = hydra_compose("config", overrides, return_hydra_config=True)
    own.basic.launcher = launcher
    said = "error: nothing was trained: optim nerro is not available: there is no configs/optim/nerro.yaml"
    with pytest.raises(SystemExit, match=f"^{said}$"):
        own.sweep(["experiment=typo"])
    assert launcher.launched == []


def test_runs_are_launched_with_the_store_of_their_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NERO_RUNS")
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    store = Store(tmp_path / "local" / "runs")
    (tmp_path / "plan.yaml").write_text(f"overrides: [data=embedded]{PLAN}")
    own = PlanSweeper(max_batch_size=None)
    own.cfg = OmegaConf.create({"store": None})
    own.basic.launcher = launcher = Launcher(store, write_finished_summary)
    for logged in (0, 3):
        own._sweep_experiments([load_experiment("plan", folder=tmp_path)], [], Limits())
        hint = "3 of 3 runs are logged already; nero sweep plan store=DIR reruns them in a store of its own"
        assert (hint in capsys.readouterr().err) == (logged == 3)
    assert launcher.words == [f"store='{store.root}'"] * 3


@pytest.mark.parametrize(
    ("words", "configured", "names"),
    [
        (["experiment=mnist"], "mnist", ["mnist"]),
        (["experiment=table1,mnist"], None, ["table1", "mnist"]),  # overrides with commas are not in the sweep's config
        (["+experiment=[mnist,table1]"], ["mnist", "table1"], ["mnist", "table1"]),
        (["seed=0,1"], None, []),
        (["experiment=null", "only.task=null"], None, []),
    ],
)
def test_experiments_are_parsed_from_overrides(words: list[str], configured: str | None, names: list[str]) -> None:
    experiments = sweeper._experiments([*words, "data=embedded"], configured)
    assert [experiment.name for experiment in experiments] == names
    for cell in (cell for experiment in experiments for cell in experiment.cells):
        assert cell.overrides[-1] == "data=embedded"
        assert not any("experiment" in word for word in cell.overrides)


def test_only_overrides_filter_every_experiment() -> None:
    found = sweeper._experiments(["experiment=mnist,pong", "only.optim=sgd"], None)
    assert [{(cell.task, cell.optim) for cell in each.cells} for each in found] == [
        {("mnist_mlp100", "sgd")},
        {("pong_ppo", "sgd")},
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["experiment=mnist,tabel1"], "there is no experiment 'tabel1' .did you mean table1..; there are: .*table1"),
        (["experiment=mnist,pong", "only.task=pong_ppo"], "only.task: mnist has no 'pong_ppo'; it has: "),
        (["only.task=pong_ppo"], "only.task and only.optim choose a part of an experiment: nero sweep EXPERIMENT$"),
    ],
)
def test_unknown_experiment_or_part_raises_config_error(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        sweeper._experiments(words, None)


@pytest.mark.parametrize("ending", ["settled", "dead"])
def test_sweep_waits_for_run_locked_by_another_process_then_continues(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    held, let_go = threading.Event(), threading.Event()

    def carry_out(run: RunDirectory) -> dict:
        if "-0.001-" in run.run_id and not let_go.is_set():
            let_go.set()
            return {"run_id": run.run_id, "status": "busy", "message": "another process"}
        return write_finished_summary(run)

    launcher = Launcher(store, carry_out)
    other = store.run("mnist_mlp100", load_first_id(tmp_path))

    def other_process() -> None:
        with other.exclusive():
            held.set()
            let_go.wait(30)
            time.sleep(0.3)
            if ending == "settled":
                write_finished_summary(other)

    thread = threading.Thread(target=other_process)
    thread.start()
    held.wait(30)
    outcomes = sweep(store, launcher, tmp_path, monkeypatch)
    thread.join()
    assert [outcome["status"] for outcome in outcomes] == ["done"] * 3
    assert [len(batch) for batch in launcher.launched] == ([2, 1] if ending == "settled" else [2, 1, 1])


def load_first_id(tmp_path: Path) -> str:
    (tmp_path / "plan.yaml").write_text(PLAN)
    [cell] = load_experiment("plan", (), tmp_path).cells
    return cell.run(0.001, 0).run_id


def test_sweep_does_not_wait_past_its_deadline(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher(store, lambda run: {"run_id": run.run_id, "status": "busy", "message": "another process"})
    monkeypatch.setattr(RunDirectory, "is_held", lambda self: True)
    outcomes = sweep(store, launcher, tmp_path, monkeypatch, Limits(deadline=time.monotonic() + 0.2))
    assert [outcome["status"] for outcome in outcomes] == ["busy"] * 2
    assert "waiting for 2 runs that other processes have" in capsys.readouterr().err


class Fragile(Launcher):
    """Fails like a process pool in which one worker dies: all runs in progress die with it."""

    def __init__(self, store: Store, deadly: set[str], at_once: int = 2) -> None:
        super().__init__(store, write_finished_summary)
        self.deadly, self.at_once = deadly, at_once

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        runs = [self.run(words) for words in job_overrides]
        self.launched.append([run.run_id for run in runs])
        for place, run in enumerate(runs):
            if run.run_id in self.deadly:
                for beside in runs[max(0, place + 1 - self.at_once) : place + 1]:
                    write_finished_summary(beside, "running")
                raise RuntimeError("a worker process managed by the executor was unexpectedly terminated\nmore")
            write_finished_summary(run)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=run.read_summary()) for run in runs]


@pytest.mark.parametrize("deadly", [set(), {0}, {2}, {1, 3}, {0, 1, 2, 3, 4, 5}], ids=str)
def test_launcher_crash_fails_only_the_runs_that_caused_it(store: Store, deadly: set[int]) -> None:
    jobs = [[f"seed={seed}"] for seed in range(6)]
    ids = [compose(words).run_id for words in jobs]
    launcher = Fragile(store, {ids[number] for number in deadly})
    heard = FaultTolerantLauncher(launcher, lambda: False)  # type: ignore[arg-type]
    returns = heard.launch(jobs, 0)
    outcomes = [job.return_value for job in returns]
    assert [outcome["run_id"] for outcome in outcomes] == ids
    assert {number for number, outcome in enumerate(outcomes) if outcome["status"] == "failed"} == deadly
    assert all(outcome["status"] == "done" for number, outcome in enumerate(outcomes) if number not in deadly)
    for number in deadly:
        assert outcomes[number]["message"].endswith("was unexpectedly terminated"), "in one line"


def test_launcher_that_cannot_start_is_tried_once(store: Store) -> None:
    class Broken(Launcher):
        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
            self.launched.append([])
            raise OSError("no sbatch here")

    launcher = Broken(store, write_finished_summary)
    returns = FaultTolerantLauncher(launcher, lambda: False).launch([["seed=0"], ["seed=1"]], 0)  # type: ignore[arg-type]
    assert [job.return_value["message"] for job in returns] == ["OSError: no sbatch here"] * 2
    assert len(launcher.launched) == 1


def test_launcher_crash_after_stop_request_is_not_retried(store: Store) -> None:
    launcher = Fragile(store, {compose(["seed=0"]).run_id})
    returns = FaultTolerantLauncher(launcher, lambda: True).launch([["seed=0"], ["seed=1"]], 0)  # type: ignore[arg-type]
    assert [job.return_value["status"] for job in returns] == ["interrupted"] * 2
    assert len(launcher.launched) == 1


def test_job_exception_is_reported_unless_run_has_a_result(store: Store) -> None:
    class Raising(Launcher):
        def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
            return [JobReturn(status=JobStatus.FAILED, _return_value=ValueError("odd")) for _ in job_overrides]

    write_finished_summary(store.run("mnist_mlp100", compose(["seed=1"]).run_id))
    heard = FaultTolerantLauncher(Raising(store, write_finished_summary), lambda: False)  # type: ignore[arg-type]
    words = ["seed=0", "seed=1", "seed=-1"]
    said = [job.return_value for job in heard.launch([[word, "machine.threads=1"] for word in words], 0)]
    assert [outcome["status"] for outcome in said] == ["failed", "done", "failed"]
    assert said[0]["run_id"] == compose(["seed=0"]).run_id
    assert said[2]["run_id"] == "seed=-1", "which makes no run"
    assert said[0]["message"] == "ValueError: odd"


@given(st.text(alphabet=st.characters(exclude_characters="\x00\n\r$", exclude_categories=["Cs", "Cc"]), min_size=1))
def test_quoted_path_round_trips_through_hydra_overrides(path: str) -> None:
    [override] = OverridesParser.create().parse_overrides([f"machine.stop_file={sweeper._quoted(path)}"])
    assert override.value() == path
