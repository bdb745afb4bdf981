"""The report as one HTML file without dependencies: findings, tables, interactive charts, samples, and every run.

`files` has its template, style sheet and scripts; charts are drawn by plotly.js, from the package plotly, which is
packed into the file. The page has no dates but those of runs and no machine names, so that the same runs give the same
bytes.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from nero.report import display
from nero.report.figures import style
from nero.report.page import results
from nero.report.page.data import COMPACT, figure_data, pack, packed, read_clock, runs_of
from nero.report.page.sheet_html import to_html
from nero.report.tables.sheets import GENERAL_NOTES, Printed
from nero.report.tables.table import Table

if TYPE_CHECKING:
    from nero.report.assembly import Report

TITLE = "Learning by Turning: a reproduction"
LEAD = (
    "Every table and figure of the paper that introduced the optimiser Nero, made from logged runs, with the paper's "
    "numbers for comparison. Hover over curves, zoom in, and switch them on and off. Every number links to its runs, "
    "and every run to its config, code version and machine."
)
LEAD_EMBEDDED = (
    "Runs on embedded data. They test the pipeline, from training to this page, and cannot be compared with the "
    "paper's numbers."
)
FILES = resources.files("nero.report.page") / "files"
MAIN, ABLATION, CHECKS, COSTS, RATES = "table1", "ablation", "checks", "costs", "learning_rates"
SAMPLES_OF, GAMES_OF = "figure4", "figure8"  # figures that samples and games are shown after

FIGURE = '<section id="{key}" class="figure" data-figure="{name}"><h3>{title}</h3><div class="panels"></div></section>'
SAMPLES = (
    '<section id="samples" class="samples" data-samples><h3>Samples of the GANs</h3>'
    '<p class="notes">{note}Each picture has a column per class and a row per z, the same for all optimisers.</p>'
    '<div class="strips"></div></section>'
)
GAMES = (
    '<section id="games" class="games" data-games><h3>The agents at play</h3>'
    '<p class="notes">The first seconds of a game by each agent, which controls the green paddle on the right.</p>'
    '<div class="strips"></div></section>'
)
THEORY = "theory_*.svg"  # files of its figures
BANNER = "Neurons of a network turn by the learning rate at each step of Nero, and keep mean 0 and norm 1"
RUNS = '<div class="overlay"></div><div class="browser"></div>'


def build_page(report: "Report", store_name: str) -> str:
    """The HTML; `store_name` is the path of the store as shown."""
    clock = read_clock(report.store, runs_of(report.charts.values()))
    drawn = {name: data for name, figure in report.charts.items() if (data := figure_data(figure, clock))["panels"]}
    groups = list(_groups(report, drawn))
    order = list(style.named_colours())
    data = {"figures": drawn, "order": order, "samples": report.samples[0], "games": report.games}
    parts = {
        "title": escape(TITLE),
        "style": (FILES / "page.css").read_text(),
        "script": "\n".join((FILES / name).read_text() for name in (FILES / "scripts.txt").read_text().split()),
        "nav": _nav("Finding" if report.findings else "Top", groups),
        "header": _header(report),
        "body": "\n".join(group.html for group in groups),
        "figures": _json(data),
        "pictures": packed(json.dumps(_pictures(report.pictures(THEORY)), **COMPACT)),
        "runs": pack(report.store, store_name),
        "plotly": _plotly(),
    }
    return _filled((FILES / "page.html").read_text(), parts)


@dataclass(frozen=True)
class Group:
    """A part of the page with an entry in the navigation, and entries for what is in it."""

    key: str
    name: str
    html: str
    links: Sequence[tuple[str, str]] = ()  # id and text


def _groups(report: "Report", drawn: Mapping[str, Any]) -> Iterator[Group]:
    """The parts of the page in order: what most readers come for, then, folded, the rest."""
    numbered = sorted((name for name in drawn if re.fullmatch(r"figure\d+", name)), key=lambda name: int(name[6:]))
    others = [name for name in drawn if name not in (*numbered, RATES)]
    overviews = {printed.name: printed for printed in report.overviews}
    sensitivity = overviews.pop("sensitivity", None)
    if report.main:
        yield Group(MAIN, "Table 1", _main_html(report, report.main))
    else:
        tables = "".join(map(to_html, report.printed.values())) + _guide_html()
        yield Group("tables", "Tables", _group("tables", "Tables", tables))
    if figures := "".join(_figures_html(report, numbered if report.main else [*numbered, *others])):
        links = [(_key(report, name), name.removeprefix("figure")) for name in numbered]
        yield Group("figures", "Figures", _group("figures", "Figures", figures), links)
    yield Group("rates", "Learning rates", _rates_html(report, drawn, sensitivity))
    if report.main:
        for table in _named(report, ABLATION):
            yield Group("table2", "Table 2", _group("table2", "Table 2: ablation", to_html(table)))
        yield from _folded_tables(
            "more", "More", "MNIST, Pong, ImageNet, newer optimisers", report, _more(report), others
        )
    yield from _folded_tables(COSTS, "Costs", "GPU-seconds and energy", report, [*overviews.values()])
    if report.main:
        about = "runs that test why results differ"
        yield from _folded_tables(CHECKS, "Checks", about, report, _named(report, CHECKS), others)
    if report.theory:
        about = "Sections 3 and 8 of the paper, measured"
        yield Group("theory", "Theory", _folded("theory", "Theory", about, _theory_html(report)))
    yield Group("runs", "Runs", _folded("runs", "All runs", "search, sort, and compare their curves", RUNS))


def _folded_tables(
    key: str, name: str, about: str, report: "Report", tables: Sequence[Printed], figures: Sequence[str] = ()
) -> Iterator[Group]:
    """A folded part with tables, and those of the figures that belong to them."""
    own = [figure for figure in figures if _is_of(figure, tables)]
    if text := "".join([*map(to_html, tables), *(_figure_html(report, figure) for figure in own)]):
        yield Group(f"{key}-part", name, _folded(f"{key}-part", name, about, text))


def _theory_html(report: "Report") -> str:
    pictures = (f'<figure class="picture" data-picture="{escape(name)}"></figure>' for name in report.pictures(THEORY))
    return "".join(map(to_html, report.theory)) + f'<div class="pictures">{"".join(pictures)}</div>'


def _guide_html() -> str:
    """How to read all tables."""
    notes = f'<p class="notes">{escape(GENERAL_NOTES)}</p>'
    return f"<details><summary>How to read the tables</summary>{notes}</details>"


def _named(report: "Report", name: str) -> list[Printed]:
    return [report.printed[name]] if name in report.printed else []


def _more(report: "Report") -> list[Printed]:
    """The tables of experiments without a part of their own."""
    return [printed for name, printed in report.printed.items() if name not in (MAIN, ABLATION, CHECKS)]


def _is_of(figure: str, tables: Sequence[Printed]) -> bool:
    return any(figure in (table.name, f"{table.name}_sensitivity") for table in tables)


def _main_html(report: "Report", table: Table) -> str:
    """Table 1, what follows from each row, and how to read it."""
    printed = report.printed[MAIN]
    warning = f'<p class="warning">{escape(printed.warning)}</p>' if printed.warning else ""
    notes = f"<p>{escape(printed.notes)}</p><p>{escape(GENERAL_NOTES)}</p>"
    rows = "".join(f"<li>{escape(' '.join(filter(None, [each.code, each.value])))}</li>" for each in printed.findings)
    return (
        f'<section id="{MAIN}" class="table"><h2>{escape(_titled("Table 1", printed.title))}</h2>{warning}'
        f"{results.table_html(table)}<details><summary>Rankings, best learning rates, and how to read the table"
        f'</summary><ul class="notes">{rows}</ul><div class="notes">{notes}</div></details></section>'
    )


def _titled(number: str, title: str) -> str:
    """Such as "Table 1: Validation results" from "Validation results (Table 1)"."""
    return f"{number}: {title.replace(f' ({number})', '')}"


def _figures_html(report: "Report", names: Sequence[str]) -> Iterator[str]:
    pictures, note = report.samples
    samples = [SAMPLES.format(note=escape(note))] if pictures else []
    games = [GAMES] if report.games else []
    for name in names:
        yield _figure_html(report, name)
        if name == SAMPLES_OF:
            yield from samples
        if name == GAMES_OF:
            yield from games
    yield from samples if SAMPLES_OF not in names else ()
    yield from games if GAMES_OF not in names else ()


def _figure_html(report: "Report", name: str) -> str:
    heading = " ".join(str(report.charts[name].get_suptitle()).split())
    if found := re.search(r"\((Figure \d+)\)", heading):
        heading = _titled(found[1], heading)
    return FIGURE.format(key=escape(_key(report, name)), name=escape(name), title=escape(heading))


def _key(report: "Report", name: str) -> str:
    """The id of a figure: it may have the same name as its experiment's table."""
    return f"{name}-curves" if name in report.printed else name


