"""A laid-out table as LaTeX."""

import re
from collections.abc import Callable

from nero.report.tables.sheets import Printed, RunLink, Text

LATEX = {
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
}
"""Signs that a document would need further packages for, or that mean something else there."""

PACKAGES = {"booktabs": r"\toprule", "amssymb": LATEX["✓"], "hyperref": r"\href"}
"""What a document has to load for what."""


def to_latex(printed: Printed, runs: str | None = None) -> str:
    """A floating table; its first line says which packages a document has to load. Reasons are left out.

    `runs` is the store's path from the document, for links to runs.
    """
    sheet = printed.sheet
    columns = "l" * sheet.left + "c" * (len(sheet.heads) - sheet.left)
    body: list[str] = []
    for block in sheet.blocks:
        if body:
            body.append(r"\addlinespace")
        body += [" & ".join(_cell(text, runs) for text in line) + r" \\" for line in block]
    caption = " ".join(filter(None, [f"{printed.title}.", printed.warning, printed.notes]))
    lines = [
        r"\begin{table*}[t]",
        r"\centering\footnotesize",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(_escaped, sheet.heads)) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip"] if printed.findings else []),
        *(rf"{{\raggedright\scriptsize {_cell(text, None)}\par}}" for text in printed.findings),
        rf"\caption{{{_escaped(caption)}}}",
        rf"\label{{table:{printed.name}}}",
        r"\end{table*}",
        "",
    ]
    text = "\n".join(lines)
    *most, last = [package for package, sign in PACKAGES.items() if sign in text]
    return f"% Needs {' and '.join(filter(None, [', '.join(most), last]))}.\n{text}"


def _escaped(text: str) -> str:
    # Hyphens before digits are minus signs.
    escaped = "".join(LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


def _cell(text: Text, runs: str | None) -> str:
    emphasis: dict[int | None, Callable[[str], str]] = {1: r"\textbf{{{}}}".format, 2: r"\underline{{{}}}".format}
    value = emphasis.get(text.rank, str)(_escaped(text.value))
    if text.link and runs is not None:
        value = _linked(text.link, runs, value)
    details = [_escaped(text.detail)] if text.detail else []
    if text.runs and runs is not None:
        details.append(", ".join(_linked(link, runs, _escaped(link.words)) for link in text.runs))
    return _escaped(text.code) + value + (rf" {{\scriptsize ({'; '.join(details)})}}" if details else "")


def _linked(link: RunLink, runs: str, words: str) -> str:
    # A backslash before these signs is all that a link's address needs.
    address = re.sub(r"([%#&_])", r"\\\1", f"{runs}/{link.path}")
    return rf"\href{{{address}}}{{{words}}}"
