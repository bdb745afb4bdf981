"""Synthetic records of the theory's measurements, in the format of `nero.theory.records`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nero.theory import records

Record = dict[str, Any]
MLP = "mnist_mlp100"
GAN = "cifar10_cgan"


def q(median: float | None, spread: float = 0.1) -> Record:
    """Quantiles around a median; all are None if it is None."""
    if median is None:
        return dict.fromkeys(("min", "low", "median", "high", "max"))
    wide = spread * abs(median)
    return {
        "min": median - 2 * wide,
        "low": median - wide,
        "median": median,
        "high": median + wide,
        "max": median + 2 * wide,
    }


def layer(name: str, norm: float, lean: float, fan_in: int = 784, neurons: int = 784) -> Record:
    """The record of a layer, given the medians over its neurons."""
    balanced = abs(norm - 1) < 1e-6 and lean < 1e-6
    of_sum = lean * norm * math.sqrt(fan_in)
    return {
        "name": name,
        "neurons": neurons,
        "fan_in": fan_in,
        "balanced": balanced,
        "sum": q(of_sum),
        "norm": q(norm, 0.0 if balanced else 0.1),
        "lean": q(lean),
    }


def activation(name: str, mean: float, variance: float, predicted: float) -> Record:
    return {
        "name": name,
        "input_mean": 0.4,
        "input_variance": predicted,
        "mean": q(mean, 0.5),
        "variance": q(variance, 0.5),
        "predicted_mean": q(0.0),
        "predicted_variance": q(predicted),
    }


def robustness(
    errors: int = 0,
    random: float = 0.05,
    adversarial: float | None = 0.004,
    certified: float | None = 1e-6,
    examples: int = 60_000,
    beyond: Sequence[str] = ("biases",),
    layers: Sequence[tuple[int, int]] = ((784, 784), (784, 784), (10, 784)),
) -> Record:
    return {
        "examples": examples,
        "errors": errors,
        "layers": [
            {"name": f"layers.{number}.weight", "neurons": neurons, "fan_in": fan_in, "dim": fan_in - 2}
            for number, (neurons, fan_in) in enumerate(layers)
        ],
        "classes": 10,
        "beyond": list(beyond),
        "random": {"angle": random, "confidence": 0.95, "share": 0.95, "draws": 72 if random else 0},
        "curve": [
            [angle, min(0.9, (angle / 0.5) ** 2 if angle > random else 0.0)] for angle in (0.01, 0.03, 0.1, 0.3, 1)
        ],
        "adversarial": None
        if adversarial is None
        else {"angle": adversarial, "first_order": 0.8 * adversarial, "example": 7, "attacked": 16, "steps": 20},
        "certified": None if certified is None else {"angle": certified},
    }


def head(
    task: str, optim: str, lr: float, seed: int, data: str = "real", settings: Mapping[str, Any] | None = None
) -> Record:
    settings = (
        {"epochs": 50, "batch_size": 250, "depth": 100, **(settings or {})} if task == MLP else dict(settings or {})
    )
    kind = "".join(f"{key}{value}" for key, value in settings.items() if key == "depth")
    return {
        "run_id": f"{task}-{optim}-{lr:g}-s{seed}-{kind or 'abcd'}",
        "task": task,
        "optim": optim,
        "lr": lr,
        "seed": seed,
        "settings": settings,
        "data": data,
        "precision": "tf32",
        "epochs_done": 50,
        "epochs": 50,
        "metric": {"key": "train/accuracy", "goal": "max", "label": "training accuracy"},
        "metrics": {"train/accuracy": 1.0, "test/accuracy": 0.98 + 0.002 * seed, "train/loss": 0.01},
        "measured": {"commit": "c0ffee", "device": "NVIDIA H200", "torch": "2.11.0", "seconds": 12.3},
    }


def network_record(
    optim: str = "nero",
    seed: int = 0,
    task: str = MLP,
    lr: float = 0.01,
    data: str = "real",
    settings: Mapping[str, Any] | None = None,
    balanced: bool | None = None,
    robust: Record | None = None,
    names: Sequence[str] = ("network",),
    depth: int = 3,
    with_activations: bool = True,
) -> Record:
    """The record of a run's networks; by default their layers are balanced with Nero only."""
    balanced = optim == "nero" if balanced is None else balanced
    places = range(depth)
    start = [layer(f"layers.{place}.weight", 0.58, 0.03) for place in places]
    end = [
        layer(
            f"layers.{place}.weight", 1.0 if balanced else 1.5 + place + seed, 2e-9 if balanced else 0.1 + 0.1 * place
        )
        for place in places
    ]
    if balanced:
        start = [layer(f"layers.{place}.weight", 1.0, 1e-9) for place in places]
    seen = {
        when: [activation(f"layers.{place}", 0.1 * place - 0.1, 1.5**place, 0.5**place) for place in places]
        for when in ("start", "end")
    }
    return {
        **head(task, optim, lr, seed, data, settings),
        "networks": {name: {"start": start, "end": end} for name in names},
        "activations": seen if with_activations else None,
        "robustness": robust,
    }