def _rates_html(report: "Report", drawn: Mapping[str, Any], table: Printed | None) -> str:
    figure = _figure_html(report, RATES) if RATES in drawn else ""
    whole = f"<details><summary>As a table</summary>{to_html(table)}</details>" if table and figure else ""
    return _group("rates", "Learning rates", figure + (whole or (to_html(table) if table else "")))


def _group(key: str, name: str, text: str) -> str:
    return f'<section id="{key}" class="group"><h2>{escape(name)}</h2>{text}</section>'


def _folded(key: str, name: str, about: str, text: str) -> str:
    about = f' <span class="detail">{escape(about)}</span>'
    return (
        f'<section id="{key}" class="group folded"><details class="fold"><summary><h2>{escape(name)}</h2>{about}'
        f"</summary>{text}</details></section>"
    )


def _header(report: "Report") -> str:
    """Title, what was found or else an introduction, and the grid of agreement."""
    lead = results.finding_html(report.findings or [LEAD_EMBEDDED if report.embedded else LEAD])
    as_of = f'<p class="as-of">{escape(latest)}</p>' if (latest := report.latest_run()) else ""
    grid = f'<div class="grid">{results.grid_html(report.main)}</div>' if report.main and report.findings else ""
    drawing = "".join(report.pictures("turning_neurons.svg").values())
    source = base64.b64encode(drawing.encode()).decode()
    image = f'<img src="data:image/svg+xml;base64,{source}" alt="{BANNER}">'
    banner = f'<figure class="banner">{image}</figure>' if drawing else ""
    return f'<header id="finding"><div class="found"><h1>{escape(TITLE)}</h1>{lead}{as_of}</div>{grid}{banner}</header>'


