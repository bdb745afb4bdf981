"""The manual: its tables agree with the code, and its examples load and train."""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from conftest import PAGES as DOCUMENTS
from conftest import ROOT, tracked_yaml
from nero.cli import runs as runs_command
from nero.plans import folders
from nero.plans.comparison import BASELINES, cells_on, embedded_cells_on
from nero.plans.config import CONFIG_DIR, NOT_IDENTITY, NOT_IDENTITY_OF_OPTIM, NOT_IDENTITY_OF_TASK, compose
from nero.plans.plan import Cell, load_experiment
from nero.plans.schema import (
    ConfigError,
    DisplayKeys,
    MachineSchema,
    OnlySchema,
    OptimKeys,
    RunSchema,
    TaskKeys,
    refusal,
)
from nero.report import catalogue, display
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import to_markdown
from nero.runs.store import Store
from nero.tasks.base import Context, Task
from nero.train.build import build_optimizers, build_task
from nero.train.run import train

DOCS = ROOT / "docs"
PAGES = ("experiments", "adding_a_task", "your_optimiser")
# Keys of the open groups that no schema declares: Hydra's own, and those that `nero.train.build` reads.
UNDECLARED = {
    "task": {"_target_", "schedule", "display"},
    "optim": {"_target_", "_partial_", "clip_norm", "schedule", "networks", "display_name", "code"},
    "tracking": {"mirror"},
}
GUESS = 1 / 3**0.5  # RMSE of the best guess: frequencies are uniform between 1 and 3 Hz


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    language: str
    text: str

    @property
    def path(self) -> str | None:
        """The file that its first line names, such as "# configs/optim/mine.yaml"."""
        found = re.match(r"# ([\w/]+\.(?:yaml|py))\n", self.text)
        return found[1] if found else None

    @property
    def name(self) -> str:
        return f"{self.page}-{self.path or self.language}"


def blocks(*pages: str) -> list[Block]:
    found = []
    for page in pages:
        text = (DOCS / f"{page}.md").read_text()
        found += [Block(page, *match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)]
    return found


def documented(heading: str) -> dict[str, dict[str, str]]:
    """The table below a heading of docs/experiments.md: key -> column -> text."""
    _, _, rest = (DOCS / "experiments.md").read_text().partition(f"\n### {heading}\n")
    assert rest, heading
    section = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]
    heads, _, *lines = re.findall(
        r"^\| (.*) \|$", section[section.index("\n| key |") :].partition("\n\n")[0], re.MULTILINE
    )
    rows = [dict(zip(heads.split(" | "), line.split(" | "), strict=True)) for line in lines]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"].strip("`"): row for row in rows}


def accepted(folder: Path, text: Mapping[str, Any]) -> set[str]:
    """The keys that the loader accepts where `text` has the key "unknown", from its own error."""
    (folder / "x.yaml").write_text(yaml.safe_dump(dict(text)))
    with pytest.raises(ConfigError, match="unknown key 'unknown'; there are: ") as error:
        load_experiment("x", folder=folder)
    return set(str(error.value).rpartition(": ")[2].split(", "))


ROW = {"task": "mnist_mlp100", "optim": "nero", "lr": 0.1}
FILE = {"title": "x", "rows": [ROW]}


def test_experiment_keys_are_documented_as_the_loader_accepts_them(tmp_path: Path) -> None:
    assert set(documented("Keys of the file")) == accepted(tmp_path, FILE | {"unknown": 1})
    assert set(documented("Keys of a row")) == accepted(tmp_path, FILE | {"rows": [ROW | {"unknown": 1}]})


@pytest.mark.parametrize("heading", ["Keys of the file", "Keys of a row"])
def test_required_experiment_keys_are_documented_as_required(tmp_path: Path, heading: str) -> None:
    of_row = heading == "Keys of a row"
    for key, columns in documented(heading).items():
        without = {"rows": [{k: v for k, v in ROW.items() if k != key}]} if of_row else {}
        text = {k: v for k, v in FILE.items() if of_row or k != key} | without
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(text))
        if columns["default"] == "required":
            with pytest.raises(ConfigError, match=f"needs '{key}'"):
                load_experiment("x", folder=tmp_path)
        else:
            load_experiment("x", folder=tmp_path)


def test_documented_defaults_of_a_row_are_those_of_the_loader(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(FILE))
    [cell] = load_experiment("x", folder=tmp_path).cells
    rows = documented("Keys of a row")
    defaults = {key: yaml.safe_load(columns["default"].strip("`")) for key, columns in rows.items()}
    loaded = [cell.search_seed, list(cell.repeat_seeds), list(cell.overrides), dict(cell.variant)]
    assert loaded == [defaults[key] for key in ("search_seed", "repeat_seeds", "overrides", "sweep")]
    assert (cell.label, defaults["label"]) == ("", "none")


