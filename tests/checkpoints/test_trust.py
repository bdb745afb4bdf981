"""A run's config.yaml may come from somebody else: nothing that it names is executed unless it is listed or trusted."""

import ast
import importlib
import inspect
import io
import pickle
import pkgutil
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision
import yaml
from hydra.utils import get_object
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT, SMALL_PONG
from nero.checkpoints.loading import load_trained
from nero.checkpoints.options import Unusable
from nero.checkpoints.trust import check_config, may_be_built, resolve
from nero.cli import runs as runs_command
from nero.cli import theory
from nero.cli.trained import generate, play, sample, translate
from nero.plans.config import compose, names, run_id
from nero.runs.store import RunDirectory, Store
from nero.runs.targets import NAMES, PACKAGES, faults, is_listed
from nero.tasks.base import Task
from support.whole_runs import trained

TEXT = (
    "task=wikitext2_transformer",
    "data=embedded",
    "task.train_examples=200",
    "task.epochs=1",
    "task.network.width=16",
    "task.network.inner=16",
    "optim=adam",
    "machine=cpu",
)
LISTED = (
    "nero.tasks.mnist.DeepMLP",
    "nero.models.vgg.VGG11",
    "nero.models.resnet50.resnet50",
    "nero.optim.Nero",
    "nero.optim.Split",
    "nero.optim.constrained",
    "nero.engine.schedules.cosine",
    "nero.data.augmentation.Augmentation",
    "torch.optim.NAdam",
    "torch.optim.adamw.AdamW",
    "torch.nn.Sequential",
    "torch.nn.modules.linear.Linear",
    "torchvision.models.resnet18",
    "torchvision.models.squeezenet1_1",
)
NOT_LISTED = (
    "",
    "system",
    "os.system",
    "builtins.eval",
    "torch.load",
    "torch.hub.load",
    "pandas.read_pickle",
    "joblib.load",
    "nero.atomic.write_atomic",
    "nero.bundle.unpack.run",
    "nero.train.build.build_part",
    "nero.engine.schedules",
    "nero.models",
    "nero.modelsx.vgg.VGG11",
    "nerox.models.vgg.VGG11",
    "torch.optimx.Adam",
    "torch.jit.ScriptModule",
    "torch.utils.data.DataLoader",
    "hydra.utils.instantiate",
    "pytorch_optimizer.load_optimizer",
    ".nero.models.vgg.VGG11",
)
# Names that a list of prefixes accepts, since Hydra resolves each part by getattr.
LEADING_ELSEWHERE = (
    "nero.models.vgg.nn",
    "nero.models.mlp.torch.load",
    "nero.models.mlp.torch.hub.load",
    "nero.models.vgg.nn.Linear.__init__",
    "nero.models.inception.plain_inception",
    "nero.tasks.base.torch.load",
    "nero.tasks.base.asdict",
    "nero.tasks.base.check_positive",
    "nero.tasks.classification.Path",
    "nero.optim.base.inspect.os.system",
    "nero.optim.sharding.sys.exit",
    "nero.engine.schedules.math.exp",
    "nero.engine.schedules.LearningRates",
    "nero.engine.schedules._warmed",
    "torch.nn.modules.module.torch.load",
    "torch.nn.modules.module.torch.jit.ScriptModule",
    "torch.nn.functional.relu",
    "torch.nn.init.normal_",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.Module.load_state_dict",
    "torch.optim.lr_scheduler.LambdaLR",
    "torch.optim.swa_utils.AveragedModel",
    "torch.optim.Adam.load_state_dict",
    "torchvision.models.get_model",
    "torchvision.models.ResNet",
    "torchvision.models._api.load_state_dict_from_url",
    "torchvision.models.detection.fasterrcnn_resnet50_fpn",  # whose backbone's weights are downloaded by default
    "torchvision.models.quantization.resnet18",
)
COMMANDS: dict[str, tuple[Callable[[list[str]], int], tuple[str, ...]]] = {
    "generate": (generate, TEXT),
    "translate": (translate, ("task=multi30k_transformer", "data=embedded", "optim=adam", "machine=cpu")),
    "play": (play, ("task=pong_ppo", "data=embedded", "optim=adam", *SMALL_PONG)),
    "sample": (sample, ("task=cifar10_cgan", "data=embedded", "optim=adam", "machine=cpu")),
    "theory": (
        lambda words: theory.main(["measure", *words]),
        ("task=mnist_mlp100", "data=embedded", "task.depth=1", "task.train_examples=100", "optim=adam", "machine=cpu"),
    ),
}


