"""Compare an optimiser of your own with others: the same tasks, searches of learning rates and seeds, in one table.

    nero compare my_package.MyOptimizer --embedded           a quick trial on embedded data: minutes on a laptop
    nero compare my_package.MyOptimizer --tasks mnist_mlp100 cifar10_vgg11 --plan        what is to be run, and how long
    nero compare my_package.MyOptimizer --tasks mnist_mlp100 cifar10_vgg11 --lr 1e-4 1e-3 1e-2 --set betas=[0.9,0.99]
    nero compare muon hydra/launcher=joblib machine.budget_seconds=600        by its YAML, with settings of the sweep

OPTIM is a class or function that Python can import, from the current folder too, or the name of a YAML in configs/optim
or local/configs/optim. For a class, that YAML is written, and local/experiments/compare_NAME.yaml with it. Runs of the
baselines are reused where they are logged; missing ones are trained by --with-baselines. The same command continues.

KEY=VALUE: settings of the sweep, such as a launcher or machine.*; any other, such as task.epochs=5, is a setting of all
runs. Tables, figures and a page go to local/compare/NAME. Exit status: 0; 1 if a run failed; 2 for an error.
"""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from nero.cli.train import import_from_here, start
from nero.plans.argparse_types import Parser, nearest
from nero.plans.comparison import BASELINES, EMBEDDED, as_yaml, cells_on, embedded_cells_on, small_sizes
from nero.plans.config import CONFIG_DIR, NOT_IDENTITY, ROOT, ConfigError, compose, config_file, local_folder, names
from nero.plans.expected import device_here, expected, timed_on
from nero.plans.listing import count_logged, describe_expected, describe_plan
from nero.plans.plan import Cell, CellState, Experiment, Summary, load_experiment, survey
from nero.plans.schema import RunSchema, parse_lrs
from nero.plans.stores import given_store, short_path, store_of_experiment
from nero.report import display
from nero.runs.logged import name_left_out

HEADER = "# Written by `nero compare`, which overwrites it. Delete this line to keep changes of your own.\n"
SPLIT_HINT = "for an optimiser of some parameters alone see nero.optim.Split in docs/your_optimiser.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="nero compare", description=__doc__)
    parser.add_argument("optim", nargs="?", metavar="OPTIM", help="a class, or the name of a YAML")
    parser.add_argument("--tasks", nargs="+", default=["mnist_mlp100"], metavar="TASK", help="default: mnist_mlp100")
    parser.add_argument("--lr", nargs="*", metavar="LR", help="its learning rates (default: those of the baselines)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an argument of the class")
    parser.add_argument("--name", metavar="NAME", help="default: the name of the class in snake case")
    usual = f"default: {' '.join(BASELINES)}"
    parser.add_argument("--baselines", nargs="*", default=BASELINES, metavar="OPTIM", help=usual)
    parser.add_argument("--with-baselines", action="store_true", help="also train missing runs of the baselines")
    parser.add_argument("--embedded", action="store_true", help="small networks on embedded data")
    parser.add_argument("--plan", action="store_true", help="print what is to be run, and run nothing")
    given = list(sys.argv[1:] if arguments is None else arguments)
    are_settings = [_is_setting(before, word) for before, word in zip(["", *given], given, strict=False)]
    settings = [word for word, is_setting in zip(given, are_settings, strict=True) if is_setting]
    options = parser.parse_args([word for word, is_setting in zip(given, are_settings, strict=True) if not is_setting])
    if not options.optim:
        known = ", ".join(names("optim"))
        parser.error(f"name an optimiser: a class such as my_package.MyOptimizer, or one of: {known}")
    import_from_here()
    try:
        return _compare(options, settings)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _is_setting(before: str, word: str) -> bool:
    return "=" in word and not word.startswith("-") and before != "--set"


