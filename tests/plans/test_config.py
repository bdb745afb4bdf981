"""Ids and errors of a run's config."""

import inspect
import json

import pytest

from nero.models.biggan import Generator
from nero.models.language_model import LanguageModel
from nero.models.resnet import ResNet18
from nero.plans.config import VALUES_BEFORE, ConfigError, compose, digest, names
from nero.tasks.cgan import ConditionalGAN

CAME_LATER = {
    "cifar10_resnet18": {"task.network.fan_out": ResNet18, "task.network.stem_relu": ResNet18},
    "wikitext2_transformer": {"task.network.copy_layers": LanguageModel},
    "cifar10_cgan": {
        "task.generator.norm_bias_std": Generator,
        "task.fid": ConditionalGAN,
        "task.split_passes": ConditionalGAN,
    },
}
"""Keys of VALUES_BEFORE by task, with the class that takes each."""


def test_the_same_run_has_the_same_id_on_any_machine_and_in_any_words() -> None:
    base = compose(["task=mnist_mlp100", "optim=nero", "optim.lr=0.001"]).run_id
    assert base.startswith("mnist_mlp100-nero-0.001-s0-")
    for words in (
        ["machine=cpu"],
        ["machine.checkpoint_seconds=1"],
        ["tracking=wandb"],
        ["data_root=/elsewhere"],
        ["store=/elsewhere"],
        ["only.task=pong_ppo"],
        ["optim.lr=1e-3"],
        ["seed=0", "task.epochs=50"],
    ):
        assert compose(["optim.lr=0.001", *words]).run_id == base, words


def test_another_run_has_another_id() -> None:
    words = [
        [],
        ["seed=1"],
        ["precision=bf16"],
        ["data=embedded"],
        ["optim.beta=0.9"],
        ["task.epochs=3"],
        ["optim.lr=0.1"],
    ]
    assert len({compose(w).run_id for w in words}) == len(words)


def test_one_and_one_point_zero_are_the_same_value() -> None:
    assert compose(["optim.lr=1"]).run_id == compose(["optim.lr=1.0"]).run_id
    assert digest({"a": [1, 2.0], "b": True}) == digest({"b": True, "a": [1.0, 2]})
    assert digest({"a": True}) != digest({"a": 1})


def test_a_config_at_another_rate_and_seed_is_the_one_composed_with_them() -> None:
    composed = compose(["optim=adam", "optim.lr=0.1", "seed=2"])
    derived = compose(["optim=adam"]).at(0.1, 2)
    assert derived.run_id == composed.run_id
    assert derived.identity == composed.identity


@pytest.mark.parametrize("words", [[], ["+task.twice=${optim.lr}"], ["+task.number=${seed}"], ["optim=adam", "seed=3"]])
def test_the_quick_way_to_an_identity_is_the_same(words: list[str]) -> None:
    config = compose(words)
    for lr, seed in ((0.1, 0), (1.0, 2), (1e-4, 7)):
        composed = compose([*words, f"optim.lr={lr}", f"seed={seed}"])
        assert config.identity_at(lr, seed) == config.at(lr, seed).identity == composed.identity


def test_a_task_can_change_an_optimisers_settings_and_the_command_line_has_the_last_word() -> None:
    def betas(*words: str) -> list[float]:
        return compose(words).identity["optim"]["betas"]

    assert betas("task=mnist_mlp100", "optim=adam") == [0.9, 0.999]
    assert betas("task=mnist_mlp100", "optim=adam", "optim.betas=[0.5,0.999]") == [0.5, 0.999]
    assert betas("task=mnist_reparam", "optim=lamb") == [0.0, 0.999]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optim.lr=-1", "optim.lr must be a positive number, not -1"),
        ("optim.lr=0", "optim.lr must be a positive number"),
        ("optim.lr=nan", "optim.lr must be a positive number, not nan"),
        ("optim.lr=fast", "optim.lr must be a positive number, not 'fast'"),
        ("optim.lr=null", "optim.lr must be a positive number, not None"),
        ("seed=-1", "seed must be"),
        ("seed=0.5", "seed must be"),
        ("task.epochs=0", "task.epochs must be"),
        ("data=fake", "data must be one of real, embedded, not 'fake'"),
        ("optim=nerro", "there is no optim=nerro; there are: adam, lamb, "),
        ("optim.lrr=1", r"optim.lrr=1: Could not override 'optim.lrr'. To append to your config use \+optim.lrr=1$"),
        ("task.epochs=[1", r"task.epochs=\[1: no viable alternative at input '\[1'$"),
        ("precision=fp8", "precision must be one of fp32, tf32, bf16, not 'fp8'"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        compose([word])
    assert "\n" not in str(error.value)


def test_names_are_the_file_names() -> None:
    assert {"nero", "sgd", "adam", "lamb", "madam"} <= set(names("optim"))
    assert {"mnist_mlp100", "mnist_reparam"} <= set(names("task"))


@pytest.mark.parametrize("task", CAME_LATER)
def test_a_key_that_came_later_is_left_out_of_the_identity_at_its_value_before(task: str) -> None:
    """So that logged runs keep their ids; a config.yaml without the key then means that value, as the class has it."""
    words = {key: f"{key}={json.dumps(VALUES_BEFORE[key])}" for key in CAME_LATER[task]}
    before = compose([f"task={task}", *words.values()])
    assert before.identity == compose([f"task={task}", *(f"~{key}" for key in words)]).identity
    for key, taker in CAME_LATER[task].items():
        assert inspect.signature(taker).parameters[key.rpartition(".")[2]].default == VALUES_BEFORE[key]
        assert compose([f"task={task}", words[key]]).run_id != compose([f"task={task}"]).run_id


def test_every_key_that_came_later_is_tested() -> None:
    assert {key for keys in CAME_LATER.values() for key in keys} == set(VALUES_BEFORE)
