"""Run configs: run ids, settings and error messages."""

import inspect
import json
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nero.models.biggan import Generator
from nero.models.language_model import LanguageModel
from nero.models.resnet import ResNet18
from nero.plans.config import (
    CONFIG_DIR,
    DEFAULTS_OF_LOGGED_RUNS,
    ConfigError,
    SavedConfig,
    _composed,
    compose,
    compose_shared,
    current_names,
    digest,
    from_hydra,
    names,
)
from nero.plans.folders import read_settings, shipped_settings
from nero.plans.schema import MachineSchema, RunSchema
from nero.report import display
from nero.runs.logged import dotted
from nero.runs.records import encode_yaml, parse_yaml
from nero.runs.validation import config_problem
from nero.tasks.cgan import ConditionalGAN
from nero.tasks.ppo import PPO

CAME_LATER = {
    "cifar10_resnet18": {"task.network.fan_out": ResNet18, "task.network.stem_relu": ResNet18},
    "wikitext2_transformer": {"task.network.copy_layers": LanguageModel},
    "cifar10_cgan": {
        "task.generator.norm_bias_std": Generator,
        "task.fid": ConditionalGAN,
        "task.split_passes": ConditionalGAN,
    },
}
"""Keys of DEFAULTS_OF_LOGGED_RUNS by task, with the class that takes each."""


def test_run_id_is_independent_of_machine_paths_and_spelling() -> None:
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


def test_different_configs_have_different_run_ids() -> None:
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


def test_int_and_equal_float_give_same_run_id() -> None:
    assert compose(["optim.lr=1"]).run_id == compose(["optim.lr=1.0"]).run_id
    assert digest({"a": [1, 2.0], "b": True}) == digest({"b": True, "a": [1.0, 2]})
    assert digest({"a": True}) != digest({"a": 1})


def test_config_at_lr_and_seed_equals_composed_config() -> None:
    composed = compose(["optim=adam", "optim.lr=0.1", "seed=2"])
    derived = compose(["optim=adam"]).at(0.1, 2)
    assert derived.run_id == composed.run_id
    assert derived.identity == composed.identity


@pytest.mark.parametrize("words", [[], ["+task.twice=${optim.lr}"], ["+task.number=${seed}"], ["optim=adam", "seed=3"]])
def test_identity_at_equals_identity_of_composed_config(words: list[str]) -> None:
    config = compose(words)
    for lr, seed in ((0.1, 0), (1.0, 2), (1e-4, 7)):
        composed = compose([*words, f"optim.lr={lr}", f"seed={seed}"])
        assert config.identity_at(lr, seed) == config.at(lr, seed).identity == composed.identity


def test_task_overrides_optimiser_settings_and_command_line_overrides_both() -> None:
    def betas(*words: str) -> list[float]:
        return compose(words).identity["optim"]["betas"]

    assert betas("task=mnist_mlp100", "optim=adam") == [0.9, 0.999]
    assert betas("task=mnist_mlp100", "optim=adam", "optim.betas=[0.5,0.999]") == [0.5, 0.999]
    assert betas("task=mnist_reparam", "optim=lamb") == [0.0, 0.999]


