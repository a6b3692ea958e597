"""Times of two models side by side, on a clock that only the models move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine.timed_models import Clock, Once, Work, stopped_clock
from support import untouched
from torch import Tensor, nn

from hookcli.diff.rows import diff
from hookcli.engine.capture import capture
from hookcli.engine.lockstep import Side, compare
from hookcli.engine.step import Step
from hookcli.table import Report, document
from hookcli.table.files import read_reports
from hookcli.table.grouping import group_rows
from hookcli.table.strict_json import document_text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch)


def net(clock: Clock, *spent: tuple[float, float]) -> nn.Module:
    return nn.Sequential(*(Work(clock, *each) for each in spent)).train()


def pair(report: Report, fqn: str, name: str) -> tuple[Any, Any]:
    row = next(row for row in report.rows if row.fqn == fqn and row["kind"] == "output")
    return row[f"a_{name}"], row[f"b_{name}"]


def compared(clock: Clock) -> Report:
    a, b = net(clock, (100, 1000), (200, 2000), (300, 0)), net(clock, (100, 1000), (500, 2000), (301, 900))
    x = torch.ones(3, 2)
    with untouched(a), untouched(b):
        return compare(Side(a, x), Side(b, x), step=Step(backward=True), time=True)


def test_both_sides_times_and_the_largest_slowdowns(clock: Clock) -> None:
    report = compared(clock)
    assert pair(report, "", "forward_us") == (600, 901) and pair(report, "", "backward_us") == (3000, 3900)
    assert pair(report, "1", "forward_self_us") == (200, 500)
    rows = {row.fqn: row for row in report.rows if row["kind"] == "output"}
    assert rows["0"]["slowdown"] == 1 and rows["1"]["slowdown"] == 2500 / 2200
    assert report.totals["times"] == (
        "forward 600 µs → 901 µs (1.5x), backward 3 ms → 4 ms (1.3x); "
        "slower in B: layer 2 backward 0 µs → 900 µs, layer 1 forward 200 µs → 500 µs (2.5x)"
    )
    assert report.totals["beyond"] == 0 and report.totals["verdict"] == "Identical, bit for bit"
    others = [row for row in report.rows if row["kind"] != "output"]
    assert others and all(row["a_forward_us"] is None for row in others)


def test_operators_and_what_only_b_has(clock: Clock) -> None:
    class Part(Work):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y + 1 if self.spent == 200 else y

    x = torch.ones(3, 2)
    sides = [nn.Sequential(Part(clock, spent, 1000)).train() for spent in (100, 200)]
    sides[1].append(Work(clock, 50, 7))
    report = compare(*(Side(side, x) for side in sides), step=Step(backward=True), ops="functions", time=True)
    assert report.totals["times"] == (
        "forward 100 µs → 250 µs (2.5x), backward 1 ms → 1 ms (1x); "
        "slower in B: layer 0 forward 100 µs → 200 µs (2x), layer 1 (only in B) forward 50 µs"
    )
    rows = {row.fqn: row for row in report.rows if row.get("kind") in (None, "output")}
    assert rows["0:mul_1"]["b_forward_us"] == 0 and rows["0:add_1"]["a_forward_us"] is None
    assert rows["1"]["a_forward_us"] is None and rows["1"]["b_backward_us"] == 7


def test_without_backward_and_without_slowdowns(clock: Clock) -> None:
    a, b, x = net(clock, (100, 1)), net(clock, (101, 1)), torch.ones(1, 2)
    report = compare(Side(a.eval(), x), Side(b.eval(), x), time=True)
    assert report.totals["times"] == "forward 100 µs → 101 µs (1x); no part is much slower in B"
    assert not any(column.name.endswith("backward_us") for column in report.columns)


def test_a_side_that_can_t_be_timed_is_said(clock: Clock) -> None:
    x = torch.ones(1, 2)
    report = compare(Side(nn.Linear(2, 2), x), Side(Once(2, 2), x), time=True)
    assert report.rows and "only once" in report.skipped[-1].reason and "times" not in report.totals


def test_saved_times_are_compared(clock: Clock, tmp_path: Path) -> None:
    saved = []
    for number, spent in enumerate((200, 500)):
        (made,) = capture(net(clock, (100, 0), (spent, 0)).eval(), torch.ones(1, 2), "activations", time=True)
        file = tmp_path / f"{number}.json"
        file.write_text(document_text(document([made])))
        saved += read_reports(str(file))
    report = diff(*saved)
    assert report.totals["times"].startswith("forward 300 µs → 600 µs (2x); slower in B: layer 1 forward 200")
    assert group_rows(report, 1).rows[-1]["b_forward_us"] == 500 and report.totals["beyond"] == 0
