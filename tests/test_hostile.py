"""Names and files of others: they drive no terminal, make no page and no formula, and lose no report."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from records import RUN, save

from hookcli import registry
from hookcli.report import STATS_COLUMNS, Column, Finding, Reason, Report, Row, Skipped, TensorStats
from hookcli.report.files import read_reports, write_whole
from hookcli.report.grouping import View
from hookcli.system.escaping import visible
from hookcli.system.files import at_rest, replacing
from hookcli.system.streams import say

Cli = Callable[..., Any]
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


# Files.


@pytest.fixture
def unnameable(net: Path) -> Path:
    """A file whose name is not UTF-8, with a layer whose name is none, either."""
    file = net / os.fsdecode(b"n\xff.py")
    file.write_text(
        "from torch import nn\ndef f():\n    m = nn.Sequential()\n    m.add_module('a\\ud800', nn.Linear(2, 2))\n"
        "    return m\n"
    )
    return file


@pytest.mark.parametrize("suffix", ["json", "csv", "md", "txt"])
def test_names_that_are_not_utf8(cli: Cli, unnameable: Path, net: Path, suffix: str) -> None:
    ran = cli("shapes", f"{unnameable.name}:f", "-i", "1x2", "-o", f"{os.fsdecode(bytes([200]))}.{suffix}")
    assert ran.code == 0 and "Traceback" not in ran.err, ran.err
    [written] = net.glob(f"*.{suffix}")
    assert "a\\ud800" in written.read_text("utf-8")
    if suffix == "json":
        assert read_reports(str(written))[0].rows[-1].fqn == "a\ud800"
    assert not list(net.glob(".*"))


def test_a_baseline_of_such_a_model(cli: Cli, unnameable: Path, net: Path) -> None:
    what = ("check", f"{unnameable.name}:f", "-i", "2x2")
    assert cli(*what, "--save", "b.json", "-f", "sarif", "--report", "r.xml").code == 0
    assert cli(*what, "--against", "b.json").code == 0


def test_a_file_keeps_its_mode_and_a_link_stays_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    file = Path("there/secret.json")
    file.write_text("{}")
    file.chmod(0o600)
    Path("link.json").symlink_to(file)
    Path("new.json").symlink_to("there/new.json")
    before = os.umask(0o027)
    try:
        for name in ("link.json", "new.json"):
            assert cli("models", "resnet18", "-o", name).code == 0
            assert Path(name).is_symlink() and read_reports(name)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path("there/new.json").stat().st_mode) == 0o640
    assert sorted(p.name for p in Path("there").iterdir()) == ["new.json", "secret.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, UnicodeError, OSError])
def test_nothing_is_left_of_a_file_that_was_not_written(tmp_path: Path, error: type[BaseException]) -> None:
    file = tmp_path / "x.json"
    file.write_text("as it was")
    with pytest.raises(error), replacing(file) as scratch:
        scratch.write_text("half")
        raise error
    assert [p.read_text() for p in tmp_path.iterdir()] == ["as it was"]


def test_a_named_pipe_gets_the_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text\ud800")
    assert os.read(reader, 100) == b"text\\ud800" and pipe.is_fifo()
    os.close(reader)


def test_names_as_long_as_can_be_and_longer(cli: Cli, net: Path) -> None:
    longest, longer = "a" * 250 + ".json", "a" * 300
    assert cli("models", "resnet18", "-o", longest).code == 0 and Path(longest).stat().st_size
    for argv in (
        ("models", "-o", f"{longer}.json"), ("shapes", f"{longer}.py:f"), ("shapes", longer), ("show", longer),
        ("show", longer, "--follow"), ("diff", longer, longer), ("run", longer), ("package", "--load", longer),
        ("check", "--config", longer), ("shapes", "net.py:Net", "--weights", f"{longer}.pt", "-i", "1x3x4x4"),
        ("check", "--save", longer), ("check", "net.py:Net", "-i", "2x3x4x4", "--against", longer),
        ("shapes", f"{longer}:f"), ("diff", "resnet18", f"net.py:Net --path {longer}"),
    ):  # fmt: skip
        ran = cli(*argv)
        assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err.splitlines()) == 1, (argv, ran.err)


@pytest.mark.parametrize(
    "argv",
    [
        ("--input", "DIGITS"), ("--depth", "DIGITS"), ("--batch-size", "DIGITS"), ("--seed", "DIGITS"),
        ("--input", "1x3x4x4:DIGITS"), ("--arg", "width=DIGITS"), ("--nproc", "2", "--ranks", "DIGITS"),
    ],
)  # fmt: skip
def test_numbers_of_5000_digits(cli: Cli, net: Path, argv: tuple[str, ...]) -> None:
    probe = "activations" if "--ranks" in argv else "shapes"
    ran = cli(probe, "net.py:Net", "-i", "1x3x4x4", *(word.replace("DIGITS", "9" * 5000) for word in argv))
    assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err.splitlines()) <= 2, ran.err


def test_more_numbers_of_5000_digits(cli: Cli, net: Path) -> None:
    for argv in (("check", "--expect-output", "1xDIGITS"), ("run", "--steps", "DIGITS:", "x.py")):
        ran = cli(*(word.replace("DIGITS", "9" * 5000) for word in argv))
        assert ran.code == 2 and "Traceback" not in ran.err and len(ran.err) < 1000, ran.err


# Pipes to read from.


def piped(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of bash in which `hookcli` is this one."""
    return subprocess.run(
        ["bash", "-c", command.replace("hookcli", f"{sys.executable} -m hookcli")],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_show_of_a_pipe(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "r.run.jsonl", RUN)
    assert cli("models", "resnet18", "-o", "saved.json").code == 0
    whole = {name: cli("show", name, "-f", "json").out for name in ("r.run.jsonl", "saved.json")}
    for name, expected in whole.items():
        for command in (f"hookcli show -f json <(cat {name})", f"cat {name} | hookcli show /dev/stdin -f json"):
            ran = piped(command, tmp_path)
            assert ran.returncode == 0 and json.loads(ran.stdout) == json.loads(expected), (command, ran)
    ran = piped("hookcli show --follow <(cat r.run.jsonl)", tmp_path)
    assert ran.returncode == 2 and "is a pipe" in ran.stderr and len(ran.stderr.splitlines()) == 1
    ran = piped("hookcli show <(echo nonsense)", tmp_path)
    assert ran.returncode == 2 and "/dev/fd/" in ran.stderr and len(ran.stderr.splitlines()) == 1


def test_a_copy_of_a_pipe_is_gone_afterwards(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    with at_rest(Path(f"/dev/fd/{reader}")) as copy:
        assert copy.read_text() == copy.read_text() == "text"
    assert not copy.parent.exists()
    os.close(reader)
    file = tmp_path / "x"
    with at_rest(file) as path:
        assert path == file


def test_stdout_by_its_name_is_stdout(cli: Cli) -> None:
    for name in ("/dev/stdout", "/dev/fd/1"):
        ran = cli("models", "resnet18", "-f", "csv", "-o", name)
        assert ran.code == 0 and ran.out.startswith("name,kind") and ran.err == ""
