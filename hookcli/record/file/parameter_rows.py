"""The parameters of a recorded step: the gradient and the update of each in one row."""

from __future__ import annotations

from collections.abc import Iterable

from hookcli.table import Kind, Report, Row
from hookcli.table.columns.recorded import UPDATES

UPDATE_FIGURES = [column.name for column in UPDATES if column.kind == Kind.FIGURE]


def parameter_rows(reports: Iterable[Report]) -> dict[str, Row]:
    """A row per parameter, by its name, from the reports "grads" and "updates"; no elements have no `param_grad`."""
    rows: dict[str, dict[str, object]] = {}
    for report in reports:
        for row in report.rows:
            figures: dict[str, object] = {}
            if report.probe == "updates":
                figures = {name: row.get(name) for name in UPDATE_FIGURES}
            elif report.probe == "grads" and row.get("kind") == "parameter":
                figures = {"param_grad": row["l2"] if row["numel"] else None}
                figures |= {f"grad_{count}": row[count] for count in ("nan", "inf")}
            if figures:
                rows.setdefault(row.fqn, {"fqn": row.fqn}).update(figures)
    return {fqn: Row(values) for fqn, values in rows.items()}
