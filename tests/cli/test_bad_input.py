"""Wrong words on command lines and in YAML files: every one is refused in one line, and nothing is written."""

import math
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from nero.cli.main import main
from nero.engine.loop import Loop
from nero.plans.config import ConfigError, compose, names
from nero.plans.folders import CONFIG_DIR

BASE = ("data=embedded", "machine=cpu", "machine.threads=1")
# Small, so that a setting that only the task itself can refuse is refused soon.
SMALL = {
    "mnist_mlp100": ("task.depth=3", "task.train_examples=500"),
    "mnist_reparam": ("task.train_examples=500",),
    "cifar10_vgg11": ("task.train_examples=256", "task.network.width=2", "task.network.hidden=8"),
    "cifar10_resnet18": ("task.train_examples=256", "task.network.width=2"),
    "cifar10_cgan": ("task.train_examples=256", "task.generator.width=2", "task.discriminator.width=2"),
    "wikitext2_transformer": ("task.train_examples=100", "task.network.width=8", "task.network.inner=8"),
    "multi30k_transformer": ("task.train_examples=200", "task.network.width=8", "task.network.layers=1"),
    "pong_ppo": ("task.network.hidden=8", "task.environments=2", "task.steps=4", "task.minibatches=1"),
    "imagenet_resnet50": (),
    "cifar10_resnet50": (),
}
# Wrong values by the type that a key has in its YAML file.
WRONG: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (bool, ("no", "off", "maybe", "'true'", "2", "[true]", "{a:1}", "''", "null")),
    (int, ("true", "abc", "-1", "nan", "inf", "[1]", "{a:1}", "''", "null")),
    (float, ("true", "abc", "-1", "nan", "-inf", "[1]", "{a:1}", "''", "null")),
    (str, ("7", "true", "[a]", "{a:1}", "null")),
    (list, ("5", "abc", "[abc]", "[true]", "[nan]", "[-1]", "{a:1}", "null")),
    (dict, ("5", "abc", "[1]", "true")),
)
PICKS = 2  # wrong values of each key of a task or an optimiser


class Trained(BaseException):
    """Nothing refused a command before its first step."""


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def train(self: Loop) -> None:
        raise Trained

    monkeypatch.setattr(Loop, "run", train)
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NERO_RUNS", raising=False)
    monkeypatch.chdir(tmp_path)