@pytest.mark.parametrize("heading", ["Keys of the file", "Keys of a row"])
def test_example_of_every_experiment_key_loads(tmp_path: Path, heading: str) -> None:
    for key, columns in documented(heading).items():
        example = yaml.safe_load(columns["example"].strip("`"))
        assert list(example) == [key]
        text = FILE | (example if heading == "Keys of the file" else {"rows": [ROW | example]})
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(text))
        for cell in load_experiment("x", folder=tmp_path).cells:
            assert cell.missing_config is None


def test_every_shipped_experiment_has_a_row_in_the_page() -> None:
    text = (DOCS / "experiments.md").read_text()
    names = re.findall(r"^\| `experiments/(\w+)\.yaml` \| .+ \| `make \1` \|$", text, re.MULTILINE)
    assert sorted(names) == sorted(_shipped("experiments"))


def _shipped(folder: str) -> set[str]:
    found = tracked_yaml(folder)
    if found is None:
        pytest.skip("not a git checkout")
    return found


@pytest.mark.parametrize(
    ("heading", "schema", "group"),
    [
        ("Keys of a run", RunSchema, None),
        ("Keys of `only`", OnlySchema, None),
        ("Keys of `task`", TaskKeys, "task"),
        ("Keys of `optim`", OptimKeys, "optim"),
        ("Keys of `machine`", MachineSchema, None),
    ],
)
def test_run_keys_and_types_are_documented_as_in_the_schema(heading: str, schema: type, group: str | None) -> None:
    rows = documented(heading)
    declared = {spec.name: spec for spec in fields(schema)}  # type: ignore[arg-type]
    assert set(rows) == set(declared) | UNDECLARED.get(group or "", set())
    for key, spec in declared.items():
        allowed = re.fullmatch(r"key must be (.*), not 0", refusal("key", 0, spec))
        assert allowed
        # The schema leaves open what names, lists and groups look like, and calls them text.
        if allowed[1] != "text" or spec.type is str:
            assert rows[key]["type"] == allowed[1], key
        if spec.default not in (MISSING, "???"):
            assert rows[key]["default"] == f"`{spec.default}`", key


def test_documented_defaults_are_those_of_the_shipped_configs() -> None:
    shipped = OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "config.yaml"), resolve=False)
    assert isinstance(shipped, dict)
    for item in shipped["defaults"]:
        if isinstance(item, dict):
            shipped |= item
    rows = documented("Keys of a run")
    # As text: an interpolation is no YAML.
    expected = {key: str(shipped[key]) if isinstance(shipped[key], str) else shipped[key] for key in rows}
    assert {key: _value(columns["default"]) for key, columns in rows.items()} == expected
    for group, name in (("machine", "auto"), ("tracking", "none")):
        values = yaml.safe_load((CONFIG_DIR / group / f"{name}.yaml").read_text())
        assert {key: _value(row["default"]) for key, row in documented(f"Keys of `{group}`").items()} == values
    only = {key: _value(row["default"]) for key, row in documented("Keys of `only`").items()}
    assert only == shipped["only"]


def _value(cell: str) -> object:
    text = cell.strip("`")
    return text if text.startswith("${") else yaml.safe_load(text)


def test_keys_of_display_are_documented_as_in_the_schema() -> None:
    text = (DOCS / "experiments.md").read_text()
    _, _, rows = text.partition("| key of `display` |")
    found = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", rows.partition("\n\n")[0], re.MULTILINE))
    allowed = {spec.name: refusal("key", 0, spec) for spec in fields(DisplayKeys)}
    assert {name: f"key must be null or {kind}, not 0" for name, kind in found.items()} == allowed


def test_documented_identity_is_that_of_the_code() -> None:
    left_out_of = {
        "Keys of a run": NOT_IDENTITY,
        "Keys of `task`": NOT_IDENTITY_OF_TASK,
        "Keys of `optim`": NOT_IDENTITY_OF_OPTIM,
    }
    for heading, left_out in left_out_of.items():
        rows = documented(heading)
        assert {row["identity"] for row in rows.values()} == {"yes", "no"}
        assert {key for key, row in rows.items() if row["identity"] == "no"} == set(left_out)
    identity = compose([]).identity
    assert {key for key, row in documented("Keys of a run").items() if row["identity"] == "yes"} <= set(identity)


