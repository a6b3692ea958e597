"""Sorted tables on a terminal: as many rows as fit, and repeated blocks as one where figures add up."""

from __future__ import annotations

import re

from torch import nn, randn

from hookcli import capture
from hookcli.reporters.table import TableReporter
from hookcli.table.grouping import View, apply_view
from hookcli.table.screen import leading

MODEL = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(12)), nn.Linear(8, 2))


def test_rows_that_add_up_are_folded_and_the_largest_lead() -> None:
    report, view = capture(MODEL, randn(2, 4), ["shapes"])[0], View(sort="-params", width=80, height=24)
    shown = leading(apply_view(report, view), view, 12)
    assert [row.fqn for row in shown.rows][:4] == ["", "1-12", "1-12.0", "0"]
    params = {row.fqn: row["params"] for row in shown.rows}
    assert params["1-12"] == params["1-12.0"] == 12 * 72 and params[""] == 12 * 72 + 40 + 18


def test_statistics_are_cut_but_not_folded() -> None:
    report = capture(MODEL, randn(2, 4), ["activations"])[0]
    whole = len(report.rows)
    for height in (20, 30, None):
        view = View(sort="-l2", width=100, height=height)
        text = TableReporter().render([apply_view(report, view)], view)
        assert "1-12" not in text and f"{max(row['l2'] for row in report.rows):.4g}" in text.splitlines()[4]
        said = re.search(r"(\d+) of (\d+) rows \(--depth all shows all\)", text)
        assert (said is None) == (height is None)
        if said is None:
            assert text.count("\n") > whole
        else:
            assert height is not None and int(said[1]) < int(said[2]) == whole and text.count("\n") <= height
