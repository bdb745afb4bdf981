"""Every `nero` and `make` command of the README and the manual is accepted: known options, settings, targets."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from conftest import PAGES, ROOT, exit_status
from nero.checkpoints import options
from nero.cli import sweep, theory, train
from nero.cli.main import COMMANDS, main
from nero.plans.argparse_types import Parser
from nero.plans.config import compose, names
from nero.plans.plan import EXPERIMENTS

EXPERIMENT_NAMES = {path.stem for path in EXPERIMENTS.glob("*.yaml")}


class Parsed(BaseException):
    """The arguments of a command are valid."""


def commands(page: Path, program: str) -> list[list[str]]:
    """The commands in the code blocks of a page, split into words; a command over several lines is one."""
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]


def test_manual_has_commands_of_every_kind() -> None:
    found = {words[1] for page in PAGES for words in commands(page, "nero")}
    assert found >= set(COMMANDS) - {"notebooks"}


@pytest.fixture
def _stop_after_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(Parser, name, _then_stop(getattr(Parser, name)))
    monkeypatch.setattr(options, "retraining_of", _then_stop(options.retraining_of))
    for name in ("_measure", "_along", "_report"):
        monkeypatch.setattr(theory, name, _parsed)
    monkeypatch.setattr(train, "start", _composed)
    monkeypatch.setattr(sweep, "start", _composed)


def _then_stop(parse: Callable[..., Any]) -> Callable[..., None]:
    def parse_and_stop(*arguments: Any) -> None:
        parse(*arguments)
        raise Parsed

    return parse_and_stop


def _parsed(*_: Any) -> None:
    raise Parsed


def _composed(words: list[str], **_: Any) -> None:
    """Compose the run of a `nero train`, or the first run of a `nero sweep`, instead of training it."""
    overrides = []
    for override in OverridesParser.create().parse_overrides([word for word in words if not word.startswith("--")]):
        key, value = override.key_or_group, override.value()
        if key == "experiment":
            listed = value.list if override.is_sweep_override() else [value]
            assert {str(name) for name in listed} <= EXPERIMENT_NAMES
        elif not key.startswith(("only.", "hydra")):
            first = None
            if override.is_sweep_override():  # an interval, for Optuna, cannot be listed
                first = str(value.start) if override.is_interval_sweep() else next(override.sweep_string_iterator())
            overrides.append(f"{key}={first}" if first is not None else str(override.input_line))
    compose(overrides)
    raise Parsed


@pytest.mark.usefixtures("_stop_after_parsing")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_nero_commands_are_accepted(page: Path) -> None:
    text = page.read_text()
    shipped = {*names("task"), *names("optim"), *EXPERIMENT_NAMES}
    # Files that the page has its reader write; tests/test_docs.py loads them.
    written = set(re.findall(r"# (?:local/)?(?:configs/task|configs/optim|experiments)/(\w+)\.yaml", text)) - shipped
    for _, *words in commands(page, "nero"):
        if written & set(re.findall(r"\w+", " ".join(words))):
            continue
        if "--help" in words or "--version" in words:
            assert exit_status(words[0], words[1:]) == 0
            continue
        with pytest.raises(Parsed):
            main([word for word in words if word != "..."])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_make_commands_are_accepted(page: Path) -> None:
    for words in commands(page, "make"):
        done = subprocess.run([*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