def shell(marker: Path) -> dict[str, Any]:
    command = ["sh", "-c", f"touch {shlex.quote(str(marker))}"]
    return {"_target_": "nero.bundle.unpack.run", "command": command, "problem": "", "_convert_": "all"}


def write_run(folder: Path, words: tuple[str, ...], change: Callable[[dict[str, Any]], object]) -> RunDirectory:
    """A run with a checkpoint whose config.yaml was changed."""
    run = RunDirectory(folder)
    folder.mkdir(parents=True)
    config = compose(words).identity
    change(config)
    run.write_config(config)
    buffer = io.BytesIO()
    torch.save({"networks": {}, "position": {"epoch": 1, "step": 0}}, buffer)
    run.save_checkpoint(buffer.getvalue(), {"epoch": 1})
    return run


def refused(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], *words: str, marker: Path | None = None
) -> str:
    """The line with which a command ended, before anything wrote the marker."""
    try:
        assert main(list(words)) in (1, 2)
    finally:
        assert marker is None or not marker.exists(), "code was executed"
    return next(line for line in capsys.readouterr().err.splitlines() if line.startswith(("error: ", "not measured: ")))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_the_config_of_a_run_names(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main, words = COMMANDS[command]
    marker = tmp_path / "marker"
    run = write_run(tmp_path / "run", words, lambda config: config["task"].update(x=shell(marker)))
    where = ["--records", str(tmp_path / "records")] if command == "theory" else []
    line = refused(capsys, main, str(run.path), "--device", "cpu", *where, marker=marker)
    assert "task.x._target_ is nero.bundle.unpack.run, which no config.yaml may name (--trust " in line


def test_theory_does_not_run_what_the_optimiser_of_a_run_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "marker"
    main, words = COMMANDS["theory"]
    run = trained(tmp_path / "store", (*words, "task.epochs=1"))
    config = run.read_config()
    run.write_config({**config, "optim": {**config["optim"], "parts": [{"optim": shell(marker)}]}})
    words = (str(run.path), "--device", "cpu", "--records", str(tmp_path / "records"))
    line = refused(capsys, main, *words, marker=marker)
    assert "optim.parts[0].optim._target_ is nero.bundle.unpack.run" in line


class Touch:
    """Unpickling it writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize(
    "target", ["torch.load", "torch.hub.load", "pandas.read_pickle", "joblib.load", "nero.atomic.write_atomic"]
)
def test_functions_outside_hydras_blocklist_are_not_called(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, file = tmp_path / "marker", tmp_path / "file"
    arguments: dict[str, dict[str, Any]] = {
        "torch.load": {"f": str(file), "weights_only": False},
        "torch.hub.load": {"repo_or_dir": str(tmp_path), "model": "touch", "source": "local"},
        "pandas.read_pickle": {"filepath_or_buffer": str(file)},
        "joblib.load": {"filename": str(file)},
        "nero.atomic.write_atomic": {
            "path": {"_target_": "pathlib.Path", "_args_": [str(marker)]},
            "data": {"_target_": "builtins.bytes"},
        },
    }
    torch.save(Touch(marker), file) if target == "torch.load" else file.write_bytes(pickle.dumps(Touch(marker)))
    (tmp_path / "hubconf.py").write_text(f"from pathlib import Path\ndef touch(): Path({str(marker)!r}).touch()\n")
    change = {"x": {"_target_": target, **arguments[target]}}
    run = write_run(tmp_path / "run", TEXT, lambda config: config["task"].update(change))
    line = refused(capsys, generate, str(run.path), "--device", "cpu", marker=marker)
    assert f"task.x._target_ is {target}, " in line
    assert "--trust" in line


@pytest.mark.parametrize("name", [*LISTED, *NAMES])
def test_listed_names_may_be_built(name: str) -> None:
    pytest.importorskip(name.partition(".")[0])
    assert is_listed(name)
    assert may_be_built(name, resolve(name))
    assert resolve(name) is get_object(name)


@pytest.mark.parametrize("name", NOT_LISTED)
def test_other_names_are_refused_before_anything_is_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nero.checkpoints.trust.resolve", lambda name: pytest.fail("imported"))
    with pytest.raises(Unusable, match=r"task\.x\._target_ is .*--trust"):
        check_config("run", {"task": {"x": {"_target_": name}}}, ["task"], [])


@pytest.mark.parametrize("name", LEADING_ELSEWHERE)
def test_listed_names_that_lead_elsewhere_are_refused(name: str) -> None:
    assert is_listed(name)
    assert resolve(name) is get_object(name)
    with pytest.raises(Unusable, match=r"task\.network\._target_ is .*, which no config\.yaml may name"):
        check_config("run", {"task": {"network": {"_target_": name}}}, ["task"], [])


def _modules() -> Iterator[ModuleType]:
    """All modules of the listed packages that can be imported here."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        yield module
        for info in pkgutil.walk_packages(getattr(module, "__path__", []), f"{package}."):
            try:
                yield importlib.import_module(info.name)
            except Exception:  # of packages that are not installed
                continue


@pytest.mark.filterwarnings("ignore")
def test_all_that_listed_names_reach_is_defined_in_listed_folders() -> None:
    """Two steps of getattr from every module of the listed packages, judged by the file of what is found."""
    here, site = ROOT / "src" / "nero", Path(torch.__file__).parent
    folders = [here / "tasks", here / "models", here / "optim", here / "engine" / "schedules.py"]
    folders += [here / "data" / "augmentation.py", site / "optim", site / "nn" / "modules"]
    folders += [Path(torchvision.__file__).parent / "models"]
    found, seen = 0, set[int]()
    for module in _modules():
        objects = list(vars(module).values())
        objects += [entry for one in objects if isinstance(one, ModuleType) for entry in list(vars(one).values())]
        for one in objects:
            if id(one) in seen or not callable(one):
                continue
            seen.add(id(one))
            if may_be_built(f"{module.__name__}.x", one):
                found += 1
                file = Path(inspect.getfile(one))
                assert any(file.is_relative_to(folder) for folder in folders), (module.__name__, one)
    assert len(seen) > 3000
    assert 300 < found < 600


def _nested(value: Any, path: list[str | int]) -> Any:
    for step in reversed(path):
        value = {step: value} if isinstance(step, str) else [*([0] * step), value]
    return value


@given(
    st.sampled_from([*NOT_LISTED, "my_package.Mine", 3, None, ["os.system"], "${oc.env:HOME}"]),
    st.lists(st.one_of(st.sampled_from("abc"), st.integers(0, 2)), max_size=6),
)
def test_target_is_found_wherever_it_is(target: Any, path: list[str | int]) -> None:
    config = {"task": {"_target_": "nero.tasks.mnist.DeepMLP", "x": _nested({"_target_": target}, path)}}
    key = "task.x" + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in path)
    (fault,) = faults(config)
    assert fault.startswith(f"{key}._target_ ")
    assert not list(faults({"task": _nested({"_target_": "torch.optim.Adam"}, path)}))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"depth": "${oc.env:HOME}"}, r"task\.depth is '\$\{oc\.env:HOME\}', an interpolation"),
        ({"x": {"_target_": "${oc.env:HOME}"}}, r"task\.x\._target_ is '\$\{oc\.env:HOME\}', an interpolation"),
        ({"x": [{"y": "a ${task.depth} b"}]}, r"task\.x\[0\]\.y is 'a \$\{task\.depth\} b', an interpolation"),
        ({"x": {"_target_": 3}}, r"task\.x\._target_ must be the name of a class, not 3"),
        ({"x": {"_target_": {"_target_": "torch.nn.Linear"}}}, r"task\.x\._target_ must be the name of a class, not"),
        ({"x": {"_target_": "os.system\nerror: no"}}, r"task\.x\._target_ is 'os\.system\\nerror: no', which no"),
        ({"\x1b[2J": {"_target_": "os.system"}}, r"'task\.\\x1b\[2J\._target_' is os\.system, which no"),
        ({"x": {"_target_": "a" * 1000}}, r"task\.x\._target_ is a{77}\.\.\., which is built only with --trust a+"),
        ({"x": {"_target_": "torch.nn.NoSuch"}}, r"task\.x\._target_ is torch\.nn\.NoSuch, which this code does not"),
    ],
)
def test_other_faults_are_reported_in_one_line(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(Unusable, match=f"^run: {fault}") as error:
        check_config("run", {"task": settings}, ["task"], [])
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize("setting", ["weights", "weights_backbone", "pretrained", "_args_"])
def test_weights_of_torchvision_are_not_downloaded(setting: str) -> None:
    network = {"_target_": "torchvision.models.resnet18", "num_classes": 10}
    task = {"_target_": "nero.tasks.cifar10.CIFAR10", "network": network}
    check_config("run", {"task": task}, ["task"], [])
    check_config("run", {"task": {**task, "network": {**network, setting: None}}}, ["task"], [])
    with pytest.raises(Unusable, match=rf"task\.network\.{setting}: .*not downloaded"):
        check_config("run", {"task": {**task, "network": {**network, setting: ["DEFAULT"]}}}, ["task"], [])


def test_network_of_torchvision_is_listed_under_its_own_name_alone() -> None:
    assert may_be_built("torchvision.models.resnet18", torchvision.models.resnet18)
    for name in ("nero.models.resnet50.resnet18", "my_package.resnet18"):
        assert not may_be_built(name, torchvision.models.resnet18, ["my_package"])


def test_torchvision_gets_no_positional_arguments() -> None:
    """It takes a first positional argument, such as a number of words, for `pretrained`."""
    network = {"_target_": "torchvision.models.resnet18", "_partial_": True}
    check_config("run", {"task": {"_target_": "nero.tasks.imagenet.ImageNet", "network": network}}, ["task"], [])
    for task in (
        {"_target_": "nero.tasks.language_model.LanguageModelling", "network": network},
        {"_target_": "nero.tasks.imagenet.ImageNet", "network": {"_target_": "torch.nn.Sequential", "x": network}},
    ):
        with pytest.raises(Unusable, match=r"_partial_: torchvision\.models\.resnet18 would get positional arguments"):
            check_config("run", {"task": task}, ["task"], [])


@pytest.mark.parametrize("group", ["task", "optim"])
def test_all_that_shipped_configs_name_may_be_built(group: str) -> None:
    found = 0
    for name in names(group):
        config = compose([f"{group}={name}"]).identity
        assert not list(faults(config)), name
        if name in ("lion", "soap", "schedule_free") and any(map(_is_missing, ("pytorch_optimizer", "schedulefree"))):
            continue
        check_config(name, config, [group], [])
        found += 1
    assert found >= 8


def _is_missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def test_all_that_logged_runs_name_is_listed() -> None:
    paths = sorted((ROOT / "results" / "runs").glob("*/*/config.yaml"))
    assert len(paths) > 200
    assert {path.parent.name: list(faults(yaml.safe_load(path.read_bytes()))) for path in paths} == {
        path.parent.name: [] for path in paths
    }


def test_nothing_is_unpickled_but_weights() -> None:
    """Every torch.load has weights_only=True, and the one other unpickler has a list of its own."""
    loads = 0
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "scripts").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "torch.load":
                loads += 1
                assert any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)
            assert called not in ("pickle.load", "pickle.loads", "joblib.load", "torch.hub.load"), path
            assert not called.endswith(("read_pickle", "load_state_dict_from_url")), path
    assert loads >= 4