def refusal(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with how a bad command was refused, or None."""
    GlobalHydra.instance().clear()
    status: object
    try:
        status = main(words)
    except SystemExit as stop:
        status = stop.code
    except Trained:
        return "is accepted"
    error = capsys.readouterr().err
    if isinstance(status, str):
        error, status = error + status, 1
    lines = error.strip().splitlines()
    if status in (0, None):
        return f"ends with status {status}"
    if len(lines) != 1 or not lines[0].startswith("error: ") or "Traceback" in error or "NERO_DEBUG" in error:
        return f"prints {error[-500:]!r}"
    written = sorted(folder.rglob("*"))
    return f"writes {written[0]}" if written else None


def check_all(commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "runs"
    problems = []
    for words in commands:
        if problem := refusal(words, store, capsys):
            problems.append(f"nero {' '.join(words)}: {problem}")
            shutil.rmtree(store, ignore_errors=True)
    assert not problems, "\n".join(problems)


def wrong_values(value: Any) -> tuple[str, ...]:
    return next((wrong for kind, wrong in WRONG if isinstance(value, kind)), ())


def dotted(settings: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        yield f"{prefix}{name}", value
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")


def bad_settings(group: str, words: list[str]) -> list[str]:
    """For each key of a group in the composed config, some wrong values, and an unknown key beside it."""
    draw = random.Random(" ".join(words))
    cfg = OmegaConf.to_container(compose(words).cfg[group], resolve=False)
    assert isinstance(cfg, dict)
    found = [f"{group}.nonsense=1"]
    for key, value in dotted(cfg, f"{group}."):
        is_reference = isinstance(value, str) and "${" in value
        known = [] if is_reference or key.endswith(("display.title", "display_name")) else [*wrong_values(value)]
        right = ["-1", "[-1]"] if group == "optim" else []  # an optimiser may have negative settings
        if not isinstance(value, bool):  # null may be the default of a class
            right.append("null")
        known = [word for word in known if word not in right]
        found += [f"{key}={word}" for word in draw.sample(known, min(PICKS, len(known)))]
        found += [f"{key}.nonsense=1"] if isinstance(value, dict) else []
    return found


def bad_runs() -> dict[str, list[list[str]]]:
    """Bad command lines of `nero train`, by what they are about."""
    found = {}
    for task in names("task"):
        words = [f"task={task}", *SMALL.get(task, ()), *BASE]
        found[task] = [[*words, word] for word in bad_settings("task", words)]
    for optim in names("optim"):
        words = ["task=mnist_mlp100", *SMALL["mnist_mlp100"], f"optim={optim}", *BASE]
        found[optim] = [[*words, word] for word in bad_settings("optim", words)]
    return found


def each(keys: str, *words: str) -> list[str]:
    """Each of these words for each key."""
    return [f"{key}={word}" for key in keys.split() for word in words]


BAD_TOP_LEVEL = [
    *each("task optim machine tracking", "nope", "null", "5", "[1]", "true", "{a:1}"),
    *each("seed", "-1", "abc", "1.5", "true", "null", "[1]", "nan", "9" * 20),
    *each("data precision", "nope", "null", "[1]", "7"),
    *each("data_root inception store machine.stop_file", "''", "[1]", "{a:1}"),
    *each("machine.threads machine.gpus", "abc", "0", "-1", "1.5", "true", "nan", "[1]"),
    *each("machine.workers", "abc", "-1", "1.5", "true"),
    *each("machine.checkpoint_seconds machine.budget_seconds", "abc", "nan", "inf", "-1", "true", "[1]"),
    *each("machine.deadline", "tomorrow", "nan", "[1]"),
    *each("machine.device machine.parallel machine.backend machine.decode machine.lane", "nope", "7", "null"),
    *each("machine.capture machine.mps", "maybe", "no", "2", "null"),
    *each("machine.compile machine.channels_last machine.keep_checkpoint", "maybe", "null", "[true]"),
    *each("tracking.mirror", "abc", "5", "[a]", "{a:1}"),
    *each("optim.schedule optim._target_ task._target_ task.schedule._target_", "5", "abc", "nope.Nope", "nero.Nope"),
    *each("sead machine.gpu machine.thread optim.lrr task.epoch +task.nonsense +optim.nonsense +seed only", "1"),
    *each("+optim.clip_norm", "-1", "abc"),
    *("+optim.fused=no", "+optim.networks.nope.lr=1", "optim.lr=1,2", "task.epochs=[1", "seed=(", "=5", "optim.lr="),
    *("optim=mine/sgd", "~nope", "seed", "task.schedule=null", "data_root=null", "machine.checkpoint_seconds=null"),
    *("+optim.x=" + "9" * 20, "+optim.x='\x07'", "task.epochs=2000000000", "optim.lr=1" + "0" * 20),
    *("experiment=mnist", "only.optim=sgd", "hydra/launcher=nope", "--nope"),
]
"""Settings that `nero train` refuses whatever the task is."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*names("task"), *names("optim")])
def test_bad_setting_of_task_or_optimiser_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [["train", *words, f"store={tmp_path / 'runs'}"] for words in bad_runs()[name]]
    assert len(commands) > 5
    check_all(commands, tmp_path, capsys)


@pytest.mark.slow
def test_bad_top_level_setting_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "task=mnist_mlp100", *SMALL["mnist_mlp100"], "optim=adam", *BASE, f"store={tmp_path / 'runs'}"]
    check_all([[*base, word] for word in BAD_TOP_LEVEL], tmp_path, capsys)


