"""Norms of parameter groups on ranks whose gradients are summands: those of the gradients are unknown, no others."""

from __future__ import annotations

import math

from hookcli.record.file.ranks.merged_norms import merge_groups
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Report, Row
from hookcli.table.columns.layouts import GRADS
from hookcli.table.columns.recorded import NORMS_OF_GROUP


def test_norms_of_gradients_that_are_summands_are_unknown() -> None:
    norms = {"unclipped_grad": 3.0, "param_grad": 2.0, "weight": 4.0, "update": 0.5}
    groups = {
        rank: Report("optimizer", "net", NORMS_OF_GROUP, [Row({"optimizer": "SGD", **norms, "param_grad": 2.0 + rank})])
        for rank in (0, 1)
    }
    grads = Report("grads", "net", GRADS, [Row({"fqn": "weight", "kind": "parameter", "partial": True})])
    steps = {rank: RecordedStep("net", "train", 0, [grads]) for rank in (0, 1)}
    merged = merge_groups(groups, steps, {})
    [row] = merged.rows
    assert (row["unclipped_grad"], row["param_grad"]) == (None, None)
    assert (row["weight"], row["update"], row["ratio"]) == (4.0, 0.5, 0.125)
    assert ["summands" in item.reason for item in merged.skipped] == [True] and math.isclose(row["ratio"], 0.5 / 4)
