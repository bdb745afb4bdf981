"""Tests of measuring the theory's quantities on finished runs and during training."""

import importlib.metadata
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nero.checkpoints.measure import (
    apply_normalisation_,
    as_perceptron,
    leading_configs,
    leading_runs,
    learned_beyond_directions,
    measure_along,
    measure_run,
    probed_steps,
)
from nero.checkpoints.options import Unusable
from nero.models.mlp import MLP, ReparameterisedMLP
from nero.models.resnet import ResNet18
from nero.optim import Nero
from nero.plans.config import ConfigError, compose
from nero.plans.plan import Experiment, load_experiment
from nero.runs.store import Store
from nero.theory.balance import is_balanced
from nero.train.run import train

SMALL = ["data=embedded", "machine=cpu", "task=mnist_mlp100", "task.depth=1", "task.train_examples=100"]
WORDS = {"min", "low", "median", "high", "max"}
Record = dict[str, Any]


def trained(store: Path, *words: str) -> str:
    outcome = train(compose([*SMALL, f"store={store}", *words]))
    assert outcome["status"] == "done"
    return outcome["run_id"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def measured(store: Path) -> dict[str, Record]:
    """Measurements of finished runs of a linear classifier, by optimiser."""
    ids = {name: trained(store, f"optim={name}", "optim.lr=0.01", "task.epochs=20") for name in ("nero", "sgd")}
    return {name: measure_run(run_id, store, Path("none"), "cpu") for name, run_id in ids.items()}


@pytest.mark.slow
def test_record_identifies_its_run(measured: dict[str, Record]) -> None:
    record = measured["sgd"]
    assert record["run_id"].startswith("mnist_mlp100-sgd-0.01-s0-")
    assert (record["task"], record["optim"], record["lr"], record["seed"]) == ("mnist_mlp100", "sgd", 0.01, 0)
    assert (record["epochs_done"], record["epochs"], record["data"]) == (20, 20, "embedded")
    assert record["settings"]["depth"] == 1
    assert record["metric"]["key"] in record["metrics"]
    assert record["measured"]["commit"]
    assert record["measured"]["torch"] == importlib.metadata.version("torch")


def test_nero_run_is_balanced_throughout_and_sgd_run_is_not(measured: dict[str, Record]) -> None:
    for when in ("start", "end"):
        [nero], [sgd] = (measured[name]["networks"]["network"][when] for name in ("nero", "sgd"))
        assert nero["balanced"]
        assert not sgd["balanced"]
        assert (sgd["name"], sgd["neurons"], sgd["fan_in"]) == ("layers.0.weight", 10, 784)
        assert nero["norm"]["min"] == pytest.approx(1, abs=1e-5)
    start, end = (measured["sgd"]["networks"]["network"][when][0]["norm"]["median"] for when in ("start", "end"))
    assert start == pytest.approx(1 / math.sqrt(3), rel=0.05), "torch's default"
    assert end > start


def test_activations_are_measured_on_training_images(measured: dict[str, Record]) -> None:
    for record in measured.values():
        [start], [end] = record["activations"]["start"], record["activations"]["end"]
        assert start["input_variance"] == end["input_variance"] > 0
        assert start["variance"].keys() == WORDS
    [nero] = measured["nero"]["activations"]["end"]
    assert abs(nero["predicted_mean"]["max"]) < 1e-5, "balanced: whatever the inputs' mean"
    assert nero["predicted_variance"]["median"] == pytest.approx(nero["input_variance"], rel=1e-4)


def test_certified_angle_is_below_adversarial_and_random_angles(measured: dict[str, Record]) -> None:
    for name, record in measured.items():
        found = record["robustness"]
        assert (found["examples"], found["classes"]) == (100, 10)
        assert found["layers"] == [
            {"name": "layers.0.weight", "neurons": 10, "fan_in": 784, "dim": 782 if name == "nero" else 783}
        ]
        assert 0 < found["certified"]["angle"] < found["adversarial"]["angle"] < found["random"]["angle"]
        assert found["adversarial"].keys() == {"angle", "first_order", "example", "attacked", "steps"}
        assert found["curve"][-1][1] > found["curve"][0][1] == 0
        assert found["beyond"] == (["biases"] if name == "nero" else ["norms", "biases"])


def test_measurement_parts_can_be_omitted(measured: dict[str, Record], store: Path) -> None:
    record = measure_run(measured["nero"]["run_id"], store, Path("none"), "cpu", parts=())
    assert record["activations"] is record["robustness"] is None
    assert record["networks"] == measured["nero"]["networks"]


def test_balance_is_measured_for_any_task(store: Path) -> None:
    words = ["task=cifar10_cgan", "optim=adam", "task.epochs=1", "task.train_examples=20", "task.batch_size=10"]
    sizes = [f"task.{part}.{key}" for part in ("generator", "discriminator") for key in ("width=8", "rows=10")]
    run = train(compose(["data=embedded", "machine=cpu", *words, *sizes, f"store={store}"]))["run_id"]
    record = measure_run(run, store, Path("none"), "cpu")
    assert record["networks"].keys() == {"generator", "discriminator"}
    assert record["activations"] is record["robustness"] is None


def test_run_without_checkpoint_raises(tmp_path: Path) -> None:
    run_id = trained(tmp_path, "task.epochs=1", "machine.keep_checkpoint=false")
    with pytest.raises(Unusable, match="has no checkpoint; to train it again, add --retrain, or: nero train "):
        measure_run(run_id, tmp_path, Path("none"), "cpu")


# ----------------------------------------------------------------------------------------------------- networks


def test_apply_normalisation_balances_network_without_changing_outputs() -> None:
    torch.manual_seed(0)
    network, x = ReparameterisedMLP(3, 6, 4, sigma=100).double(), torch.randn(5, 6).double()
    before = network(x)
    assert not is_balanced(network)
    apply_normalisation_(network)
    assert is_balanced(network)
    torch.testing.assert_close(network(x), before)
    assert learned_beyond_directions(network) == []


def test_as_perceptron_reproduces_mlp() -> None:
    torch.manual_seed(0)
    network, x = MLP(3, 6, 4).double(), torch.randn(5, 6).double()
    chain = as_perceptron(network)
    assert chain is not None
    weights = dict(network.named_parameters())
    for number, (name, bias) in enumerate(zip(chain.weights, chain.biases, strict=True)):
        x_next = x @ weights[name].T + (0 if bias is None else bias)
        x = chain.activation(x_next) if number < 2 else x_next
    torch.manual_seed(0)
    network, inputs = MLP(3, 6, 4).double(), torch.randn(5, 6).double()
    torch.testing.assert_close(x, network(inputs))
    steps = torch.linspace(-3, 3, 1001).double()
    slopes = chain.activation(steps).diff() / steps.diff()
    assert slopes.abs().max() <= chain.slope * (1 + 1e-9)
    assert as_perceptron(ResNet18(width=4)) is None


def test_parameters_learned_beyond_directions_are_listed() -> None:
    network = ResNet18(width=4)
    assert learned_beyond_directions(network) == ["norms", "biases", "gains", "running statistics"]
    Nero(network.parameters())
    torch.nn.init.zeros_(network.head.bias)
    assert learned_beyond_directions(network) == ["gains", "running statistics"]


# ------------------------------------------------------------------------------------------------ during training


@pytest.mark.parametrize(("total", "probes"), [(1, 2), (2, 2), (10, 60), (240, 30), (12000, 60)])
def test_probed_steps_include_first_and_last(total: int, probes: int) -> None:
    chosen = probed_steps(total, probes)
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert chosen[-1] == total - 1
    assert len(chosen) <= max(probes, 2)


def test_measure_along_records_angles_bounded_by_nero_lr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    words = [*SMALL[:3], "task.depth=2", "task.train_examples=500", "task.epochs=3", "precision=fp32", "optim.lr=0.02"]
    record = measure_along(compose(words), epochs=2, probes=4, log=said.append)
    assert (record["epochs_done"], record["epochs"], record["batch"]) == (2, 3, 250)
    assert [step["step"] for step in record["steps"]] == [0, 1, 2, 3]
    assert len(said) == 2
    first = record["steps"][0]
    assert first["lr"] == 0.02
    assert [layer["name"] for layer in first["layers"]] == ["layers.0.weight", "layers.1.weight"]
    for layer in first["layers"]:
        assert layer["angles"].keys() == layer["neuron_steps"].keys() == WORDS
        # At most asin(lr); less if the gradient has a component along the neuron or along the vector of ones.
        assert 0.3 * 0.02 < layer["angles"]["median"] <= layer["angles"]["max"] < 1.001 * math.asin(0.02)
        assert layer["relative_step"] <= layer["neuron_steps"]["max"] * (1 + 1e-6), "Equation 3"
        assert layer["gradient_change"] > 0
    product = math.prod(1 + layer["relative_step"] for layer in first["layers"]) - 1
    assert first["trust"] == pytest.approx(product, rel=1e-4)
    assert first["stable"] == all(layer["gradient_change"] < layer["cosine"] for layer in first["layers"])
    assert first["loss_after"] < first["loss"]
    assert not list(tmp_path.iterdir()), "no run is left behind"


VGG = ["task.train_examples=60", "task.batch_size=20", "task.network.width=4", "task.network.hidden=16"]


@pytest.mark.parametrize(
    "words",
    [
        ["task=mnist_mlp100", "task.depth=2", "task.train_examples=500"],
        ["task=cifar10_vgg11", "task.network.dropout=0.5", *VGG],
    ],
    ids=["perceptron", "dropout"],
)
def test_probing_steps_does_not_change_training(words: list[str]) -> None:
    words = [*SMALL[:2], *words, "task.epochs=2", "precision=fp32", "optim.lr=0.001"]
    few, all_of_them = (measure_along(compose(words), probes=probes)["steps"] for probes in (2, 60))
    by_step = {step["step"]: step for step in all_of_them}
    assert [by_step[step["step"]] for step in few] == few


def test_dropout_mask_is_the_same_before_and_after_step() -> None:
    """With a negligible learning rate, only a different dropout mask could change the loss."""
    words = [*SMALL[:2], "task=cifar10_vgg11", "task.network.dropout=0.5", *VGG, "precision=fp32"]
    record = measure_along(compose([*words, "optim=sgd", "optim.lr=1e-20", "task.epochs=1"]), probes=4)
    assert len(record["steps"]) == 3
    for step in record["steps"]:
        assert step["loss_after"] == step["loss"]
        assert all(layer["gradient_change"] == 0 for layer in step["layers"])


def test_measure_along_rejects_task_with_several_networks() -> None:
    words = ["task=cifar10_cgan", "task.train_examples=20", "task.generator.width=8", "task.discriminator.width=8"]
    with pytest.raises(ConfigError, match="several networks"):
        measure_along(compose([*SMALL[:2], *words]))


# ----------------------------------------------------------------------------------------------------- selection


@pytest.mark.slow
def test_leading_runs_are_selected_once_each() -> None:
    experiment = load_experiment("theory")
    double = Experiment("double", "", experiment.cells + experiment.cells)
    store = Store(Path(__file__).parents[2] / "results" / "runs")
    runs = leading_runs(double, store)
    assert len({run.run_id for run in runs}) == len(runs)
    deep = [run for run in runs if run.optim == "nero" and "task.depth=5" in run.overrides]
    assert [(run.lr, run.seed) for run in deep] == [(0.01, 0), (0.01, 1), (0.01, 2)]
    configs = leading_configs(double, store, ["mnist_mlp100"], ["machine=cpu"])
    assert {config.cfg.precision for config in configs} == {"fp32"}
    assert {(config.optim_name, config.seed) for config in configs} >= {("nero", 0), ("lamb", 0)}
    assert all(config.seed == 0 and config.task_name == "mnist_mlp100" for config in configs)
    assert leading_runs(experiment, Store(Path("nowhere"))) == []