def test_every_part_of_the_task_contract_is_documented() -> None:
    text = (DOCS / "adding_a_task.md").read_text()
    contract = {name for name in {**Task.__annotations__, **vars(Task)} if not name.startswith("_")}
    context = {spec.name for spec in fields(Context)}
    assert {"networks", "batches", "clip_norm", "metric"} <= contract
    mentioned = set(re.findall(r"`(\w+)[`(]", text))
    assert contract | context <= mentioned


@dataclass(frozen=True)
class Place:
    """A copy of configs, and folders for modules, experiments, and the user's own files (`local`)."""

    root: Path

    def write(self, *pages: str) -> None:
        """Write the blocks of these pages that name a file."""
        for block in blocks(*pages):
            if block.path:
                path = self.root / block.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)

    def experiment(self, name: str) -> tuple[Cell, ...]:
        folders = (self.root / "local" / "experiments", self.root / "experiments")
        return load_experiment(name, folder=next(each for each in folders if (each / f"{name}.yaml").exists())).cells


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where the examples of a page are written. Their modules can be imported during the test only."""
    shutil.copytree(CONFIG_DIR, tmp_path / "configs")
    monkeypatch.setattr(folders, "CONFIG_DIR", tmp_path / "configs")
    monkeypatch.setenv("NERO_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Place(tmp_path)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


def test_example_optimisers_are_built_and_step(place: Place) -> None:
    place.write("your_optimiser")
    optims = {Path(path).stem for block in blocks("your_optimiser") if (path := block.path) and "configs/optim" in path}
    assert {"mine", "mine_groups", "mine_constrained"} <= optims
    torch.manual_seed(0)
    for optim in sorted(optims):
        cfg = compose([f"optim={optim}"]).cfg
        network = torch.nn.Linear(4, 3)
        optimizer = build_optimizers(cfg.optim, _OneNetwork(network))["network"]
        before = [param.detach().clone() for param in network.parameters()]
        network(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        assert not any(map(torch.equal, before, network.parameters())), optim
        if optim == "mine_constrained":
            assert torch.allclose(network.weight.norm(dim=1), torch.ones(3))
    assert compose(["task=wikitext2_transformer", "optim=mine"]).cfg.optim.clip_norm == 0.25
    assert "clip_norm" not in compose(["task=mnist_mlp100", "optim=mine"]).cfg.optim


class _OneNetwork(Task):
    """Only what `build_optimizers` asks for."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.network = network

    batches = losses = evaluate = None  # type: ignore[assignment]


def test_example_task_trains_and_is_listed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.write("adding_a_task")
    store = place.root / "runs"
    words = [
        "task=tones",
        "optim=nero",
        "optim.lr=0.1",
        "task.epochs=2",
        "task.train_examples=2000",
        "machine=cpu",
        f"store={store}",
    ]
    outcome = train(compose(words))
    assert outcome["status"] == "done"
    assert outcome["final"] < GUESS / 2
    assert runs_command.main(["--store", str(store), "--task", "tones"]) == 0
    assert f"{outcome['run_id']}  done       2/2  val/rmse" in capsys.readouterr().out


def test_table_of_the_example_task_has_the_name_unit_and_digits_of_its_yaml(place: Place) -> None:
    place.write("adding_a_task")
    rows = [{"task": "tones", "optim": "nero", "lr": 0.1, "overrides": ["task.epochs=1", "task.train_examples=200"]}]
    (place.root / "local" / "experiments" / "short.yaml").write_text(yaml.safe_dump({"title": "x", "rows": rows}))
    store = Store(place.root / "runs")
    [cell] = load_experiment("short").cells
    final = train(compose([*cell.run(0.1, 0).overrides, "machine=cpu", f"store={store.root}"]))["final"]
    evidence = catalogue.gather("short", store)
    text = to_markdown(print_table(catalogue.make_table(evidence))).replace("\N{NO-BREAK SPACE}", " ")
    assert f"| Tones | error of the frequency (Hz) ↓ | {final:.4f} (n = 1, η = 0.1) |" in text
    axes = catalogue.make_figures(evidence)["short_sensitivity"].axes[0]
    assert axes.get_ylabel() == "error of the frequency (Hz)"


def test_example_task_is_short() -> None:
    [module] = [block for block in blocks("adding_a_task") if block.language == "python"]
    assert sum(bool(line.strip()) for line in module.text.splitlines()) <= 45


