"""Tests of the HTML page: complete, self-contained, reproducible, and safe against markup in run data."""

import base64
import gzip
import io
import json
import re
from collections import Counter
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nero.report import catalogue, display, readme
from nero.report.assembly import PAGE, Report
from nero.report.page import page
from nero.report.page.data import NOT_METRICS, game_data, pack
from nero.runs.logged import logged_runs
from nero.runs.store import Store
from support import theory_records
from support.fake_runs import ERROR, FID, REWARD, cells_of, fill, loaded, plausible, write_run
from support.image_files import encoded, picture

SCRIPT_END = "</script><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _experiments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)


def dotted_config(store: Store, run_id: str) -> dict:
    return next(run.settings for run in logged_runs(store) if run.run_id == run_id)


def lines_of(store: Store, run_id: str) -> list[dict]:
    return next(run.read_metrics() for run in store.runs() if run.run_id == run_id)


def build(store: Store, out: Path, *names: str) -> str:
    report = Report([catalogue.gather(name, store) for name in names], store, out)
    return report.page()[PAGE].decode()


class Tags(HTMLParser):
    """Parser that collects every tag with its attributes, and the raw text of scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str | None, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            name = self.tags[-1][1].get("id")
            self.scripts[name] = self.scripts.get(name, "") + data


def data_of(text: str) -> dict:
    return json.loads(Tags(text).scripts["figures-data"])


def runs_of(text: str) -> dict:
    return json.loads(gzip.decompress(base64.b64decode(Tags(text).scripts["runs-data"])))


def test_page_includes_every_run_with_config_provenance_and_curve(store: Store, tmp_path: Path) -> None:
    fill(store, "mnist", plausible)
    other = write_run(store, cells_of("table1")["cifar10_vgg11 nero"], 0.5, 9, None)
    other.add_provenance({"commit": "abc", "command": "scripts/train.py"})
    found = {run["id"]: run for run in runs_of(build(store, tmp_path / "out", "mnist"))["runs"]}
    assert found.keys() == {run.run_id for run in store.runs()}, "also of those that no shown experiment asks for"
    run = found[other.run_id]
    assert run["config"] == (other.path / "config.yaml").read_text()
    assert run["provenance"] == other.read_provenance()
    assert (run["status"], run["final"], run["optim"], run["lr"], run["seed"]) == ("diverged", None, "Nero", 0.5, 9)
    done = found[cells_of("mnist")["mnist_mlp100 lamb"].run(0.001, 0).run_id]
    assert (done["final"], done["metric"], done["goal"]) == (60.0, "training accuracy (%)", "max")
    curve = done["metrics"][done["metric_key"]]
    assert (curve["x"], curve["y"]) == ([1, 2, 3], [20.0, 30.0, 60.0])
    assert curve["seconds"] == list(np.cumsum([line.get("seconds", 0) for line in lines_of(store, done["id"])]))
    assert done["metrics"].keys() == {key for line in lines_of(store, done["id"]) for key in line} - NOT_METRICS
    assert done["settings"] == dotted_config(store, done["id"])
    assert done["task_name"] == "MNIST MLP"


def test_run_data_includes_energy_and_gpu_process_count(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    run.write_summary({**run.read_summary(), "joules": 5000.0, "gpu_processes": 7})
    [shown] = runs_of(build(store, tmp_path / "out", "mnist"))["runs"]
    assert (shown["joules"], shown["gpu_processes"]) == (5000.0, 7)


def sections_of(text: str) -> list[str]:
    return [attributes["id"] for tag, attributes in Tags(text).tags if tag == "section"]


@pytest.mark.slow
def test_page_has_finding_then_table_1_then_figures(store: Store, tmp_path: Path) -> None:
    text = build(store, tmp_path / "out", "table1", "mnist", "checks")
    figures = [f"figure{number}" for number in (3, 4, 5, 6, 7)]
    main = ["table1", "figures", *figures, "rates", "learning_rates", "sensitivity"]
    folded = ["more-part", "mnist", "costs-part", "costs", "checks-part", "checks", "checks-curves", "runs"]
    assert sections_of(text) == [*main, *folded]
    assert text.index('<header id="finding">') < text.index('id="table1"')
    assert sorted(data_of(text)["figures"]) == sorted([*figures, "checks", "learning_rates"])


@pytest.mark.slow
def test_navigation_leads_to_sections_and_ids_are_unique(store: Store, tmp_path: Path) -> None:
    text = build(store, tmp_path / "out", "table1", "mnist", "checks")
    tags = Tags(text).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    inner = [
        href for tag, attributes in tags if tag == "a" and not (href := attributes["href"] or "").startswith("#run=")
    ]
    assert {href.removeprefix("#") for href in inner} <= set(ids)
    assert text.count("<nav") == 1
    nav = text.partition("<nav")[2].partition("</nav>")[0]
    parts = ["finding", "table1", "figures", "rates", "more-part", "costs-part", "checks-part", "runs"]
    assert [
        part for part in re.findall(r'href="#([^"]*)"', nav) if not part.startswith("figure") or part == "figures"
    ] == parts


def test_page_includes_theory_sections_with_run_links(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    record = theory_records.network_record(robust=theory_records.robustness()) | {"run_id": run.run_id}
    theory_records.write_all(tmp_path / "out" / "theory", [record])
    (tmp_path / "out" / "figures").mkdir()
    (tmp_path / "out" / "figures" / "theory_steps.svg").write_text("<svg>steps</svg>")
    text = build(store, tmp_path / "out", "mnist")
    theory = ["theory", "theory_balance", "theory_steps", "theory_robustness", "theory_bound"]
    assert sections_of(text) == [
        *("tables", "mnist", "figures", "figure3", "rates", "sensitivity", "costs-part", "costs"),
        *theory,
        "runs",
    ]
    assert "How to read the tables" in text
    assert f'href="#run={run.run_id}"' in text.partition('id="theory_robustness"')[2]
    pictures = json.loads(gzip.decompress(base64.b64decode(Tags(text).scripts["pictures-data"])))
    assert pictures == {"theory_steps": {"svg": "<svg>steps</svg>", "title": "Steps"}}


def test_grid_has_the_state_of_every_cell_and_leads_to_it(store: Store, tmp_path: Path) -> None:
    nero, sgd = (cells_of("table1")[f"cifar10_vgg11 {optim}"] for optim in ("nero", "sgd"))
    for seed, (error, worse) in enumerate([(0.111, 0.15), (0.112, 0.151), (0.113, 0.149)]):
        write_run(store, nero, 0.01, seed, error, metric=ERROR)
        write_run(store, sgd, 0.1, seed, worse, metric=ERROR)
    text = build(store, tmp_path / "out", "table1")
    grid = re.findall(r'<a href="#([^"]*)" class="chip([^"]*)" data-state="(\w+)"', text)
    assert len(grid) == 24
    states = {anchor: (state, "preliminary" in classes) for anchor, classes, state in grid}
    assert states["table1-cifar10_vgg11-nero"] == ("agrees", True), "the search is incomplete"
    assert states["table1-cifar10_vgg11-sgd"] == ("higher", True)
    assert states["table1-pong_ppo-adam"] == ("incomplete", False)
    assert Counter(state for state, _ in states.values()) == {"agrees": 1, "higher": 1, "incomplete": 22}
    assert all(f'<td id="{anchor}"' in text for anchor in states)


def test_reason_stands_below_the_row_of_a_cell_that_differs(store: Store, tmp_path: Path) -> None:
    for seed in range(3):
        write_run(store, cells_of("table1")["cifar10_vgg11 sgd"], 0.1, seed, 0.15 + 0.001 * seed, metric=ERROR)
    entry = {
        "experiment": "table1",
        "task": "cifar10_vgg11",
        "optim": "sgd",
        "reason": "Rounding <b>",
        "check": "checks: bf16",
    }
    (store.root.parent / "disagreements.yaml").write_text(json.dumps([entry]))
    text = build(store, tmp_path / "out", "table1")
    [why] = re.findall(r'<p data-why="([^"]*)">(.*?)</p>', text)
    assert why[0] == "table1-cifar10_vgg11-sgd"
    assert why[1] == '<strong>SGD is higher.</strong> Rounding &lt;b&gt;. <a href="#checks">Check</a>: bf16.'
    row = text.partition('<td id="table1-cifar10_vgg11-sgd"')[2].partition("</tbody>")[0]
    assert "data-why" in row


def test_page_begins_with_findings_date_and_commit(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("table1")["cifar10_vgg11 sgd"], 0.1, 0, 0.13, metric=ERROR)
    run.add_provenance({"commit": "abcdef0123456789", "started": "2026-01-02T03:04:05Z"})
    text = build(store, tmp_path / "out", "table1")
    header = text.partition('<header id="finding">')[2].partition("</header>")[0]
    evidence = catalogue.gather("table1", store)
    for sentence in readme.findings_sentences([evidence], catalogue.make_table(evidence)):
        assert escape(sentence) in header
    assert "The latest run was started on 2026-01-02 with commit abcdef0123." in header


def test_page_loads_no_external_resources(store: Store, tmp_path: Path) -> None:
    fill(store, "mnist", plausible)
    text = build(store, tmp_path / "out", "mnist")
    for tag, attributes in Tags(text).tags:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"@import|url\(\s*['\"]?(?!data:|#)", text)
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|\bimport\(", text)
    policy = next(attributes["content"] for tag, attributes in Tags(text).tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none';")


def test_run_data_cannot_inject_scripts(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3, status="failed")
    run.write_summary({**run.read_summary(), "traceback": SCRIPT_END, "device": SCRIPT_END})
    run.add_provenance({"command": SCRIPT_END})
    text = build(store, tmp_path / "out", "mnist")
    assert "alert(1)" not in text
    [shown] = runs_of(text)["runs"]
    assert shown["traceback"] == SCRIPT_END
    assert json.loads(page._json({"a": SCRIPT_END})) == {"a": SCRIPT_END}
    assert "<" not in page._json({"a": SCRIPT_END, "b": "<!--<script>"})


def test_names_of_tasks_optimisers_and_metrics_are_no_markup(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = '<img src=x onerror=alert(1)>"|'
    monkeypatch.setattr(display, "task_name", lambda task: f"{hostile} {task}")
    monkeypatch.setattr(display, "optimizer_names", lambda: {"nero": f"Nero {hostile}", "sgd": hostile})
    fill(store, "mnist", plausible)
    for run in store.runs():
        summary = run.read_summary() or {}
        run.write_summary({**summary, "device": hostile, "metric": {**summary["metric"], "label": hostile}})
    evidence = catalogue.gather("mnist", store)
    report = Report([evidence], store, tmp_path / "out")
    text = report.page()[PAGE].decode()
    assert "<img src=x" not in text
    assert not any("onerror" in attributes for _, attributes in Tags(text).tags)
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    files = {**report.texts(evidence), **report.overview_texts()}
    written = [content for path, content in files.items() if path.suffix == ".md"]
    assert any(b"&lt;img" in content for content in written)
    assert not any(b"<img" in content for content in written)


def test_page_output_is_reproducible(store: Store, tmp_path: Path) -> None:
    fill(store, "mnist", plausible)
    assert build(store, tmp_path / "out", "mnist") == build(store, tmp_path / "out", "mnist")
    assert str(tmp_path) not in build(store, tmp_path / "out", "mnist"), "no machine's own paths"


def fid_line(measured: tuple[int, float]) -> str:
    return json.dumps({"epoch": measured[0], "step": measured[0], FID["key"]: measured[1]}) + "\n"


def test_game_of_the_first_seed_with_one_is_shown(store: Store) -> None:
    cell = cells_of("table1")["pong_ppo nero"]
    write_run(store, cell, 0.01, 0, 20.0, metric=REWARD)
    run = write_run(store, cell, 0.01, 1, 19.5, metric=REWARD)
    frames = [Image.new("P", (8, 6), colour) for colour in (1, 2, 3)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=1000)
    run.write_picture("game.gif", 100, file.getvalue())
    states = catalogue.gather("table1", store).states
    [game] = game_data(states, store)
    assert (game["name"], game["run"], game["detail"]) == ("Nero", run.run_id, "η = 0.01, seed 1, reward 19.50")
    assert base64.b64decode(game["src"].removeprefix("data:image/gif;base64,")) == file.getvalue()
    assert (game["width"], game["height"], game["length"]) == (8, 6, 3)
    with Image.open(io.BytesIO(base64.b64decode(game["still"].partition(",")[2]))) as still:
        assert still.size == (8, 6)
    (run.path / "pictures" / "game-epoch100.gif").write_bytes(b"GIF89a damaged")
    assert game_data(states, store) == []


@pytest.mark.slow
def test_samples_show_one_run_per_optimiser_by_epoch(store: Store, tmp_path: Path) -> None:
    cell = cells_of("table1")["cifar10_cgan nero"]
    run = write_run(store, cell, 0.01, 0, 15.0, metric=FID)
    (run.path / "metrics.jsonl").write_text("".join(map(fid_line, [(10, 90.0), (20, 15.0)])))
    pictures = [encoded(picture(seed=epoch)) for epoch in (10, 20)]
    for epoch, data in zip((10, 20), pictures, strict=True):
        run.write_picture("samples.jpg", epoch, data)
    write_run(store, cells_of("table1")["cifar10_cgan sgd"], 0.01, 0, 35.0, metric=FID)
    text = build(store, tmp_path / "out", "table1")
    [shown] = data_of(text)["samples"]
    assert (shown["name"], shown["run"], shown["detail"]) == ("Nero", run.run_id, "η = 0.01, seed 0")
    assert [(each["epoch"], each["value"]) for each in shown["pictures"]] == [(10, "FID 90.00"), (20, "FID 15.00")]
    for of_epoch, data in zip(shown["pictures"], pictures, strict=True):
        kind, _, file = of_epoch["src"].partition(";base64,")
        assert (kind, base64.b64decode(file)) == ("data:image/jpeg", data)
    assert len(shown["columns"]) == 10
    assert 'id="samples"' in text
    assert "figure4_samples" not in text, "the page has a way of its own to show them"


def test_embedded_data_notice_precedes_main_content(store: Store, tmp_path: Path) -> None:
    fill(store, "smoke", plausible, data="embedded")
    text = build(store, tmp_path / "out", "smoke")
    assert text.index("Runs on embedded data") < text.index("<main>")
    assert "Embedded data, not the paper&#x27;s" in text


@pytest.mark.slow
def test_page_of_empty_store_reports_missing_runs(store: Store, tmp_path: Path) -> None:
    text = build(store, tmp_path / "out", *catalogue.CATALOGUE)
    assert runs_of(text)["runs"] == []
    assert data_of(text)["samples"] == []
    notes = [
        note for figure in data_of(text)["figures"].values() for panel in figure["panels"] for note in panel["notes"]
    ]
    assert len(data_of(text)["figures"]) == 14, (
        "Figures 1 to 9, learning rates, the checks, the pipeline, and two of modern optimisers"
    )
    assert len(notes) >= 10
    assert all(note.startswith(("missing: ", "search incomplete: ")) for note in notes)


def test_page_is_built_despite_damaged_run_files(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    (run.path / "config.yaml").unlink()
    (run.path / "metrics.jsonl").write_text('{"epoch": 1, "train/acc')
    (run.path / "provenance.jsonl").write_text("no json\n")
    [shown] = runs_of(build(store, tmp_path / "out", "mnist"))["runs"]
    assert (shown["config"], shown["metrics"], shown["provenance"]) == (None, {}, [])


def test_run_without_an_end_is_not_done(store: Store) -> None:
    cell = cells_of("mnist")["mnist_mlp100 nero"]
    run = write_run(store, cell, 0.01, 0, 0.3)
    run.write_summary({**run.read_summary(), "status": "running", "epochs_done": 1})
    lost = write_run(store, cell, 0.01, 1, 0.3)
    lost.write_summary({**lost.read_summary(), "final": None, "final_metrics": {}})
    shown = {
        one["id"]: one["status"] for one in json.loads(gzip.decompress(base64.b64decode(pack(store, "runs"))))["runs"]
    }
    assert shown == {run.run_id: "unfinished", lost.run_id: "unmeasured"}


def test_script_list_matches_folder() -> None:
    listed = (page.FILES / "scripts.txt").read_text().split()
    there = [file.name for file in page.FILES.iterdir() if file.name.endswith(".js")]
    assert sorted(listed) == sorted(there)


def test_template_raises_on_unused_or_missing_parts() -> None:
    assert page._filled("a {{x}} b {{y}}", {"x": "{{y}}", "y": "2"}) == "a {{y}} b 2", "parts are not looked into"
    with pytest.raises(ValueError, match="no place for z"):
        page._filled("a {{x}}", {"x": "1", "z": "2"})
    with pytest.raises(KeyError, match="y"):
        page._filled("a {{y}}", {})


def test_store_path_on_page_is_relative(store: Store) -> None:
    assert runs_of(build(store, store.root.parent / "results", "smoke"))["store"] == "runs"


def test_packed_run_data_has_no_timestamp(store: Store) -> None:
    write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    assert base64.b64decode(pack(store, "runs"))[4:8] == bytes(4), "gzip's time"
