"""Parameter groups and times of a recorded step: in its table, in its totals, and over time."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import RUN, recorded_step, save

from hookcli import registry
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.over_time import over_time
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import Query
from hookcli.table import Column, Report, Row
from hookcli.table.grouping import View, apply_view

GOLDEN = Path(__file__).parents[3] / "golden"
_GROUP = ("optimizer", "group", "parameters", "lr", "weight_decay", "momentum", "betas")
_NORMS = ("unclipped_grad", "param_grad", "weight", "update", "ratio")


def group(number: int, lr: float, parameters: int, norms: tuple[float, ...]) -> Row:
    values = ("SGD", number, parameters, lr, 0.0001, 0.9, None)
    return Row(dict(zip((*_GROUP, *_NORMS), (*values, *norms), strict=True)))


def timed_step(step: int = 0, lr: float = 0.1) -> RecordedStep:
    """The handmade step, with two groups: body.0 at the rate, and head at a tenth."""
    base = recorded_step(step)
    groups = [
        group(0, lr, 272, (50.0, 5.0, 50.0, 0.05, 0.001)),
        group(1, lr / 10, 170, (120.0, 12.0, 120.0, 0.12, 0.001)),
    ]
    times = {"": (0.5, 0.25), "body": (0.25, 0.125), "body.0": (0.2, 0.125), "body.1": (0.05, None), "head": (0.2, 0.1)}
    rows = [
        Row({"fqn": f, "type": "T", "calls": 1, "forward_us": 1e6 * a, "backward_us": b and 1e6 * b})
        for f, (a, b) in times.items()
    ]
    parts = {"data": 0.125, "forward": 0.5, "backward": 0.25, "optimizer": 0.0625, "rest": 0.0, "hookcli": 0.03}
    totals = {f"{part}_seconds": seconds for part, seconds in parts.items()} | {"resident_bytes": 2**30}
    time_columns = [Column(n, n) for n in ("fqn", "type", "calls", "forward_us", "backward_us")]
    reports = (
        Report("optimizer", "Net", [Column(n, n) for n in (*_GROUP, *_NORMS)], groups, grouping="list"),
        Report("time", "Net", time_columns, rows, totals=totals),
    )
    return replace(base, reports=(*base.reports, *reports))


@pytest.mark.parametrize("width", [80, 120, 200])
def test_golden(width: int, request: pytest.FixtureRequest) -> None:
    view = View(width=width, height=50, bars=True)
    text = registry.load("reporters", "table")().render([overview(timed_step())], view)
    file = GOLDEN / f"step{width}.txt"
    if request.config.getoption("--golden"):
        file.write_text(text)
    assert text == file.read_text() and max(map(len, text.splitlines())) <= width
    assert ("Backward" in text) is (width > 80)  # columns of times where there is room


def test_the_totals() -> None:
    totals = overview(timed_step()).totals
    assert totals["unclipped_grad"] == 130.0 and totals["param_grad"] == 13.0
    assert [g["lr"] for g in totals["groups"]] == pytest.approx([0.1, 0.01])
    assert (totals["forward_seconds"], totals["resident_bytes"]) == (0.5, 2**30)
    rows = {row.fqn: row for row in overview(timed_step()).rows}
    assert (rows["body.0"]["forward_us"], rows["body.1"]["backward_us"]) == (2e5, None)


def test_over_time() -> None:
    (report,) = over_time([timed_step(0, 0.1), timed_step(100, 0.05)], "")
    titles = {column.name: column.title for column in report.columns}
    assert titles["lr"] == "Learning rate" and titles["lr_1"] == "Learning rate of group 1"
    assert [(row["lr"], row["lr_1"]) for row in report.rows] == [(0.1, 0.01), (0.05, 0.005)]
    assert [row["unclipped_grad"] for row in report.rows] == [130.0] * 2
    assert [row["data_seconds"] for row in report.rows] == [0.125] * 2
    chart = registry.load("reporters", "chart")().render([report], View(width=80))
    assert "Learning rate\n" in chart and "Waiting for data" not in chart and "data_seconds," in chart
    view = View(columns=["data_seconds"])
    times = registry.load("reporters", "chart")().render([apply_view(report, view)], view)
    assert "Waiting for data (seconds): 0.1250 throughout" in times
    (module,) = over_time([timed_step()], "body.0")
    assert (module.rows[0]["forward_us"], module.rows[0].get("lr")) == (2e5, None)


def test_a_record_in_a_file(tmp_path: Path) -> None:
    """Saved and read back, selected by probe, and over time, for which rows are left out while reading."""
    record = read_record(save(tmp_path / "a.run.jsonl", (RUN[0], timed_step(), timed_step(100), RUN[-1])))
    (groups,) = Query(step=100, probe="optimizer").within(record).reports()
    assert [row["lr"] for row in groups.rows] == [0.1, 0.01]  # not rounded
    (history,) = Query(over_time=".").within(record).reports()
    assert [row["lr_1"] for row in history.rows] == [0.01, 0.01]
    (times,) = Query(probe="time").within(record).reports()
    found: Any = csv.DictReader(io.StringIO(registry.load("reporters", "csv")().render([times], View())))
    assert float(next(found)["forward_us"]) == 5e5
