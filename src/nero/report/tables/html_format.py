"""A laid-out table as HTML; numbers link to their runs on the same page."""

import re
from collections.abc import Sequence
from html import escape

from nero.report.tables.sheets import REASONS, Printed, RunLink, Sheet, Text

RANKS: dict[int | None, str] = {1: "value best", 2: "value second"}


def to_html(printed: Printed) -> str:
    """A section with title, table and notes."""
    name = escape(printed.name, quote=True)
    warning = f'<p class="warning">{escape(printed.warning)}</p>' if printed.warning else ""
    return "\n".join(
        [
            f'<section id="{name}" class="table">',
            f'<h2 id="{name}-title">{escape(printed.title)}</h2>{warning}',
            f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-title">',
            _table(printed.sheet),
            "</div>",
            *_list(printed.findings),
            f'<p class="notes">{escape(printed.notes)}</p>',
            *([f'<p class="notes">{escape(REASONS)}</p>'] if printed.reasons else []),
            *_list(printed.reasons),
            "</section>",
        ]
    )


def _list(texts: Sequence[Text]) -> list[str]:
    """Sentences as a list; nothing where there are none."""
    items = (f"<li>{_code(text)}{_words(text.value)}</li>" for text in texts)
    return ['<ul class="notes">', *items, "</ul>"] if texts else []


def run_href(run_id: str) -> str:
    """Where the page shows a run."""
    return f"#run={run_id}"


def _words(text: str) -> str:
    """Escaped, with what belongs together, such as "η = 0.01" or "[-0.04, +0.60]", kept on one line."""
    joined = re.sub(r" ([=±]|of) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(\[\S+,) (\S+\])", "\\1\N{NO-BREAK SPACE}\\2", joined))


def _table(sheet: Sheet) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in sheet.heads)
    bodies = "\n".join("<tbody>\n" + "\n".join(_line(line) for line in block) + "\n</tbody>" for block in sheet.blocks)
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n{bodies}\n</table>"


def _line(line: list[Text]) -> str:
    return "<tr>" + "".join(map(_cell, line)) + "</tr>"


def _cell(text: Text) -> str:
    attributes = {"data-cell": text.cell, "data-verdict": text.verdict}
    said = "".join(f' {name}="{escape(value, quote=True)}"' for name, value in attributes.items() if value)
    value = f'<span class="{RANKS.get(text.rank, "value")}">{_words(text.value)}</span>' if text.value else ""
    if text.link:
        value = _anchor(text.link, value)
    details = [_words(text.detail)] if text.detail else []
    if text.runs:
        details.append(", ".join(_anchor(link, _words(link.words)) for link in text.runs))
    detail = f' <span class="detail">({"; ".join(details)})</span>' if details else ""
    return f"<td{said}>{_code(text)}{value}{detail}</td>"


def _code(text: Text) -> str:
    return f"<code>{escape(text.code)}</code>" if text.code else ""


def _anchor(link: RunLink, words: str) -> str:
    return f'<a class="run" href="{escape(run_href(link.run_id), quote=True)}">{words}</a>'
