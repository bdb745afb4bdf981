"""The report as one HTML file without dependencies: tables, interactive curves, samples, and every run.

`files` has its template, style sheet and scripts. The page contains no dates or machine names, so that the same runs
give the same bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report.page import figure_data
from nero.report.page.runs import pack, sample_data
from nero.report.tables.sheets import Printed, to_html
from nero.runs.store import Store

FILES = resources.files("nero.report.page") / "files"

NAMES = {
    "mnist": "MNIST",
    "imagenet": "ImageNet",
    "sensitivity": "Learning rates",
    "theory_balance": "Balance",
    "theory_steps": "Steps",
    "theory_robustness": "Robustness",
    "theory_bound": "The bound",
}
"""Names in the navigation of tables without a number, if not the name of their files."""

RUNS = '<section id="runs" class="runs"><h2>All runs</h2><div class="browser"></div></section>'

SAMPLES = (
    '<section id="samples" class="samples" data-samples><h2>Samples of the GANs</h2>'
    '<p class="notes">Each picture has a column per class and a row per z, the same for all optimisers. The slider '
    'selects the epoch; there is one picture per evaluation of FID.</p><div class="strips"></div></section>'
)


@dataclass(frozen=True)
class Contents:
    """The contents of a page, in order."""

    title: str
    lead: str  # an introduction of a few sentences
    tables: Sequence[Printed]
    figures: Mapping[str, Figure]  # by file name
    states: Sequence[CellState]  # cells whose samples are shown
    store: Store
    store_name: str  # its path as shown


@dataclass(frozen=True)
class Section:
    key: str  # anchor
    name: str  # in the navigation
    text: str


def build_page(contents: Contents) -> str:
    drawn = {name: figure_data.figure_data(figure) for name, figure in contents.figures.items()}
    drawn = {name: data for name, data in drawn.items() if data["panels"]}
    samples = sample_data(contents.states, contents.store)
    parts = {
        "title": escape(contents.title),
        "style": (FILES / "page.css").read_text(),
        "script": "\n".join((FILES / name).read_text() for name in (FILES / "scripts.txt").read_text().split()),
        "body": _body(contents, drawn, bool(samples)),
        "figures": _json({"figures": drawn, "samples": samples}),
        "runs": pack(contents.store, contents.store_name),
    }
    return _filled((FILES / "page.html").read_text(), parts)


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with each `{{name}}` replaced, in one pass; a part without a place is an error."""
    if unused := parts.keys() - set(re.findall(r"\{\{(\w+)\}\}", template)):
        raise ValueError(f"the page's template has no place for {', '.join(sorted(unused))}")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _json(data: Any) -> str:
    """JSON for a script element, which would end at the first "</"."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("</", "<\\/")


def _body(contents: Contents, drawn: Mapping[str, Any], samples: bool) -> str:
    tables = contents.tables
    sections = [Section(table.name, _name("Table", table.title, table.name), to_html(table)) for table in tables]
    for name in drawn:
        heading = " ".join(str(contents.figures[name].get_suptitle()).split())
        # A figure may have the same name as its experiment's table.
        key = f"{name}-curves" if any(name == section.key for section in sections) else name
        sections.append(Section(key, _name("Figure", heading, name, ", curves"), _figure_section(key, name, heading)))
    if samples:
        sections.append(Section("samples", "Samples", SAMPLES))
    sections.append(Section("runs", "Runs", RUNS))
    links = "".join(f'<a href="#{escape(each.key, quote=True)}">{escape(each.name)}</a>' for each in sections)
    header = (
        f'<header><h1>{escape(contents.title)}</h1><p class="lead">{escape(contents.lead)}</p>'
        f'<nav aria-label="Contents">{links}</nav></header>'
    )
    return "\n".join([header, "<main>", *(section.text for section in sections), "</main>"])


def _name(kind: str, title: str, name: str, suffix: str = "") -> str:
    """The name of a table or figure in the navigation, such as "Table 1" if its title has that."""
    found = re.search(rf"\b{kind} \d+", title)
    return found[0] if found else NAMES.get(name, name.capitalize()) + suffix


def _figure_section(key: str, name: str, heading: str) -> str:
    return (
        f'<section id="{escape(key, quote=True)}" class="figure" data-figure="{escape(name, quote=True)}">'
        f'<h2>{escape(heading)}</h2><div class="panels"></div></section>'
    )
