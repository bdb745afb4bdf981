"""Energy from the driver's counter: read from the right GPU, summed over resumes, NaN if any part is unknown."""

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nero.engine import energy, interrupt
from nero.engine.energy import EnergyCounter
from nero.engine.loop import Ending
from nero.runs.store import RunDirectory
from support.toy import CPU, Line, make_loop


class Refused(Exception):
    pass


def driver(**answers: Any) -> SimpleNamespace:
    """A fake NVML driver with one GPU; queries without an answer raise `Refused`."""

    def ask(name: str) -> Any:
        def answer(*_: Any) -> Any:
            if name not in answers:
                raise Refused
            return answers[name]

        return answer

    names = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetComputeRunningProcesses")
    handle = {"GPU-1234": "card"}.__getitem__
    return SimpleNamespace(
        NVMLError=Refused,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=handle,
        **{name: ask(name) for name in names},
    )


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    return torch.device("cuda", 0)


def test_energy_of_gpu_with_matching_uuid_is_read_in_joules(
    card: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"nvmlDeviceGetTotalEnergyConsumption": 12_345, "nvmlDeviceGetComputeRunningProcesses": ["a", "b"]}
    monkeypatch.setattr(energy, "pynvml", driver(**answers))
    counter = EnergyCounter(card)
    assert counter.joules() == 12.345
    assert counter.processes() == 2


@pytest.mark.parametrize("nvml", [None, driver()])
def test_energy_is_nan_where_driver_gives_no_answer(
    card: torch.device, monkeypatch: pytest.MonkeyPatch, nvml: SimpleNamespace | None
) -> None:
    monkeypatch.setattr(energy, "pynvml", nvml)
    counter = EnergyCounter(card)
    assert math.isnan(counter.joules())
    assert counter.processes() == 0


def test_energy_is_nan_on_cpu() -> None:
    assert math.isnan(EnergyCounter(CPU).joules())


def train(run: RunDirectory, readings: list[float], stop_after: int | None = None) -> Ending:
    """Train from the run's checkpoint with an energy counter that returns these readings, then repeats the last."""
    loop = make_loop(Line(), run)
    loop.restore()
    loop.energy = SimpleNamespace(joules=lambda: readings.pop(0) if readings[1:] else readings[0], processes=lambda: 1)
    with pytest.MonkeyPatch.context() as patch:
        seen = iter(range(1000))
        patch.setattr("nero.engine.loop.stop_reason", lambda deadline: "enough" if next(seen) == stop_after else None)
        ending = loop.run()
    interrupt.clear_request()
    return ending


def test_energy_is_summed_over_resumes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert train(run, [1000.0, 1040.0], stop_after=3).position.joules == 40.0
    ending = train(run, [7.0, 9.0])
    assert (ending.position.joules, ending.position.processes) == (42.0, 1)


@pytest.mark.parametrize(("every", "looks"), [(3600.0, 1), (0.0, Line().epochs)])
def test_energy_counter_is_read_at_intervals_and_at_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float, looks: int
) -> None:
    monkeypatch.setattr("nero.engine.loop.METER_EVERY", every)
    readings = [float(number) for number in range(100)]
    ending = train(RunDirectory(tmp_path / "run"), readings)
    assert ending.position.joules == looks
    assert readings[0] == looks + 1, "one reading before the first epoch"


def test_energy_is_nan_if_any_part_is_unknown(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    train(run, [math.nan], stop_after=3)
    assert math.isnan(train(run, [7.0, 9.0]).position.joules)


@pytest.mark.gpu
def test_gpu_energy_counter_increases_during_computation() -> None:
    pytest.importorskip("pynvml")
    counter = EnergyCounter(torch.device("cuda", 0))
    before = counter.joules()
    numbers = torch.randn(8192, 8192, device="cuda")
    for _ in range(50):
        numbers = torch.nn.functional.normalize(numbers @ numbers)
    torch.cuda.synchronize()
    time.sleep(0.2)  # the driver updates its counter about ten times a second
    assert counter.joules() > before + 1
    assert counter.processes() >= 1
