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

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from conftest import ROOT
from nero.report import catalogue
from nero.report.assembly import PAGE, Report
from nero.report.units import number
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
DESKTOP, PHONE = (1280, 900), (360, 740)
SVG_GROUP = '#figure5 [data-panel="1"] {}[data-group="{}"]'


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
        self.wait(lambda: self.all("#runs tbody tr[data-run]"))

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

    def press(self, selector: str) -> None:
        self.in_sight(self.one(selector)).click()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on Table 1 and its figures from the committed runs."""
    return Report([catalogue.gather("table1", STORE)], STORE, tmp_path_factory.mktemp("report"))


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
    asked = {address.partition("#")[0] for address in sent if not address.startswith(("data:", "about:"))}
    assert asked == {reader.address}


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
        expected = number(float(line["mean"])) + (f" ± {number(float(line['std']))}" if line["std"] else "")
        assert found == expected


def test_sensitivity_values_match_csv(reader: Reader, report: Report) -> None:
    lines = csv.DictReader(io.StringIO(report.overview_texts()[Path("tables/sensitivity.csv")].decode()))
    reader.open()
    words = ("task", "label", "variant", "optim", "precision")
    for line in (line for line in lines if line["run"]):
        name = "|".join([*(line[word] for word in words), f"{float(line['lr']):g}"])
        cell = reader.one(f'#sensitivity td[data-cell="{name}"]')
        assert cell.text == (number(float(line["final"])) if line["final"] else "diverged")
        assert cell.find_element(By.TAG_NAME, "a").get_attribute("href").endswith(f"#run={line['run']}")


def test_curve_ends_at_mean_final_value(reader: Reader) -> None:
    reader.open()
    plot = reader.in_sight(reader.one('#figure5 [data-panel="1"] .plot'))
    plot.send_keys(Keys.END)
    row = plot.find_element(By.CSS_SELECTOR, '.tooltip tr[data-group="Nero"]')
    finals = [run["final"] for run in _runs_at_leading_lr("cifar10_vgg11", "nero")]
    expected = 100 * sum(finals) / len(finals)
    assert float(row.find_element(By.CSS_SELECTOR, ".mean").text) == pytest.approx(expected, rel=1e-3)


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
    switch = reader.in_sight(reader.one('#figure5 .legend .switch[data-group="SGD"]'))
    others = len(reader.all(SVG_GROUP.format(".line", "Nero")))
    assert reader.all(SVG_GROUP.format(".line", "SGD"))
    for pressed, there in (("false", False), ("true", True)):
        switch.click() if by == "mouse" else switch.send_keys(Keys.SPACE)
        assert switch.get_attribute("aria-pressed") == pressed
        assert bool(reader.all(SVG_GROUP.format(".line", "SGD"))) == there
        assert bool(reader.all(SVG_GROUP.format(".mark", "SGD"))) == there
        assert len(reader.all(SVG_GROUP.format(".line", "Nero"))) == others


def test_hovering_shows_tooltip_with_every_curve_at_nearest_epoch(reader: Reader) -> None:
    reader.open()
    plot = reader.in_sight(reader.one('#figure5 [data-panel="3"] .plot'))
    ActionChains(reader.driver).move_to_element(plot).perform()
    tooltip = plot.find_element(By.CSS_SELECTOR, ".tooltip")
    reader.wait(tooltip.is_displayed)
    groups = [row.get_attribute("data-group") for row in tooltip.find_elements(By.CSS_SELECTOR, "tr[data-group]")]
    assert sorted(groups) == ["Adam", "LAMB", "Nero", "SGD"]
    assert re.search(r"epoch\s+\d+", tooltip.text)


def test_plot_can_be_read_and_zoomed_with_keyboard_only(reader: Reader) -> None:
    reader.open()
    plot = reader.in_sight(reader.one('#figure5 [data-panel="1"] .plot'))
    begin = plot.get_attribute("data-view")
    plot.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert float(plot.get_attribute("data-cursor")) == 2
    said = reader.one('#figure5 [data-panel="1"] [aria-live]').get_attribute("textContent")
    assert "Nero" in said
    plot.send_keys("+")
    assert plot.get_attribute("data-zoomed") == "true"
    assert plot.get_attribute("data-view") != begin
    plot.send_keys("0")
    assert plot.get_attribute("data-view") == begin


def test_dragging_zooms_range_and_reset_restores_view(reader: Reader) -> None:
    reader.open()
    plot = reader.in_sight(reader.one('#figure5 [data-panel="1"] .plot'))
    begin = plot.get_attribute("data-view")
    chain = ActionChains(reader.driver)
    chain.move_to_element_with_offset(plot, -60, 0).click_and_hold().move_by_offset(80, 0).release().perform()
    low, high, *_ = map(float, plot.get_attribute("data-view").split())
    all_low, all_high, *_ = map(float, begin.split())
    assert all_low < low < high < all_high
    reader.press('#figure5 [data-panel="1"] .reset')
    assert plot.get_attribute("data-view") == begin


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
    assert dialog.find_elements(By.CSS_SELECTOR, ".plot svg .line")
    dialog.send_keys(Keys.ESCAPE)
    reader.wait(lambda: not reader.all("#run-dialog[open]"))
    assert reader.driver.switch_to.active_element == link, "the reader is where they were"


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
    assert str(len(STORE.runs())) in reader.one("#runs .count").text
    reader.in_sight(reader.one('#runs [data-filter="text"]')).send_keys("resnet18 lamb")
    expected = [run.run_id for run in STORE.runs() if "resnet18-lamb" in run.run_id]
    reader.wait(lambda: len(reader.all("#runs tbody tr[data-run]")) == len(expected))
    assert {row.get_attribute("data-run") for row in reader.all("#runs tbody tr[data-run]")} == set(expected)


def test_sample_slider_shows_images_of_each_epoch(reader: Reader, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for optim in OPTIMS:
        with_many_pictures(store, optim)
    [(path, data)] = Report([catalogue.gather("table1", store)], store, tmp_path).page().items()
    (tmp_path / path).write_bytes(data)
    reader = Reader(reader.driver, (tmp_path / path).as_uri())
    reader.open()
    slider = reader.in_sight(reader.one("#samples .epoch-slider"))
    last = [image.get_attribute("src") for image in reader.all("#samples figure.strip img")]
    assert len(last) == 4
    slider.send_keys(Keys.HOME)
    assert reader.one("#samples .epoch-control output").text == "10"
    first = [image.get_attribute("src") for image in reader.all("#samples figure.strip img")]
    assert all(one != other for one, other in zip(first, last, strict=True))
    assert all(image.get_attribute("alt") for image in reader.all("#samples img"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_phone_width_with_readable_text(reader: Reader, scheme: str) -> None:
    reader.open(size=PHONE, scheme=scheme)
    assert reader.run("return document.documentElement.scrollWidth") <= PHONE[0]
    smallest = reader.run(
        "return Math.min(...[...document.querySelectorAll('main p, main td, main th, svg text')]"
        ".filter((e) => e.textContent.trim() && e.getClientRects().length)"
        ".map((e) => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 11


LUMINANCE = """
const channel = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(channel);
const luminance = (colour) => { const [r, g, b] = parts(colour); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const paper = luminance(getComputedStyle(document.body).backgroundColor);
const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
const contrast = (colour) => ratio(luminance(colour), paper);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_meet_wcag_contrast_in_both_colour_schemes(reader: Reader, scheme: str) -> None:
    reader.open(scheme=scheme)
    words = reader.run(
        LUMINANCE + "return [...document.querySelectorAll('main p, main td, main td span, main h2, main a')]"
        ".filter((e) => e.textContent.trim()).map((e) => contrast(getComputedStyle(e).color))"
    )
    assert min(words) >= 4.5, "WCAG's AA for text"
    lines = reader.run(
        LUMINANCE
        + "return [...document.querySelectorAll('svg .line')].map((e) => contrast(getComputedStyle(e).stroke))"
    )
    assert min(lines) >= 2.95, "WCAG's 3 for graphics, but for what rounding to whole colours takes"
    dark = reader.run(LUMINANCE + "return paper") < 0.2
    assert dark == (scheme == "dark")


def test_theme_button_overrides_system_colour_scheme(reader: Reader) -> None:
    reader.open(scheme="light")
    button = reader.one("#theme")
    for _ in range(3):
        if button.text.endswith("dark"):
            break
        button.click()
    assert reader.one("html").get_attribute("data-theme") == "dark"
    assert reader.run(LUMINANCE + "return paper") < 0.2
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