MY_PACKAGE = """
import os
import torch
from nero.models.language_model import LanguageModel

class Mine(LanguageModel):
    pass

class Optimiser(torch.optim.Adam):
    pass

def make(params, lr):
    return Optimiser(params, lr=lr)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user in the current folder."""
    name = f"own_package_{tmp_path.name}".replace("-", "_")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / f"{name}.py").write_text(MY_PACKAGE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


@pytest.fixture
def own_run(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run of a network and an optimiser of the user's own."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "here"))
        words = (f"task.network._target_={package}.Mine", f"optim._target_={package}.Optimiser")
        return trained(tmp_path / "store", (*TEXT, *words))


def test_trusted_package_of_the_current_folder_is_built(
    own_run: RunDirectory, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(own_run.path), "--device", "cpu", "--words", "3"]
    line = refused(capsys, generate, *words)
    expected = f"task.network._target_ is {package}.Mine, which is built only with --trust {package}, "
    assert line.startswith(f"error: {own_run.run_id}: {expected}")
    line = refused(capsys, generate, *words, "--trust", package[:-1], "--trust", f"{package}x")
    assert expected in line
    assert generate([*words, "--trust", "other", "--trust", package]) == 0
    assert len(capsys.readouterr().out.split()) >= 2


def test_optimiser_is_checked_only_where_it_is_built(
    tmp_path: Path, own_run: RunDirectory, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = own_run.read_config()
    network = {**config["task"]["network"], "_target_": "nero.models.language_model.LanguageModel"}
    own_run.write_config({**config, "task": {**config["task"], "network": network}})
    assert generate([str(own_run.path), "--device", "cpu", "--words", "3"]) == 0
    words = ["measure", str(own_run.path), "--device", "cpu", "--records", str(tmp_path / "records")]
    capsys.readouterr()
    line = refused(capsys, theory.main, *words)
    assert f"optim._target_ is {package}.Optimiser, which is built only with --trust {package}" in line
    assert theory.main([*words, "--trust", package]) == 0


@pytest.mark.parametrize("name", ["torch.load", "os.system", "Mine.load_state_dict", "torch.optim.Adam.step", "torch"])
def test_trust_does_not_reach_beyond_the_package(name: str, package: str) -> None:
    config = {"task": {"x": {"_target_": f"{package}.{name}"}}}
    with pytest.raises(Unusable, match=r"task\.x\._target_ is "):
        check_config("run", config, ["task"], [package])
    for own in ("Mine", "Optimiser", "make", "LanguageModel"):  # the last is this project's
        check_config("run", {"task": {"x": {"_target_": f"{package}.{own}"}}}, ["task"], [package])


@pytest.mark.parametrize("name", ["os", "builtins", "nero", "torch", "my_package.part", "", "my-package"])
def test_only_packages_of_the_user_can_be_trusted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        generate(["run", "--trust", name])
    assert stop.value.code == 2
    message = f"argument --trust: must be a package of your own, such as my_package, not {name!r}"
    assert message in capsys.readouterr().err


def test_check_and_import_remark_on_runs_that_need_trust(
    tmp_path: Path, own_run: RunDirectory, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, other = str(own_run.path.parent.parent), str(tmp_path / "other")
    remark = f"optim._target_ is {package}.Optimiser, which is built only with --trust {package}, if that is code of"
    assert runs_command.main(["check", "--store", store]) == 0
    out = capsys.readouterr().out
    assert f"config.yaml: task.network._target_ is {package}.Mine" in out
    assert "(and 1 more) (no problem)" in out
    config = own_run.read_config()
    network = {**config["task"]["network"], "_target_": "nero.models.language_model.LanguageModel"}
    config["task"]["network"] = network
    moved = _moved(own_run, tmp_path / "second", config)
    assert runs_command.main(["import", str(tmp_path / "second"), "--store", other]) == 0
    assert f"{moved}: imported: config.yaml: {remark}" in capsys.readouterr().out


def _moved(run: RunDirectory, root: Path, config: dict[str, Any]) -> str:
    """The run in another store, with another config and the id that this gives."""
    new = Store(root).run(run.path.parent.name, run_id(config))
    shutil.copytree(run.path, new.path)
    new.write_config(config)
    new.write_summary({**(run.read_summary() or {}), "run_id": new.run_id})
    return new.run_id


def test_run_without_a_task_is_refused_in_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", TEXT, lambda config: config.update(task={}))
    with pytest.raises(Unusable, match="names no task"):
        load_trained(str(run.path), tmp_path, Task, tmp_path, "cpu")  # type: ignore[type-abstract]
