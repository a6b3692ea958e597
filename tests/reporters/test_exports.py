"""The figures that exporters of several steps get, and the names of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records import activation, gradient
from reporters.exports import killed_record, require_refused

from hookcli import registry
from hookcli.errors import UsageError
from hookcli.reporters import series
from hookcli.reporters.base import require
from hookcli.table import Column, Report, Row, TensorStats
from hookcli.table.grouping import View
from hookcli.table.histogram import Histogram

Cli = Callable[..., Any]


def test_a_step_that_is_no_number(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    require_refused(cli, killed_record(tmp_path), ("--step", "some"), "--step 'some': give a number from 0, or all")


def test_parameter_groups_have_tags_of_their_own() -> None:
    groups = [Row({"optimizer": "AdamW", "group": number, "lr": 0.1 / (number + 1)}) for number in range(2)]
    columns = [Column(name, name) for name in ("optimizer", "group", "lr")]
    [point] = series.points([Report("optimizer", "Net", columns, groups)])
    assert point.figures == {"optimizer.lr/AdamW group 0": 0.1, "optimizer.lr/AdamW group 1": 0.05}


def test_gradients_of_two_kinds_and_calls_have_tags_of_their_own() -> None:
    rows = [
        gradient("a", "output", "Linear", 1.0),
        gradient("a", "input", "Linear", 2.0),
        gradient("a", "input", "Linear", 3.0),
    ]
    rows[2] = replace(rows[2], values={**rows[2].values, "call": 1})
    [point] = series.points([Report("grads", "Net", [Column("l2", "L2")], [*rows, rows[2]])])
    assert point.figures == {
        "grads.output.l2/a": 1.0,
        "grads.input.l2/a": 2.0,
        "grads.input.l2/a call 1": 3.0,
        "grads.input.l2/a call 1 #2": 3.0,
    }


def test_a_name_that_is_taken_gets_the_next_number() -> None:
    assert [series.unused("a", taken) for taken in ((), ("a",), ("a", "a #2"), ("a", "a #3"))] == [
        "a", "a #2", "a #3", "a #2"
    ]  # fmt: skip
    assert series.unused("a", ["a"], sign="") == "a 2"


def test_a_report_without_the_zeros_has_no_histograms() -> None:
    hist = Histogram.from_dict({"low": -1, "negative": [0, 2, 0], "positive": [1, 0, 3], "overflows": [0, 0, 0, 0]})
    row = activation("body", "Linear", TensorStats(8, 0.5, 1, -1.5, 3, 4, zeros=2, hist=hist))
    data = Report("activations", "Net", [], [row]).to_dict()
    [point] = series.points([Report.from_dict(data)])
    assert [*point.histograms] == ["activations.hist/body"]
    del data["rows"][0]["zeros"]
    report = Report.from_dict(data)
    assert not [*series.points([report])]
    assert "no histogram: saved without zeros" in registry.load("reporters", "hist")().render([report], View())
    assert report.rows[0]["p50"] is None and report.rows[0]["outside_float16"] == 0  # which needs no zeros


def test_the_library_of_a_format_that_no_capability_brings_is_that_of_its_name() -> None:
    with pytest.raises(UsageError, match=r"--format mine: no_such is not installed; pip install 'hookcli\[mine\]'"):
        require("mine", "no_such.writer")
