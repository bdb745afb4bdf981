"""The report as one HTML file without dependencies: tables, interactive curves, samples, and every run.

`files` has its template, style sheet and scripts. The page contains no dates or machine names, so that the same runs
give the same bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from matplotlib.figure import Figure

from nero.plans.plan import CellState
from nero.report.page.data import figure_data, pack, sample_data
from nero.report.tables.sheets import Printed, to_html
from nero.runs.store import Store

FILES = resources.files("nero.report.page") / "files"

# Names in the navigation of tables without a number, if not the name of their files.
NAMES = {
    "mnist": "MNIST",
    "imagenet": "ImageNet",
    "modern": "Newer optimisers",
    "sensitivity": "Learning rates",
    "theory_balance": "Balance",
    "theory_steps": "Steps",
    "theory_robustness": "Robustness",
    "theory_bound": "The bound",
}

HEADER = '<header><h1>{title}</h1><p class="lead">{lead}</p><nav aria-label="Contents">{links}</nav></header>'
FIGURE = '<section id="{key}" class="figure" data-figure="{name}"><h2>{title}</h2><div class="panels"></div></section>'
SAMPLES = (
    '<section id="samples" class="samples" data-samples><h2>Samples of the GANs</h2>'
    '<p class="notes">Each picture has a column per class and a row per z, the same for all optimisers. The slider '
    'selects the epoch; there is one picture per evaluation of FID.</p><div class="strips"></div></section>'
)
RUNS = '<section id="runs" class="runs"><h2>All runs</h2><div class="browser"></div></section>'


def build_page(
    title: str,
    lead: str,  # an introduction of a few sentences
    tables: Sequence[Printed],
    figures: Mapping[str, Figure],  # by file name
    sampled: Sequence[CellState],  # cells whose samples are shown
    store: Store,
    store_name: str,  # its path as shown
) -> str:
    drawn = {name: data for name, figure in figures.items() if (data := figure_data(figure))["panels"]}
    samples = sample_data(sampled, store)
    sections = {table.name: (_name("Table", table.title, table.name), to_html(table)) for table in tables}
    for name in drawn:
        heading = " ".join(str(figures[name].get_suptitle()).split())
        # A figure may have the same name as its experiment's table.
        key = f"{name}-curves" if name in sections else name
        text = FIGURE.format(key=escape(key), name=escape(name), title=escape(heading))
        whole = name.removesuffix("_sensitivity")
        suffix = ", curves" if whole == name else ", learning rates"
        sections[key] = (_name("Figure", heading, whole, suffix), text)
    if samples:
        sections["samples"] = ("Samples", SAMPLES)
    sections["runs"] = ("Runs", RUNS)
    links = "".join(f'<a href="#{escape(key)}">{escape(name)}</a>' for key, (name, _) in sections.items())
    header = HEADER.format(title=escape(title), lead=escape(lead), links=links)
    parts = {
        "title": escape(title),
        "style": (FILES / "page.css").read_text(),
        "script": "\n".join((FILES / name).read_text() for name in (FILES / "scripts.txt").read_text().split()),
        "body": "\n".join([header, "<main>", *(text for _, text in sections.values()), "</main>"]),
        "figures": _json({"figures": drawn, "samples": samples}),
        "runs": pack(store, store_name),
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


def _name(kind: str, title: str, name: str, suffix: str = "") -> str:
    """The name of a table or figure in the navigation, such as "Table 1" if its title has that."""
    found = re.search(rf"\b{kind} \d+", title)
    return found[0] if found else NAMES.get(name, name.capitalize()) + suffix
