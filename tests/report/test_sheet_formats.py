"""Tests of the Markdown, LaTeX and HTML table formats: links, escaping and emphasis."""

import csv
import io
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from nero.report import catalogue, paper
from nero.report.page.sheet_html import to_html
from nero.report.tables.latex import to_latex
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import Printed, RunLink, Sheet, Text, for_terminal, to_csv, to_markdown
from nero.report.tables.table import build_table
from nero.report.theory.report import make_tables
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, fill, plausible, write_run

NASTY = 'a<b>&"|_%#$^~\\'
NO_BREAK = "\N{NO-BREAK SPACE}"
LINK = RunLink("seed 0", "a_task", "a_task-nero-0.01-s0-12345678")


def printed(*texts: Text) -> Printed:
    sheet = Sheet([f"head {number}" for number in range(len(texts))], [[list(texts)]], 1)
    return Printed("name", "Title", sheet, "Notes.", ({"a": "1"},))


class Cells(HTMLParser):
    """Parser that collects cell texts, tags with their attributes, and open tags; end tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data.replace("\N{NO-BREAK SPACE}", " ")


def test_values_link_to_their_runs() -> None:
    table = printed(Text("1.23", "n = 2, η = 0.1", runs=(LINK, LINK), name="Task, Nero"), Text("4.5", link=LINK))
    address = "../runs/a_task/a_task-nero-0.01-s0-12345678"
    markdown = to_markdown(table, "../runs")
    assert f"| 1.23 (n{NO_BREAK}={NO_BREAK}2, η{NO_BREAK}={NO_BREAK}0.1) | [4.5]({address}) |" in markdown
    listed = markdown.partition("\n<details>\n")[2]
    assert f"\n\n- Task, Nero: [seed 0]({address}), [seed 0]({address})\n\n</details>\n" in listed
    assert "href" not in to_latex(table)
    html = Cells(to_html(table))
    assert html.cells == ["1.23 (n = 2, η = 0.1; seed 0, seed 0)", "4.5"]
    assert [attributes["href"] for tag, attributes in html.tags if tag == "a"] == [f"#run={LINK.run_id}"] * 3


def test_runs_are_named_by_the_labels_of_their_line() -> None:
    blocks = [[[Text("task"), Text(name), Text("2", runs=(LINK,))] for name in ("Nero", "SGD")]]
    blocks[0][1][0] = Text("")
    table = Printed("name", "Title", Sheet(["task", "optimiser", "runs"], blocks, 2), "", ())
    names = re.findall(r"^- (.*): \[seed 0\]", to_markdown(table, "../runs"), re.MULTILINE)
    assert names == ["task, Nero", "task, SGD"]


def test_terminal_gets_neither_links_nor_the_list_of_runs() -> None:
    table = replace(printed(Text("1.23 ± 0.1", runs=(LINK,)), Text("4.5", link=LINK)), general=True)
    markdown = to_markdown(table, "../runs", "notes.md")
    assert "\n\n[How to read this table](notes.md)\n\n<details>" in markdown
    assert for_terminal(markdown) == to_markdown(printed(Text("1.23 ± 0.1"), Text("4.5"))).replace(NO_BREAK, " ")


def test_no_links_without_store_path() -> None:
    table = printed(Text("1.23", "n = 2", runs=(LINK,)), Text("4.5", link=LINK))
    assert "| 1.23 (n = 2) | 4.5 |" in to_markdown(table).replace(NO_BREAK, " ")
    assert "details" not in to_markdown(table)


def test_text_is_escaped_in_every_format() -> None:
    table = printed(Text(NASTY, NASTY, code=NASTY, cell=NASTY, verdict=NASTY))
    html = Cells(to_html(table))
    assert html.cells == [f"{NASTY}{NASTY} ({NASTY})"]
    assert not html.open
    [attributes] = [attributes for tag, attributes in html.tags if tag == "td"]
    assert attributes == {"data-head": "head 0", "data-cell": NASTY, "data-verdict": NASTY}
    latex = re.sub(r"%.*|\\label.*", "", to_latex(table).partition("midrule")[2])
    assert not re.search(r"(?<!\\)[%#_&]", latex)
    assert not re.search('[|<>"]', latex), "LaTeX's default font has other signs in their places"
    assert to_markdown(table).count("|") == 6, "a bar of the text's own does not end its cell"


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</details><script>alert(1)</script>",
    "`<img src=x onerror=alert(1)>`",
    "[x](javascript:alert(1))",
    "a\n\n<img src=x onerror=alert(1)>",
    "a | b",
    "&lt;img src=x&gt;",
)


OUR_TAGS = {"h1", "p", "strong", "u", "code", "em", "ul", "li", "a", "details", "summary"}
OUR_TAGS |= {"table", "thead", "tbody", "tr", "th", "td"}


class Rendered(Cells):
    """What a browser would make of Markdown, by a renderer that lets HTML through."""

    def __init__(self, text: str) -> None:
        markdown = pytest.importorskip("markdown")
        super().__init__(markdown.markdown(text, extensions=["tables", "md_in_html"]))

    def handle_data(self, data: str) -> None:
        self.text = getattr(self, "text", "") + data


@pytest.mark.parametrize("hostile", HOSTILE)
def test_markdown_has_no_markup_of_texts_from_elsewhere(hostile: str) -> None:
    run = RunLink(hostile, "a_task", f"{hostile} (1)")
    cell = Text(hostile, hostile, code=hostile, runs=(run, run), name=hostile, link=run)
    sheet = Sheet([hostile] * 2, [[[cell, Text(hostile, rank=1)]]], 1)
    table = Printed("name", hostile, sheet, hostile, (), hostile, (cell,), (cell,))
    text = to_markdown(table, "../runs")
    assert "<img" not in text
    assert "<script" not in text
    assert all(line.count("|") == 3 for line in text.splitlines() if line.startswith("|"))
    html = Rendered(text)
    assert {tag for tag, _ in html.tags} <= OUR_TAGS
    links = [attributes["href"] or "" for tag, attributes in html.tags if tag == "a"]
    assert all(link.startswith("../runs/a_task/") for link in links)
    assert len(html.cells) == 2


@given(st.text(alphabet="<>&`|[]()*_ab\n\r\t '\"", max_size=30))
def test_any_text_keeps_the_shape_of_a_markdown_table(text: str) -> None:
    markdown = to_markdown(printed(Text(text, text), Text(text, code=text)))
    assert not re.search("<(?!/?u>)", markdown)
    assert [line.count("|") for line in markdown.splitlines() if line.startswith("|")] == [3, 3, 3]


FORMULAS = ("=1+1", "=cmd|'/c calc'!A1", "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", "\r=1+1", "\n=1+1", "-", "--1", "+a")
HARMLESS = ("-0.5", "+1e-3", "-inf", "-1", "", "0.5", "a=1", "[-0.04, +0.60]", "−1", "'=1")


@pytest.mark.parametrize("text", [*FORMULAS, *HARMLESS])
def test_spreadsheet_executes_no_text_of_csv(text: str) -> None:
    [[head], [cell]] = csv.reader(io.StringIO(to_csv([{"head": text}]), newline=""))
    assert head == "head"
    assert cell == (f"'{text}" if text in FORMULAS else text).replace("\r", "\n")


@given(st.text(alphabet="=+-@\t\r\n'0123456789.e,\"a", min_size=1, max_size=8))
def test_cells_of_csv_are_numbers_or_begin_like_text(text: str) -> None:
    [_, [cell]] = csv.reader(io.StringIO(to_csv([{"head": text}]), newline=""))
    assert cell.removeprefix("'") == re.sub("\r\n?", "\n", text).removeprefix("'")
    if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        assert cell == text
        float(cell)


@pytest.mark.parametrize(("rank", "html"), [(1, "value best"), (2, "value second"), (None, "value")])
def test_best_and_runner_up_have_different_html_classes(rank: int | None, html: str) -> None:
    [found] = [attributes for tag, attributes in Cells(to_html(printed(Text("1", rank=rank)))).tags if tag == "span"]
    assert found == {"class": html}


def test_every_result_of_ours_links_to_its_runs(store: Store) -> None:
    fill(store, "mnist", lambda cell, lr, seed: None if cell.optim == "sgd" else plausible(cell, lr, seed))
    table = build_table(evidence_of(store), paper.mnist())
    text = to_markdown(print_table(table), str(store.root))
    for row in table.rows:
        for entry in row.entries.values():
            runs = entry.runs or [run for run in entry.state.search.values() if run is not None]
            assert runs
            for run in runs:
                path = store.root / run["task"] / run["run_id"]
                assert f"]({path})" in text
                assert path.is_dir()


def test_html_cells_carry_keys_of_csv_records(store: Store) -> None:
    write_run(store, cells_of("mnist")["mnist_mlp100 nero"], 0.01, 0, 0.3)
    table = print_table(build_table(evidence_of(store), paper.mnist()))
    html = Cells(to_html(table))
    named = {attributes["data-cell"] for tag, attributes in html.tags if tag == "td" and "data-cell" in attributes}
    assert named == {"|".join((line["task"], line["label"], line["variant"], line["optim"])) for line in table.records}


# LaTeX

WIDTHS = (5.5, 6.75)  # inches: one column of NeurIPS, two of ICML
DOCUMENT = r"""\documentclass{article}
\usepackage[letterpaper, textwidth=%sin, textheight=9in]{geometry}
\usepackage{booktabs, amssymb, graphicx}
\begin{document}
%s
\end{document}
"""


def test_latex_cells_are_short(store: Store) -> None:
    """A paper's text has room for about 100 digits of the smallest font beside each other."""
    fill(store, "mnist", plausible)
    text = to_latex(print_table(build_table(evidence_of(store), paper.mnist())))
    rows = [row for row in text.splitlines() if row.endswith(r" \\")]
    cells = [[re.sub(r"\\\w+ ?|[{}$]", "", cell).strip() for cell in row[:-3].split(" & ")] for row in rows]
    assert {len(row) for row in cells} == {6}
    assert sum(max(map(len, column)) for column in zip(*cells, strict=True)) < 100
    assert not re.search("seed [0-9]|rates|agrees", text.partition(r"\bottomrule")[0])


