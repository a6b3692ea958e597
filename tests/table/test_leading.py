"""Sorted tables on a terminal: as many rows as fit, and repeated blocks as one where figures add up."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn, randn

from hookcli import capture
from hookcli.reporters.table import TableReporter
from hookcli.table import Report, Row, TensorStats, columns_named
from hookcli.table.column import Column, Kind
from hookcli.table.columns.layouts import STATISTICS
from hookcli.table.grouping import View, apply_view
from hookcli.table.marks import with_verdict
from hookcli.table.screen import leading, with_gaps

MODEL = nn.Sequential(nn.Linear(4, 8), *(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(12)), nn.Linear(8, 2))


def test_rows_that_add_up_are_folded_and_the_largest_lead() -> None:
    report, view = capture(MODEL, randn(2, 4), ["shapes"])[0], View(sort="-params", width=80, height=24)
    shown = leading(apply_view(report, view), view, 12)
    assert [row.fqn for row in shown.rows][:4] == ["", "1-12", "1-12.0", "0"]
    params = {row.fqn: row["params"] for row in shown.rows}
    assert params["1-12"] == params["1-12.0"] == 12 * 72 and params[""] == 12 * 72 + 40 + 18


def test_each_row_of_folded_blocks_says_how_many_and_the_smallest_first_say_so() -> None:
    report = capture(MODEL, randn(2, 4), ["shapes"])[0]
    view = View(sort="-params", width=100, height=16)
    text = TableReporter().render([apply_view(report, view)], view)
    assert "1-12 (12x)" in text and "1-12.0 (12x)" in text and "largest" not in text
    report, rising = capture(MODEL, randn(2, 4), ["activations"])[0], View(sort="l2", width=100, height=20)
    text = TableReporter().render([apply_view(report, rising)], rising)
    assert re.search(r"the \d+ smallest of 39 rows; --sort -l2: the largest", text), text


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


def test_of_layers_that_do_not_fold_a_screen_shows_the_ends_and_those_with_faults() -> None:
    layers = [part for n in range(40) for part in (nn.Linear(8, 8 + (n == 20)), nn.Linear(8 + (n == 20), 8))]
    model = nn.Sequential(
        *(nn.Sequential(part, nn.Tanh(), *[nn.Identity()] * (n % 3)) for n, part in enumerate(layers))
    )
    with torch.no_grad():
        layers[60].bias.fill_(math.nan)
    report = with_verdict(capture(model, randn(2, 8), ["activations"])[0])
    for height in (16, 24, 40):
        lines = TableReporter().render([report], View(width=100, height=height)).splitlines()
        names = [line.split()[0] for line in lines[:-1]]
        assert len(lines) < height and "60" in lines[0] and {"0", "60", "…", "79"} <= {*names}
        gaps = [int(line.split()[1]) for line in lines if line.startswith("…")]
        own = [name for name in names if name == "(model)" or name.isdecimal()]
        assert len(own) + sum(gaps) == 81 and lines[-1].startswith(f"{len(own)} of {len(report.rows)} rows")
    assert not any("…" in line for line in TableReporter().render([report], View(width=100)).splitlines())


@pytest.mark.parametrize("height", [16, 24])
def test_an_operator_that_the_first_line_of_a_comparison_names_is_in_the_table(height: int) -> None:
    def compared(fqn: str, far: bool) -> Row:
        return Row({"fqn": fqn, "kind": "output", "rel_l2": 0.5 * far, "max_abs": 0.5 * far, "beyond": far})

    names = [f"blocks.{n}{part}" for n in range(12) for part in (".a", ":relu_1", ":mul_1", "")]
    rows = [compared(name, names.index(name) >= names.index("blocks.7:mul_1")) for name in names]
    columns = columns_named("fqn", "kind", "max_abs", "rel_l2", "beyond")
    report = with_verdict(Report("diff", "a → b", columns, rows, totals={"verdict": "First difference"}))
    lines = TableReporter().render([report], View(width=100, height=height)).splitlines()
    named = [number for number, line in enumerate(lines) if line.split()[0].endswith(":mul_1")]
    assert len(named) == 1 and lines[named[0] - 1].split()[0] in ("blocks.7", "▲")
    assert len(lines) < height


def test_wide_paths_stand_after_names_where_their_column_would_keep_shapes_out() -> None:
    paths = {"": '["last_hidden_state"]', "encoder": '["last_hidden_state"]', "encoder.norm": ""}
    found = TensorStats(32, 0.5, 1.234, -2.345, 3.456, 9.0)
    values = {"call": 0, "shape": [1, 62, 64], "dtype": "float32", "type": "SomethingOfALongName"}
    rows = [Row({"fqn": fqn, "path": path, **values}, found) for fqn, path in paths.items()]
    rows.insert(1, Row({"fqn": "", "path": '["pooler_output"]', **values}, found))
    report = Report("activations", "net", STATISTICS, rows)
    texts = [TableReporter().render([report], View(width=width)).splitlines() for width in (80, 160)]
    narrow, wide = (lines[next(n for n, line in enumerate(lines) if "Layer" in line) :] for lines in texts)
    names = [line.split()[0] for line in narrow[2:6]]
    assert names == ['(model)["last_hidden_state"]', '["pooler_output"]', 'encoder["last_hidden_state"]', "norm"]
    assert "Shape" in narrow[0] and "Path" not in narrow[0] and narrow[3].startswith('  ["pooler_output"]')
    assert "Path" in wide[0] and "Type" in wide[0] and wide[2].split()[0] == "(model)"


def test_the_lowest_values_stay_where_a_column_says_so() -> None:
    columns = (*columns_named("fqn"), Column("spare", "Spare", kind=Kind.FIGURE, lowest_stay=True))
    spare = [9.0, 8.0, 7.0, 1.0, 6.0, 5.0, 0.5, 4.0, 3.0, None]
    rows = [Row({"fqn": f"m{number}", "spare": value}) for number, value in enumerate(spare)]
    kept = with_gaps(Report("shapes", "net", columns, rows), 7)
    gap = "… {} more …".format
    assert [row.fqn for row in kept.rows] == [gap(3), "m3", gap(2), "m6", gap(1), "m8", gap(1)]
    more = with_gaps(Report("shapes", "net", columns, rows), 9)
    assert [row.fqn for row in more.rows] == ["m0", "m1", "m2", "m3", gap(2), "m6", "m7", "m8", "m9"]
    plain = with_gaps(Report("shapes", "net", columns[:1], rows), 7)
    assert [row.fqn for row in plain.rows] == ["m0", "m1", "m2", "… 4 more …", "m7", "m8", "m9"]