UNREADABLE = "a run's config.yaml with this could not be read again"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "~task.schedule",
            "task.schedule must be a _target_, such as nero.engine.schedules.constant, and its arguments",
        ),
        (
            "task.schedule=null",
            "task.schedule must be a _target_, such as nero.engine.schedules.constant, and its arguments",
        ),
        ("task=cifar10_resnet50 task.network._partial_=2", "task.network._partial_ must be true or false, not 2"),
        ("optim.lr=-1", "optim.lr must be a positive number, not -1"),
        ("optim.lr=0", "optim.lr must be a positive number, not 0"),
        ("optim.lr=nan", "optim.lr must be a positive number, not nan"),
        ("optim.lr=fast", "optim.lr must be a positive number, not 'fast'"),
        ("optim.lr='0.1'", "optim.lr must be a positive number, not '0.1'"),
        ("optim.lr=null", "optim.lr must be a positive number, not None"),
        ("~optim.lr", "optim.lr must be a positive number, not None"),
        ("optim.display_name=3", "optim.display_name must be text, not 3"),
        ("task.display=3", "task.display must be a mapping with keys of title, name, unit, scale, digits, not 3"),
        ("+task.display.digit=3", "there is no task.display.digit; there are: title, name, unit, scale, digits"),
        ("+task.display.digits=-1", "task.display.digits must be null or a non-negative integer, not -1"),
        ("seed=-1", "seed must be a non-negative integer, not -1"),
        ("seed=0.5", "seed must be a non-negative integer, not 0.5"),
        ("seed=true", "seed must be a non-negative integer, not True"),
        ("seed=9223372036854775808", "seed must be at most 9223372036854775807, not 9223372036854775808"),
        ("task.epochs=2000000000", "task.epochs must be at most 1000000000, not 2000000000"),
        ("+optim.x=9223372036854775808", f"optim.x: it has an integer of more than 64 bits; {UNREADABLE}"),
        ("+optim.x=['\x07']", f"optim.x: it has the text '\\x07'; {UNREADABLE}"),
        (
            f"+optim.x={'[' * 16}{']' * 16}",
            f"optim.x: it has more than 16 lists and mappings within each other; {UNREADABLE}",
        ),
        ("seed=${nope}", "seed: Interpolation key 'nope' not found"),
        ("task.epochs=0", "task.epochs must be a positive integer, not 0"),
        ("task.epochs=true", "task.epochs must be a positive integer, not True"),
        ("data=fake", "data must be one of real, embedded, not 'fake'"),
        ("precision=fp8", "precision must be one of fp32, tf32, bf16, not 'fp8'"),
        ("data_root=null", "data_root must be text, not None"),
        ("machine.device=tpu", "machine.device must be one of auto, cpu, cuda, not 'tpu'"),
        ("machine.decode=dali", "machine.decode must be one of auto, cpu, gpu, not 'dali'"),
        ("machine.decode=null", "machine.decode must be one of auto, cpu, gpu, not None"),
        ("machine.lane=fast", "machine.lane must be one of auto, all, gpu, cpu, not 'fast'"),
        ("machine.compile=maybe", "machine.compile must be true or false, not 'maybe'"),
        ("machine.channels_last=auto", "machine.channels_last must be true or false, not 'auto'"),
        ("machine.capture=maybe", "machine.capture must be auto, true or false, not 'maybe'"),
        ("machine.capture=1", "machine.capture must be auto, true or false, not 1"),
        ("machine.mps=yes", "machine.mps must be auto, true or false, not 'yes'"),
        ("machine.workers=-2", "machine.workers must be null or a non-negative integer, not -2"),
        ("machine.workers=1.5", "machine.workers must be null or a non-negative integer, not 1.5"),
        ("machine.workers=true", "machine.workers must be null or a non-negative integer, not True"),
        ("machine.threads=0", "machine.threads must be null or a positive integer, not 0"),
        ("machine.gpus=0", "machine.gpus must be null or a positive integer, not 0"),
        ("machine.checkpoint_seconds=nan", "machine.checkpoint_seconds must be a non-negative number, not nan"),
        ("machine.budget_seconds=inf", "machine.budget_seconds must be null or a non-negative number, not inf"),
        ("machine.budget_seconds=long", "machine.budget_seconds must be null or a non-negative number, not 'long'"),
        ("machine.budget_seconds=true", "machine.budget_seconds must be null or a non-negative number, not True"),
        ("machine.deadline=tomorrow", "machine.deadline must be null or Unix seconds, not 'tomorrow'"),
        ("task=pong_ppo task.bound_by=disk", "task.bound_by must be one of gpu, cpu, not 'disk'"),
        ("task=pong_ppo task.cores=0", "task.cores must be a positive integer, not 0"),
        ("task=pong_ppo task.cores=many", "task.cores must be a positive integer, not 'many'"),
        ("task=pong_ppo task.passes=3", "task.passes is now task.update_epochs"),
        ("machine.gpu=1", "there is no machine.gpu (did you mean gpus?); there are: device, capture, "),
        ("sead=1", "there is no sead (did you mean seed?); there are: task, optim, tracking, machine, seed, "),
        ("lr=0.1", "there is no lr (did you mean optim.lr?); there are: task, "),
        ("epochs=3", "there is no epochs (did you mean task.epochs?); there are: task, "),
        ("device=cpu", "there is no device (did you mean machine.device?); there are: task, "),
        (
            "optim.lr=0.1,0.01",
            "optim.lr=0.1,0.01: several values are a sweep (nero sweep), or a list if written as [0.1,0.01]",
        ),
        ("optim=nerro", "there is no optim=nerro (did you mean nero?); there are: adam, "),
        ("optim.lrr=1", "there is no optim.lrr (did you mean lr?); there are: display_name, lr, "),
        ("task.epochs=[1", "task.epochs=[1: no viable alternative at input '[1'"),
    ],
)
def test_invalid_value_raises_one_line_config_error(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(override.split())
    found = str(error.value)
    assert found.startswith(message) if message.endswith(", ") else found == message
    assert "\n" not in found


VALUES = st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.booleans(), st.none())


