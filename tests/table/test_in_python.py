"""Reports in Python and notebooks: one line, a table, HTML, a DataFrame."""

from __future__ import annotations

import os
import pty
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hookcli.checks.judgement import Judgement
from hookcli.cli import main
from hookcli.errors import UsageError
from hookcli.reporters.html import HtmlReporter
from hookcli.reporters.html.page import page
from hookcli.reporters.table import TableReporter
from hookcli.table import Column, Finding, Report, Row, Skipped, columns_named, document
from hookcli.table.grouping import View

COLUMNS = (*columns_named("fqn", "type"), Column("output_shape", "Output"), Column("params", "Params"))
ROWS = [
    Row({"fqn": "", "type": "Net", "output_shape": [2, 4], "params": 20, "frozen": None}),
    Row({"fqn": "a<b>&\x1b[31m", "type": "Linear", "output_shape": [2, 4], "params": 20, "frozen": True}),
    Row({"fqn": "act", "type": "ReLU", "output_shape": [2, 4], "params": None, "frozen": None, "mean": 1.5}),
]
REPORT = Report("shapes", "Net", COLUMNS, ROWS, meta={"device": "cpu"}, totals={"params": 20})

DOCUMENT: dict[str, Any] = {"kind": "reports", **document([REPORT])}


class Page(HTMLParser):
    """The text of cells and of the lines around them, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.lines: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not {"src", "href"} & {name for name, _ in attrs}  # nothing is fetched
        if tag in ("td", "th"):
            self.cells.append("")
        if tag == "p":
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] in ("p", "span"):
            self.lines[-1] += data.rstrip("\n")
        if self.tags and self.tags[-1] in ("td", "th"):
            self.cells[-1] += data.rstrip("\n")


class Tags(HTMLParser):
    """Every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append((tag, dict(attrs)))


def plain(shown: Any) -> str:
    """The tables that stand in for the page where a notebook takes frames and styles away."""
    text: str = shown._repr_html_()
    return text.partition('<div class="hookcli-plain">')[2]


def test_repr_is_one_line() -> None:
    assert repr(REPORT) == "<Report shapes of Net: 3 rows>"
    found = replace(
        REPORT,
        probe="check",
        model="a\nb",
        rows=ROWS[:1],
        findings=[Finding("HK1", "error", "", "x")] * 2,
        skipped=[Skipped("act", "why")],
    )
    assert repr(found) == r"<Report check of a\nb: 1 row, 2 findings, 1 item not measured>"