def step_record(
    optim: str = "nero",
    seed: int = 0,
    task: str = MLP,
    lr: float = 0.01,
    data: str = "real",
    settings: Mapping[str, Any] | None = None,
    steps: int = 4,
) -> Record:
    """The record of a run's steps, of relative size lr with Nero and 7 lr with others; the last is unstable."""
    of_size = 1.0 if optim == "nero" else 7.0
    found = []
    for number in range(steps):
        now = lr * 0.9**number
        relative = of_size * now
        found.append(
            {
                "step": 10**number,
                "epoch": number / 2,
                "lr": now,
                "loss": 2.0 - 0.1 * number,
                "loss_after": 1.9 - 0.1 * number if number < steps - 1 else 2.5,
                "trust": (1 + relative) ** 3 - 1,
                "stable": number < steps - 1,
                "layers": [
                    {
                        "name": f"layers.{place}.weight",
                        "gradient_change": relative * (1 + 2 * place),
                        "cosine": 0.5 - 0.3 * place,
                        "relative_step": relative * (1 + 0.1 * place),
                        "neuron_steps": q(relative, 0.2),
                        "angles": q(relative * 0.99, 0.2),
                    }
                    for place in range(3)
                ],
            }
        )
    return {**head(task, optim, lr, seed, data, settings), "batch": 250, "steps": found}


def some_networks(data: str = "real") -> list[Record]:
    """Records of one task at two depths and several seeds (some with errors or nulls), a GAN and an unknown task."""
    shallow = {"depth": 5}
    return [
        *(
            network_record("nero", seed, data=data, settings=shallow, robust=robustness(random=0.05 + 0.01 * seed))
            for seed in (0, 1, 2)
        ),
        network_record("sgd", 0, lr=0.1, data=data, settings=shallow, robust=robustness(errors=3, adversarial=0.002)),
        network_record(
            "adam", 0, lr=0.001, data=data, settings=shallow, robust=robustness(random=0.0, adversarial=None)
        ),
        network_record("nero", 0, data=data, depth=6, robust=robustness(certified=None, beyond=())),
        network_record("lamb", 0, data=data, depth=6, with_activations=False),
        network_record("nero", 0, GAN, data=data, names=("generator", "discriminator"), with_activations=False),
        network_record(
            "shampoo", 0, "spirals", data=data, robust=robustness(examples=10**6, random=1.2, layers=((2, 9),))
        ),
    ]


def some_steps(data: str = "real") -> list[Record]:
    return [
        *(step_record("nero", seed, data=data) for seed in (0, 1)),
        step_record("adam", data=data, lr=0.001),
        step_record("shampoo", task="spirals", data=data),
    ]


def write_all(folder: Path, networks: Sequence[Record] = (), steps: Sequence[Record] = ()) -> Path:
    for kind, of_kind in ((records.NETWORKS, networks), (records.STEPS, steps)):
        for record in of_kind:
            records.write(kind, record, folder)
    return folder
