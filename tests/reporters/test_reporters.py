"""Reporters from a handmade report: whole outputs, held against golden files and against the report itself.

`pytest --golden` writes the files anew; read the difference before you commit it.
"""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from hookcli import registry
from hookcli.reporters import selection
from hookcli.reporters.table import TableReporter
from hookcli.table import STATS_COLUMNS, Column, Report, Row, Skipped, TensorStats, formatting
from hookcli.table.grouping import View

GOLDEN = Path(__file__).parent.parent / "golden"


def row(fqn: str, kind: str, stats: TensorStats, **values: object) -> Row:
    base = {"fqn": fqn, "type": kind, "call": 0, "index": 0, "path": "", "shape": [2, 3], "dtype": "float32"}
    return Row(base | values, stats)


ROWS = (
    row("", "Net", TensorStats(6, 0.5, 1.25, -1.0, 2.0, 3.5, zeros=1)),
    row("stem", "Conv2d", TensorStats(802816, -1.2345e-8, 0.28, -0.77, 12.5, 791.9)),
    row("stem.norm", "BatchNorm2d", TensorStats(6, 123456.0, 1e9, -1e-4, 99999.0, 1e30, zeros=3)),
    row("head", "Linear", TensorStats(6, 0.0, 0.0, 0.0, 0.0, 0.0, zeros=6), path='["out"]'),
    row("head", "Linear", TensorStats(6, 1.0, 2.0, -3.0, 4.0, 5.0, nan=2, inf=1), path='["aux"]', dtype="float16"),
    row("gone", "Identity", TensorStats(0), shape=[0]),
)
COLUMNS = (Column("fqn", "Layer"), Column("type", "Type"), Column("call", "Call"), Column("index", "Order"),
           Column("path", "Path"), Column("shape", "Shape"), Column("dtype", "Dtype"), *STATS_COLUMNS)  # fmt: skip
META = {"torch": "2.15", "input": "2x3", "device": "cpu", "dtype": "float32", "mode": "eval", "seconds": 0.25}
REPORT = Report(
    "activations", "net.py:Net", COLUMNS, ROWS, META | {"complete": True}, {"rows": 6},
    (Skipped("drop", "never called in eval mode"), Skipped("drop2", "never called in eval mode")),
)  # fmt: skip

FIRINGS = Report(
    "graph", "net.py:Net", tuple(Column(n, n) for n in ("fqn", "fired", "us", "kind", "id", "next")),
    [Row({"node": "AddBackward0", "fqn": "stem", "fired": 1, "in_shape": [2, 3], "us": 1.5, "kind": "node", "id": 0,
          "next": [None, 1], "type": None, "name": "AddBackward0"}, TensorStats(6, 0.5, 1.0, -1.0, 2.0, 3.5)),
     Row({"node": "AccumulateGrad", "fqn": "stem.weight", "fired": 0, "in_shape": None, "us": None, "kind": "node",
          "id": 1, "next": [], "type": None, "name": "AccumulateGrad"})],
)  # fmt: skip

STEPS = Report(
    "over-time", "Net", (Column("step", "Step"), Column("ratio", "|dw|/|w|")),
    [Row({"step": 0, "ratio": 0.5}), Row({"step": 100, "ratio": 0.25})],
)  # fmt: skip

