"""A column of a foreign plugin: its rules hold wherever a report is merged, compared, saved or shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from plugin_dist.hookcli_demo import EnergyProbe
from torch import Tensor, nn

import hookcli
from hookcli import registry
from hookcli.diff.rows import diff
from hookcli.errors import UsageError
from hookcli.hooks.session import HookSession
from hookcli.reporters import bars
from hookcli.table import Column, Kind, Merge, Report, Row, columns_named, document
from hookcli.table.columns import looks
from hookcli.table.files import read_reports
from hookcli.table.grouping import View, group_rows, shown
from hookcli.table.merge import BatchRows
from hookcli.table.merged_ranks import merged
from hookcli.table.screen import fitted


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(6)))


def measured(model: nn.Module, x: Tensor) -> Report:
    [report] = hookcli.capture(model, x, probes=[EnergyProbe()])
    return report


def energies(model: nn.Sequential, x: Tensor) -> dict[str, float]:
    """In float64, by PyTorch alone."""
    found, x, model = {}, x.double(), model.double()
    for number, block in enumerate(model):
        for inner, part in enumerate(block):  # type: ignore[arg-type]
            x = part(x)
            found[f"{number}.{inner}"] = x.square().sum().item() / 2
        found[str(number)] = found[f"{number}.1"]
    return found | {"": found["5"]}


def is_right(report: Report, x: Tensor) -> bool:
    return {row.fqn: row["energy"] for row in report.rows} == pytest.approx(energies(net(), x), rel=1e-5)


def saved(report: Report, folder: Path) -> Report:
    file = folder / "saved.json"
    file.write_text(json.dumps(document([report])))
    [found] = read_reports(str(file))
    return found


def test_it_is_measured_and_merged_over_batches_and_ranks() -> None:
    x = torch.randn(6, 4)
    assert is_right(measured(net(), x), x)
    probe, model = EnergyProbe(), net()
    with HookSession(model) as session, torch.no_grad():
        probe.attach(session)
        for number, batch in enumerate(x.split(2)):
            session.begin_batch(number, 3)
            model(batch)
            probe.batch_ended()
    assert is_right(probe.report("net", {}), x)
    parts = {rank: measured(net(), x[2 * rank : 2 * rank + 2]) for rank in range(3)}
    assert is_right(merged(parts), x)
    copies = {rank: measured(net(), x) for rank in range(3)}
    assert is_right(merged(copies), x)


def test_it_folds_and_groups(tmp_path: Path) -> None:
    x = torch.randn(6, 4)
    right = energies(net(), x)
    for report in (whole := measured(net(), x), saved(whole, tmp_path)):
        rows = {row.fqn: row for row in fitted(report, 4).rows}
        assert rows["0-5"]["energy"] == pytest.approx(sum(right[str(number)] for number in range(6)), rel=1e-5)
        assert {row.fqn: row["energy"] for row in group_rows(report, 1).rows}["3"] == pytest.approx(
            right["3"], rel=1e-5
        )


@pytest.mark.parametrize("again", [lambda report, folder: report, saved])
def test_it_sorts_and_has_its_title_and_a_bar(again: Callable[[Report, Path], Report], tmp_path: Path) -> None:
    report = again(measured(net(), torch.randn(6, 4)), tmp_path)
    values = [row["energy"] for row in shown(report, View(sort="-energy")).rows]
    assert values == sorted(values, reverse=True) and len(set(values)) > 2
    assert report.column("energy").merge == Merge.SUM and report.column("energy").kind == Kind.FIGURE
    assert bars.scale_of(report.rows, report.column("energy"))
    assert "Energy" in str(report)


def test_two_runs_differ_beyond_its_own_tolerance() -> None:
    report = measured(net(), torch.randn(6, 4))
    for factor, beyond in ((1.05, False), (1.2, True)):
        scaled = [replace(r, values=r.values | {"energy": factor * r["energy"]}) for r in report.rows]
        compared = diff(report, replace(report, rows=scaled))
        assert [bool(row.get("beyond")) for row in compared.rows] == [beyond] * len(report.rows)
        assert all(
            row["figure"] == "energy" and row["times"] == pytest.approx(10 * (factor - 1)) for row in compared.rows
        )


def test_parquet_has_its_type_title_and_unit(tmp_path: Path) -> None:
    report = measured(net(), torch.randn(6, 4))
    registry.load("reporters", "parquet")().export([report], View(), tmp_path / "x.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    field = table.schema.field("energy")
    assert str(field.type) == "double" and field.metadata == {b"title": b"Energy", b"unit": b"joule"}
    assert table.column("energy").to_pylist() == [row["energy"] for row in report.rows]


def test_of_batches_a_plain_value_is_kept_only_if_all_share_it() -> None:
    columns = (Column("same", "Same"), Column("other", "Other"), Column("most", "Most", "bytes", merge=Merge.MOST))
    batches = BatchRows(columns)
    for number in range(3):
        batches.add([Row({"fqn": "a", "shape": [2], "same": 1, "other": number, "most": number})])
    [row] = batches.rows()
    assert (row["same"], row["other"], row["most"]) == (1, None, 2)
    apart = Report("x", "m", (*columns_named("fqn"), *columns), [Row({"fqn": f"a.{n}", "most": n}) for n in (5, 7)])
    assert group_rows(replace(apart, grouping="disjoint"), 1).rows[0]["most"] == 7


def test_a_plugin_can_not_change_what_a_place_is_or_what_hookclis_columns_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="column 'place': only hookcli's own columns"):
        Report("x", "m", (Column("place", "Place", identity=True),), [])
    report = Report("x", "m", (Column("fqn", "Layer"), Column("l2", "L2", merge=Merge.SUM)), [Row({"fqn": "a"})])
    assert report.column("l2").merge == Merge.NORM
    data = document([report])
    data["reports"][0]["columns"].append({"name": "call", "title": "Call", "unit": None, "kind": "any"})
    data["reports"][0]["rows"] = [{"fqn": "a", "call": "x"}]
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match="call can't be 'x'"):
        read_reports(str(tmp_path / "a.json"))


def test_a_suggested_kind_takes_what_a_program_may_put_there(tmp_path: Path) -> None:
    columns = (*columns_named("fqn"), Column("mean_size", "Size", "bytes"), Column("t", "T", "seconds", tolerance=0.1))
    rows = [Row({"fqn": "a", "mean_size": 0.5, "t": "late"}), Row({"fqn": "b", "mean_size": float("nan"), "t": 2.0})]
    report = Report("x", "m", columns, rows[1:])
    assert report.column("t").kind == Kind.SECONDS and saved(report, tmp_path).rows[0]["t"] == 2.0
    assert "0.5 B" in (text := str(Report("x", "m", columns, rows))) and "late" in text and "2.00 s" in text


def test_its_explanation_stands_below_a_table_and_its_look_after_hookclis_columns() -> None:
    column = Column("heat", "Heat", "joule", explanation="Heat: what a layer gives off.")
    report = Report("x", "m", (*columns_named("fqn", "times"), column), [Row({"fqn": "a", "heat": 2.0, "times": 3.0})])
    assert "Heat: what a layer gives off." in str(report) and "Excess: " not in str(report)
    assert [*looks(("zeal", "heat", "a", "call", "fqn"), report.columns)] == ["fqn", "call", "a", "heat", "zeal"]