def _nav(first: str, groups: Sequence[Group]) -> str:
    """The page's one navigation; `first` is the name of the top."""
    items = [f'<li><a href="#finding">{first}</a></li>']
    for group in groups:
        links = "".join(f'<a href="#{escape(key)}" aria-label="Figure {text}">{text}</a>' for key, text in group.links)
        items.append(f'<li><a href="#{escape(group.key)}">{escape(group.name)}</a>{links}</li>')
    return f'<nav aria-label="Sections"><ul>{"".join(items)}</ul></nav>'


def _pictures(files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """SVG files with a text that stands for them, such as "Balance, MNIST MLP" for theory_balance_mnist_mlp100."""
    found = {}
    for name, svg in files.items():
        kind, _, task = name.removeprefix("theory_").partition("_")
        found[name] = {"svg": svg, "title": ", ".join(filter(None, [kind.capitalize(), display.task_name(task)]))}
    return found


@cache
def _plotly() -> str:
    """plotly.js, packed."""
    return packed((resources.files("plotly") / "package_data" / "plotly.min.js").read_text())


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with each `{{name}}` replaced, in one pass; a part without a place is an error."""
    if unused := parts.keys() - set(re.findall(r"\{\{(\w+)\}\}", template)):
        raise ValueError(f"the page's template has no place for {', '.join(sorted(unused))}")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _json(data: Any) -> str:
    """JSON for a script element, whose end "</script" or "<!--" in a text would move."""
    return json.dumps(data, **COMPACT, ensure_ascii=False).replace("<", "\\u003c")
