"""Tests of the Markdown, LaTeX and HTML table formats: links, escaping and emphasis."""

import re
from html.parser import HTMLParser

import pytest

from nero.report import paper
from nero.report.tables.layout import print_table
from nero.report.tables.sheets import Printed, RunLink, Sheet, Text, to_html, to_latex, to_markdown
from nero.report.tables.table import build_table
from nero.runs.store import Store
from support.fake_runs import cells_of, evidence_of, fill, plausible, write_run

NASTY = 'a<b>&"|_%#$^~\\'
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
    table = printed(Text("1.23", "n = 2, η = 0.1", runs=(LINK, LINK)), Text("4.5", link=LINK))
    address = "../runs/a_task/a_task-nero-0.01-s0-12345678"
    markdown = to_markdown(table, "../runs")
    assert f"| 1.23 (n = 2, η = 0.1; [seed 0]({address}), [seed 0]({address})) | [4.5]({address}) |" in markdown
    latex = to_latex(table, "../runs")
    escaped = address.replace("_", r"\_")
    assert latex.startswith("% Needs booktabs and hyperref.\n")
    assert rf"1.23 {{\scriptsize (n = 2, $\eta$ = 0.1; \href{{{escaped}}}{{seed 0}}, " in latex
    assert rf"\href{{{escaped}}}{{4.5}}" in latex
    html = Cells(to_html(table))
    assert html.cells == ["1.23 (n = 2, η = 0.1; seed 0, seed 0)", "4.5"]
    assert [attributes["href"] for tag, attributes in html.tags if tag == "a"] == [f"#run={LINK.run_id}"] * 3


def test_no_links_without_store_path() -> None:
    table = printed(Text("1.23", "n = 2", runs=(LINK,)), Text("4.5", link=LINK))
    assert "| 1.23 (n = 2) | 4.5 |" in to_markdown(table)
    assert "href" not in to_latex(table)


def test_text_is_escaped_in_every_format() -> None:
    table = printed(Text(NASTY, NASTY, code=NASTY, cell=NASTY, verdict=NASTY))
    html = Cells(to_html(table))
    assert html.cells == [f"{NASTY}{NASTY} ({NASTY})"]
    assert not html.open
    [attributes] = [attributes for tag, attributes in html.tags if tag == "td"]
    assert attributes == {"data-cell": NASTY, "data-verdict": NASTY}
    assert not re.search(r"(?<!\\)[%#_&]", re.sub(r"%.*|\\label.*", "", to_latex(table).partition("midrule")[2]))
    assert to_markdown(table).count("|") == 6, "a bar of the text's own does not end its cell"


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
