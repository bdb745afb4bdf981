"""Tests of the report page of the committed runs in headless Chromium.

They are skipped if Chromium or its driver is missing (on Debian: apt-get install chromium chromium-driver).
"""

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from conftest import ROOT
from nero.report import catalogue, readme
from nero.report.assembly import PAGE, Report
from nero.report.cells import CellKey
from nero.report.page import results
from nero.report.units import number
from nero.runs.logged import logged_runs
from nero.runs.store import Store
from report.test_sample_strips import OPTIMS, with_many_pictures

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and its driver"),
]
STORE = Store(ROOT / "results" / "runs")
RUN = "cifar10_vgg11-nero-0.01-s0-16756509"
ALONE, SHARED = "cifar10_vgg11-nero-0.01-s1-500f48f9", "cifar10_vgg11-nero-0.01-s2-fe60d66e"  # by use of the GPU
DESKTOP, WIDE, PHONE = (1280, 900), (1440, 900), (360, 740)
VALIDATION = '#figure5 [data-panel="1"]'  # of VGG-11
OPTIMISERS = ["Nero", "SGD", "Adam", "LAMB"]


class Reader:
    """A browser with the page open."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, fragment: str = "", size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        """Load the page afresh, with the given viewport size and preferred colour scheme."""
        self.driver.get("about:blank")
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(self.address + fragment)
        self.wait(lambda: self.run("return document.querySelectorAll('#runs tbody tr[data-run]').length"))

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition) -> None:
        WebDriverWait(self.driver, 20).until(lambda _: condition())

    def run(self, script: str, *words: object) -> object:
        return self.driver.execute_script(script, *words)

    def in_sight(self, element: WebElement) -> WebElement:
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        return element

    def chart(self, panel: str = VALIDATION) -> WebElement:
        """A panel's plot in the middle of the window, once it is drawn."""
        plot = self.in_sight(self.one(f"{panel} .plot"))
        self.wait(lambda: plot.get_attribute("data-view"))
        return plot

    def curves(self, panel: str = VALIDATION) -> list[str]:
        """Names of the curves that the chart shows."""
        names = self.run("return arguments[0].data.filter((t) => t.meta?.series).map((t) => t.name)", self.chart(panel))
        return [str(name).partition(",")[0] for name in names]

    def query(self) -> dict[str, str]:
        """What the address keeps."""
        return {key: values[0] for key, values in parse_qs(urlsplit(self.driver.current_url).query).items()}

    def press(self, selector: str) -> None:
        self.in_sight(self.one(selector)).click()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on Table 1, its figures and the checks from the committed runs."""
    experiments = [catalogue.gather(name, STORE) for name in ("table1", "checks")]
    return Report(experiments, STORE, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(report: Report) -> Path:
    [(path, data)] = report.page().items()
    assert path == PAGE
    (report.out / path).write_bytes(data)
    return report.out / path


@pytest.fixture(scope="module")
def reader(page: Path) -> Iterator[Reader]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    # Chromium cannot use its sandbox when it runs as root, as it may in tests.
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield Reader(driver, page.as_uri())
    finally:
        driver.quit()


def events(reader: Reader) -> list[dict]:
    """The browser's performance log events since the last call."""
    return [json.loads(entry["message"])["message"] for entry in reader.driver.get_log("performance")]


def test_page_loads_without_console_messages_or_network_requests(reader: Reader) -> None:
    reader.driver.get("about:blank")
    reader.driver.get_log("browser")
    events(reader)
    reader.open()
    reader.press(f'#table1 a[href="#run={RUN}"]')
    reader.wait(lambda: reader.all("#run-dialog[open] pre"))
    assert reader.driver.get_log("browser") == []
    sent = [
        event["params"]["request"]["url"] for event in events(reader) if event["method"] == "Network.requestWillBeSent"
    ]
    asked = {address.partition("#")[0] for address in sent if not address.startswith(("data:", "about:", "blob:"))}
    assert asked == {reader.address}


