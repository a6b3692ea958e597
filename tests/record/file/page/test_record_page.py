"""The payload of a record's page has the figures that `show --step all` shows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import paged
import pytest
from records import HEADER, RUN, activation, bad, end, recorded_step, save

from hookcli.record.file.page import record_page
from hookcli.record.file.page.record_page import RecordPage
from hookcli.record.file.reading import Record, read_record
from hookcli.record.file.record_lines import Line, RecordedStep
from hookcli.record.file.views.query import Query
from hookcli.table import Column, Finding, Report, Row, Skipped, TensorStats

NAMES = ("mean", "std", "min", "max", "l2", "output_grad", "param_grad", "weight", "update", "ratio")


def recorded(tmp_path: Path, lines: Iterable[Line]) -> Record:
    return read_record(save(tmp_path / "a.run.jsonl", lines))


def of(record: Record) -> dict[str, Any]:
    page = RecordPage(record)
    page.take()
    found = page.payload()
    json.dumps(found, allow_nan=False)
    return found


def without(step: RecordedStep, fqn: str) -> RecordedStep:
    """The step without a module, as when another path is taken."""
    reports = [replace(r, rows=[row for row in r.rows if not row.fqn.startswith(fqn)]) for r in step.reports]
    return replace(step, reports=tuple(reports))


def short(value: float | None) -> float | None:
    return value if value is None or math.isnan(value) else float(f"{value:.3e}")


def test_every_figure_is_that_of_show(tmp_path: Path) -> None:
    lines = [HEADER, without(recorded_step(0), "body"), *RUN[2:]]
    record = recorded(tmp_path, lines)
    tracks = {(track["model"], track["phase"]): track for track in of(record)["steps"]["tracks"]}
    shown = [report for report in Query(every_step=True).within(record).each() if report.probe in ("run", "step")]
    seen = 0
    for report in shown:
        track = tracks[report.model, report.meta["phase"]]
        at = track["steps"].index(report.meta["step"])
        if report.probe == "step":
            by_name = {figure["name"]: paged.series(figure) for figure in track["figures"]}
            for name in ("loss", "param_grad", "ratio", "weight", "seconds"):
                assert by_name.get(name, [None] * 9)[at] == pytest.approx(report.rows[0].get(name), rel=1e-6)
            continue
        found = paged.matrices(track)
        places = {(row.fqn, row.get("path") or "") for row in report.rows}
        for row in report.rows:
            place = row.fqn, row.get("path") or ""
            for name in NAMES:
                assert found.get(name, {}).get(place, [None] * 9)[at] == short(row.get(name)), (name, place)
                seen += 1
            assert found["zeros"][place][at] == pytest.approx(row["zeros"] / row["numel"], rel=1e-3)
        assert all(values[at] is None for place, values in found["std"].items() if place not in places)
    assert seen > 100 and of(record)["steps"]["notes"] == []
    train = tracks["Net", "train"]
    assert train["steps"] == [0, 100, 200] and tracks["Net", "no_grad"]["forwards"] == [2]
    assert [module["fqn"] for module in train["modules"]] == ["", "body", "body.0", "body.1", "head"]


def test_a_page_that_grows_gets_the_later_columns(tmp_path: Path) -> None:
    record = recorded(tmp_path, RUN)
    page = RecordPage(record)
    page.take()
    assert not page.take()
    whole, later = (page.payload(since=since)["steps"]["tracks"][0] for since in ([], [1, 1]))
    assert later["since"] == 1 and later["figures"] == whole["figures"] and later["steps"] == whole["steps"]
    before, after = paged.matrices(whole), paged.matrices(later)
    assert after["std"] == {place: values[1:] for place, values in before["std"].items()}


def test_modules_are_a_tree_with_the_containers_that_never_ran_and_the_further_tensors_of_a_module(
    tmp_path: Path,
) -> None:
    stats = TensorStats(128, 0.4, 1.0, 0.0, 2.0, 8.0)
    rows = [activation("body.0.fc", "Linear", stats), *(activation("head", "Head", stats) for _ in "ab")]
    rows[2] = rows[2].having({"path": "[1]"})
    rows.append(activation("body.0.act", "ReLU", stats))
    step = recorded_step(0)
    step = replace(step, reports=[replace(step.reports[0], rows=rows)])
    track = of(recorded(tmp_path, [HEADER, step, end()]))["steps"]["tracks"][0]
    nodes = track["nodes"]
    rows_of = [(module["fqn"], module["path"]) for module in track["modules"]]
    tree = [
        (node["name"], None if node["parent"] is None else nodes[node["parent"]]["name"], node["fqn"], node["path"])
        for node in nodes
    ]
    assert sorted(tree) == [
        ("0", "body", "body.0", ""),
        ("[1]", "head", "head", "[1]"),
        ("act", "0", "body.0.act", ""),
        ("body", None, "body", ""),
        ("fc", "0", "body.0.fc", ""),
        ("head", None, "head", ""),
    ]
    measured = [node for node in nodes if node["row"] >= 0]
    assert [rows_of[node["row"]] for node in measured] == [(node["fqn"], node["path"]) for node in measured]
    assert {node["fqn"] for node in nodes if node["row"] < 0} == {"body", "body.0"}
    assert all(node["parent"] is None or node["parent"] < at for at, node in enumerate(nodes))


def test_remarks_on_steps_are_said_once_with_their_steps(tmp_path: Path) -> None:
    def step(number: int, fqn: str | None, note: str) -> RecordedStep:
        made = recorded_step(number, notes=[note])
        findings = [Finding("HK010", "warning", fqn, "dead")] if fqn else []
        groups = [Row({"optimizer": "SGD", "group": 0, "lr": 0.1 / (1 + number), "parameters": 3})]
        columns = (Column("optimizer", "Optimizer"), Column("lr", "Learning rate"))
        more = [Report("check", "Net", (), (), findings=findings), Report("optimizer", "Net", columns, groups)]
        return replace(made, reports=(*made.reports, *more))

    lines = [HEADER, step(0, "a", "x"), step(1, "a", "x"), step(2, None, "y"), step(3, "a", "x"), end()]
    track = of(recorded(tmp_path, lines))["steps"]["tracks"][0]
    assert [(one["fqn"], one["steps"]) for one in track["findings"]] == [("a", [[0, 1], [3, 3]])]
    assert {one["text"]: one["steps"] for one in track["notes"]} == {"x": [[0, 1], [3, 3]], "y": [[2, 2]]}
    assert track["skipped"] == [{**Skipped("head.bias", "got no gradient").to_dict(), "steps": [[0, 3]]}]
    rates = track["groups"][0]["figures"][0]
    assert (track["groups"][0]["title"], rates["name"], rates["values"][3]) == ("SGD, group 0", "lr", 0.025)


def test_the_steps_with_a_non_finite_value_and_the_last_ones_are_there_in_full(tmp_path: Path) -> None:
    record = recorded(tmp_path, [*RUN[:3], bad(), *RUN[3:]])
    found = of(record)
    reports, (first,) = found["reports"], found["steps"]["non_finite"]
    steps = [(report["meta"].get("step"), report["probe"]) for report in reports]
    assert steps.index((100, "grads")) < steps.index((200, "grads"))
    rows = [reports[place] for place in first["reports"]]
    assert [row["fqn"] for row in rows[0]["rows"]] == ["body.0", "body.1"]
    assert (first["fqn"], first["step"], first["nan"]) == ("body.1", 100, 12) and "12 NaN" in first["line"]


def test_counts_of_non_finite_elements_are_there_only_if_there_are_any(tmp_path: Path) -> None:
    seen = activation("body.0", "Linear", TensorStats(128, 0.0, 1.0, -1.0, 1.0, 9.0, nan=12_345))
    step = RecordedStep("Net", "train", 1, (Report("activations", "Net", (), [seen]),))
    found = of(recorded(tmp_path, [HEADER, recorded_step(0), step, end()]))["steps"]["tracks"][0]
    matrices = paged.matrices(found)
    assert matrices["nan"]["body.0", ""] == [0, 12_345] and "inf" not in matrices and "grad_nan" not in matrices


def test_a_page_says_how_many_digits_its_figures_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = activation("body.0", "Linear", TensorStats(128, 1.23456, 1.0, -1.0, 1.0, 9.0))
    step = RecordedStep("Net", "train", 0, (Report("activations", "Net", (), [seen]),))
    record = recorded(tmp_path, [HEADER, step, end()])
    for most, coarse, mean in ((1, False, 1.235), (0, True, 1.24)):  # of one module in one step
        monkeypatch.setattr(record_page, "_MOST_FINE_CELLS", most)
        steps = of(record)["steps"]
        assert any("rounded to 3 digits" in note for note in steps["notes"]) == coarse
        assert paged.matrices(steps["tracks"][0])["mean"]["body.0", ""] == [mean]


def test_nothing_recorded_is_no_error(tmp_path: Path) -> None:
    for lines in ([HEADER], [HEADER, end([])], [end()], [HEADER, replace(recorded_step(), reports=()), end()]):
        found = of(recorded(tmp_path, lines))
        assert found["steps"]["tracks"] == [] and found["steps"]["ranks"] is None


def test_of_too_many_steps_every_nth_is_shown_and_the_last_and_the_bad_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_page, "_MOST_CELLS", 25)  # of 5 modules
    steps = [recorded_step(number) for number in range(20)]
    found = of(recorded(tmp_path, [HEADER, *steps[:8], bad(7), *steps[8:], end()]))["steps"]
    assert found["tracks"][0]["steps"] == [0, 4, 7, 8, 12, 16, 19]
    assert found["notes"] == ["Net, train: 20 steps recorded, one in 4 is on this page"]


def test_a_page_is_full_with_more_than_twice_the_steps_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it grows; from then on a new page shows fewer of them."""
    monkeypatch.setattr(record_page, "_MOST_STEPS", 2)
    for steps, full in ((4, False), (5, True)):
        page = RecordPage(recorded(tmp_path, [HEADER, *map(recorded_step, range(2))]))
        page.take()
        [track] = page._tracks.values()
        track.steps[:] = range(steps)
        assert page.is_full == full