def _compare(options: Any, settings: list[str]) -> int:
    tasks, baselines = _known("task", options.tasks), _known("optim", options.baselines, "baseline")
    lrs = None if options.lr is None else parse_lrs(_words(options.lr))
    _refuse_arguments(settings)
    own, made = _optimizer(options.optim, options.name, options.set)
    of_sweep = [word for word in settings if _root(word) in (*NOT_IDENTITY, "hydra")]
    of_runs = tuple(word for word in settings if word not in of_sweep)
    cells_of = embedded_cells_on if options.embedded else cells_on
    cells = [cell for task in tasks for cell in cells_of(task, own, baselines, lrs)]
    cells = [replace(cell, overrides=(*cell.overrides, *of_runs)) for cell in cells]
    cells.sort(key=lambda cell: cell.optim != own)  # its runs first
    compose([word for word in of_sweep if not word.lstrip("+~").startswith("hydra")])
    for cell in cells:
        _check_settings(cell, made)
    for task in tasks:
        _check_networks(task, own, made, of_runs)
    kind, where = ("_embedded", " on embedded data") if options.embedded else ("", "")
    name = f"{options.name or own}{kind}"
    shown = {**display.optimizer_names(), **({own: made.get("display_name") or own} if made else {})}
    others = ", ".join(shown[each] for each in baselines if each != own)
    title = f"{shown[own]} compared with {others}{where}"
    _write(f"compare_{name}", title, cells, own, made)
    for task in tasks if options.embedded else ():
        if not small_sizes(task):
            print(f"warning: experiments/smoke.yaml has no sizes for {task}: it is trained at its full size")

    experiment = load_experiment(f"compare_{name}")
    store = store_of_experiment(experiment, given_store(settings))
    summaries = store.summaries()
    states = [survey(cell, summaries) for cell in experiment.cells]
    part = [f"only.optim={own}"] if not (options.embedded or options.with_baselines) else []
    shared = [state for state in states if part and state.cell.optim != own]
    if options.plan:
        print(describe_plan(experiment, [s for s in states if s not in shared], summaries, others=shared))
    if part:
        print(_describe_baselines(shared, summaries), flush=True)
    if options.plan:
        return name_left_out(store)
    status = _sweep(experiment, [*part, *of_sweep])
    store = store.without_damaged()
    from nero.cli import report  # slow to import, with all figures
    from nero.report import catalogue
    from nero.report.assembly import Report

    evidence = catalogue.gather(experiment.name, store)
    if status and not any(state.logged for state in evidence.states if state.cell.optim == own):
        return status
    report.write(Report([evidence], store, local_folder() / "compare" / name), whole=True, brief=True)
    return name_left_out(store) or status


def _root(word: str) -> str:
    """The group or top-level key of a setting."""
    return re.split(r"[=./@]", word.lstrip("+~"))[0]


def _refuse_arguments(settings: Sequence[str]) -> None:
    """Raise ConfigError for arguments of the optimiser that are given as settings of all runs."""
    known = [*(spec.name for spec in fields(RunSchema)), "hydra"]
    for word in settings:
        key, _, value = word.lstrip("+~").partition("=")
        argument = key.removeprefix("optim.")
        if argument == "lr":
            raise ConfigError(f"{word}: the learning rates of your optimiser are given by --lr {value}")
        if argument != key:
            raise ConfigError(f"{word} would change the baselines too: give it as --set {argument}={value}")
        if _root(word) == key and key not in known:
            hint = f"{nearest(key, known)}; an argument of your optimiser is given as --set {key}={value}"
            raise ConfigError(f"there is no setting {key}{hint}")


def _words(given: Sequence[str]) -> list[str]:
    """With spaces or commas between them."""
    return [word for text in given for word in text.split(",") if word]


def _known(group: str, given: Sequence[str], kind: str | None = None) -> list[str]:
    known = names(group)
    for name in (wanted := list(dict.fromkeys(_words(given)))):
        if name not in known:
            raise ConfigError(f"unknown {kind or group} {name}{nearest(name, known)}; there are: {', '.join(known)}")
    return wanted


