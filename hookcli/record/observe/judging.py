"""A step of a training under hookcli's checks, as far as one step can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hookcli.checks.base import Check, Measurements
from hookcli.checks.judgement import judge
from hookcli.checks.leftover_hooks import HooksLeft
from hookcli.checks.selection import choose
from hookcli.report import Report, Row

_MEASURED = {"inventory", "activations", "grads"}


@cache
def checks() -> Sequence[Check]:
    """Those that need no run of their own, at their default thresholds. A script's hooks are there on purpose."""
    chosen = choose(ignore=[HooksLeft.id])
    return [check for check in chosen if check.needs and _MEASURED.issuperset(check.needs)]


def judged(name: str, reports: Mapping[str, Report], meta: Mapping[str, Any]) -> Report:
    """The verdict on what probes saw in a step; `reports` by the probe's name, "inventory" among them."""
    grads = reports.get("grads")
    measured = Measurements(
        inventory=reports["inventory"],
        activations=reports.get("activations"),
        grads=replace(grads, rows=_in_order_of_arrival(grads)) if grads else None,
        dtype=str(meta.get("dtype", "float32")),
        missing=dict.fromkeys(("activations", "grads"), "--probe leaves them out"),
    )
    return judge(checks(), measured).report(name, {**meta, "modules": reports["inventory"].totals["modules"]})


def _in_order_of_arrival(grads: Report) -> list[Row]:
    """Gradients of parameters, those of the last modules first: as gradients of what modules return arrived.

    They were read all together, before the optimizer's step, so that their own order is not known.
    """
    arrived = {row.fqn: number for number, row in enumerate(grads.rows) if row["kind"] == "output"}
    rows = [row for row in grads.rows[::-1] if row["kind"] == "parameter"]
    return sorted(rows, key=lambda row: arrived.get(row.fqn.rpartition(".")[0], len(arrived)))
