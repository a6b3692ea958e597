"""Judges one training step by hookcli's checks, as far as a single step allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from hookcli.checks.base import Check
from hookcli.checks.judgement import judge
from hookcli.checks.leftover_hooks import HooksLeft
from hookcli.checks.measurements import Measurements
from hookcli.checks.selection import choose
from hookcli.table import Report
from hookcli.table.meta import Meta

_MEASURED = {"inventory", "activations", "grads"}


@cache
def _checks() -> Sequence[Check]:
    """The checks that need no extra run, at their default thresholds. A script's own hooks are there on purpose."""
    chosen = choose(ignore=[HooksLeft.id])
    return [check for check in chosen if check.needs and _MEASURED.issuperset(check.needs)]


def check_step(name: str, reports: Mapping[str, Report], meta: Meta) -> Report:
    """The verdict on a step; `reports` by the name of their probe, "inventory" among them."""
    grads = reports.get("grads")
    if grads:
        # Parameters' gradients are all read at once, before the optimizer's step. Put them in backward order: that in
        # which the gradients of their modules' outputs arrived.
        arrived = {row.fqn: number for number, row in enumerate(grads.rows) if row["kind"] == "output"}
        rows = [row for row in grads.rows[::-1] if row["kind"] == "parameter"]
        rows.sort(key=lambda row: arrived.get(row.fqn.rpartition(".")[0], len(arrived)))
        grads = replace(grads, rows=rows)
    missing = dict.fromkeys(("activations", "grads"), "--probe leaves them out")
    if not meta.get("complete", True):  # perhaps before the backward pass
        grads, missing["grads"] = None, "the step was not finished"
    measured = Measurements(
        inventory=reports["inventory"],
        activations=reports.get("activations"),
        grads=grads,
        dtype=meta.get("dtype", "float32"),
        missing=missing,
    )
    return judge(_checks(), measured).report(name, meta, modules=reports["inventory"].totals["modules"])