def _optimizer(given: str, name: str | None, arguments: list[str]) -> tuple[str, DictConfig | None]:
    """The name of the user's optimiser, and the settings of its YAML if that is still to be written."""
    if given in names("optim"):
        path = config_file("optim", given)
        if arguments:
            raise ConfigError(f"--set is for a class; the settings of {given} are in {short_path(path)}")
        logged = OmegaConf.load(path)
        assert isinstance(logged, DictConfig)
        code = _code(_imported(str(logged._target_))) if "code" in logged else None
        return given, None if code == logged.get("code") else OmegaConf.merge(logged, {"code": code})  # type: ignore
    if "." not in given:
        known = names("optim")
        hint = f"{nearest(given, known)}; give a class, such as my_package.MyOptimizer, or one of: {', '.join(known)}"
        raise ConfigError(f"unknown optimiser {given}{hint}")
    found, last = _imported(given), given.rpartition(".")[2]
    display_name = name or last
    name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", last).lower()
    if not re.fullmatch(r"\w+", name):
        raise ConfigError(f"--name must be made of letters, digits and _, not {name!r}")
    parameters = _parameters(found)
    lr = _default_lr(parameters, given)
    cfg = OmegaConf.create({"_target_": given, "_partial_": True, "lr": lr, "display_name": display_name})
    if code := _code(found):
        cfg.code = code
    for argument in arguments:
        try:
            override = OverridesParser.create().parse_override(argument)
            if override.key_or_group == "lr":
                raise ConfigError(f"--set {argument} has no effect, since learning rates are searched: use --lr")
            OmegaConf.update(cfg, override.key_or_group, override.value(), force_add=True)
        except HydraException as error:
            raise ConfigError(f"--set {argument}: {' '.join(str(error).split())}") from error
    if missing := [one.name for one in list(parameters.values())[1:] if _is_required(one) and one.name not in cfg]:
        raise ConfigError(f"{given} needs an argument {missing[0]}: give it as --set {missing[0]}=VALUE")
    if name not in names("optim"):
        return name, cfg
    path = config_file("optim", name)
    before = OmegaConf.load(path)
    assert isinstance(before, DictConfig)
    if {**before, "code": None} != {**cfg, "code": None}:
        if path.is_relative_to(CONFIG_DIR):
            shipped = f"{name} is the name of {short_path(path)}, which has other settings"
            raise ConfigError(f"{shipped}: add --name NAME, or run nero compare {name} to compare the shipped one")
        other = f"{short_path(path)} has other settings"
        raise ConfigError(f"{other}: add --name NAME to keep both, or edit it and run nero compare {name}")
    return name, cfg if before != cfg else None


def _imported(given: str) -> Any:
    """The class or function with this name. Raises ConfigError if there is none."""
    module, _, name = given.rpartition(".")
    if name == "py":
        raise ConfigError(f"{given} is a file: name a class in it, such as {Path(module).name}.MyOptimizer")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # importing runs the user's code
        message = " ".join(str(error).split())
        if isinstance(error, ModuleNotFoundError) and module.partition(".")[0] == error.name:
            message += f" in the current folder ({Path.cwd()}), in PYTHONPATH or among the packages of {sys.prefix}"
        raise ConfigError(f"cannot import {given}: {message}") from error
    if not callable(found):
        raise ConfigError(f"{given} is neither a class nor a function")
    return found


def _code(found: Any) -> str | None:
    """A digest of the file of a class, which makes its runs other ones when it changes; None for installed packages."""
    try:
        path = Path(inspect.getsourcefile(found) or "")
        installed = "site-packages" in path.parts or path.is_relative_to(ROOT / "src")
        return None if installed else f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    except (TypeError, OSError):  # not written in Python
        return None


