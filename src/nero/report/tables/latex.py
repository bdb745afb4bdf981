"""Tables as LaTeX: floats that fit the text width of papers."""

import re
import textwrap
from collections.abc import Sequence

from nero.report.tables.sheets import Line, Markup, Printed, Text

# Characters that have a meaning in LaTeX, or that would need further packages.
LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "η": r"$\eta$",
    "σ": r"$\sigma$",
    "β": r"$\beta$",
    "₁": r"\textsubscript{1}",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "✓": r"\checkmark{}",
    "†": r"$^\dagger$",
}
# The commands that need them.
PACKAGES = {"booktabs": r"\toprule", "amssymb": LATEX_SIGNS["✓"], "graphicx": r"\resizebox"}
NAME_WIDTH, HEAD_WIDTH = 24, 13  # characters of the first column and of a heading, before they are broken into lines
MOST_LINES = 48  # on one page

# LaTeX scales a table that is wider than the text.
LATEX_TABLE = r"""\begin{table*}[t]
\centering\footnotesize\setlength{\tabcolsep}{3pt}
%s
\resizebox{\ifdim\width>\linewidth \linewidth\else \width\fi}{!}{%%
%s}
\par\smallskip
\parbox{\linewidth}{\scriptsize %s}
\end{table*}
"""
TABULAR = r"""\begin{tabular}{@{}%s@{}}
\toprule
%s \\
\midrule
%s\bottomrule
\end{tabular}"""


def to_latex(printed: Printed) -> str:
    """A floating table with its notes, without findings, reasons and runs; of a long table, one for each page.

    It fits the text width of papers. The first line names the packages that it needs.
    """
    sheet = printed.narrow or printed.sheet
    heads = [textwrap.wrap(head, HEAD_WIDTH) or [""] for head in sheet.heads]
    blocks = [_latex_lines(block) for block in sheet.blocks]
    columns = "l" * sheet.left + "c" * (len(heads) - sheet.left)
    notes = _latex_escaped(" ".join(filter(None, [printed.warning, printed.narrow_notes, printed.notes])))
    title = _latex_escaped(printed.title)
    parts: list[str] = []
    for page in _pages(blocks):
        rows = ("".join(f"{' & '.join(map(LATEX.cell, line))} \\\\\n" for line in block) for block in page)
        tabular = TABULAR % (columns, " & ".join(map(_latex_head, heads)), "\\addlinespace\n".join(rows))
        continued = rf"\addtocounter{{table}}{{-1}}\caption{{{title} (continued).}}"
        caption = continued if parts else rf"\caption{{{title}.}}\label{{table:{printed.name}}}"
        parts.append(LATEX_TABLE % (caption, tabular, notes))
    text = "".join(parts)
    *others, last = [package for package, sign in PACKAGES.items() if sign in text]
    return f"% Needs {' and '.join(filter(None, [', '.join(others), last]))}.\n{text}"


def _pages(blocks: Sequence[Sequence[Line]]) -> list[list[Sequence[Line]]]:
    """Blocks by page."""
    pages: list[list[Sequence[Line]]] = [[]]
    for block in blocks:
        if pages[-1] and sum(map(len, pages[-1])) + len(block) > MOST_LINES:
            pages.append([])
        pages[-1].append(block)
    return pages


def _latex_lines(block: Sequence[Line]) -> list[Line]:
    """The lines of a block as they are set. If only the first has a name, this continues on the following lines."""
    lines: list[Line] = []
    for line in block:
        if any(text.detail for text in line[1:]):
            lines.append([text._replace(detail="") for text in line])
            lines.append([Text(""), *(Text("", text.detail) for text in line[1:])])
        else:
            lines.append(list(line))
    if any(line[0].value for line in block[1:]):
        return lines
    name = block[0][0]
    pieces = [Text(piece) for piece in textwrap.wrap(name.value, NAME_WIDTH)]
    pieces += [Text("", name.detail)] if name.detail else []
    lines += [[Text("")] * len(block[0]) for _ in pieces[len(lines) :]]
    pieces += [Text("")] * (len(lines) - len(pieces))
    return [[piece, *line[1:]] for piece, line in zip(pieces, lines, strict=True)]


def _latex_head(lines: Sequence[str]) -> str:
    text = r"\\".join(map(_latex_escaped, lines))
    return rf"\shortstack{{{text}}}" if len(lines) > 1 else text


def _latex_escaped(text: str) -> str:
    escaped = "".join(LATEX_SIGNS.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)  # hyphens before digits are minus signs


LATEX = Markup(
    _latex_escaped,
    code="%s",
    value={1: r"\textbf{%s}", 2: r"\underline{%s}", None: "%s"},
    detail=r" {\scriptsize (%s)}",
    alone=r"{\scriptsize %s}",
)
