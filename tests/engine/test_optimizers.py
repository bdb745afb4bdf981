"""Optimisers as they are: modes, closures, losses, state on the host, and exact resume of each."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from nero.engine.capture import WARM_UP, CapturedAtRate, CaptureError, allow_capture, captured
from nero.engine.loop import Loop
from nero.engine.optimizers import Capturable, capturable, measure_batch_norm, requires_closure
from nero.engine.schedules import constant, exponential
from nero.engine.seeding import SeedStreams
from nero.engine.step import Settings
from nero.optim import LAMB, Nero, Split
from nero.runs.store import RunDirectory, Status
from nero.tasks.base import NETWORK, Batch, Meters, Metric, Task
from support.toy import CPU, without_times

Maker = Callable[[nn.Module], Optimizer]


class Curve(Task):
    """A regression with one network; its last batch is smaller."""

    metric = Metric("val/loss", "min", "loss")

    def __init__(self, device: torch.device = CPU, epochs: int = 3, batch_norm: bool = False) -> None:
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.network = nn.Sequential(nn.Linear(4, 8), middle, nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.network.to(device)
        self.device, self.epochs, self.steps_per_epoch = device, epochs, 5
        self.meters = Meters(device, sums=("loss",))
        self.streams = SeedStreams(0)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        noise = torch.randn(self.steps_per_epoch, 16, 4, generator=self.streams.generator("noise", epoch))
        for step in range(start, self.steps_per_epoch):
            yield (noise[step, : 8 if step == self.steps_per_epoch - 1 else 16].to(self.device),)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        (x,) = batch
        loss = F.mse_loss(self.network(x), x.sum(dim=1, keepdim=True).sin())
        self.meters.add_("loss", loss)
        yield NETWORK, loss

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        x = torch.linspace(-1, 1, 40, device=self.device).reshape(10, 4)
        self.network.eval()
        loss = F.mse_loss(self.network(x), x.sum(dim=1, keepdim=True).sin())
        self.network.train()
        return {"train/loss": self.meters.read()["loss"] / self.steps_per_epoch, "val/loss": loss.item()}


def with_params(kind: Callable[..., Optimizer], **settings: Any) -> Maker:
    return lambda network: kind(network.parameters(), **settings)


def muon(network: nn.Module) -> Optimizer:
    parts = [{"optim": partial(torch.optim.Muon, weight_decay=0.0), "roles": ["neurons"]}, {"optim": torch.optim.AdamW}]
    return Split(network, parts, lr=0.02)


MAKERS: dict[str, Maker] = {
    "muon": muon,
    "schedule_free": with_params(schedulefree.AdamWScheduleFree, lr=0.02),
    "lion": with_params(pytorch_optimizer.Lion, lr=0.005),
    "soap": with_params(pytorch_optimizer.SOAP, lr=0.02, precondition_frequency=2),
    "lbfgs": with_params(torch.optim.LBFGS, lr=0.1, max_iter=3, history_size=4),
}


def make_loop(task: Task, make: Maker, path: Path, **settings: Any) -> Loop:
    path.mkdir(parents=True, exist_ok=True)
    schedule = settings.pop("schedule", exponential(0.5))
    optimizers = {name: make(network) for name, network in task.networks().items()}
    torch.manual_seed(1)
    return Loop(task, optimizers, schedule, RunDirectory(path), [], Settings(**{"device": CPU, **settings}))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("stop_after", [2, 5, 8])
def test_interrupted_training_resumes_bit_exactly(
    name: str, stop_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Curve()
    make_loop(whole, MAKERS[name], tmp_path / "whole").run()
    looks = iter(range(1000))
    with monkeypatch.context() as patch:
        patch.setattr("nero.engine.loop.stop_reason", lambda limits: "enough" if next(looks) == stop_after else None)
        assert make_loop(Curve(), MAKERS[name], tmp_path / "parts").run().status is None
    resumed = Curve()
    loop = make_loop(resumed, MAKERS[name], tmp_path / "parts")
    assert loop.restore()
    assert loop.position.total_steps == stop_after
    assert loop.run().status is Status.DONE
    logs = [without_times(RunDirectory(tmp_path / part).read_metrics()) for part in ("whole", "parts")]
    assert logs[0] == logs[1]
    for ours, theirs in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_lbfgs_gets_closure_that_matches_hand_written_training(tmp_path: Path) -> None:
    task, twin = Curve(epochs=1), Curve(epochs=1)
    make_loop(task, MAKERS["lbfgs"], tmp_path, schedule=constant()).run()
    optimizer = MAKERS["lbfgs"](twin.network)
    first_losses = []
    for batch in twin.batches(0):
        evaluations = []

        def closure(batch: Batch = batch, evaluations: list[float] = evaluations) -> Any:
            optimizer.zero_grad()
            loss = next(twin.losses(batch))[1]
            loss.backward()
            evaluations.append(loss.item())
            return loss

        optimizer.step(closure)
        assert len(evaluations) > 1
        first_losses.append(evaluations[0])
    for ours, theirs in zip(task.network.parameters(), twin.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    [line] = RunDirectory(tmp_path).read_metrics()
    assert line["train/loss"] == pytest.approx(sum(first_losses) / 5), "one loss per step counts"


class WithLoss(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.seen: list[Tensor] = []

    def step(self, closure: Any = None, *, loss: Tensor) -> None:  # type: ignore[override]
        assert not loss.requires_grad
        self.seen.append(loss)
        super().step()


def test_optimiser_that_takes_loss_gets_it(tmp_path: Path) -> None:
    loop = make_loop(Curve(epochs=1), with_params(WithLoss, lr=0.1), tmp_path)
    loop.run()
    [optimizer] = loop.optimizers.values()
    assert isinstance(optimizer, WithLoss)
    [line] = RunDirectory(tmp_path).read_metrics()
    assert float(sum(optimizer.seen)) / 5 == pytest.approx(line["train/loss"])


class WithModes(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.events: list[str] = []

    def train(self) -> None:
        self.events.append("train")

    def eval(self) -> None:
        self.events.append("eval")


def test_optimiser_is_in_train_mode_for_steps_and_in_eval_mode_for_evaluation(tmp_path: Path) -> None:
    task = Curve(epochs=2)
    loop = make_loop(task, with_params(WithModes, lr=0.1), tmp_path)
    [optimizer] = loop.optimizers.values()
    assert isinstance(optimizer, WithModes)
    evaluate, losses = task.evaluate, task.losses
    task.evaluate = lambda: (optimizer.events.append("evaluate"), evaluate())[1]  # type: ignore[method-assign]
    task.losses = lambda batch: (optimizer.events.append("step"), losses(batch))[1]  # type: ignore[method-assign]
    loop.run()
    steps = ["step"] * 5
    epoch = ["train", *steps, "eval", "evaluate"]
    assert optimizer.events == [*epoch, *epoch, "eval"], "and the last checkpoint has the weights that were measured"


def test_schedule_free_run_reports_averaged_weights(tmp_path: Path) -> None:
    task, twin = Curve(epochs=2), Curve(epochs=2)
    make_loop(task, MAKERS["schedule_free"], tmp_path, schedule=constant()).run()
    optimizer: Any = MAKERS["schedule_free"](twin.network)
    expected = []
    for epoch in range(2):
        optimizer.train()
        for batch in twin.batches(epoch):
            optimizer.zero_grad()
            next(twin.losses(batch))[1].backward()
            optimizer.step()
        at_last_step = twin.evaluate()["val/loss"]
        optimizer.eval()
        expected.append(twin.evaluate()["val/loss"])
        assert expected[-1] != at_last_step
    assert [line["val/loss"] for line in RunDirectory(tmp_path).read_metrics()] == expected
    for ours, theirs in zip(task.network.parameters(), twin.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_batch_norm_is_measured_again_for_averaged_weights(tmp_path: Path) -> None:
    task = Curve(epochs=1, batch_norm=True)
    layer = task.network[1]
    assert isinstance(layer, nn.BatchNorm1d)
    before = torch.get_rng_state()
    measure_batch_norm(task, task.batches(0))
    inputs = [task.network[0](x).detach() for (x,) in task.batches(0)]
    torch.testing.assert_close(layer.running_mean, torch.stack([x.mean(0) for x in inputs]).mean(0))
    torch.testing.assert_close(layer.running_var, torch.stack([x.var(0) for x in inputs]).mean(0))
    assert layer.momentum == 0.1
    assert task.meters.read() == {"loss": 0.0}
    assert torch.equal(before, torch.get_rng_state())
    make_loop(task, MAKERS["schedule_free"], tmp_path).run()
    layer_inputs = [task.network[0](x).detach() for (x,) in task.batches(0)]
    torch.testing.assert_close(layer.running_mean, torch.stack([x.mean(0) for x in layer_inputs]).mean(0))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (with_params(torch.optim.Adam, lr=0.1), None),
        (with_params(torch.optim.SGD, lr=0.1), None),
        (with_params(Nero), None),
        (with_params(LAMB), None),
        (MAKERS["schedule_free"], "its step changes 'k' on the host"),
        (MAKERS["lion"], "its step changes 'step' on the host"),
        (MAKERS["soap"], "its step changes 'step' on the host"),
        (MAKERS["lbfgs"], "it needs a closure"),
    ],
)
def test_state_on_host_is_detected_without_changing_training(make: Maker, reason: str | None) -> None:
    network = Curve().network
    optimizer = make(network)
    allow_capture(optimizer)
    weights, random = [param.clone() for param in network.parameters()], torch.get_rng_state()
    state = str(optimizer.state_dict())
    assert capturable(optimizer) == (Capturable(False, False, reason) if reason else Capturable(True, True))
    assert str(optimizer.state_dict()) == state
    assert torch.equal(random, torch.get_rng_state())
    for param, before in zip(network.parameters(), weights, strict=True):
        assert torch.equal(param, before)
        assert param.grad is None


class WithAttribute(torch.optim.SGD):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.count = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (WithAttribute, Capturable(False, False, "its step changes 'count' on the host")),
        (WithLoss, Capturable(True, True)),
    ],
)
def test_attributes_and_losses_of_steps_are_probed(kind: type[Optimizer], expected: Capturable) -> None:
    assert capturable(kind(Curve().network.parameters(), lr=0.1)) == expected  # type: ignore[call-arg]


def test_step_that_fails_with_tensor_as_rate_is_reported_as_such() -> None:
    class Picky(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if isinstance(self.param_groups[0]["lr"], Tensor):
                raise TypeError("lr must be a float")

    optimizer = Picky(Curve().network.parameters(), lr=0.1)
    reason = "its step does not take a learning rate on the GPU (lr must be a float)"
    assert capturable(optimizer) == Capturable(False, True, reason)


@pytest.mark.parametrize(("kind", "needed"), [(torch.optim.LBFGS, True), (torch.optim.SGD, False), (Nero, False)])
def test_needed_closure_is_recognised(kind: type[Optimizer], needed: bool) -> None:
    assert requires_closure(kind(nn.Linear(2, 2).parameters(), lr=0.1)) is needed  # type: ignore[call-arg]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*MAKERS, "sgd"])
@pytest.mark.parametrize("compiled", [False, True])
def test_training_with_graph_matches_training_without(
    name: str, compiled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    device = torch.device("cuda")
    make = MAKERS.get(name) or with_params(torch.optim.SGD, lr=0.1)
    lines = {}
    for capture in (False, True):
        loop = make_loop(
            Curve(device, epochs=6), make, tmp_path / str(capture), device=device, capture=capture, compile=compiled
        )
        assert loop.run().status is Status.DONE
        lines[capture] = without_times(RunDirectory(tmp_path / str(capture)).read_metrics())
    for ours, theirs in zip(lines[True], lines[False], strict=True):
        assert ours == pytest.approx(theirs, rel=2e-2 if name == "muon" else 2e-3)
    assert len({line["lr"] for line in lines[True]}) == 6, "the schedule reaches the optimiser"
    printed = capsys.readouterr().err
    if name == "sgd":
        assert "CUDA graph" not in printed
    elif name == "lbfgs":
        assert "no CUDA graph, which is slower, because of the optimiser: it needs a closure" in printed
    elif name == "muon":
        assert "has a CUDA graph of its own for each learning rate: its step waits for a value on the GPU" in printed
    else:
        assert printed.count("the optimiser runs outside the CUDA graph: its step") == 1


@pytest.mark.gpu
def test_step_that_waits_for_gpu_is_detected() -> None:
    optimizer = muon(Curve(torch.device("cuda")).network)
    assert capturable(optimizer) == Capturable(False, True, "its step waits for a value on the GPU")


def test_failed_capture_is_reported_in_one_line_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *args, **kwargs: nullcontext())

    def work() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

    message = r"runs with machine\.capture=false \(operation not permitted when stream is capturing\)$"
    with pytest.raises(CaptureError, match=message):
        captured(work, None)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_optimiser_at_one_rate_is_captured_once_per_rate() -> None:
    weight = nn.Parameter(torch.zeros(3, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    weight.grad = torch.ones_like(weight)
    calls = []
    step = CapturedAtRate(optimizer, lambda: (calls.append(optimizer.param_groups[0]["lr"]), optimizer.step()))
    for rate in (1.0,) * 5 + (2.0,) * 4:
        optimizer.param_groups[0]["lr"] = rate
        step()
    assert calls == [1.0] * (WARM_UP + 1) + [2.0] * (WARM_UP + 1), "two steps without a graph, and the capture"
    assert weight.tolist() == [-13.0] * 3