@pytest.mark.slow
def test_bad_sweep_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "local" / "configs" / "optim" / "mine").mkdir(parents=True)
    nested = tmp_path / "local" / "configs" / "optim" / "mine" / "sgd2.yaml"
    nested.write_text((CONFIG_DIR / "optim" / "sgd.yaml").read_text())
    (nested.parent / "broken.yaml").write_text("lr: [1\n")
    store = f"store={tmp_path / 'runs'}"
    of_smoke = [
        *("optim.lr=5", "seed=3", "optim=sgd", "task=pong_ppo", "+optim.lr=5", "optim.lr=1,2", "only.task=nope"),
        *(
            "only.optim=sgdd",
            "only.seed=1",
            "task.nope=1",
            "machine.lane=x",
            "machine.mps=maybe",
            "hydra/launcher=nope",
        ),
        *each("hydra.sweeper.max_batch_size", "0", "-1", "abc"),
        *each("hydra.sweep.dir store", f"{tmp_path}/file/x"),
    ]
    others = [["nope"], ["smok"], ["smoke", "nope"], ["optim=sgd,nope"], ["seed=1,abc"]]
    others += [["optim.lr=choice("], ["optim.lr=range(1,0)"]]
    words = [*(["smoke", word] for word in of_smoke), *others, ["task=mnist_mlp100,"], ["optim=mine/broken,sgd"]]
    commands = [["sweep", "data=embedded", store, *word] for word in words]
    commands += [["train", *BASE, f"optim=mine/{name}", store] for name in ("sgd2", "broken", "nope")]
    check_all(commands, tmp_path, capsys)


ROW = {"task": "mnist_mlp100", "optim": ["nero", "sgd"], "lr": [0.1, 0.01], "search_seed": 0, "repeat_seeds": [1]}
EXPERIMENT = {"title": "Mine", "rows": [ROW]}
BAD_ROWS: dict[str, list[object]] = {
    "task": [None, 5, [], [5], {}, ""],
    "optim": [None, 5, [], [5], {}, "", ["nero", 5]],
    "lr": ["abc", None, [], [0.1, 0.1], [-1], [0], [True], {"a": 1}, [[1]], math.nan, math.inf, "1e999"],
    "search_seed": [-1, "abc", 1.5, True, None, [0]],
    "repeat_seeds": [-1, "abc", [-1], [1.5], [True], ["a"], {}],
    "overrides": ["task.epochs=1", 5, [5], ["nothing"], *(each("optim.lr seed task optim task.nope a", "1", "["))],
    "sweep": [
        5,
        [1],
        {"task.depth": 5},
        {"task.depth": ["abc"]},
        *({key: [1]} for key in ("optim.lr", "seed", "nope")),
    ],
    "label": [5, [1]],
    "nope": [1],
}
BAD_ROWS["overrides"][4:] = [[word] for word in BAD_ROWS["overrides"][4:]]
BAD_TEXTS = (
    *("", "5", "[1]", "title: [", "title: Mine\nrows: 5", "title: 5\nrows: []", "rows: []", "\t\x00", "a: &a [*a]"),
    *("title: Mine", "title: Mine\nrows: [5]", "title: Mine\nrows: {a: 1}", "title: Mine\nnope: 1\nrows: [{}]"),
)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["plan", "sweep", "report"])
def test_bad_experiment_is_refused_in_one_line_that_names_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*(text.encode() for text in BAD_TEXTS), b"title: \xff"]
    texts += [
        yaml.safe_dump({**EXPERIMENT, "rows": [{**ROW, key: value}]}).encode()
        for key, values in BAD_ROWS.items()
        for value in values
    ]
    path = tmp_path / "local" / "experiments" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(yaml.safe_dump(EXPERIMENT).encode())
    words = {
        "plan": ["plan", "mine", "--store", "runs"],
        "sweep": ["sweep", "mine", "data=embedded", "store=runs"],
        "report": ["report", "mine", "--store", "runs", "--out", "out"],
    }[command]
    problems = []
    for text in texts:
        path.write_bytes(text)
        if problem := refusal(words, tmp_path / "runs", capsys):
            problems.append(f"{text.decode(errors='replace')!r}: {problem}")
    assert not problems, "\n".join(problems)