def test_details_go_below_values_and_names_continue_below(store: Store) -> None:
    line = [Text("a name that is too long for its column", "metric"), Text("1.23", "n = 2", rank=1)]
    sheet = Sheet(["task", "Nero"], [[line, [Text(""), Text("4.56", "n = 3")]]], 1)
    text = to_latex(Printed("name", "Title", sheet, "Notes.", ()))
    rows = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0].splitlines()
    assert rows == [
        r"a name that is too long & \textbf{1.23} \\",
        r"for its column & {\scriptsize n = 2} \\",
        r"{\scriptsize metric} & 4.56 \\",
        r" & {\scriptsize n = 3} \\",
    ]


def test_long_latex_table_has_a_float_for_each_page() -> None:
    blocks = [[[Text(f"row {number}"), Text("1")]] for number in range(130)]
    text = to_latex(Printed("name", "Title", Sheet(["task", "Nero"], blocks, 1), "Notes.", ()))
    assert [part.count("row ") for part in text.split(r"\end{table*}")] == [48, 48, 34, 0]
    assert text.count(r"\label{table:name}") == 1
    assert text.count("Title (continued).") == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex, of texlive-latex-recommended")
@pytest.mark.parametrize("width", WIDTHS)
def test_committed_tables_fit_the_text_width_of_papers(tmp_path: Path, width: float) -> None:
    store = Store(ROOT / "results" / "runs")
    summaries = store.summaries()
    experiments = [catalogue.gather(name, store, summaries) for name in catalogue.CATALOGUE]
    tables = [*map(print_table, map(catalogue.make_table, experiments)), *catalogue.make_overviews(experiments)]
    tables += make_tables(ROOT / "results" / "theory")
    (tmp_path / "x.tex").write_text(DOCUMENT % (width, "\\clearpage\n".join(map(to_latex, tables))))
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "x.tex"], cwd=tmp_path, capture_output=True)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log
    assert re.findall(r"Overfull .hbox.*|Float too large.*", log) == []