@settings(max_examples=30, deadline=None)
@given(st.recursive(VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)))
def test_accepted_settings_can_be_read_again_from_config_yaml(value: object) -> None:
    cfg = compose(["optim=sgd"]).cfg.copy()
    OmegaConf.set_struct(cfg, False)
    try:
        cfg.optim.own = value
        config = from_hydra(cfg, {"task": "mnist_mlp100", "optim": "sgd"})
    except (ConfigError, OmegaConfBaseException):  # such as text that is half an interpolation
        return
    logged = parse_yaml(encode_yaml(config.identity))
    assert config_problem(logged, None) is None
    assert config.matches(logged)


def test_schema_converts_values_to_plain_python_types() -> None:
    config = compose(["machine.keep_checkpoint=no", "machine.deadline=1700000000", "machine.checkpoint_seconds=1"])
    machine = OmegaConf.to_container(config.cfg.machine)
    assert (machine["keep_checkpoint"], machine["deadline"], machine["checkpoint_seconds"]) == (False, "1700000000", 1)
    assert [compose([f"machine.capture={word}"]).cfg.machine.capture for word in ("auto", "true", "false")] == [
        "auto",
        True,
        False,
    ]
    assert {type(value) for value in machine.values()} <= {str, bool, int, float, type(None)}
    assert type(config.cfg.data) is type(config.identity["precision"]) is str


def test_schema_and_shipped_configs_have_the_same_keys() -> None:
    cfg = compose([]).cfg
    assert {spec.name for spec in fields(RunSchema)} == set(cfg)
    assert {spec.name for spec in fields(MachineSchema)} == set(cfg.machine)


def test_settings_read_from_files_are_what_hydra_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path))
    mine = tmp_path / "configs" / "task"
    mine.mkdir(parents=True)
    (mine / "mine.yaml").write_text("defaults: [cifar10_vgg11, _self_]\nnetwork: {width: 8}\n")
    (mine / "smaller.yaml").write_text("defaults: [mine]\ndisplay: {digits: 1}\nnetwork: {hidden: 8}\n")
    pairs = [(task, "nero") for task in names("task")]
    pairs += [(path.parent.name, path.stem) for path in (CONFIG_DIR / "task_optim").glob("*/*.yaml")]
    for task, optim in pairs:
        cfg = compose([f"task={task}", f"optim={optim}"]).cfg
        composed = {group: OmegaConf.to_container(cfg[group], resolve=False) for group in ("task", "optim")}
        assert shipped_settings(task, optim) == composed, (task, optim)
    network = read_settings("task", "smaller")["network"]
    assert (network["width"], network["hidden"]) == (8, 8)


