"""Tables as LaTeX: floats that fit the text width of papers."""

import itertools
import re
import string
import textwrap
from collections.abc import Sequence

from nero.report.tables.sheets import Line, Markup, Printed, Text

# Characters that have a meaning in LaTeX, or that would need further packages.
LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
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
INCH = 72.27  # in points
TEXT_WIDTHS = {"two columns": 6.75 * INCH, "one column": 5.5 * INCH}  # for a table across both, as papers have them
SIZES = {"footnotesize": 4.25, "scriptsize": 3.92}  # of the text of a table -> width of a digit in points
THIN, WIDE = " .,:;'()[]ijlt", "±+-=mwη" + string.ascii_uppercase  # about 2/3 and 3/2 of a digit
GAP = 6.0  # between columns, in points
NAME_WIDTH, HEAD_WIDTH = 24, 13  # characters of the first column and of a heading, before they are broken into lines
MOST_LINES = 60  # on one page

LATEX_TABLE = r"""\begin{table*}[t]
\centering%s\setlength{\tabcolsep}{3pt}
%s
%s
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
# As a last resort: a table that is too wide in the smallest size.
SCALED = r"""\resizebox{\ifdim\width>\linewidth \linewidth\else \width\fi}{!}{%%
%s}"""
SIZE = r"\ifdim\textwidth<%dpt\relax\%s\else\%s\fi"


def to_latex(printed: Printed) -> str:
    """A floating table with its notes, without findings, reasons and runs; of a long table, one for each page.

    It fits the text width of papers. The first line names the packages that it needs.
    """
    sheet = printed.narrow or printed.sheet
    heads = [textwrap.wrap(head, HEAD_WIDTH) or [""] for head in sheet.heads]
    most = TEXT_WIDTHS["two columns"]
    blocks = [_latex_lines(block, sheet.details_below) for block in sheet.blocks]
    if _width(blocks, heads, "scriptsize") > most:
        blocks = [_latex_lines(block, details_below=True) for block in sheet.blocks]
    one, two = (_size(blocks, heads, TEXT_WIDTHS[columns]) for columns in ("one column", "two columns"))
    size = rf"\{one}" if one == two else SIZE % (most, one, two)
    columns = "l" * sheet.left + "c" * (len(heads) - sheet.left)
    notes = _latex_escaped(" ".join(filter(None, [printed.warning, printed.narrow_notes, printed.notes])))
    title = _latex_escaped(printed.title)
    parts: list[str] = []
    for page in _pages(blocks):
        rows = ("".join(f"{' & '.join(map(LATEX.cell, line))} \\\\\n" for line in block) for block in page)
        tabular = TABULAR % (columns, " & ".join(map(_latex_head, heads)), "\\addlinespace\n".join(rows))
        if _width(blocks, heads, one) > TEXT_WIDTHS["one column"]:
            tabular = SCALED % tabular
        continued = rf"\addtocounter{{table}}{{-1}}\caption{{{title} (continued).}}"
        caption = continued if parts else rf"\caption{{{title}.}}\label{{table:{printed.name}}}"
        parts.append(LATEX_TABLE % (size, caption, tabular, notes))
    text = "".join(parts)
    *others, last = [package for package, sign in PACKAGES.items() if sign in text]
    return f"% Needs {' and '.join(filter(None, [', '.join(others), last]))}.\n{text}"


def _size(blocks: Sequence[Sequence[Line]], heads: Sequence[Sequence[str]], width: float) -> str:
    """The largest size in which a table has this width, else the smallest."""
    return next((size for size in SIZES if _width(blocks, heads, size) <= width), list(SIZES)[-1])


def _pages(blocks: Sequence[Sequence[Line]]) -> list[list[Sequence[Line]]]:
    """Blocks by page."""
    pages: list[list[Sequence[Line]]] = [[]]
    for block in blocks:
        if pages[-1] and sum(map(len, pages[-1])) + len(block) > MOST_LINES:
            pages.append([])
        pages[-1].append(block)
    return pages


def _latex_lines(block: Sequence[Line], details_below: bool) -> list[Line]:
    """The lines of a block as they are set. If only the first has a name, this continues on the following lines."""
    lines: list[Line] = []
    for line in block:
        if details_below and any(text.detail for text in line[1:]):
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


def _width(blocks: Sequence[Sequence[Line]], heads: Sequence[Sequence[str]], size: str) -> float:
    """An estimate of the width of a table in points, rather too large than too small."""
    sign, small = SIZES[size], SIZES["scriptsize"]
    columns = [[sign * max(map(_digits, lines))] for lines in heads]
    for line in itertools.chain(*blocks):
        for column, text in zip(columns, line, strict=True):
            detail = f" ({text.detail})" if text.detail and text.value else text.detail
            column.append(sign * _digits(text.code + text.value) + small * _digits(detail))
    return sum(map(max, columns)) + GAP * (len(columns) - 1)


def _digits(text: str) -> float:
    """The width of a text in digits."""
    return sum(2 / 3 if sign in THIN else 3 / 2 if sign in WIDE else 1 for sign in text)


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