OTHER_COMMANDS = {
    "runs": [
        "nope",
        "list --status nope",
        "list --sort nope",
        "list --where x",
        "list --where x=1",
        "compare",
        "compare nope nope",
        "compare a",
        "export",
        "export x.nope",
        "export nofolder/x.csv",
        "import",
        "import nope",
        "list --store nowhere",
        "check --store nowhere",
        "--nope",
        "list --task",
        "list --limit abc",
        "sync --mode nope",
    ],
    "plan": [
        "",
        "nope",
        "smoke --store",
        "smoke only.task=x",
        "smoke seed=3",
        "smoke task.epochs=abc",
        "smoke =",
        "--nope smoke",
        "smoke store=",
    ],
    "report": ["nope", "--store /dev/null smoke", "smok", "smoke --nope"],
    "data": ["nope", "--nope"],
    "theory": ["", "nope", "measure", "report --nope"],
    "bundle": ["--python abc", "--size 5x", "--nope", "--python 3.12 --platform"],
    "sample": ["", "nope", "--device x y", "nope --trust", "nope --trust os", "nope optim.lr=1"],
    "translate": ["nope", "nope --beam abc"],
    "generate": ["nope", "nope --temperature abc"],
    "play": ["nope"],
    "compare": [
        "",
        "nope",
        "nope.Nope",
        "torch.optim.SGD --task nope",
        "torch.nn.Linear",
        "torch.optim.SGD --seeds -1",
        "torch.optim.SGD optim.lr=1",
    ],
    "notebooks": ["--nope", "nope"],
    "train": ["--nope"],
    "sweep": ["", "--nope", "nope"],
}
"""Bad words after the name of a command."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_COMMANDS)
def test_bad_words_of_other_commands_are_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_all([[name, *words.split()] for words in OTHER_COMMANDS[name]], tmp_path, capsys)


@pytest.mark.parametrize("word", ["nope", "--nope", "trian", ""])
def test_unknown_command_is_refused_in_one_line(word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal([word], tmp_path, capsys) is None


@pytest.mark.parametrize("named", ["NERO_RUNS", "store"])
@pytest.mark.parametrize(
    "command", ["train", "sweep smoke", "plan smoke", "runs", "runs check", "report smoke", "sample x"]
)
def test_empty_store_is_refused_by_every_command(
    named: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*command.split(), *(BASE if command.startswith(("train", "sweep")) else ())]
    if named == "NERO_RUNS":
        monkeypatch.setenv("NERO_RUNS", "")
    else:
        words = [*words, "store="] if words[0] in ("train", "sweep") else [*words, "--store", ""]
    assert refusal(words, tmp_path / "local", capsys) is None


def test_traceback_is_shown_on_request(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NERO_DEBUG", "1")
    with pytest.raises(ConfigError, match=r"optim\.lr must be a positive number"):
        main(["train", *BASE, "optim.lr=-1"])


def test_unexpected_error_is_one_line_unless_debugging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: Path) -> None:
        raise ZeroDivisionError("of a test\nin two lines")

    monkeypatch.setattr("nero.cli.runs.Store", crash)
    assert main(["runs"]) == 1
    message = "error: ZeroDivisionError: of a test in two lines (NERO_DEBUG=1 shows the traceback)\n"
    assert capsys.readouterr().err == message
    monkeypatch.setenv("NERO_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["runs"])


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.6, 1.0, 1.5, 2.2])
def test_interrupt_at_start_of_command_gives_no_traceback(seconds: float, tmp_path: Path) -> None:
    """Most of the first two seconds of a command are imports."""
    words = [sys.executable, "-m", "nero.cli.main", "train", *BASE, "task.epochs=100000", f"store={tmp_path / 'runs'}"]
    # A shell lets the commands it starts in the background ignore SIGINT, which they pass on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        error = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert "Traceback" not in error
    assert "interrupted" in error or "resumes it" in error or error.count("epoch") > 0


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["optim.norm=no"], "optim.norm must be true or false, not 'no'"),
        (["optim.mean=off"], "optim.mean must be true or false, not 'off'"),
        (["optim=adam", "+optim.fused=no"], "optim.fused must be true or false, not 'no'"),
        (["machine.compile=maybe"], "machine.compile must be true or false, not 'maybe'"),
        (["task.epochs=true"], "task.epochs must be a positive integer, not True"),
        (["machine.budget_seconds=nan"], "machine.budget_seconds must be null or a non-negative number, not nan"),
        (["task.depth=abc"], "task.depth must be a number, not 'abc'"),
        (["optim=null"], "optim must be one of adam, "),
        (["optim=neroo"], "there is no optim=neroo (did you mean nero?); there are: adam, "),
        (["optim.betaa=1"], "there is no optim.betaa (did you mean beta?); there are: "),
        (["machine.thread=1"], "there is no machine.thread (did you mean threads?); there are: "),
    ],
)
def test_refusal_names_key_value_and_what_is_allowed(words: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(words)
    assert str(error.value).startswith(key)
    assert "\n" not in str(error.value)