def test_first_screen_says_what_was_found(reader: Reader, report: Report) -> None:
    reader.open()
    sentences = readme.findings_sentences(report.experiments, report.tables["table1"])
    for sentence in sentences:
        [shown] = [each for each in reader.all("#finding p") if each.text == sentence]
        assert shown.rect["y"] + shown.rect["height"] < DESKTOP[1]
    grid = reader.one("#finding .agreement")
    assert grid.rect["y"] + grid.rect["height"] < DESKTOP[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_grid_of_agreement_leads_to_the_cells(reader: Reader, report: Report, scheme: str) -> None:
    reader.open(scheme=scheme)
    chips = reader.all("#finding .agreement a.chip")
    entries = report.tables["table1"].entries
    words = [str(results.state(entry)) for entry in entries]
    assert [chip.text.split()[-1] for chip in chips] == words
    assert [chip.get_attribute("data-state") for chip in chips] == words
    assert len(set(words)) >= 3, "or the colours are not tested"
    assert reader.run(LUMINANCE + CHIP_CONTRAST, chips) >= 4.5
    chips[5].click()
    target = reader.one("#table1 td:target")
    assert target.get_attribute("data-cell") == "|".join((entries[5].cell.task, "", "", entries[5].cell.optim))
    assert 0 <= reader.run("return arguments[0].getBoundingClientRect().top", target) < DESKTOP[1]


def test_reasons_stand_below_the_rows_of_cells_that_differ(reader: Reader, report: Report) -> None:
    table = report.tables["table1"]
    expected = {
        results.anchor(table, entry): why
        for entry in table.entries
        if entry.verdict and entry.verdict.differs and (why := table.disagreements.get(CellKey.of(entry.cell)))
    }
    assert expected
    reader.open()
    shown = {why.get_attribute("data-why"): why for why in reader.all("#table1 [data-why]")}
    assert shown.keys() == expected.keys()
    for anchor, why in shown.items():
        assert expected[anchor].partition(" Check: ")[0] in why.text
        cell, below = reader.one(f"#{anchor}").rect, why.rect
        assert below["y"] >= cell["y"] + cell["height"] - 1
        assert why.find_elements(By.CSS_SELECTOR, 'a[href="#checks"]')


def test_link_into_folded_part_opens_it(reader: Reader) -> None:
    reader.open()
    assert not reader.one("#checks").is_displayed()
    reader.press('#table1 [data-why] a[href="#checks"]')
    reader.wait(lambda: reader.one("#checks").is_displayed())


def test_sections_come_in_order(reader: Reader) -> None:
    reader.open()
    order = ["finding", "table1", "figures", "rates", "costs-part", "checks-part", "runs"]
    tops = [
        reader.run("return document.getElementById(arguments[0]).getBoundingClientRect().top", key) for key in order
    ]
    assert tops == sorted(tops)


def test_table_values_match_csv(reader: Reader, report: Report) -> None:
    texts = report.texts(report.experiments[0])
    lines = list(csv.DictReader(io.StringIO(texts[Path("tables/table1.csv")].decode())))
    reader.open()
    shown = {
        cell.get_attribute("data-cell"): cell.find_element(By.CSS_SELECTOR, ".value").text
        for cell in reader.all("#table1 td[data-cell]")
    }
    named = {"|".join(line[word] for word in ("task", "label", "variant", "optim")): line for line in lines}
    assert shown.keys() == named.keys()
    assert any(line["mean"] for line in lines)
    for name, line in named.items():
        found = shown[name]
        if not line["mean"]:
            assert found == line["status"]
            continue
        expected = [float(line[key]) for key in ("mean", "std") if line[key]]
        # The CSV has ten digits: a mean at the edge between two roundings may be printed as either.
        assert [float(part) for part in found.split(" ± ")] == pytest.approx(expected, abs=0.0050001)


def test_sensitivity_values_match_csv(reader: Reader, report: Report) -> None:
    lines = csv.DictReader(io.StringIO(report.overview_texts()[Path("tables/sensitivity.csv")].decode()))
    reader.open()
    words = ("task", "label", "variant", "optim", "precision")
    for line in (line for line in lines if line["run"]):
        name = "|".join([*(line[word] for word in words), f"{float(line['lr']):g}"])
        cell = reader.one(f'#sensitivity td[data-cell="{name}"]')
        assert cell.get_attribute("textContent") == (number(float(line["final"])) if line["final"] else "diverged")
        assert cell.find_element(By.TAG_NAME, "a").get_attribute("href").endswith(f"#run={line['run']}")


def test_curve_ends_at_mean_final_value(reader: Reader) -> None:
    reader.open()
    plot = reader.chart()
    plot.send_keys(Keys.END)
    finals = [run["final"] for run in _runs_at_leading_lr("cifar10_vgg11", "nero")]
    said = reader.one(f"{VALIDATION} [aria-live]").get_attribute("textContent")
    [value] = re.findall(r"Nero, [^:]*: ([0-9.]+)", said)
    assert float(value) == pytest.approx(100 * sum(finals) / len(finals), rel=1e-3)


def _runs_at_leading_lr(task: str, optim: str) -> list[dict]:
    [state] = [
        state
        for state in catalogue.gather("table1", STORE).states
        if (state.cell.task, state.cell.optim) == (task, optim)
    ]
    return [run for run in state.at_leading.values() if run is not None]


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
def test_legend_button_toggles_optimiser_curves(reader: Reader, by: str) -> None:
    reader.open()
    assert reader.curves() == OPTIMISERS
    switch = reader.in_sight(reader.one('#figure5 .legend .switch[data-group="SGD"]'))
    for pressed, shown in (("false", ["Nero", "Adam", "LAMB"]), ("true", OPTIMISERS)):
        switch.click() if by == "mouse" else switch.send_keys(Keys.SPACE)
        assert switch.get_attribute("aria-pressed") == pressed
        reader.wait(lambda shown=shown: reader.curves() == shown)
        assert ("hide" in reader.query()) == (pressed == "false")


def test_hovering_shows_every_curve_at_nearest_epoch(reader: Reader) -> None:
    reader.open()
    plot = reader.chart('#figure5 [data-panel="3"]')
    ActionChains(reader.driver).move_to_element(plot).perform()
    reader.wait(lambda: plot.find_elements(By.CSS_SELECTOR, ".hoverlayer text"))
    shown = " ".join(text.text for text in plot.find_elements(By.CSS_SELECTOR, ".hoverlayer text"))
    assert all(name in shown for name in OPTIMISERS)


def test_plot_can_be_read_and_zoomed_with_keyboard_only(reader: Reader) -> None:
    reader.open()
    plot = reader.chart()
    begin = plot.get_attribute("data-view")
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert float(plot.get_attribute("data-cursor")) == 2
    said = reader.one(f"{VALIDATION} [aria-live]").get_attribute("textContent")
    assert said.startswith("epoch 2. ")
    assert "Nero" in said
    plot.send_keys("+")
    reader.wait(lambda: plot.get_attribute("data-zoomed") == "true")
    assert plot.get_attribute("data-view") != begin
    plot.send_keys("0")
    reader.wait(lambda: plot.get_attribute("data-view") == begin)


def test_dragging_zooms_range_and_reset_restores_view(reader: Reader) -> None:
    reader.open()
    plot = reader.chart()
    begin = plot.get_attribute("data-view")
    chain = ActionChains(reader.driver)
    chain.move_to_element_with_offset(plot, -60, 0).click_and_hold().move_by_offset(80, 0).release().perform()
    reader.wait(lambda: plot.get_attribute("data-zoomed") == "true")
    low, high, *_ = map(float, plot.get_attribute("data-view").split())
    all_low, all_high, *_ = map(float, begin.split())
    assert all_low < low < high < all_high
    reader.press(f"{VALIDATION} .reset")
    reader.wait(lambda: plot.get_attribute("data-view") == begin)


def test_charts_switch_between_epochs_and_wall_clock_time(reader: Reader) -> None:
    reader.open()
    plot = reader.chart()
    assert plot.get_attribute("data-x") == "step"
    reader.press("#figure5 .switch.time")
    reader.wait(lambda: plot.get_attribute("data-x") == "time")
    assert reader.query()["x"] == "time"
    runs = _runs_at_leading_lr("cifar10_vgg11", "nero")
    minutes = sum(run["seconds"] for run in runs) / len(runs) / 60
    ends = reader.run(
        "return arguments[0].data.filter((t) => t.meta?.series && t.name.startsWith('Nero')).map((t) => t.x.at(-1))",
        plot,
    )
    assert ends == [pytest.approx(minutes, rel=0.02)], "the time of the last evaluation is near that of the whole run"
    reader.press("#figure5 .switch.time")
    reader.wait(lambda: plot.get_attribute("data-x") == "step")


def test_address_restores_hidden_curves_time_zoom_and_filters(reader: Reader) -> None:
    reader.open()
    reader.press('#figure5 .legend .switch[data-group="SGD"]')
    reader.chart().send_keys("+")
    reader.wait(lambda: "zoom-figure5-2" in reader.query())
    view = reader.chart().get_attribute("data-view")
    reader.press("#runs summary")
    reader.in_sight(reader.one('#runs [data-filter="text"]')).send_keys("resnet18 lamb")
    reader.wait(lambda: reader.query().get("find") == "resnet18 lamb")
    rows = len(reader.all("#runs tbody tr[data-run]"))
    query = urlsplit(reader.driver.current_url).query
    assert set(reader.query()) == {"hide", "zoom-figure5-2", "find"}
    reader.open(f"?{query}")
    assert reader.curves() == ["Nero", "Adam", "LAMB"]
    assert list(map(float, reader.chart().get_attribute("data-view").split())) == pytest.approx(
        list(map(float, view.split())), rel=1e-3
    )
    assert reader.one('#runs [data-filter="text"]').get_attribute("value") == "resnet18 lamb"
    assert len(reader.all("#runs tbody tr[data-run]")) == rows


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_charts_are_exported_with_title_and_legend(reader: Reader, tmp_path: Path, kind: str) -> None:
    reader.open()
    reader.chart()
    reader.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    [button] = [each for each in reader.all(f"{VALIDATION} .chart-tools button") if each.text == kind.upper()]
    reader.in_sight(button).click()
    file = tmp_path / f"figure5-2.{kind}"
    reader.wait(file.exists)
    if kind == "png":
        assert Image.open(file).size == (1600, 1040)
    else:
        text = file.read_text()
        assert "VGG-11" in text
        assert all(name in text for name in OPTIMISERS)


def test_learning_rate_charts_have_a_panel_per_task_with_the_papers_rates(reader: Reader, report: Report) -> None:
    reader.open("#rates")
    tasks = list(dict.fromkeys(entry.cell.task for entry in report.tables["table1"].entries))
    assert len(reader.all("#learning_rates .panel")) == len(tasks)
    plot = reader.chart(f'#learning_rates [data-panel="{tasks.index("cifar10_vgg11")}"]')
    drawn = reader.run("return arguments[0].data.map((t) => [t.marker?.symbol ?? '', t.x, t.name])", plot)
    rings = [rates for symbol, rates, _ in drawn if symbol == "circle-open"]
    theirs = {e.published.lr for e in report.tables["table1"].entries if e.cell.task == "cifar10_vgg11" and e.published}
    assert {rate for rates in rings for rate in rates} == theirs
    crosses = [rates for symbol, rates, _ in drawn if symbol == "x-thin"]
    assert [1.0] in crosses, "SGD diverged at 1"
    assert plot.get_attribute("data-view")
    assert reader.run("return arguments[0].layout.xaxis.type", plot) == "log"


def test_clicking_value_opens_run_dialog_with_config_and_provenance(reader: Reader) -> None:
    run = STORE.run("cifar10_vgg11", RUN)
    reader.open()
    link = reader.in_sight(reader.one(f'#table1 a[href="#run={RUN}"]'))
    link.click()
    reader.wait(lambda: reader.all("#run-dialog[open] .starts > li"))
    dialog = reader.one("#run-dialog")
    assert dialog.find_element(By.ID, "run-title").text == RUN
    config = dialog.find_element(By.CSS_SELECTOR, 'pre[aria-label="Config"]').get_attribute("textContent")
    assert config.strip() == (run.path / "config.yaml").read_text().strip()
    starts = dialog.find_elements(By.CSS_SELECTOR, ".starts > li")
    assert len(starts) == len(run.read_provenance())
    assert run.read_provenance()[0]["commit"] in starts[0].get_attribute("textContent")
    assert dialog.find_element(By.CSS_SELECTOR, ".path").text.endswith(f"results/runs/cifar10_vgg11/{RUN}")
    plot = dialog.find_element(By.CSS_SELECTOR, ".plot")
    reader.wait(lambda: plot.get_attribute("data-view"))
    keys = {key for line in run.read_metrics() for key in line if "/" in key}
    menu = dialog.find_elements(By.CSS_SELECTOR, "select.metric option")
    assert keys <= {option.get_attribute("value") for option in menu}, "every metric of the run"
    dialog.send_keys(Keys.ESCAPE)
    reader.wait(lambda: not reader.all("#run-dialog[open]"))
    assert reader.driver.switch_to.active_element == link, "the reader is where they were"


def test_metric_of_dialog_can_be_chosen(reader: Reader) -> None:
    reader.open(f"#run={RUN}")
    reader.wait(lambda: reader.all("#run-dialog[open] select.metric"))
    Select(reader.one("#run-dialog select.metric")).select_by_value("train/loss")
    reader.wait(lambda: reader.one("#run-dialog .ylabel").text == "train/loss")
    plot = reader.one("#run-dialog .plot")
    reader.wait(lambda: plot.get_attribute("data-view"))
    [values] = reader.run("return arguments[0].data.filter((t) => t.meta?.series).map((t) => t.y)", plot)
    logged = [line["train/loss"] for line in STORE.run("cifar10_vgg11", RUN).read_metrics()]
    assert values == pytest.approx(logged, rel=1e-5)


def test_energy_on_shared_gpu_is_labelled_as_shared(reader: Reader) -> None:
    for run, words in ((ALONE, "53.06 kJ"), (SHARED, "310.7 kJ, shared by up to 7 processes")):
        reader.open(f"#run={run}")
        reader.wait(lambda: reader.all("#run-dialog[open] .facts"))
        facts = dict(zip(reader.all(".facts dt"), reader.all(".facts dd"), strict=True))
        assert words in [value.text for name, value in facts.items() if name.text == "Energy of the GPU"]


def test_run_link_opens_dialog_and_unknown_run_shows_message(reader: Reader) -> None:
    reader.open(f"#run={RUN}")
    reader.wait(lambda: reader.all("#run-dialog[open] .facts"))
    reader.open("#run=no-such-run")
    reader.wait(lambda: reader.all("#run-dialog[open] .unknown"))
    assert "no-such-run" in reader.one("#run-dialog .unknown").text


def test_run_table_can_be_filtered_by_text(reader: Reader) -> None:
    reader.open()
    reader.press("#runs summary")
    assert str(len(STORE.runs())) in reader.one("#runs .count").text
    reader.in_sight(reader.one('#runs [data-filter="text"]')).send_keys("resnet18 lamb")
    expected = [run.run_id for run in STORE.runs() if "resnet18-lamb" in run.run_id]
    reader.wait(lambda: len(reader.all("#runs tbody tr[data-run]")) == len(expected))
    assert {row.get_attribute("data-run") for row in reader.all("#runs tbody tr[data-run]")} == set(expected)


def test_runs_are_found_by_their_settings_and_differing_ones_have_columns(reader: Reader) -> None:
    reader.open("?find=precision%3Dbf16+resnet18#runs")
    configs = {run.run_id: run.settings for run in logged_runs(STORE) if "resnet18" in run.run_id}
    expected = {run_id for run_id, settings in configs.items() if settings["precision"] == "bf16"}
    assert expected
    rows = {row.get_attribute("data-run") for row in reader.all("#runs tbody tr[data-run]")}
    assert rows == expected
    reader.open("?task=mnist_mlp100#runs")
    heads = [head.text for head in reader.all("#runs thead th")]
    depths = {run.settings["task.depth"] for run in logged_runs(STORE) if run.summary["task"] == "mnist_mlp100"}
    assert ("depth" in heads) == (len(depths) > 1)


def test_chosen_runs_are_drawn_over_each_other(reader: Reader) -> None:
    ids = [ALONE, SHARED]
    reader.open("?find=vgg11-nero-0.01#runs")
    for run_id in ids:
        reader.press(f'#runs tr[data-run="{run_id}"] input.choose')
    plot = reader.one("#runs .overlay .plot")
    reader.wait(lambda: plot.get_attribute("data-view") and len(reader.all("#runs .overlay .key li")) == 2)
    assert reader.query()["runs"] == ",".join(ids)
    drawn = reader.one("#runs .overlay .plot")
    assert reader.run("return arguments[0].data.filter((t) => t.meta?.series).map((t) => t.name)", drawn) == ids
    reader.open(f"?runs={','.join(ids)}&metric=train%2Floss#runs")
    assert reader.one("#runs .overlay .ylabel").text == "train/loss"
    reader.press("#runs .overlay .clear")
    assert not reader.all("#runs .overlay .plot")
    assert "runs" not in reader.query()


def test_games_are_still_until_they_are_played(reader: Reader) -> None:
    reader.open("#games")
    image, button = reader.one("#games img"), reader.one("#games .play")
    assert image.get_attribute("src").startswith("data:image/png")
    reader.in_sight(button).click()
    assert image.get_attribute("src").startswith("data:image/gif")
    assert button.text == "Stop"
    button.click()
    assert image.get_attribute("src").startswith("data:image/png")


def test_sample_slider_shows_images_of_each_epoch(reader: Reader, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for optim in OPTIMS:
        with_many_pictures(store, optim)
    [(path, data)] = Report([catalogue.gather("table1", store)], store, tmp_path).page().items()
    (tmp_path / path).write_bytes(data)
    reader = Reader(reader.driver, (tmp_path / path).as_uri())
    reader.open()
    label = store.runs()[0].read_summary()["metric"]["label"]
    slider = reader.in_sight(reader.one("#samples .epoch-slider"))
    last = [image.get_attribute("src") for image in reader.all("#samples figure.strip img")]
    assert len(last) == 4
    slider.send_keys(Keys.HOME)
    assert reader.one("#samples .epoch-control output").text == "10"
    first = [image.get_attribute("src") for image in reader.all("#samples figure.strip img")]
    assert all(one != other for one, other in zip(first, last, strict=True))
    assert all(image.get_attribute("alt") for image in reader.all("#samples img"))
    assert reader.one("#samples .epoch").text == f"epoch 10: {label} 125.00", "of the epoch shown, not of the last one"
    assert reader.query()["epoch"] == "10"
    reader.press("#samples .play")
    reader.wait(lambda: reader.one("#samples .epoch-control output").text != "10")
    reader.wait(lambda: reader.one("#samples .play").text == "Play")
    assert [image.get_attribute("src") for image in reader.all("#samples figure.strip img")] == last


ALL_OPEN = "document.querySelectorAll('details').forEach((e) => { e.open = true; })"
CUT_OFF = """return [...document.querySelectorAll('header *, main *')].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width && !e.closest('.unseen, svg, .bar') && box.right > document.documentElement.clientWidth + 1;
}).map((e) => `${e.tagName} in ${e.closest('section')?.id}: ${e.textContent.slice(0, 30)}`)"""
SMALL_TARGETS = """return [...document.querySelectorAll('button, input, select, summary, .bar a, .chip[href], a.run')]
.filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width && (box.width < 23.9 || box.height < 23.9);
}).map((e) => e.outerHTML.slice(0, 80))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_phone_width_with_readable_text_and_large_targets(reader: Reader, scheme: str) -> None:
    reader.open(size=PHONE, scheme=scheme)
    reader.run(ALL_OPEN)
    assert reader.run("return document.documentElement.scrollWidth") <= PHONE[0]
    assert reader.run(CUT_OFF) == []
    smallest = reader.run(
        "return Math.min(...[...document.querySelectorAll('main p, main td, main th, header td')]"
        ".filter((e) => e.textContent.trim() && e.getClientRects().length)"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11
    assert reader.run(SMALL_TARGETS) == []


def test_rows_are_cards_on_a_phone(reader: Reader) -> None:
    reader.open(size=PHONE)
    cells = reader.all("#table1 tbody:nth-of-type(2) td[data-cell]")
    assert [cell.get_attribute("data-head") for cell in cells] == OPTIMISERS
    tops = [cell.rect["y"] for cell in cells]
    assert tops[0] == tops[1] < tops[2] == tops[3], "two by two"
    heads = reader.run(
        "return arguments[0].map((e) => getComputedStyle(e, '::before').content.replaceAll('\"', ''))", cells
    )
    assert heads == OPTIMISERS


def test_no_column_is_cut_off_on_a_wide_screen(reader: Reader) -> None:
    reader.open(size=WIDE)
    reader.run(ALL_OPEN)
    assert reader.run(CUT_OFF) == []


LUMINANCE = """
const channel = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(channel);
const luminance = (colour) => { const [r, g, b] = parts(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = luminance(getComputedStyle(document.body).backgroundColor);
const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
const contrast = (colour) => ratio(luminance(colour), paper);
"""


# The least contrast of a chip's text with its background, laid over the page's.
CHIP_CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d');
const rgb = (colour) => {
  canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
  canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)})`;
};
return Math.min(...arguments[0].map((e) => {
  const style = getComputedStyle(e);
  return ratio(luminance(rgb(style.color)), luminance(rgb(style.backgroundColor)));
}));
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_meet_wcag_contrast_in_both_colour_schemes(reader: Reader, scheme: str) -> None:
    reader.open(scheme=scheme)
    words = reader.run(
        LUMINANCE + "return [...document.querySelectorAll('main p, main td, main td span, main h2, main a')]"
        ".filter((e) => e.textContent.trim() && !e.closest('.chip')).map((e) => contrast(getComputedStyle(e).color))"
    )
    assert min(words) >= 4.5, "WCAG's AA for text"
    lines = reader.run(
        LUMINANCE + "return arguments[0].data.filter((t) => t.meta?.series).map((t) => contrast(t.line.color))",
        reader.chart(),
    )
    assert min(lines) >= 2.95, "WCAG's 3 for graphics, but for what rounding to whole colours takes"
    dark = reader.run(LUMINANCE + "return paper") < 0.2
    assert dark == (scheme == "dark")


def test_theme_button_overrides_system_colour_scheme(reader: Reader) -> None:
    reader.open(scheme="light")
    plot, button = reader.chart(), reader.one("#theme")
    light = reader.run("return arguments[0].layout.paper_bgcolor", plot)
    for _ in range(3):
        if button.text.endswith("dark"):
            break
        button.click()
    assert reader.one("html").get_attribute("data-theme") == "dark"
    assert reader.run(LUMINANCE + "return paper") < 0.2
    reader.wait(lambda: reader.run("return arguments[0].layout.paper_bgcolor", plot) != light)
    reader.run("localStorage.clear()")


def test_first_tab_stop_is_skip_link_and_all_controls_are_labelled(reader: Reader) -> None:
    reader.open()
    ActionChains(reader.driver).send_keys(Keys.TAB).perform()
    skip = reader.driver.switch_to.active_element
    assert skip.text == "Skip to the results"
    assert skip.is_displayed()
    unnamed = reader.run(
        "return [...document.querySelectorAll('button, input, select, a, [tabindex=\"0\"]')].filter((e) => "
        "e.getClientRects().length && !(e.textContent.trim() || e.getAttribute('aria-label') || "
        "e.getAttribute('aria-labelledby') || e.labels?.length)).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
