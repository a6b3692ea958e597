"""Gradients by tensor hooks and by full backward hooks."""

from __future__ import annotations

from typing import Any, Literal

from support import assert_stats, untouched
from torch import nn

from hookcli import capture
from hookcli.probes.grads import GradsProbe
from hookcli.table import Report, Row

Of = Literal["outputs", "inputs"]


Key = tuple[str, int, int, str]


def both(model: nn.Module, x: Any, of: Of, **settings: Any) -> tuple[Report, Report]:
    tensor = capture(model, x, [GradsProbe(of)], **settings)[0]
    with untouched(model):
        return tensor, capture(model, x, [GradsProbe(of, "module")], **settings)[0]


def by_key(report: Report) -> dict[Key, Row]:
    rows = {(row.fqn, row["call"], row["pass"], row["path"]): row for row in report.rows}
    assert len(rows) == len(report.rows)
    return rows


def assert_same(tensor: Report, module: Report, rel: float = 1e-5, differing: set[Key] | None = None) -> int:
    """Equal where both have a row; a row that one has alone stands in the other's `skipped`."""
    a, b = by_key(tensor), by_key(module)
    for key in a.keys() & b.keys() - (differing or set()):
        first, second = a[key].stats, b[key].stats
        assert first is not None and second is not None
        assert_stats(second, first, rel)
        assert (a[key]["type"], a[key]["shape"], a[key]["dtype"]) == (b[key]["type"], b[key]["shape"], b[key]["dtype"])
    for rows, others, other in ((a, b, module), (b, a, tensor)):
        said = {(item.fqn, item.path) for item in other.skipped}
        for fqn, _, _, path in rows.keys() - others.keys():
            assert (fqn, path) in said or (fqn, "") in said, (fqn, path)
    return len(a.keys() & b.keys())