def _parameters(found: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(found).parameters
    except ValueError:  # not written in Python
        return {"lr": inspect.Parameter("lr", inspect.Parameter.KEYWORD_ONLY)}


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _default_lr(parameters: Mapping[str, inspect.Parameter], name: str) -> float:
    """The class's own default, or 0.001. Raises ConfigError if it takes no lr."""
    if "lr" not in parameters and all(one.kind != one.VAR_KEYWORD for one in parameters.values()):
        hint = "wrap it in a function that takes lr (docs/your_optimiser.md)"
        raise ConfigError(f"{name} takes no lr; it takes: {', '.join(parameters)}; {hint}")
    default: Any = parameters["lr"].default if "lr" in parameters else None
    return float(default) if type(default) in (int, float) and default > 0 else 0.001


def _check_settings(cell: Cell, made: DictConfig | None) -> None:
    """Raise ConfigError for overrides that the cell's runs do not take. An optimiser without a YAML is not composed."""
    if made is None or cell.optim in names("optim"):
        cell.identity_at(cell.lrs[0], cell.search_seed)


def _check_networks(task: str, own: str, made: DictConfig | None, overrides: Sequence[str]) -> None:
    """Raise ConfigError if the optimiser does not take the parameters of the task's networks, at a small size."""
    import torch

    from nero.data.sources import MissingData
    from nero.train.build import build_optimizers, build_task

    optim = [f"optim={own}"] if made is None else []
    sizes = [EMBEDDED, *small_sizes(task)]
    config = compose([f"task={task}", *optim, *sizes, *overrides, "machine=cpu"])
    cfg = config.cfg.optim if made is None else made
    try:
        built = build_task(config, torch.device("cpu"))
    except MissingData:  # a task without embedded data
        return
    try:
        build_optimizers(cfg, built)
    except Exception as error:  # of the user's class
        message = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        matrix: Any = SimpleNamespace(networks=lambda: {"layer": torch.nn.Linear(4, 4, bias=False)}, clip_norm=None)
        try:
            build_optimizers(OmegaConf.create({**cfg, "networks": None}), matrix)
            message += f"; {SPLIT_HINT}"
        except Exception:  # it is not the parameters
            pass
        raise ConfigError(f"{own} on {task}: {' '.join(message.split())}") from error


def _write(name: str, title: str, cells: list[Cell], own: str, made: DictConfig | None) -> None:
    """Write the YAML of the optimiser, if it has none, and of the experiment."""
    texts: dict[Path, str] = {}
    if made is not None:
        file = local_folder() / "configs" / "optim" / f"{own}.yaml"
        texts[file] = f"# {made['_target_']}\n{OmegaConf.to_yaml(made)}"
        if file.is_file():
            texts[file] = re.sub(r"^code: .*$", f"code: {made.get('code')}", file.read_text(), flags=re.MULTILINE)
            print(f"the file of {made['_target_']} has changed: its runs are trained anew")
    path, text = local_folder() / "experiments" / f"{name}.yaml", HEADER + as_yaml(title, cells)
    before = path.read_text() if path.is_file() else HEADER
    if before != text:
        if not before.startswith(HEADER):
            raise ConfigError(f"{short_path(path)} has changes of your own: run nero sweep {name}, or use --name")
        texts[path] = text
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {short_path(path)}")


def _describe_baselines(states: Sequence[CellState], summaries: Mapping[str, Summary]) -> str:
    """One line: what is logged of runs that are not trained."""
    logged, missing = count_logged(states), sum(len(state.pending) + state.to_follow for state in states)
    text = f"baselines: {logged} of {logged + missing} runs are logged and reused"
    if missing:
        device = timed_on(summaries, device_here())
        time = f" ({describe_expected(expected(states, summaries, device))})" if device else ""
        text += f"; --with-baselines trains the other {missing}{time}"
    return text


def _sweep(experiment: Experiment, words: list[str]) -> int:
    try:
        return start(["--multirun", f"experiment={experiment.name}", *words])
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return 0 if stop.code in (None, 0) else 1
