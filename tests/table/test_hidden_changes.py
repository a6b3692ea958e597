"""What grouped rows say of the parts that they hide."""

from __future__ import annotations

from hookcli.table import Column, Report, Row, columns_named
from hookcli.table.grouping import group_rows


def test_changes_of_hidden_parts_are_named_on_the_row_that_hides_them() -> None:
    def changed(**changes: str) -> Report:
        names = ("", "a", "a.pool", "a.act", "b", "b.pool")
        rows = [
            Row({"fqn": n, "type": "M", "times": 0.0, "change": changes.get(n.replace(".", "_"), "")}) for n in names
        ]
        return Report("diff", "m", (Column("fqn", "Layer"),), rows)

    report = group_rows(changed(a_pool="Max → Avg", a_act="ReLU → GELU"), 1)
    assert {row.fqn: row.get("note") for row in report.rows} == {
        "": None,
        "a": "pool: Max → Avg, and 1 more",
        "b": None,
    }
    assert "pool: Max → Avg, and 1 more" in str(report)
    renamed = group_rows(changed(b="renamed: c", b_pool="renamed: c.pool"), 1)
    assert [row.get("note") for row in renamed.rows] == [None] * 3  # the row says it already
    assert group_rows(changed(b_pool="renamed: b.max"), 1).rows[2]["note"] == "pool: renamed: b.max"


def test_a_hidden_part_that_is_beyond_tolerance_is_named_and_others_counted() -> None:
    columns = columns_named("fqn", "type", "times")
    values = {"": False, "a": False, "a.b": True, "a.c": True, "a.d": True}
    rows = [Row({"fqn": fqn, "type": "T", "beyond": beyond, "times": 2.0}) for fqn, beyond in values.items()]
    grouped = {row.fqn: row for row in group_rows(Report("diff", "m", columns, rows), 1).rows}
    assert grouped["a"]["note"] == "beyond in b and 2 more"


def test_another_setting_of_a_hidden_part_is_named_whether_or_not_the_part_is_beyond_tolerance() -> None:
    columns = columns_named("fqn", "type", "times")
    rows = [
        Row({"fqn": fqn, "type": "T", "beyond": fqn == "b.norm", "times": 0.0, "reset": "eps 1 → 2" * ("norm" in fqn)})
        for fqn in ("", "a", "a.norm", "b", "b.norm", "c", "c.act")
    ]
    grouped = group_rows(Report("diff", "m", columns, rows), 1).rows
    assert [row.get("note") for row in grouped] == [None, "norm: eps 1 → 2", "beyond in norm; norm: eps 1 → 2", None]
