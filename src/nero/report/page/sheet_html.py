"""A table as a section of the page."""

import re
from collections.abc import Sequence
from html import escape

from nero.report.tables.sheets import REASONS, Line, Markup, Printed, Text

TEMPLATE = """<section id="{name}" class="table">
<h3 id="{name}-title">{title}</h3>{warning}
<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">
<table class="cards{wide}">
<thead><tr>{heads}</tr></thead>
{bodies}
</table>
</div>
{findings}<p class="notes">{notes}</p>
{reasons}</section>"""
MANY = 8  # columns, above which they are set closer together


def to_html(printed: Printed) -> str:
    """A section with title, table and notes; runs link to their place on the same page."""
    heads = printed.sheet.heads
    bodies = [
        "\n".join(["<tbody>", *(_html_line(line, heads) for line in block), "</tbody>"])
        for block in printed.sheet.blocks
    ]
    return TEMPLATE.format(
        name=escape(printed.name, quote=True),
        title=escape(printed.title),
        wide=" wide" if len(heads) > MANY else "",
        warning=f'<p class="warning">{escape(printed.warning)}</p>' if printed.warning else "",
        heads="".join(f'<th scope="col">{escape(head)}</th>' for head in printed.sheet.heads),
        bodies="\n".join(bodies),
        findings=_html_list(printed.findings),
        notes=escape(printed.notes),
        reasons=(f'<p class="notes">{escape(REASONS)}</p>\n' if printed.reasons else "") + _html_list(printed.reasons),
    )


def _html_list(texts: Sequence[Text]) -> str:
    items = "".join(f"<li>{LIST_HTML.cell(text)}</li>\n" for text in texts)
    return f'<ul class="notes">\n{items}</ul>\n' if items else ""


def _html_line(line: Line, heads: Sequence[str]) -> str:
    """`data-head` is what a narrow screen shows before each value, where a line becomes a card."""
    html = ""
    for text, head in zip(line, heads, strict=True):
        attributes = {"data-head": head, "data-cell": text.cell, "data-verdict": text.verdict}
        written = "".join(f' {name}="{escape(value, quote=True)}"' for name, value in attributes.items() if value)
        html += f"<td{written}>{CELL_HTML.cell(text, '')}</td>"
    return f"<tr>{html}</tr>"


def _html_escaped(text: str) -> str:
    """Escaped, with what belongs together, such as "η = 0.01" or "[-0.04, +0.60]", kept on one line."""
    joined = re.sub(r" ([=±]|of) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", joined))


LIST_HTML = Markup(_html_escaped, "<code>%s</code>", {None: "%s"}, " (%s)")
CELL_HTML = LIST_HTML._replace(
    value={rank: f'<span class="value{name}">%s</span>' for rank, name in {1: " best", 2: " second", None: ""}.items()},
    detail=' <span class="detail">(%s)</span>',
    link='<a class="run" href="#run={run}">{words}</a>',
)