def test_str_is_the_table_and_nothing_else(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    print(REPORT)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert any(line.split() == ["Layer", "Type", "Output", "Params"] for line in lines)
    assert any(line.split() == ["act", "ReLU", "2x4", "-"] for line in lines) and "20 parameters" in out
    assert "\x1b" not in out and out.endswith("\n") and not out.endswith("\n\n")
    # On a terminal the table is as wide as that, still without colour codes.
    _, terminal = pty.openpty()
    monkeypatch.setenv("COLUMNS", "20")
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        narrow = str(REPORT)
        monkeypatch.undo()
    assert "\x1b" not in narrow and max(map(len, narrow.splitlines())) <= 20 < max(map(len, lines))


NESTED = Report(
    "shapes",
    "Net",
    COLUMNS,
    [
        Row({"fqn": fqn, "type": "Linear", "output_shape": [2, 4], "params": len(fqn), "call": 0})
        for fqn in ("", *(f"{part}{rest}" for part in ("a", "b") for rest in ("", ".x", ".x.y", ".z")))
    ],
    totals={"params": 20, "grad_bytes": 1, "kept_bytes": 2, "kept_mode": "eval"},
    skipped=[Skipped("x", reason) for reason in "abcd"],
)


def test_a_program_chooses_depth_columns_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NESTED.table(depth=1, columns=["Layer", "params"], sort="-params")
    lines = str(table).splitlines()
    assert [line.split() for line in lines[1:2] + lines[3:6]] == [
        ["Layer", "Params"],
        ["a", "1"],
        ["b", "1"],
        ["(model)", "0"],
    ]
    assert repr(table) == str(table) and "\n" in repr(table)
    assert Page(plain(table)).cells[:4] == ["Layer", "Params", "a", "1"]
    assert str(NESTED.table(columns="fqn, Params")) == str(NESTED.table(columns=["fqn", "params"]))
    assert len(str(NESTED.table(depth="all")).splitlines()) == len(str(NESTED.table(depth=9)).splitlines())
    for wrong, said in (
        ({"columns": ["Parms"]}, "columns: unknown column 'Parms'; did you mean params"),
        ({"sort": "-what"}, "sort: unknown column 'what'"),
        ({"depth": 0}, "depth '0': give a number from 1, or all"),
    ):
        with pytest.raises(UsageError) as error:
            NESTED.table(**wrong)  # type: ignore[arg-type]
        assert str(error.value).startswith(said)


def test_the_lines_below_name_arguments_in_python_and_options_on_the_command_line() -> None:
    monkey = replace(
        NESTED,
        rows=[replace(row, values={**row.values, "fqn": f"{row.fqn}{n}"}) for row in NESTED.rows for n in range(9)],
    )
    narrow = View(width=20)
    typed = TableReporter().render([monkey], narrow)
    written = TableReporter().render([monkey], replace(narrow, python=True))
    assert "--depth all" in typed and "--columns" in typed and "--train" in typed and "--format json" in typed
    assert "--" not in written
    for words in ('table(depth="all")', "table(columns=...)", "model.train()", "report.skipped"):
        assert words in written


def test_html_shows_the_cells_of_the_table_and_makes_no_tag_of_a_name() -> None:
    text = plain(REPORT)
    page = Page(text)
    assert page.cells[:4] == ["Layer", "Type", "Output", "Params"]
    assert r"a<b>&\x1b[31m" in page.cells and "\x1b" not in text
    assert set(page.tags) == {"div", "style", "table", "thead", "tbody", "tr", "th", "td", "p"}
    table = [line.split("  ") for line in str(REPORT).splitlines()]
    assert {cell.strip() for cell in page.cells} <= {cell.strip() for line in table for cell in line}


@pytest.mark.sweep
def test_html_has_the_findings_the_verdict_and_the_next_command() -> None:
    finding = Finding("HK010", "warning", "act<i>", "7 of 8\nchannels", cause="HK006 a<b>", remedy="less <u>")
    meta = {"device": "cpu", "next": "hookcli explain 'HK010 & more'"}
    check = Judgement([finding], [], ["HK010"]).report("Net", meta, modules=3)
    diff = replace(REPORT, probe="diff", totals={"verdict": "First difference: a<b>", "compared": 3})
    for report in (check, diff):
        table = TableReporter().render([report], View()).splitlines()
        for text in (plain(report), HtmlReporter().render([report], View())):
            page = Page(text)  # of the whole page, its part for browsers without scripts
            assert not {"i", "b", "u"} & {*page.tags}
            assert [line.rstrip() for line in page.lines] == [line for line in table if line in page.lines]
            assert page.lines[:2] == table[:2] and page.lines[-1] == table[-1]
    assert [line.split()[0] for line in page.lines[:2]] == ["First", "Net"]
    words = [line.split()[0] for line in Page(plain(check)).lines]
    assert words == ["HK010", "May", "Else:", "1", "Net", "Next:"]


@pytest.mark.sweep
def test_a_notebook_gets_the_page_in_a_frame_that_reaches_nothing() -> None:
    [frame] = [attrs for tag, attrs in Tags(REPORT._repr_html_()).found if tag == "iframe"]
    view = View(columns=["fqn"])
    assert frame["srcdoc"] == page({**DOCUMENT, "title": "shapes: Net"}, View(python=True), compact=True)
    assert frame["sandbox"] == "allow-scripts allow-downloads" and frame["title"] == "shapes of Net"
    [narrow] = [attrs for tag, attrs in Tags(HtmlReporter().frame([REPORT], view)).found if tag == "iframe"]
    assert narrow["srcdoc"] == page({**DOCUMENT, "title": "shapes: Net"}, view, compact=True)


def test_html_is_a_format_with_all_its_style_inside(tmp_path: Path) -> None:
    model = tmp_path / "paged.py"
    model.write_text("from torch import nn\ndef net(): return nn.Sequential(nn.Linear(4, 3), nn.ReLU())\n")
    page = tmp_path / "out.html"
    assert main(["shapes", f"{model}:net", "--input", "2x4", "--output", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "2x3" in Page(text).cells
    assert "color-scheme: light dark" in text


def test_to_pandas_has_every_row_and_sensible_dtypes() -> None:
    pd = pytest.importorskip("pandas")
    frame = REPORT.to_pandas()
    assert list(frame.columns) == ["fqn", "type", "output_shape", "params", "frozen", "mean"]
    assert frame["params"].dtype == "Int64" and frame["frozen"].dtype == "boolean" and frame["mean"].dtype == float
    assert pd.api.types.is_string_dtype(frame["fqn"]) and frame["output_shape"].tolist() == [(2, 4)] * 3
    assert frame["params"].sum() == 40 and frame.groupby("output_shape").size().tolist() == [3]
    whole = replace(REPORT, rows=ROWS[:2]).to_pandas()
    assert whole["params"].dtype == int
    assert list(replace(REPORT, rows=[]).to_pandas().columns) == ["fqn", "type", "output_shape", "params"]


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas: pip install pandas$"):
        REPORT.to_pandas()