@pytest.mark.parametrize("text", ["defaults: [mine]", "defaults: 5", "defaults: [{override x: 5}, nope]", "- 5", ""])
def test_unusable_defaults_are_passed_over(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles of all tasks are read for every table; what is wrong with a file, Hydra says when it composes it."""
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path))
    (tmp_path / "configs" / "task").mkdir(parents=True)
    (tmp_path / "configs" / "task" / "mine.yaml").write_text(text)
    assert read_settings("task", "mine") == {}
    assert display.task_name("mine") == "mine"


def test_composed_config_is_cached_until_a_file_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Configs are cached in memory within a process, and on disk for other processes."""
    configs = tmp_path / "configs"
    shutil.copytree(CONFIG_DIR, configs)
    monkeypatch.setattr("nero.plans.folders.CONFIG_DIR", configs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    overrides = ["optim=sgd", "task.epochs=2"]
    first = compose_shared(overrides)
    assert compose_shared(overrides) is first
    assert compose(overrides).cfg is not first.cfg, "a copy, which may be modified"
    _composed.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr("nero.plans.config.hydra_compose", None)
        saved = compose_shared(overrides)
    assert saved is not first
    assert (saved.identity, saved.run_id, saved.cfg) == (first.identity, first.run_id, first.cfg)
    (configs / "optim" / "sgd.yaml").write_text((configs / "optim" / "sgd.yaml").read_text() + "nesterov: false\n")
    assert compose_shared(overrides).identity["optim"]["nesterov"] is False
    compose_shared([*overrides, f"store={tmp_path}"])
    assert len(list((tmp_path / "cache" / "nero" / "configs").iterdir())) == 2, "paths of this machine are not kept"


COPIES = ["task=cifar10_vgg11", "optim=sgd", "+task.twice=${optim.lr}"]


@pytest.mark.parametrize("words", [["task=pong_ppo", "optim=adam"], ["task=cifar10_cgan", "precision=bf16"], COPIES])
def test_config_from_disk_cache_answers_like_composed_one(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _composed.cache_clear()
    composed = compose_shared(words)
    _composed.cache_clear()
    saved = compose_shared(words)
    assert isinstance(saved, SavedConfig)
    assert not isinstance(composed, SavedConfig)
    assert saved.identity == composed.identity
    assert saved.run_id == composed.run_id
    assert saved.identity_at(0.25, 7) == composed.identity_at(0.25, 7) == composed.at(0.25, 7).identity
    keys = [*dotted(composed.identity), "task", "optim", "data.root", "task.no_key", "no_group.key", "machine.device"]
    assert len(keys) > 20
    for key in keys:
        assert saved.setting(key) == OmegaConf.select(composed.cfg, key), key
    assert saved.cfg == composed.cfg
    _composed.cache_clear()


def test_damaged_or_unwritable_cache_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = compose(["optim=sgd"]).run_id
    for damage in (b"", b"[]", b'{"task": 1}'):
        for path in (tmp_path / "nero" / "configs").iterdir():
            path.write_bytes(damage)
        _composed.cache_clear()
        assert compose(["optim=sgd"]).run_id == expected
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    _composed.cache_clear()
    assert compose(["optim=sgd"]).run_id == expected


def test_renamed_key_keeps_logged_name_in_identity() -> None:
    config = compose(["task=pong_ppo", "task.update_epochs=3"])
    assert config.identity["task"]["passes"] == 3
    assert "update_epochs" not in config.identity["task"]
    assert current_names(config.identity)["task"]["update_epochs"] == 3
    assert "passes" in config.identity["task"], "what is logged is left as it is"
    assert "update_epochs" in inspect.signature(PPO).parameters
    assert current_names({"task": {"epochs": 1}}) == {"task": {"epochs": 1}}


def test_names_lists_config_files() -> None:
    assert {"nero", "sgd", "adam", "lamb", "madam"} <= set(names("optim"))
    assert {"mnist_mlp100", "mnist_reparam"} <= set(names("task"))


@pytest.mark.parametrize("task", CAME_LATER)
def test_new_key_at_legacy_default_is_omitted_from_identity(task: str) -> None:
    """Logged runs keep their ids: a config.yaml without the key means the legacy default, which the class also has."""
    words = {key: f"{key}={json.dumps(DEFAULTS_OF_LOGGED_RUNS[key])}" for key in CAME_LATER[task]}
    before = compose([f"task={task}", *words.values()])
    assert before.identity == compose([f"task={task}", *(f"~{key}" for key in words)]).identity
    for key, taker in CAME_LATER[task].items():
        assert inspect.signature(taker).parameters[key.rpartition(".")[2]].default == DEFAULTS_OF_LOGGED_RUNS[key]
        assert compose([f"task={task}", words[key]]).run_id != compose([f"task={task}"]).run_id


def test_every_key_with_legacy_default_is_tested() -> None:
    assert {key for keys in CAME_LATER.values() for key in keys} == set(DEFAULTS_OF_LOGGED_RUNS)
