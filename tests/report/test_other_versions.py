"""Reports and baselines with a statistic more or less, of another hookcli: read, and compared in what both have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hookcli.diff.baseline import Baseline, read_baselines, write_baselines
from hookcli.diff.rows import diff_reports
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.report import STATS_COLUMNS, Report, Row, TensorStats, columns_named
from hookcli.report.files import read_reports, unfamiliar
from hookcli.report.ranks import beside
from hookcli.report.report import document

STATS = TensorStats(6, 0.5, 1.0, -1.0, 2.0, 3.0, zeros=2)
REPORT = Report(
    "activations",
    "Net",
    (*columns_named("fqn", "type"), *STATS_COLUMNS),
    [Row({"fqn": fqn, "type": "Linear"}, STATS) for fqn in ("a", "b")],
    {"dtype": "float32"},
)
RUN = {"input": "1x2", "mode": "eval", "dtype": "float32"}


def saved(path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    data = json.loads(json.dumps(document([REPORT])))
    change(data["reports"][0])
    path.write_text(json.dumps(data))
    return str(path)


def without_std(report: dict[str, Any]) -> None:
    report["columns"] = [column for column in report["columns"] if column["name"] != "std"]
    for row in report["rows"]:
        del row["std"]


def with_kurtosis(report: dict[str, Any]) -> None:
    report["columns"].append({"name": "kurtosis", "title": "Kurtosis", "unit": None})
    for row in report["rows"]:
        row["kurtosis"] = 3.0


def test_a_report_with_a_statistic_less_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    file = saved(tmp_path / "old.json", without_std)
    [report] = read_reports(file)
    assert [row["mean"] for row in report.rows] == [0.5, 0.5] and all(math.isnan(row["std"]) for row in report.rows)
    assert document([report]) == json.loads(Path(file).read_text())
    assert "old.json: has no std (saved by another version" in (unfamiliar(file, [report]) or "")


def test_a_report_with_a_statistic_more_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    file = saved(tmp_path / "new.json", with_kurtosis)
    [report] = read_reports(file)
    assert [row["kurtosis"] for row in report.rows] == [3.0, 3.0] and report.rows[0].stats == STATS
    assert document([report]) == json.loads(Path(file).read_text())
    assert "has kurtosis, which this version of hookcli does not know" in (unfamiliar(file, [report]) or "")
    assert unfamiliar("same.json", [REPORT, beside({0: REPORT, 1: REPORT})]) is None


def test_a_row_that_lacks_what_others_have_is_damaged(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", lambda report: report["rows"][1].pop("std"))
    with pytest.raises(UsageError, match=r"damaged.*a row has no 'std'"):
        read_reports(file)


@pytest.mark.parametrize("change", [without_std, with_kurtosis])
def test_reports_of_two_versions_are_compared_in_what_both_have(tmp_path: Path, change: Callable[..., None]) -> None:
    other = read_reports(saved(tmp_path / "other.json", change))
    for a, b in (([REPORT], other), (other, [REPORT])):
        [found] = diff_reports(a, b, Tolerance())
        assert found.totals["compared"] == 2 and found.totals["beyond"] == 0

    def moved(report: dict[str, Any]) -> None:
        change(report)
        report["rows"][1]["mean"] = 0.9

    [found] = diff_reports([REPORT], read_reports(saved(tmp_path / "moved.json", moved)), Tolerance())
    assert [row["figure"] for row in found.rows if row.get("beyond")] == ["mean"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.pop("std"), "the baseline has no std; --save adds it"),
        (lambda row: row.update(kurtosis=3.0), "the baseline has kurtosis, unknown here"),
    ],
)
def test_a_baseline_of_another_version_is_compared_in_what_both_have(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    file = tmp_path / "base.json"
    write_baselines(str(file), [Baseline.of([REPORT], RUN)])
    assert read_baselines(str(file)).of("Net").notes([REPORT], RUN) == []
    data = json.loads(file.read_text())
    for row in data["models"]["Net"]["activations"]:
        change(row)
    file.write_text(json.dumps(data))
    baseline = read_baselines(str(file)).of("Net")
    assert baseline.changes([REPORT]) == [] and baseline.notes([REPORT], RUN) == [said]
    rows = [Row(row.values, TensorStats(6, 9.0, 1.0, -1.0, 2.0, 3.0, zeros=2)) for row in REPORT.rows]
    [changed] = baseline.changes([Report("activations", "Net", REPORT.columns, rows, REPORT.meta)])
    assert "mean 0.5" in changed.message
