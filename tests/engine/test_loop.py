"""The training loop: order of steps, learning rates, divergence, checkpoints, exact resume."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from nero.engine import interrupt
from nero.engine.capture import WARM_UP
from nero.engine.loop import Ending
from nero.engine.precision import set_precision
from nero.runs.stopping import Limits
from nero.runs.store import RunDirectory, Status
from nero.tasks.base import Batch, Meters, Metric, Work
from support.toy import CPU, Line, make_loop, without_times


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


@pytest.fixture(autouse=True)
def _no_signal_left_over() -> Iterator[None]:
    yield
    interrupt.clear_request()


def reference(tmp_path: Path, make: Callable[[], Line] = Line) -> tuple[list[dict], dict[str, torch.Tensor]]:
    """Metrics and weights of an undisturbed run."""
    run = RunDirectory(tmp_path / "reference")
    task = make()
    assert make_loop(task, run).run().status is Status.DONE
    return without_times(run.read_metrics()), task.first.state_dict()


def run_until(task: Line, run: RunDirectory, looks: int) -> Ending:
    """Run until the loop's stop check number `looks`; check 0 comes before the first step."""
    seen = iter(range(1000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nero.engine.loop.stop_reason", lambda deadline: "enough" if next(seen) == looks else None)
        return make_loop(task, run).run()


def test_every_epoch_is_logged_with_step_lr_metrics_and_trace(run: RunDirectory) -> None:
    ending = make_loop(Line(), run).run()
    records = run.read_metrics()
    assert ending.status is Status.DONE
    assert [r["epoch"] for r in records] == [1, 2, 3]
    assert [r["step"] for r in records] == [7, 14, 21]
    assert [r["lr"] for r in records] == pytest.approx([0.01, 0.005, 0.0025])
    for record in records:
        assert len(record["trace"]["loss"]) == 7
        assert record["train/loss"] == pytest.approx(sum(record["trace"]["loss"]) / 7, rel=1e-5)
    assert records[-1]["train/loss"] < records[0]["train/loss"]


def test_second_loss_uses_first_network_after_its_step(run: RunDirectory) -> None:
    task = Line(epochs=1, steps=1)
    before = task.first[0].weight.detach().clone()
    make_loop(task, run).run()
    assert not torch.equal(task.seen_first[0], before)
    assert torch.equal(task.seen_first[0], task.first[0].weight), "the second loss must not step the first network"


def test_loop_matches_hand_written_training(run: RunDirectory) -> None:
    """Compares a network trained by the loop with the same steps written by hand."""
    task, twin = Line(epochs=2), Line(epochs=2)
    make_loop(task, run, optimizer=torch.optim.SGD, schedule=lambda p: 1 / (1 + p)).run()
    torch.manual_seed(twin.streams.number("training"))
    optimizers = {name: torch.optim.SGD(net.parameters(), lr=0.01) for name, net in twin.networks().items()}
    for epoch in range(2):
        for step, batch in enumerate(twin.batches(epoch)):
            for name, loss in twin.losses(batch):
                optimizers[name].param_groups[0]["lr"] = 0.01 / (1 + epoch + step / 7)
                optimizers[name].zero_grad()
                loss.backward()
                optimizers[name].step()
        twin.meters.reset_()
    for ours, theirs in zip(task.first.parameters(), twin.first.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("poison", [0, 10, 20])
def test_non_finite_loss_ends_run_and_reports_step(run: RunDirectory, poison: int) -> None:
    ending = make_loop(Line(poison=poison), run).run()
    assert ending.status is Status.DIVERGED
    assert ending.diverged_at == {"epoch": poison // 7 + 1, "step": poison + 1}
    assert len(run.read_metrics()) == poison // 7


def test_divergence_is_detected_within_long_epoch(run: RunDirectory) -> None:
    ending = make_loop(Line(steps=500, epochs=1, poison=3), run).run()
    assert ending.status is Status.DIVERGED
    assert ending.position.step <= 50


@pytest.mark.parametrize("stop_after", range(1, 21))
def test_stopping_after_any_step_and_resuming_gives_same_run(
    run: RunDirectory, tmp_path: Path, stop_after: int
) -> None:
    assert_resumes_exactly(run, tmp_path, stop_after, Line)


def assert_resumes_exactly(run: RunDirectory, tmp_path: Path, stop_after: int, make: Callable[[], Line]) -> None:
    expected, weights = reference(tmp_path, make)
    ending = run_until(make(), run, stop_after)
    assert ending.status is None
    assert ending.reason == "enough"
    task = make()
    loop = make_loop(task, run)
    assert loop.restore()
    assert (loop.position.epoch, loop.position.step) == (ending.position.epoch, ending.position.step)
    torch.rand(17)  # other random draws in between
    loop = make_loop(task, run)
    loop.restore()
    assert loop.run().status is Status.DONE
    assert without_times(run.read_metrics()) == expected
    for name, weight in task.first.state_dict().items():
        assert torch.equal(weight, weights[name])


def test_resuming_from_checkpoint_before_damaged_one_gives_same_run(run: RunDirectory, tmp_path: Path) -> None:
    expected, _ = reference(tmp_path)
    make_loop(Line(), run, checkpoint_seconds=0.0).run()
    newest = max(run.path.glob("checkpoint-*.pt"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    loop = make_loop(Line(), run)
    assert loop.restore()
    assert loop.run().status is Status.DONE
    assert without_times(run.read_metrics()) == expected


def test_run_restarts_if_every_checkpoint_is_damaged(run: RunDirectory, tmp_path: Path) -> None:
    expected, _ = reference(tmp_path)
    make_loop(Line(), run, checkpoint_seconds=0.0).run()
    for path in run.path.glob("checkpoint-*.pt"):
        path.write_bytes(b"")
    loop = make_loop(Line(), run)
    assert not loop.restore()
    assert run.read_metrics() == []
    loop.run()
    assert without_times(run.read_metrics()) == expected


def test_checkpoints_are_written_by_wall_time(run: RunDirectory) -> None:
    make_loop(Line(), run, checkpoint_seconds=3600.0).run()
    assert not list(run.path.glob("checkpoint-*.pt"))
    make_loop(Line(), run, checkpoint_seconds=0.0).run()
    assert list(run.path.glob("checkpoint-*.pt"))


def test_task_not_resumable_within_epoch_is_checkpointed_between_epochs(run: RunDirectory) -> None:
    task = Line()
    task.resumes_within_epoch = False
    make_loop(task, run, checkpoint_seconds=0.0).run()
    assert {path.name for path in run.path.glob("checkpoint-*.pt")} == {
        "checkpoint-epoch1-step0.pt",
        "checkpoint-epoch2-step0.pt",
    }


def test_past_deadline_stops_before_first_step(run: RunDirectory) -> None:
    ending = make_loop(Line(), run, limits=Limits(deadline=time.monotonic() - 1)).run()
    assert ending.status is None
    assert ending.position.total_steps == 0
    assert ending.reason == "the time budget is used up"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_stops_run_with_checkpoint_and_stays_pending(run: RunDirectory, number: signal.Signals) -> None:
    class Warned(Line):
        def batches(self, epoch: int, start: int = 0):  # type: ignore[no-untyped-def]
            for i, batch in enumerate(super().batches(epoch, start)):
                if epoch == 1 and i == 2:
                    os.kill(os.getpid(), number)
                yield batch

    before = signal.getsignal(number)
    with interrupt.signals_as_requests():
        ending = make_loop(Warned(), run).run()
    assert signal.getsignal(number) is before
    assert ending.reason == number.name
    assert (ending.position.epoch, ending.position.step) == (1, 3)
    assert run.load_checkpoint() is not None
    assert interrupt.stop_reason() == number.name, "the next run of this process must not start"


def test_checkpoints_load_without_unpickling_code(run: RunDirectory) -> None:
    make_loop(Line(), run, checkpoint_seconds=0.0).run()
    path = next(run.path.glob("checkpoint-*.pt"))
    assert "networks" in torch.load(path, weights_only=True)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_every_precision_trains_and_sets_backend_flags(run: RunDirectory, precision: str) -> None:
    set_precision("fp32")
    ending = make_loop(Line(), run, precision=precision).run()
    assert ending.status is Status.DONE
    assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    set_precision("fp32")
    assert torch.get_float32_matmul_precision() == "highest"


class Spread(Line):
    """Each log record covers several epochs, and its loss is the sum over them. Epoch e takes 10^e seconds."""

    def __init__(self, epochs: int, log_every: int, steps: int = 3, poison: int | None = None) -> None:
        super().__init__(epochs, steps, poison)
        self.log_every, self.now = log_every, 0
        self.meters = Meters(CPU, sums=("loss",), traces={"loss": steps * log_every})

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        yield from super().batches(epoch, start)
        self.now += 10**epoch

    def evaluate(self) -> dict[str, float]:
        return {"train/loss": self.meters.read()["loss"]}


@pytest.mark.parametrize(
    ("epochs", "log_every", "logged", "stand_for"),
    [(7, 3, [3, 6, 7], [3, 3, 1]), (4, 2, [2, 4], [2, 2]), (2, 5, [2], [2]), (1, 2, [1], [1])],
)
def test_log_record_may_cover_several_epochs(
    run: RunDirectory, tmp_path: Path, epochs: int, log_every: int, logged: list[int], stand_for: list[int]
) -> None:
    """Compares with the same run that logs every epoch."""
    each, weights = reference(tmp_path, lambda: Spread(epochs, log_every=1))
    assert [record["epoch"] for record in each] == list(range(1, epochs + 1))
    assert not any("epochs" in record for record in each), "which would say nothing"
    task = Spread(epochs, log_every)
    assert make_loop(task, run).run().status is Status.DONE
    records = run.read_metrics()
    assert [record["epoch"] for record in records] == logged
    assert [record["epochs"] for record in records] == stand_for
    for record in records:
        spanned = each[record["epoch"] - record["epochs"] : record["epoch"]]
        assert record["trace"]["loss"] == [value for one in spanned for value in one["trace"]["loss"]]
        assert record["train/loss"] == pytest.approx(sum(one["train/loss"] for one in spanned), rel=1e-12)
        assert {key: record[key] for key in ("step", "lr")} == {key: spanned[-1][key] for key in ("step", "lr")}
    for name, weight in task.first.state_dict().items():
        assert torch.equal(weight, weights[name]), "what is logged has no part in training"


@pytest.mark.parametrize("stop_after", range(1, 15))
def test_stopping_between_log_records_and_resuming_gives_same_run(
    run: RunDirectory, tmp_path: Path, stop_after: int
) -> None:
    assert_resumes_exactly(run, tmp_path, stop_after, lambda: Spread(epochs=5, log_every=2))


@pytest.mark.parametrize("looks", [None, 3, 6, 9, 12])
def test_seconds_cover_all_epochs_of_log_record(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, looks: int | None
) -> None:
    task = Spread(epochs=5, log_every=2)
    monkeypatch.setattr("nero.engine.loop.time.monotonic", lambda: task.now)
    if looks is not None:
        ending = run_until(task, run, looks)
        assert ending.position.step == 0, "between two epochs"
        task = Spread(epochs=5, log_every=2)
    loop = make_loop(task, run)
    loop.restore()
    ending = loop.run()
    assert [record["seconds"] for record in run.read_metrics()] == [11, 1100, 10_000]
    assert ending.position.seconds == 11_111


def test_divergence_between_log_records_ends_run_immediately(run: RunDirectory) -> None:
    ending = make_loop(Spread(epochs=9, log_every=3, poison=12), run).run()
    assert ending.status is Status.DIVERGED
    assert ending.diverged_at == {"epoch": 5, "step": 13}
    assert ending.position.total_steps == 15
    assert [record["epoch"] for record in run.read_metrics()] == [3]


def test_trace_too_short_for_log_record_raises_before_first_step(run: RunDirectory) -> None:
    task = Line(epochs=4, steps=7)
    task.log_every = 2
    with pytest.raises(ValueError, match="trace 'loss' has room for 7 steps, and a line of the log stands for 14"):
        make_loop(task, run)
    task = Line(epochs=1, steps=7)
    task.log_every = 2  # more than the number of epochs
    assert make_loop(task, run).run().status is Status.DONE


class Judged(Line):
    """A task whose metric needs a judge, which may be missing. It has pictures after every other evaluation."""

    metric = Metric("val/distance", "min", "distance")

    def __init__(self, judge: float | None, epochs: int = 4) -> None:
        super().__init__(epochs)
        self.judge, self.judged = judge, 0

    def evaluate(self) -> dict[str, float]:
        self.judged += 1
        distance = {} if self.judge is None else {"val/distance": self.judge}
        return super().evaluate() | distance

    def pictures(self) -> dict[str, bytes]:
        return {"one.png": f"{self.judge}".encode(), "other.jpg": b"..."} if self.judged % 2 else {}


def test_missing_metric_is_measured_from_final_checkpoint(run: RunDirectory) -> None:
    task = Judged(judge=None)
    loop = make_loop(task, run)
    assert loop.run().status is Status.DONE
    loop.checkpoint()
    before, weights = run.read_metrics(), task.first.state_dict()
    assert "val/distance" not in before[-1]
    task = Judged(judge=2.5)
    loop = make_loop(task, run)
    assert loop.restore()
    ending = loop.run()
    assert (ending.status, ending.position.total_steps) == (Status.DONE, 28)
    assert task.seen_first == [], "no step was taken"
    assert run.read_metrics() == [*before[:-1], {**before[-1], "val/distance": 2.5}]
    for name, weight in task.first.state_dict().items():
        assert torch.equal(weight, weights[name])


def test_run_with_metric_is_not_measured_again(run: RunDirectory) -> None:
    loop = make_loop(Judged(judge=2.5), run)
    loop.run()
    loop.checkpoint()
    before = (run.path / "metrics.jsonl").read_bytes()
    task = Judged(judge=7.0)
    loop = make_loop(task, run)
    loop.restore()
    assert loop.run().status is Status.DONE
    assert task.judged == 0
    assert (run.path / "metrics.jsonl").read_bytes() == before


def test_non_finite_metric_is_not_measured_again(run: RunDirectory) -> None:
    loop = make_loop(Judged(judge=float("nan")), run)
    loop.run()
    loop.checkpoint()
    assert run.read_metrics()[-1]["val/distance"] is None
    task = Judged(judge=7.0)
    loop = make_loop(task, run)
    loop.restore()
    loop.run()
    assert (task.judged, run.read_metrics()[-1]["val/distance"]) == (0, None)


def test_lost_last_log_record_is_retrained(run: RunDirectory) -> None:
    loop = make_loop(Judged(judge=None), run)
    loop.run()
    loop.checkpoint()
    before = run.read_metrics()
    run.truncate_metrics(epochs=3)
    loop = make_loop(Judged(judge=None), run)
    assert not loop.restore(), "the log is not what it was at the only checkpoint"
    loop.run()
    assert without_times(run.read_metrics()) == without_times(before)


def test_missing_metric_is_not_measured_after_deadline(run: RunDirectory) -> None:
    loop = make_loop(Judged(judge=None), run)
    loop.run()
    loop.checkpoint()
    task = Judged(judge=2.5)
    loop = make_loop(task, run, limits=Limits(deadline=time.monotonic() - 1))
    loop.restore()
    assert loop.run().status is None
    assert task.judged == 0


def test_pictures_are_stored_by_epoch(run: RunDirectory) -> None:
    make_loop(Judged(judge=2.5, epochs=4), run).run()
    for name in ("one", "other"):
        assert list(run.pictures(name)) == [1, 3]
    assert {path.read_bytes() for path in run.pictures("one").values()} == {b"2.5"}


def test_pictures_of_later_measurement_belong_to_last_epoch(run: RunDirectory) -> None:
    loop = make_loop(Judged(judge=None, epochs=3), run)
    loop.run()
    loop.checkpoint()
    loop = make_loop(Judged(judge=2.5, epochs=3), run)
    loop.restore()
    loop.run()
    assert {epoch: path.read_bytes() for epoch, path in run.pictures("one").items()} == {1: b"None", 3: b"2.5"}


class Own(nn.Sequential):
    """User-defined layers: torch.compile skips torch's own layers when they are called directly."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Ragged(Line):
    """The last batch of an epoch is smaller."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Own(*self.first), Own(self.second)  # type: ignore[assignment]

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for step, (x,) in enumerate(super().batches(epoch, start), start):
            yield (x if step < self.steps_per_epoch - 1 else x[:5],)


def test_smaller_last_batch_is_not_compiled(run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, weights = reference(tmp_path, Ragged)
    counter = CompileCounter()  # runs compiled frames eagerly
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    task = Ragged()
    assert make_loop(task, run, compile=True).run().status is Status.DONE
    assert counter.frame_count == 2, "each network once"
    assert without_times(run.read_metrics()) == expected
    for name, weight in task.first.state_dict().items():
        assert torch.equal(weight, weights[name])
    torch.compiler.reset()


class Prepared(Line):
    """Does extra work before every batch: sums the values it is given and records the dtype of a product."""

    def __init__(self, epochs: int = 3, steps: int = 7, device: torch.device = CPU) -> None:
        super().__init__(epochs, steps, device=device)
        self.events: list[str] = []
        self.dtypes: list[torch.dtype] = []
        self.total = torch.zeros(1, device=device)

    def before_training(self, as_step: Callable[[Work], Work]) -> None:
        self.events.append("told")
        self.add = as_step(self._add)

    def _add(self, batch: Batch) -> None:
        (value,) = batch
        self.events.append("work")
        self.dtypes.append((value[:, None] @ value[:, None]).dtype)
        self.total += value

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        for step, batch in enumerate(super().batches(epoch, start), start):
            self.add((torch.full((1,), float(epoch * self.steps_per_epoch + step), device=self.device),))
            self.events.append("batch")
            yield batch


def test_before_training_is_called_once_per_run_before_first_batch(run: RunDirectory) -> None:
    task = Prepared(epochs=2, steps=2)
    run_until(task, run, looks=3)
    assert task.events == ["told", *["work", "batch"] * 3]
    task = Prepared(epochs=2, steps=2)
    loop = make_loop(task, run)
    loop.restore()
    loop.run()
    assert task.events == ["told", "work", "batch"], "in a run that goes on, too"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_task_work_runs_under_autocast(run: RunDirectory, precision: str, dtype: torch.dtype) -> None:
    task = Prepared()
    make_loop(task, run, precision=precision).run()
    assert task.dtypes == [dtype] * 21
    assert task.total.tolist() == [sum(range(21))]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_task_work_is_captured_in_cuda_graph(run: RunDirectory, precision: str) -> None:
    device = torch.device("cuda")
    task = Prepared(device=device)
    make_loop(task, run, device=device, capture=True, precision=precision).run()
    assert task.events.count("batch") == 21
    assert task.events.count("work") == WARM_UP + 1 == 3, "from then on its graph does it"
    assert set(task.dtypes) == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert task.total.tolist() == [sum(range(21))]


@pytest.mark.gpu
def test_captured_training_matches_eager_training(tmp_path: Path) -> None:
    device = torch.device("cuda")
    finals = []
    for capture in (False, True):
        run = RunDirectory(tmp_path / str(capture))
        task = Line(device=device, epochs=5)
        task.first[2].p = 0.0  # dropout draws different numbers in a CUDA graph than in eager mode
        assert make_loop(task, run, device=device, capture=capture).run().status is Status.DONE
        finals.append([r["train/loss"] for r in run.read_metrics()])
    assert finals[0] == pytest.approx(finals[1], rel=1e-4)


@pytest.mark.gpu
def test_captured_run_detects_divergence_and_resumes(tmp_path: Path) -> None:
    device = torch.device("cuda")
    run = RunDirectory(tmp_path / "bad")
    ending = make_loop(Line(device=device, poison=17), run, device=device, capture=True).run()
    assert ending.diverged_at == {"epoch": 3, "step": 18}
    run = RunDirectory(tmp_path / "good")
    make_loop(Line(device=device, epochs=2), run, device=device, capture=True, checkpoint_seconds=0.0).run()
    loop = make_loop(Line(device=device, epochs=4), run, device=device, capture=True)
    assert loop.restore()
    assert loop.run().status is Status.DONE
    assert len(run.read_metrics()) == 4
