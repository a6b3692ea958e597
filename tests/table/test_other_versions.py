"""Reports and baselines with a statistic more or less, of another hookcli: read, and compared in what both have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hookcli.diff.baseline import Baseline, read_baselines, text_of, write_baselines
from hookcli.diff.rows import diff_reports
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.table import STATS_COLUMNS, STATS_KEYS, Report, Row, TensorStats, columns_named
from hookcli.table.columns.layouts import PARAMETERS, STATISTICS
from hookcli.table.files import read_reports, unfamiliar
from hookcli.table.merged_rows import merged
from hookcli.table.ranks import beside
from hookcli.table.report import document

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


def without(*names: str) -> Callable[[dict[str, Any]], None]:
    def change(report: dict[str, Any]) -> None:
        report["columns"] = [column for column in report["columns"] if column["name"] not in names]
        for row in report["rows"]:
            for name in names:
                del row[name]

    return change


def with_kurtosis(report: dict[str, Any]) -> None:
    report["columns"].append({"name": "kurtosis", "title": "Kurtosis", "unit": None})
    for row in report["rows"]:
        row["kurtosis"] = 3.0


def test_a_report_with_a_statistic_less_is_read_and_written_as_it_is(tmp_path: Path) -> None:
    file = saved(tmp_path / "old.json", without("std"))
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
    for columns in (STATISTICS, PARAMETERS):
        assert unfamiliar("same.json", [replace(REPORT, columns=columns)]) is None


def test_counts_that_were_not_saved_are_unknown(tmp_path: Path) -> None:
    [report] = read_reports(saved(tmp_path / "old.json", without("zeros", "nan")))
    row = report.rows[0]
    assert (row["zeros"], row.get("nan"), row["inf"]) == (None, None, 0) and not {"zeros", "nan"} & row.flat().keys()
    assert '"zeros"' in text_of([Baseline.of([REPORT], RUN)])
    assert '"zeros"' not in text_of([Baseline.of([report], RUN)])
    merged_row = merged(report.rows, report.tree["body"], report.rows, report.known_columns())
    assert (merged_row["zeros"], merged_row["numel"]) == (None, 12)


def test_figures_of_an_unknown_number_of_elements_are_read(tmp_path: Path) -> None:
    file = saved(tmp_path / "narrow.json", without("numel", "std", "min", "max", "l2", "nan", "inf"))
    [report] = read_reports(file)
    assert [(row["mean"], row["zeros"], row.get("numel")) for row in report.rows] == [(0.5, 2, None)] * 2
    assert document([report]) == json.loads(Path(file).read_text())
    assert "narrow.json: has no numel, std, min, max, l2, nan, inf (saved by" in (unfamiliar(file, [report]) or "")
    table = [line.split() for line in str(report).splitlines()]
    assert ["a", "Linear", "0.5000", "2"] in table
    assert merged(report.rows, report.tree["body"], report.rows, report.known_columns())["merged"] == 2
    [names] = read_reports(saved(tmp_path / "names.json", without(*STATS_KEYS)))
    assert [row.values for row in names.rows] == [{"fqn": "a", "type": "Linear"}, {"fqn": "b", "type": "Linear"}]
    with pytest.raises(UsageError, match="the two reports have no figure in common"):
        diff_reports([names], [REPORT], Tolerance())


def test_a_row_that_lacks_what_others_have_is_damaged(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", lambda report: report["rows"][1].pop("std"))
    with pytest.raises(UsageError, match=r"damaged.*a row has no 'std'"):
        read_reports(file)


LACKING = [(key,) for key in STATS_KEYS] + [
    ("nan", "inf"),
    ("numel", "std", "zeros"),
    ("std", "min", "max", "l2", "zeros", "nan", "inf"),
]


@pytest.mark.parametrize("change", [with_kurtosis, *(without(*names) for names in LACKING)])
def test_reports_of_two_versions_are_compared_in_what_both_have(tmp_path: Path, change: Callable[..., None]) -> None:
    """Whichever side has more; a difference within tolerance is none, also where both lack what tolerances ask for."""

    def with_mean(mean: float) -> list[Report]:
        def moved(report: dict[str, Any]) -> None:
            report["rows"][1].update(mean=mean)
            change(report)

        return read_reports(saved(tmp_path / "other.json", moved))

    for near in (0.5, 0.5 * (1 + 1e-6)):
        other = with_mean(near)
        for a, b in (([REPORT], other), (other, [REPORT]), (with_mean(0.5), other)):
            [found] = diff_reports(a, b, Tolerance())
            assert found.totals["compared"] == 2 and found.totals["beyond"] == 0, found.totals
    other = with_mean(0.9)
    figures = ["mean"] if "mean" in other[0].rows[1].flat() else []
    for a, b in (([REPORT], other), (other, [REPORT])):
        [found] = diff_reports(a, b, Tolerance())
        assert [row["figure"] for row in found.rows if row.get("beyond")] == figures


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            (lambda row, key=key: row.pop(key), f"the baseline has no {key}; --save adds it")
            for key in ("std", "max", "l2", "zeros")
        ),
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