def test_example_task_gives_the_same_batches_when_it_starts_in_mid_epoch(place: Place) -> None:
    place.write("adding_a_task")
    task = build_task(compose(["task=tones", "task.train_examples=210"]), torch.device("cpu"))
    whole, rest = list(task.batches(3)), list(task.batches(3, start=2))
    assert len(whole) == task.steps_per_epoch == 5
    for batch, again in zip(whole[2:], rest, strict=True):
        assert all(map(torch.equal, batch, again))
    assert not torch.equal(whole[0][1], next(iter(task.batches(4)))[1])


EXPERIMENT_BLOCKS = [block for block in blocks(*PAGES) if block.language == "yaml" and "rows:" in block.text]


@pytest.mark.parametrize("block", EXPERIMENT_BLOCKS, ids=lambda block: block.name)
def test_example_experiments_load_and_compose(place: Place, block: Block) -> None:
    place.write("adding_a_task", "your_optimiser")
    (place.root / "experiments").mkdir(exist_ok=True)
    (place.root / "experiments" / "example.yaml").write_text(block.text)
    cells = place.experiment("example")
    assert not [cell.missing_config for cell in cells if cell.missing_config]
    rows = {cell.overrides + tuple(key for key, _ in cell.variant): cell for cell in cells}
    for cell in rows.values():  # one per kind of row: composing takes a tenth of a second
        run = cell.run(cell.lrs[0], cell.search_seed)
        assert run.run_id.startswith(f"{cell.task}-{cell.optim}-{cell.lrs[0]:g}-s0-")


def test_every_yaml_block_is_tested() -> None:
    others = [block for block in blocks(*PAGES) if block.language == "yaml" and block not in EXPERIMENT_BLOCKS]
    names = [block.path or "" for block in others]
    assert names
    named = [block.path for block in blocks(*PAGES) if block.path]
    assert len(named) == len(set(named)), "a file is written twice"
    groups = ("configs/optim/", "configs/task/", "configs/task_optim/")
    assert all(name.removeprefix("local/").startswith(groups) for name in names)


def test_number_of_runs_in_the_text_is_that_of_the_experiments(place: Place) -> None:
    place.write(*PAGES)
    first, mine = ((DOCS / f"{page}.md").read_text() for page in ("experiments", "your_optimiser"))
    assert f"= {sum(cell.run_count for cell in place.experiment('first'))} runs" in first
    tasks = re.findall(r"^nero compare torch.optim.NAdam --tasks (.*) --embedded", mine, re.MULTILINE)[0].split()
    embedded = [cell for task in tasks for cell in embedded_cells_on(task, "nadam", BASELINES, None)]
    assert f" {sum(cell.run_count for cell in embedded)} runs take " in mine
    table1 = {cell.task for cell in load_experiment("table1").cells}
    own = sum(cells_on(task, "nadam", BASELINES, None)[0].run_count for task in table1)
    assert f"All six tasks of Table 1 are {own} runs of your optimiser" in " ".join(mine.split())


def test_links_of_the_pages_lead_to_pages() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", (DOCS / f"{page}.md").read_text()):
            assert (DOCS / target).exists(), f"{page}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page that GitHub and the site both have; on the site also those of documented names."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    on_github, on_site = ({re.sub(spaces, "-", title) for title in titles} for spaces in (r"\s", r"[-\s]+"))
    return on_github & on_site | set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_to_headings_that_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_anchors_are_those_of_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two `words`: one, two\n\n```yaml\n# a comment\n```\n\n## A & B\n\n::: nero.optim.Nero\n")
    assert anchors(page) == {"two-words-one-two", "nero.optim.Nero"}, "GitHub has a--b, and the site a-b"
    assert {"fine-tuning", "param-groups-by-role"} <= anchors(DOCS / "optimiser.md")


def test_baselines_with_momentum_are_documented() -> None:
    text = " ".join((DOCS / "your_optimiser.md").read_text().split())
    [documented] = re.findall(r"run without momentum\. The exceptions, set in `configs/task_optim`, are (.*?)\. ", text)
    found = set()
    for optim in set(BASELINES) - {"nero"}:
        for path in [CONFIG_DIR / "optim" / f"{optim}.yaml", *CONFIG_DIR.glob(f"task_optim/*/{optim}.yaml")]:
            settings = yaml.safe_load(path.read_text())
            if settings.get("momentum") or settings.get("betas", [0])[0]:
                found.add((path.parent.name, display.optimizer_names()[optim]))
    phrases = re.split(r", and |, ", documented)
    named = {(task, name) for phrase in phrases for task in re.findall(r"`(\w+)`", phrase) for name in _optims(phrase)}
    assert named == found


def _optims(phrase: str) -> list[str]:
    return re.findall(r"\b(SGD|Adam|LAMB)\b", phrase)