VIEWS = {
    "table": ("table", View()),
    "table80": ("table", View(width=80, height=24)),
    "table_color": ("table", View(width=120, height=50, color=True, bars=True)),
    "markdown": ("markdown", View()),
    "csv": ("csv", View()),
    "json": ("json", View()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    reporter, view = VIEWS[name]
    text = registry.load("reporters", reporter)().render([REPORT], view)
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--golden"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_fits_its_width(width: int) -> None:
    text = TableReporter().render([REPORT], View(width=width, height=50))
    assert max(map(len, text.splitlines())) <= width


def test_the_table_marks_in_words_what_is_wrong() -> None:
    lines = TableReporter().render([REPORT], View()).splitlines()
    assert any("2 NaN, 1 Inf" in line for line in lines) and any("all zero" in line for line in lines)
    assert any(line.startswith("gone") and "empty" in line for line in lines)
    assert any("drop and 1 more: never called" in line for line in lines)


def test_of_several_reports_each_has_its_heading_above_it() -> None:
    lines = TableReporter().render([REPORT, replace(REPORT, model="other")], View()).splitlines()
    alone = TableReporter().render([REPORT], View()).splitlines()
    run = [n for n, line in enumerate(lines) if "input 2x3" in line]
    assert run[0] == 1 and lines[run[1]].startswith("other") and lines[run[1] - 2] == ""
    assert sorted(lines[: run[1] - 2]) == sorted(alone) and "input 2x3" in alone[1]


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b[" in TableReporter().render([REPORT], View(width=100, color=True))
    assert "\x1b[" not in TableReporter().render([REPORT], View(width=100))


GROUPS = {"wandb": [pytest.mark.xdist_group("wandb")]}  # which is imported once


@pytest.mark.parametrize("name", [pytest.param(n, marks=GROUPS.get(n, ())) for n in registry.names("reporters")])
def test_every_reporter_takes_none_one_and_several(name: str, tmp_path: Path) -> None:
    reporter = registry.load("reporters", name)()
    [needs, *_] = getattr(reporter, "needs_one", ()) or [getattr(reporter, "needs", ())]
    report = STEPS if "step" in needs else FIRINGS if needs else REPORT
    for reports in ([], [report], [report, report]):
        if selection.exports(reporter):
            assert reporter.export(iter(reports), View(), tmp_path / f"{len(reports)}") is None
        else:
            assert isinstance(reporter.render(reports, View()), str)
    assert reporter.suffixes or name in ("chart", "chrome", "github", "hist", "tensorboard", "wandb")


def test_machine_formats_hold_every_row_unrounded() -> None:
    data = json.loads(registry.load("reporters", "json")().render([REPORT], View()))
    found = Report.from_dict(data["reports"][0])
    assert [r.stats for r in found.rows][:5] == [r.stats for r in ROWS][:5]
    assert math.isnan(found.rows[5].stats.mean)  # type: ignore[union-attr]
    lines = list(csv.DictReader(io.StringIO(registry.load("reporters", "csv")().render([REPORT], View()))))
    assert [float(line["mean"]) for line in lines[:5]] == [r["mean"] for r in ROWS[:5]]
    assert lines[0]["shape"] == "2x3" and lines[5]["mean"] == "NaN"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (1.0, "1.000"), (-0.0123456, "-0.01235"), (99999.0, "1.000e+05"), (12345.0, "12345"),
        (0.99999, "1.000"), (123456.0, "1.235e+05"),
        (0.00099, "9.900e-04"), (math.nan, "-"), (math.inf, "inf"), (-math.inf, "-inf"), (9.9996, "10.00"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1 K"), (4089184256, "4.089 G"), (999_999_999, "1 G"), (None, "-")],
)
def test_quantities(value: int | None, text: str) -> None:
    assert formatting.quantity(value) == text


def test_a_share_is_never_rounded_to_none_or_all() -> None:
    for zeros, text in ((0, "0"), (1, "0.1%"), (999_999, "99.9%"), (1_000_000, "100%")):
        assert formatting.cell(row("x", "T", TensorStats(1_000_000, zeros=zeros)), "zeros") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"),
        (4.21, "4.2 s"),
        (99.94, "99.9 s"),
        (200, "3 min 20 s"),
        (3599.9, "1 h 0 min"),
        (7505, "2 h 5 min"),
    ],
)
def test_how_long_a_person_waited(seconds: float, text: str) -> None:
    assert formatting.clock(seconds) == text


def test_counted() -> None:
    assert [formatting.counted(n, "model") for n in (0, 1, 2000)] == ["0 models", "1 model", "2,000 models"]
