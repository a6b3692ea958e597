"""Names and messages of others drive no terminal and no page."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hostile import Cli
from records import RUN, save

from hookcli import registry
from hookcli.system.escaping import visible
from hookcli.system.streams import say
from hookcli.table import STATS_COLUMNS, Column, Finding, Reason, Report, Row, Skipped, TensorStats
from hookcli.table.grouping import View

CONTROL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\r\n\x9b31m\x7f\u202e\u2028\ud800"


EVIL = f"{CONTROL}`x`<script>|[a](b)[bold]"


STATS = TensorStats(4, 1.0, 1.0, -1.0, 2.0, 3.0)


# What may drive a terminal: all control characters but line breaks, and the colours of our own.
DRIVES = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def evil(kind: str) -> Report:
    """A report that suits a format, with a bad name wherever there is one."""
    if kind == "findings":
        columns = tuple(Column(n, n) for n in ("check", "severity", "fqn", "message", "hint"))
        finding = Finding("HK008", "error", EVIL, EVIL, hint=EVIL, file=EVIL, line=1)
        rows = [Row({"check": "HK008", "severity": "error", "fqn": EVIL, "message": EVIL, "hint": EVIL})]
        totals = {"errors": 1, "warnings": 0, "checks": 1, "modules": 1}
        meta = {"checks": ["HK008"], "fail_on": "error", "notes": [EVIL], "seconds": 0.0, "error": EVIL}
        skipped = (Skipped(EVIL, f"not judged: {EVIL}", kind=Reason.NOT_JUDGED),)
        return Report("check", EVIL, columns, rows, meta, totals, skipped, [finding])
    if kind == "graph":
        columns = tuple(Column(n, n) for n in ("fqn", "fired", "us", "kind", "id", "next"))
        node = {"node": EVIL, "fqn": EVIL, "fired": 1, "in_shape": [2], "us": 1.5, "kind": "node", "id": 0}
        rows = [Row(node | {"next": [None], "type": None, "name": EVIL, "note": EVIL})]
        return Report("graph", EVIL, columns, rows, {"notes": [EVIL]})
    if kind == "steps":
        columns = (Column("step", "Step"), Column("ratio", EVIL))
        return Report("over-time", EVIL, columns, [Row({"step": 0, "ratio": 0.5}), Row({"step": 9, "ratio": 0.25})])
    columns = (
        Column("fqn", "Layer"),
        Column("type", "Type"),
        Column("path", EVIL),
        *STATS_COLUMNS,
        Column("note", "N"),
    )
    values = {"fqn": f"{EVIL}.b", "type": EVIL, "path": EVIL, "call": 0, "shape": [4], "note": EVIL}
    meta = {"input": EVIL, "notes": [EVIL], "device": EVIL}
    return Report("activations", EVIL, columns, [Row(values, STATS)], meta, {EVIL: 3}, [Skipped(EVIL, EVIL)])


FORMATS = {
    **dict.fromkeys(("table", "json", "csv", "markdown"), "activations"),
    **dict.fromkeys(("junit", "sarif", "github"), "findings"),
    **dict.fromkeys(("dot", "chrome"), "graph"),
    "chart": "steps",
}


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_no_format_lets_a_control_character_through(name: str, color: bool) -> None:
    view = View(width=100 if color else None, color=color)
    text = registry.load("reporters", name)().render([evil(FORMATS[name])] * 2, view)
    text = re.sub("\x1b\\[[0-9;]*m", "", text)  # colours of our own
    assert not DRIVES.search(re.sub("^\t+", "", text, flags=re.MULTILINE))  # and indentation, in dot
    assert "bold]" in text or name == "chart"  # which no markup swallows
    assert r"\x1b]52" in text or r"\u001b]52" in text


def test_formats_that_others_read_stay_whole() -> None:
    found = json.loads(registry.load("reporters", "json")().render([evil("activations")], View()))
    assert Report.from_dict(found["reports"][0]).rows[0].fqn == f"{EVIL}.b"  # a machine gets what was there
    root = ET.fromstring(registry.load("reporters", "junit")().render([evil("findings")], View()).partition("\n")[2])
    assert root[0].get("failures") == "1"
    text = registry.load("reporters", "github")().render([evil("findings")], View())
    assert [line[:8] for line in text.splitlines()] == ["::error ", "::notice"]
    json.loads(registry.load("reporters", "sarif")().render([evil("findings")], View()))


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
@pytest.mark.parametrize("name", [EVIL, "<b>x</b>", "a:b:c", "back\\", 'quo"te\\', "node"])
def test_graphviz_takes_names_for_names(name: str) -> None:
    row = evil("graph").rows[0]
    rows = [Row({**row.values, "fqn": name, "id": i, "next": [1 - i]}) for i in (0, 1)]
    for depth in (None, 1):
        source = registry.load("reporters", "dot")().render([Report("graph", name, (), rows)], View(depth=depth))
        subprocess.run(["dot", "-Tjson0"], input=source, capture_output=True, text=True, check=True)


def test_markdown_makes_text_of_names() -> None:
    text = registry.load("reporters", "markdown")().render([evil("activations")], View())
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert not re.search(r"(?<!\\)(`|\]\()", text)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in rows}) == 1  # as many cells in each line
    cell = registry.load("reporters", "markdown")().render(
        [Report("p", "m", (Column("fqn", "L"),), [Row({"fqn": "a\\`b|c"})])], View()
    )
    assert r"a\\\`b\|c" in cell


def test_a_spreadsheet_finds_no_formula_and_every_number() -> None:
    names = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "plain")
    columns = (Column("fqn", "L"), Column("figure", "F"), Column("names", "N"), Column("shape", "S"))
    values = (-1.5, float("-inf"), -3, None, float("nan"))
    rows = [
        Row({"fqn": name, "figure": value, "names": [name], "shape": [2, 3]})
        for name, value in zip(names, values, strict=True)
    ]
    text = registry.load("reporters", "csv")().render([Report("p", "=m", columns, rows)], View())
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["fqn"] for line in lines] == [f"'{name}" for name in names[:4]] + ["plain"]
    assert [line["names"] for line in lines] == [line["fqn"] for line in lines]
    assert [line["figure"] for line in lines] == ["-1.5", "-Infinity", "-3", "", "NaN"]


def test_remarks_quote_names_safely(capfd: pytest.CaptureFixture[str]) -> None:
    say(f"{EVIL}: no such file\n  a line of our own")
    err = capfd.readouterr().err
    assert not DRIVES.search(err) and len(err.splitlines()) == 2
    assert visible("conv1.größe 層") == "conv1.größe 層"


@pytest.mark.parametrize(
    "argv", [("shapes", EVIL), ("show", EVIL), ("shapes", f"net.py:{EVIL}"), (EVIL,), ("run", EVIL)]
)
def test_messages_quote_arguments_safely(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    ran = cli(*argv)
    assert ran.code == 2 and not DRIVES.search(ran.err + ran.out) and "Traceback" not in ran.err
    assert len(ran.err.splitlines()) == 1


def test_show_of_a_record_of_another(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "x.run.jsonl"
    text = save(file, RUN).read_text().replace('"name": "train.py"', '"name": "\\u001b[2Jtrain\\nhookcli: error: x"')
    file.write_text(text.replace('"fqn": "head"', '"fqn": "he\\u001b]0;x\\u0007ad"'))
    ran = cli("show", str(file))
    assert ran.code == 0 and r"he\x1b]0;x\x07ad" in ran.out and not DRIVES.search(ran.out + ran.err)
    assert r"\x1b[2Jtrain\nhookcli: error: x" in ran.err
