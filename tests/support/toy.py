"""A task with very fast steps, for tests of the engine: fit a linear function of random inputs."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nero.engine.loop import Loop, Settings
from nero.engine.schedules import Schedule, exponential
from nero.engine.seeding import SeedStreams
from nero.runs.store import RunDirectory
from nero.runs.tracking import Tracker
from nero.tasks.base import Batch, Meters, Metric, Task

CPU = torch.device("cpu")
TIMES = ("seconds", "train/steps_per_second", "train/waiting")


class Line(Task):
    """Two networks that are stepped in turn, with dropout and random inputs, so that an inexact resume would show.

    `poison` is the index of a step whose loss is NaN.
    """

    metric = Metric("train/loss", "min", "loss")

    def __init__(self, epochs: int = 3, steps: int = 7, poison: int | None = None, device: torch.device = CPU) -> None:
        self.epochs, self.steps_per_epoch, self.poison = epochs, steps, poison
        self.streams = SeedStreams(0)
        torch.manual_seed(self.streams.number("initialisation"))
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5)).to(device)
        self.second = nn.Linear(8, 1).to(device)
        self.meters = Meters(device, sums=("loss",), traces={"loss": steps})
        self.device = device
        self.seen_first: list[Tensor] = []

    def networks(self) -> dict[str, nn.Module]:
        return {"first": self.first, "second": self.second}

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        noise = torch.randn(self.steps_per_epoch, 16, 4, generator=self.streams.generator("noise", epoch))
        for step in range(start, self.steps_per_epoch):
            number = epoch * self.steps_per_epoch + step
            scale = float("nan") if number == self.poison else 1.0
            yield ((scale * noise[step]).to(self.device),)

    def losses(self, batch: Batch) -> Iterator[tuple[str, Tensor]]:
        (x,) = batch
        target = x.sum(dim=1, keepdim=True)
        yield "first", (self.second(self.first(x)) - target).square().mean()
        self.seen_first.append(self.first[0].weight.detach().clone())
        loss = (self.second(self.first(x)) - target).square().mean()
        self.meters.add_("loss", loss)
        self.meters.append_("loss", loss)
        yield "second", loss

    def evaluate(self) -> dict[str, float]:
        return {"train/loss": self.meters.read()["loss"] / self.steps_per_epoch}


def make_loop(
    task: Task,
    run: RunDirectory,
    schedule: Schedule | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
    trackers: list[Tracker] | None = None,
    **settings: object,
) -> Loop:
    run.path.mkdir(parents=True, exist_ok=True)
    optimizers = {name: optimizer(net.parameters(), lr=0.01) for name, net in task.networks().items()}
    torch.manual_seed(SeedStreams(0).number("training"))
    return Loop(
        task, optimizers, schedule or exponential(0.5), run, trackers or [], Settings(**{"device": CPU, **settings})
    )


def without_times(records: list[dict]) -> list[dict]:
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]
