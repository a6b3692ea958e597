"""A run that diverges has no norms from then on, rather than norms of 0."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import hookcli
from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.file.views.over_time import over_time
from hookcli.record.file.views.overview import overview
from hookcli.reporters.chart import ChartReporter
from hookcli.table import TensorStats, document, formatting
from hookcli.table.grouping import View
from hookcli.table.stats import norm


@pytest.fixture
def recorded_steps(tmp_path: Path) -> list[RecordedStep]:
    """Six recorded steps, of which the third is the last that is finite."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hookcli.watch(model, every=1, output=tmp_path / "a.run.jsonl") as recording:
        for step in range(6):
            optimizer.zero_grad()
            (model(torch.eye(2, 4)).sum() * (math.nan if step == 3 else 1)).backward()
            optimizer.step()
    record = read_record(recording.path)
    return list(record.steps(record.entries))


@pytest.mark.sweep
def test_a_diverged_run(recorded_steps: list[RecordedStep]) -> None:
    [report] = over_time(recorded_steps, "")
    assert [row["output_grad"] for row in report.rows[4:]] == pytest.approx([math.sqrt(2)] * 2)  # of the loss, a sum
    for name in ("param_grad", "weight", "std"):
        assert all(row[name] > 0 for row in report.rows[:3]), name
        assert all(math.isnan(row[name]) for row in report.rows[4:]), name
        assert formatting.cell(report.rows[-1], name) == "-"
    assert math.isnan(report.rows[3]["update"]) and math.isfinite(report.rows[2]["update"])
    assert math.isnan(overview(recorded_steps[-1]).totals["param_grad"])
    written = json.loads(json.dumps(document([report]), allow_nan=False))["reports"][0]["rows"]
    assert [row["param_grad"] for row in written[4:]] == ["NaN", "NaN"]


@pytest.mark.sweep
def test_its_chart_has_a_gap(recorded_steps: list[RecordedStep]) -> None:
    """The lowest figure at the side is the lowest that is known: none is drawn at 0."""
    reports = over_time(recorded_steps, "")
    text = ChartReporter().render(
        reports, View(columns=["param_grad", "weight"], depth=math.inf, width=80, color=False)
    )
    for title, name in (("L2 of the parameters' gradients", "param_grad"), ("L2 of the weights", "weight")):
        chart = text[text.index(f"\n{title}") + 1 :].splitlines()[1:9]
        labels = [line[:10].strip() for line in chart if line[:10].strip()]
        known = [row[name] for row in reports[0].rows if math.isfinite(row[name])]
        assert (labels[0], labels[-1]) == (formatting.number(max(known)), formatting.number(min(known)))


def test_a_layer_that_is_not_finite_beside_one_that_is() -> None:
    merged = TensorStats.merge([TensorStats(2, l2=math.nan, nan=2), TensorStats(2, 3.5, 0.7, 3.0, 4.0, 5.0)])
    assert (merged.l2, merged.nan, merged.numel) == (5, 2, 4)  # statistics are over the elements that are finite
    assert math.isnan(norm([math.nan, 5.0]))  # a model has no gradient norm where a parameter has none
