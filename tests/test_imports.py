"""Import rules: which packages each package may import, and which modules must not load torch."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

LONGEST = 350  # lines of a module
SOURCE = Path(__file__).resolve().parents[1] / "src"

# What each package may import besides itself; single modules are given by their full name.
MAY_IMPORT = {
    "nero": {"nero.optim"},
    "nero.atomic": set(),
    "nero.optim": set(),
    "nero.models": {"nero.optim.triton.pointer_tables"},
    "nero.data": {"nero.atomic"},
    "nero.games": {"nero.atomic"},
    "nero.runs": {"nero", "nero.atomic"},
    "nero.bundle": {"nero.data", "nero.runs", "nero.atomic"},
    "nero.tasks": {"nero.optim", "nero.models", "nero.data", "nero.games", "nero.runs", "nero.atomic"},
    "nero.plans": {"nero.runs", "nero.atomic"},
    "nero.theory": {"nero.optim", "nero.atomic"},
    "nero.engine": {"nero.tasks.base", "nero.runs"},
    "nero.report": {
        "nero.plans",
        "nero.runs",
        "nero.atomic",
        "nero.theory.caps",
        "nero.theory.pac_bayes",
        "nero.theory.records",
    },
    "nero.sweep": {"nero.plans", "nero.runs"},
    "nero.train": {"nero.data", "nero.engine", "nero.plans", "nero.runs", "nero.tasks.base"},
    "nero.checkpoints": {
        "nero.train",
        "nero.theory",
        "nero.engine",
        "nero.plans",
        "nero.runs",
        "nero.tasks",
        "nero.models",
        "nero.data",
        "nero.games",
        "nero.atomic",
    },
    "nero.cli": {
        "nero",
        "nero.atomic",
        "nero.bundle",
        "nero.checkpoints",
        "nero.data",
        "nero.engine.distributed",
        "nero.games.animation",
        "nero.plans",
        "nero.report",
        "nero.runs",
        "nero.sweep",
        "nero.theory.records",
        "nero.train",
    },
}
WITHOUT_TORCH = (
    "nero.atomic",
    "nero.bundle",
    "nero.checkpoints.options",
    "nero.cli",
    "nero.plans",
    "nero.runs",
    "nero.report",
    "nero.theory.caps",
    "nero.theory.pac_bayes",
    "nero.theory.records",
    "nero.sweep",
)


@cache
def modules() -> dict[str, Path]:
    files = SOURCE.glob("nero/**/*.py")
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def room_of(module: str) -> str:
    """The most specific entry of MAY_IMPORT that a module belongs to."""
    fitting = [room for room in MAY_IMPORT if module == room or module.startswith(room + ".")]
    return max(fitting, key=len)


def imports_of(path: Path, everywhere: bool = True) -> set[str]:
    """Full names of the modules that a file imports; `everywhere` includes imports inside functions."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if everywhere else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_packages_import_only_allowed_packages() -> None:
    for module, path in modules().items():
        room = room_of(module)
        allowed = {room, *MAY_IMPORT[room]}
        for name in imports_of(path):
            if name.split(".")[0] != "nero":
                continue
            known = name if name in modules() else name.rsplit(".", 1)[0]
            fine = any(known == a or (a != "nero" and known.startswith(a + ".")) for a in allowed)
            assert fine, f"{module} ({room}) may not import {known}"


def test_torch_free_modules_do_not_import_torch_at_top_level() -> None:
    checked = [module for module in modules() if module.startswith(WITHOUT_TORCH)]
    assert len(checked) > 50
    for module in checked:
        top = {name.split(".")[0] for name in imports_of(modules()[module], everywhere=False)}
        assert not top & {"torch", "torchvision", "wandb"}, module


def test_no_module_exceeds_max_line_count() -> None:
    long = {module: lines for module, path in modules().items() if (lines := path.read_text().count("\n")) > LONGEST}
    assert long == {}


def test_importing_report_plans_and_runs_does_not_load_torch() -> None:
    code = (
        "import sys, nero, nero.report.tables.table, nero.report.figures.figure3, nero.plans.plan, nero.runs.tracking\n"
        "import nero.sweep.sweeper\n"
        "print(sorted({'torch', 'wandb'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


RUN_OFF_TORCH = """
import os, sys
os.environ.pop("RANK", None)
from nero.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(sorted({"torch", "wandb"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "words",
    [
        "plan mnist",
        "runs check",
        "report mnist --check",
        "compare no.Optimizer --plan",
        "sweep mnist",
        "train task=mnist_mlp100 optim=nero optim.lr=0.001 seed=0",  # is logged
        "train optim.lr=x",
        "sweep optim=nero,adam optim.lr=x",
        "sample no_run",
        "translate no_run",
        "generate no_run",
        "play no_run",
        "theory --help",
    ],
)
def test_commands_that_train_nothing_do_not_load_torch(words: str) -> None:
    command = [sys.executable, "-c", RUN_OFF_TORCH, *words.split()]
    done = subprocess.run(command, cwd=SOURCE.parent, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_no_branching_on_task_or_optimiser_names_in_generic_code() -> None:
    configs = SOURCE.parent / "configs"
    names = {path.stem for group in ("task", "optim") for path in (configs / group).glob("*.yaml")}
    for module, path in modules().items():
        if room_of(module) in ("nero.optim", "nero.tasks", "nero.report"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If | ast.IfExp | ast.Match):
                tests = [node.test] if not isinstance(node, ast.Match) else [case.pattern for case in node.cases]
                words = {c.value for t in tests for c in ast.walk(t) if isinstance(c, ast.Constant)}
                assert not words & names, f"{module} asks for {words & names}"
