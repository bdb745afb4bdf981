"""The report as one HTML file that needs nothing else: tables, curves to explore, samples, and every run.

What it looks like and does is in page_files: a template, a style sheet and small scripts, put together here. Nothing in
it names a time or a machine, so that the same runs give the same bytes.
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
from nero.report.page import runs as page_runs
from nero.report.page import samples as page_samples
from nero.report.tables import html_format as sheet_html
from nero.report.tables.sheets import Printed
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
"""How the navigation calls tables that are no Table of the paper's, where that is not the name of their files."""

RUNS = '<section id="runs" class="runs"><h2>All runs</h2><div class="browser"></div></section>'

SAMPLES = (
    "Each picture has a column per class and a row per z, the same for all optimisers. The slider goes through the "
    "epochs at which FID was taken."
)


@dataclass(frozen=True)
class Contents:
    """What a page shows, in its order."""

    title: str
    lead: str  # what it is about, in a sentence or two
    tables: Sequence[Printed]
    figures: Mapping[str, Figure]  # by name, as their files have it
    states: Sequence[CellState]  # whose samples are shown
    store: Store
    store_name: str  # its path in words


def build_page(contents: Contents) -> str:
    drawn = {name: figure_data.figure_data(figure) for name, figure in contents.figures.items()}
    drawn = {name: data for name, data in drawn.items() if data["panels"]}
    samples = page_samples.sample_data(contents.states, contents.store)
    return _filled(
        (FILES / "page.html").read_text(),
        {
            "title": escape(contents.title),
            "style": (FILES / "page.css").read_text(),
            "script": _script(),
            "body": _body(contents, drawn, bool(samples)),
            "figures": _json({"figures": drawn, "samples": samples}),
            "runs": page_runs.pack(contents.store, contents.store_name),
        },
    )


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with each `{{name}}` replaced; a part that is not asked for, or not given, is a mistake."""
    pieces = template.split("{{")
    found = [pieces[0]]
    names = []
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        names.append(name)
        found += [parts[name], rest]
    if unused := parts.keys() - set(names):
        raise ValueError(f"the page's template has no place for {', '.join(sorted(unused))}")
    return "".join(found)


def _script() -> str:
    return "\n".join((FILES / name).read_text() for name in (FILES / "scripts.txt").read_text().split())


def _json(data: Any) -> str:
    """For a script element, which would end at the first "</" of any text in it."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False).replace("</", "<\\/")


def _body(contents: Contents, drawn: Mapping[str, Any], samples: bool) -> str:
    sections = [Section(table.name, _table_name(table), sheet_html.to_html(table)) for table in contents.tables]
    for name in drawn:
        heading = figure_data.title(contents.figures[name])
        # A figure may have the name of its experiment's table.
        key = f"{name}-curves" if any(name == section.key for section in sections) else name
        sections.append(Section(key, _figure_name(name, heading), _figure_section(key, name, heading)))
    if samples:
        sections.append(Section("samples", "Samples", _samples_section()))
    sections.append(Section("runs", "Runs", RUNS))
    links = "".join(f'<a href="#{escape(each.key, quote=True)}">{escape(each.name)}</a>' for each in sections)
    header = (
        f'<header><h1>{escape(contents.title)}</h1><p class="lead">{escape(contents.lead)}</p>'
        f'<nav aria-label="Contents">{links}</nav></header>'
    )
    return "\n".join([header, "<main>", *(section.text for section in sections), "</main>"])


@dataclass(frozen=True)
class Section:
    key: str  # what leads to it
    name: str  # how the navigation calls it
    text: str


def _table_name(table: Printed) -> str:
    """Such as "Table 1", where its title says so."""
    found = re.search(r"\bTable \d+", table.title)
    return found[0] if found else NAMES.get(table.name, table.name.capitalize())


def _figure_name(name: str, heading: str) -> str:
    """Such as "Figure 5", likewise."""
    found = re.search(r"\bFigure \d+", heading)
    return found[0] if found else f"{NAMES.get(name, name.capitalize())}, curves"


def _figure_section(key: str, name: str, heading: str) -> str:
    return (
        f'<section id="{escape(key, quote=True)}" class="figure" data-figure="{escape(name, quote=True)}">'
        f'<h2>{escape(heading)}</h2><div class="panels"></div></section>'
    )


def _samples_section() -> str:
    return (
        '<section id="samples" class="samples" data-samples><h2>Samples of the GANs</h2>'
        f'<p class="notes">{escape(SAMPLES)}</p><div class="strips"></div></section>'
    )
