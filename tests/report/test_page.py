"""Tests of the HTML page: complete, self-contained, reproducible, and safe against markup in run data."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nero.report import catalogue
from nero.report.assembly import PAGE, Report
from nero.report.page import page
from nero.report.page.data import pack
from nero.runs.store import Store
from support import theory_records
from support.fake_runs import FID, cells_of, fill, loaded, plausible, write_run
from support.image_files import encoded, picture

SCRIPT_END = "</script><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _experiments_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "load_experiment", loaded)


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
    assert done["curve"] == {"xlabel": "epoch", "ylabel": done["metric"], "x": [1, 2, 3], "y": [20.0, 30.0, 60.0]}


def test_run_data_includes_energy_and_gpu_process_count(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    run.write_summary({**run.read_summary(), "joules": 5000.0, "gpu_processes": 7})
    [shown] = runs_of(build(store, tmp_path / "out", "mnist"))["runs"]
    assert (shown["joules"], shown["gpu_processes"]) == (5000.0, 7)


@pytest.mark.slow
def test_page_sections_follow_order_of_experiments_and_figures(store: Store, tmp_path: Path) -> None:
    text = build(store, tmp_path / "out", "table1", "mnist", "checks")
    sections = [attributes["id"] for tag, attributes in Tags(text).tags if tag == "section"]
    figures = [f"figure{number}" for number in (3, 4, 5, 6, 7)]
    assert sections == ["table1", "mnist", "checks", "sensitivity", "costs", *figures, "checks-curves", "runs"]
    assert list(data_of(text)["figures"]) == [*figures, "checks"]


@pytest.mark.slow
def test_navigation_links_every_section_and_ids_are_unique(store: Store, tmp_path: Path) -> None:
    text = build(store, tmp_path / "out", "table1", "mnist", "checks")
    tags = Tags(text).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    inner = [
        href for tag, attributes in tags if tag == "a" and not (href := attributes["href"] or "").startswith("#run=")
    ]
    sections = [attributes["id"] for tag, attributes in tags if tag == "section"]
    assert [href.removeprefix("#") for href in inner] == ["content", *sections]
    names = re.findall(r'<a href="#[^"]*">([^<]*)</a>', text)
    assert len(names) == len(set(names))


def test_page_includes_theory_sections_with_run_links(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    record = theory_records.network_record(robust=theory_records.robustness()) | {"run_id": run.run_id}
    theory_records.write_all(tmp_path / "out" / "theory", [record])
    text = build(store, tmp_path / "out", "mnist")
    sections = [attributes["id"] for tag, attributes in Tags(text).tags if tag == "section"]
    theory = ["theory_balance", "theory_steps", "theory_robustness", "theory_bound"]
    assert sections == ["mnist", "sensitivity", "costs", *theory, "figure3", "runs"]
    assert f'href="#run={run.run_id}"' in text.partition('id="theory_robustness"')[2]


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
    assert "</script" not in page._json({"a": SCRIPT_END})


def test_page_output_is_reproducible(store: Store, tmp_path: Path) -> None:
    fill(store, "mnist", plausible)
    assert build(store, tmp_path / "out", "mnist") == build(store, tmp_path / "out", "mnist")
    assert str(tmp_path) not in build(store, tmp_path / "out", "mnist"), "no machine's own paths"


@pytest.mark.slow
def test_samples_show_one_run_per_optimiser_by_epoch(store: Store, tmp_path: Path) -> None:
    cell = cells_of("table1")["cifar10_cgan nero"]
    run = write_run(store, cell, 0.01, 0, 15.0, metric=FID)
    pictures = [encoded(picture(seed=epoch)) for epoch in (10, 20)]
    for epoch, data in zip((10, 20), pictures, strict=True):
        run.write_picture("samples.jpg", epoch, data)
    write_run(store, cells_of("table1")["cifar10_cgan sgd"], 0.01, 0, 35.0, metric=FID)
    text = build(store, tmp_path / "out", "table1")
    [shown] = data_of(text)["samples"]
    assert (shown["name"], shown["run"], shown["detail"]) == ("Nero", run.run_id, "η = 0.01, seed 0, FID 15.00")
    assert [each["epoch"] for each in shown["pictures"]] == [10, 20]
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
    assert len(data_of(text)["figures"]) == 12, "Figures 1 to 9, the checks, and two of modern optimisers"
    assert len(notes) >= 10
    assert all(note.startswith(("missing: ", "search incomplete: ")) for note in notes)


def test_page_is_built_despite_damaged_run_files(store: Store, tmp_path: Path) -> None:
    run = write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    (run.path / "config.yaml").unlink()
    (run.path / "metrics.jsonl").write_text('{"epoch": 1, "train/acc')
    (run.path / "provenance.jsonl").write_text("no json\n")
    [shown] = runs_of(build(store, tmp_path / "out", "mnist"))["runs"]
    assert (shown["config"], shown["curve"], shown["provenance"]) == (None, None, [])


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
