"""Where no element is finite there is no norm: `-` in a summary, a gap in charts, NaN in JSON, and never 0."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from observing import observing, rows
from records import HEADER, activation, end, gradient, recorded_step, save, update
from torch import nn

from hookcli.commands.show_follow import _line
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.overview import overview
from hookcli.record.file.views.query import Query
from hookcli.record.file.views.summary import summary
from hookcli.registry import load
from hookcli.table import Report, TensorStats
from hookcli.table.grouping import View, group_rows


@pytest.mark.sweep
def test_weights_of_which_none_is_finite_have_no_norm() -> None:
    """Step 0 is well, step 1 makes them NaN, step 2 begins with NaN; those of the last layer are 0 until then."""
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.init.zeros_(model[1].bias)
    before = []
    with observing() as seen:
        for number in range(3):
            optimizer.zero_grad()
            before.append({fqn: p.detach().double().norm().item() for fqn, p in model.named_parameters()})
            model(torch.ones(2, 2) * (math.nan if number == 1 else 1)).sum().backward()
            optimizer.step()
    first, second, third = (rows(w, "updates") for w in seen.recorded)
    for fqn, norm in before[0].items():
        assert first[fqn]["weight"] == pytest.approx(norm) and math.isfinite(first[fqn]["update"])
        assert math.isfinite(first[fqn]["ratio"]) or norm == 0
    assert first["1.bias"]["weight"] == 0 and first["1.bias"]["update"] > 0
    for fqn in ("0.weight", "1.weight"):
        assert second[fqn]["weight"] == pytest.approx(before[1][fqn], rel=1e-6)
        assert math.isnan(second[fqn]["update"]) and math.isnan(second[fqn]["ratio"])
        assert all(math.isnan(third[fqn][name]) for name in ("weight", "update", "ratio"))
    assert second["1.bias"]["update"] > 0 and third["1.bias"]["weight"] > 0  # its gradient never was NaN


def test_weights_of_which_some_are_finite() -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0], [math.inf, 12.0]]))
    with observing() as seen:
        model(torch.ones(1, 2))
        model.weight.grad = torch.tensor([[1.0, math.nan], [0.0, 0.0]])
        optimizer.step()
    found = rows(seen.only, "updates")["weight"]
    assert found["weight"] == 13 and found["update"] == 1


GONE = TensorStats(128, l2=math.nan, nan=128)


def diverged(step: int) -> RecordedStep:
    """A `recorded_step`, but nothing in it is finite."""
    seen = [activation(name, kind, GONE) for name, kind in (("", "Net"), ("body", "Sequential"), ("body.0", "Linear"))]
    grads = [
        replace(gradient("body.0", "output", "Linear", 0.0), stats=GONE),
        replace(gradient("body.0.weight", "parameter", "Linear", 0.0), stats=GONE),
    ]
    updates = [update("body.0.weight", "Linear", math.nan, math.nan)]
    named = {"activations": seen, "grads": grads, "updates": updates}
    reports = [Report(name, "Net", (), found) for name, found in named.items()]
    return RecordedStep("Net", "train", step, reports, losses=[math.nan])


def test_a_table_has_dashes_and_json_nan(tmp_path: Path) -> None:
    report = overview(diverged(3))
    (row,) = [row for row in group_rows(report, 1).rows if row.fqn == "body"]
    assert all(math.isnan(row[name]) for name in ("param_grad", "weight", "update", "ratio"))
    assert math.isnan(report.totals["param_grad"]) and math.isnan(report.totals["ratio"])
    found = json.loads(load("reporters", "json")().render([report], View()))["reports"][0]
    assert [found["rows"][2][name] for name in ("std", "output_grad", "param_grad", "weight")] == ["NaN"] * 4
    record = read_record(save(tmp_path / "x", [HEADER, diverged(3), end()]))
    text = summary(record, record, "x", View(width=160))
    (line,) = [line.split() for line in text.splitlines() if line.startswith("  0 ")]
    assert line[3:8] == ["-"] * 2 + ["0"] + ["-"] * 2 and "loss NaN" in text
    assert "gradient of the parameters -" in text
    assert _line(diverged(3)).startswith("Net  step 3  train  loss NaN  gradient -")


@pytest.mark.parametrize("fqn", [".", "body.0", "body.0.weight"])
def test_a_chart_has_a_gap(fqn: str, tmp_path: Path) -> None:
    lines = (HEADER, recorded_step(0), recorded_step(100, std=2.0), diverged(200), diverged(300), end())
    record = read_record(save(tmp_path / "run.jsonl", lines))
    (report,) = Query(over_time=fqn).within(record).reports()
    for name in ("param_grad", "weight", "ratio"):
        values = [row[name] for row in report.rows]
        assert all(map(math.isfinite, values[:2])) and all(map(math.isnan, values[2:]))
    drawn = load("reporters", "chart")().render([report], View())
    norm = {".": "13.00", "body.0": "5.000", "body.0.weight": "3.000"}[fqn]
    assert f"L2 of the parameters' gradients: {norm} in 2 of 4 recorded steps" in drawn
    assert "NaN or Inf in step 200 and 1 more step" in drawn
