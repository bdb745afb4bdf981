"""Every shipped YAML composes, builds and takes two steps; other optimisers can be used by YAML alone."""

import math
from pathlib import Path

import pytest

from conftest import tracked_yaml
from nero.plans.config import CONFIG_DIR, ConfigError, compose, names
from nero.runs.store import Store
from nero.train.run import train

# One epoch on embedded data; SMALLER has the overrides that make each task small, with two steps.
TWO_STEPS = ("data=embedded", "task.epochs=1", "machine=cpu", "machine.keep_checkpoint=false")
SMALLER = {
    "mnist_mlp100": ("task.depth=3", "task.train_examples=40", "task.batch_size=20"),
    "mnist_reparam": ("task.depth=3", "task.train_examples=40", "task.batch_size=20"),
    "cifar10_vgg11": ("task.network.width=2", "task.network.hidden=8", "task.train_examples=40", "task.batch_size=20"),
    "cifar10_resnet18": ("task.network.width=2", "task.train_examples=40", "task.batch_size=20"),
    "cifar10_cgan": (
        *(f"task.{network}.{name}" for network in ("generator", "discriminator") for name in ("width=4", "rows=10")),
        "task.train_examples=10",
        "task.batch_size=5",
    ),
    "wikitext2_transformer": ("task.network.width=8", "task.train_examples=20", "task.batch_size=5"),
    "multi30k_transformer": (
        *(f"task.network.{name}=8" for name in ("width", "heads", "inner")),
        "task.network.layers=1",
        "task.train_examples=40",
        "task.batch_size=20",
    ),
    "imagenet_resnet50": (
        *(f"task.{name}" for name in ("image_size=16", "resize=18", "train_examples=16", "batch_size=8")),
        "task.network.layers=[1,1,1,1]",
        "task.schedule.warmup=0",
    ),
    # Enough steps for one game to finish; otherwise there is no reward.
    "pong_ppo": (
        *(f"task.{name}=1" for name in ("environments", "update_epochs", "log_every")),
        "task.steps=58",
        "task.minibatches=2",
        "task.network.hidden=8",
    ),
}
SMALLER["cifar10_resnet50"] = SMALLER["imagenet_resnet50"]


def two_steps(tmp_path: Path, task: str, *words: str) -> dict:
    # Embedded image files are written to the data root, which must not be the repository's.
    places = [f"store={tmp_path / 'runs'}", f"data_root={tmp_path / 'data'}"]
    config = compose([f"task={task}", *TWO_STEPS, *SMALLER[task], *places, *words])
    outcome = train(config)
    (record,) = Store(tmp_path / "runs").run(task, config.run_id).read_metrics()
    assert record["step"] == 2
    return outcome


# Each task with Nero, and each optimiser on one task: they interact only through `torch.optim.Optimizer`. Pairs with
# their own settings (configs/task_optim) are run as well. Files that git does not track are the user's.
SHIPPED = {group: tracked_yaml(f"configs/{group}") or set(names(group)) for group in ("task", "optim")}
PAIRS = sorted(
    {(task, "nero") for task in SHIPPED["task"]}
    | {("mnist_mlp100", optim) for optim in SHIPPED["optim"]}
    | {
        (path.parent.name, path.stem)
        for path in (CONFIG_DIR / "task_optim").rglob("*.yaml")
        if path.parent.name in SHIPPED["task"] and path.stem in SHIPPED["optim"]
    }
)


@pytest.mark.parametrize(("task", "optim"), PAIRS)
def test_every_task_and_every_optimiser_runs_two_steps(tmp_path: Path, task: str, optim: str) -> None:
    # Muon multiplies bfloat16 matrices, which takes a minute on many CPUs.
    task = "cifar10_vgg11" if (task, optim) == ("mnist_mlp100", "muon") else task
    outcome = two_steps(tmp_path, task, f"optim={optim}")
    assert outcome["status"] == "done"
    assert math.isfinite(outcome["final"])


@pytest.mark.parametrize("optim", ["RMSprop", "AdamW", "Adagrad", "NAdam"])
def test_any_torch_optimiser_can_be_used_by_target(tmp_path: Path, optim: str) -> None:
    words = ["optim=sgd", f"optim._target_=torch.optim.{optim}", "~optim.momentum", "~optim.weight_decay"]
    assert two_steps(tmp_path, "mnist_mlp100", *words)["status"] == "done"


def test_every_config_file_belongs_to_a_known_group() -> None:
    files = {path.relative_to(CONFIG_DIR) for path in CONFIG_DIR.rglob("*.yaml")}
    composed = {Path("config.yaml")}
    for group in ("task", "optim", "machine", "tracking"):
        for name in names(group):
            compose([f"{group}={name}"])
            composed.add(Path(group) / f"{name}.yaml")
    for task in names("task"):
        for optim in names("optim"):
            composed.add(Path("task_optim") / task / f"{optim}.yaml")
    assert files <= composed


def test_optimiser_value_error_becomes_one_line_config_error(tmp_path: Path) -> None:
    config = compose([*TWO_STEPS, *SMALLER["mnist_mlp100"], f"store={tmp_path}", "optim.beta=2"])
    with pytest.raises(ConfigError, match="optim: beta must be in") as error:
        train(config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "key"), [(["optim._target_=nero.optim.Neron"], "optim"), (["tracking.mirror._target_=no.such"], "mirror")]
)
def test_unknown_target_raises_one_line_config_error_naming_the_key(tmp_path: Path, words: list[str], key: str) -> None:
    mirror = ["tracking=wandb"] if key == "mirror" else []
    config = compose([*TWO_STEPS, *SMALLER["mnist_mlp100"], f"store={tmp_path}", *mirror, *words])
    with pytest.raises(ConfigError, match=rf"{key}: .*(Error loading|Are you sure)") as error:
        train(config)
    assert "\n" not in str(error.value)
