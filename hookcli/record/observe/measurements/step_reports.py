"""Makes the probes of one step, merges the calls in their reports, and runs the checks that a single step allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from hookcli import registry
from hookcli.checks.base import Check
from hookcli.checks.causes import CAUSES, first_causes
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.hooks.operators.calls import LOSS
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.probes.inventory import InventoryProbe
from hookcli.record.observe.judged_steps import JudgedSteps
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.table import Column, Report, Row, TensorStats, columns_named
from hookcli.table.columns import place_of
from hookcli.table.marks import remark_of
from hookcli.table.merge import merged_values, ruled, rules_of
from hookcli.table.meta import Meta
from hookcli.table.training import TrainingCourse


def step_probes(plan: RecordingPlan, *, training: bool) -> list[Probe]:
    """The probes that the session's hooks feed; the first one takes an inventory before the hooks of the others.

    Unless the run is checked, a brief inventory is enough, for the checks of causes.
    """
    judged = plan.check or training
    probes: list[Probe] = [InventoryProbe(backward=training, brief=not plan.check)] if judged else []
    for name in plan.probes:
        if name == "grads" and training:
            probes.append(GradsProbe(of="outputs", hist=plan.hist))
        elif name not in ("grads", "updates", "optimizer", "time"):
            hist = {"hist": True} if plan.hist and name in ("activations", "inputs") else {}  # not in plugins
            probe = registry.load("probes", name)(**hist).in_callers_run()
            probes += [probe] if training or not probe.needs_backward else []
    return probes


_MEASURED = frozenset(("inventory", "activations", "grads", "output_grads", "training"))


@cache
def _checks(probes: frozenset[str]) -> Sequence[Check]:
    """The checks that need no run besides these probes', at their default thresholds.

    A script's own hooks are there on purpose.
    """
    from hookcli.checks.leftover_hooks import HooksLeft  # programs that are not judged need not import these
    from hookcli.checks.selection import asked_with, choose

    asked = [name for probe in (*probes, "training") for name in asked_with(probe)]
    chosen = choose(ignore=[HooksLeft.id], asked=asked)
    return [check for check in chosen if check.needs and (_MEASURED | probes).issuperset(check.needs)]


def measured_in_step(
    reports: Mapping[str, Report], meta: Meta, unread: str, course: TrainingCourse, loss: float | None
) -> Measurements:
    """Collect what the checks read from a step. `reports` are by the name of their probe, "inventory" among them.

    `unread` is the reason why no gradient of a parameter was read, if so; `course`, how the model's training has gone;
    `loss`, the step's, if it is known.
    """
    if activations := reports.get("activations"):  # of the model: what a loss function computes is not judged
        rows = [row for row in activations.rows if not row.fqn.startswith(LOSS)]
        reports = {**reports, "activations": replace(activations, rows=rows)}
    grads = outputs = reports.get("grads")
    if grads:
        # Parameters' gradients are all read at once, before the optimizer's step. Put them in backward order: that in
        # which the gradients of their modules' outputs arrived.
        arrived = {row.fqn: number for number, row in enumerate(grads.rows) if row["kind"] == "output"}
        outputs = outputs if arrived or not unread else None
        rows = [row for row in grads.rows[::-1] if row["kind"] == "parameter"]
        rows.sort(key=lambda row: arrived.get(row.fqn.rpartition(".")[0], len(arrived)))
        grads = replace(grads, rows=rows)
    missing = dict.fromkeys(("activations", "grads"), "--probe leaves them out")
    if unread:
        grads, missing["grads"] = None, unread
    return Measurements(
        inventory=reports["inventory"],
        activations=reports.get("activations"),
        grads=grads,
        output_grads=outputs,
        training=course if course.tells else None,
        step=meta["step"],
        loss=loss,
        dtype=meta.get("dtype", "float32"),
        used_by_loss=course.used_by_loss,
        missing=missing | dict.fromkeys(("training", "output_grads"), missing["grads"]),
        probes={probe: report for probe, report in reports.items() if probe not in _MEASURED},
    )


def check_step(name: str, measured: Measurements, meta: Meta, steps: JudgedSteps, *, checked: bool) -> Report | None:
    """The verdict on the `steps` of a model up to this one.

    Unless the run is `checked`, it is that of the checks of causes alone, and None if they found none.
    """
    steps.begin(meta["step"], complete=meta["complete"])
    checks = _checks(frozenset(measured.probes)) if checked else CAUSES
    judged = judge(checks, measured, so_far=steps)
    modules = measured.inventory.totals["modules"] if measured.inventory else 0
    verdict = judged.report(name, {**meta, "found_at": steps.found_at}, modules=modules, steps=steps.steps)
    return verdict if checked or first_causes(verdict.findings) else None


(_CALLS,) = columns_named("calls")


def merge_calls(report: Report, name: Callable[[str], str]) -> Report:
    """Merge the rows of all calls exactly, under `name`'s fqns; of a wrapper and its module, the module's stay.

    A row with statistics has the first call's shape, and whatever else does not merge; any other, what all calls share.
    """
    calls: dict[tuple[object, ...], list[Row]] = {}
    for row in report.rows:
        calls.setdefault(place_of({**row.values, "call": None, "pass": None}), []).append(row)
    named: dict[tuple[object, ...], list[Row]] = {}
    for (fqn, *rest), rows in calls.items():
        key = (name(str(fqn)), *rest)
        if key not in named or len(named[key][0].fqn) < len(str(fqn)):
            named[key] = rows
    rules = rules_of(report.columns)
    merged = [_merged(rows, report.columns, rules, name(rows[0].fqn)) for rows in named.values()]
    seen = {row.fqn for row in report.rows}
    names = {name(fqn) for fqn in seen}
    skipped = [replace(s, fqn=name(s.fqn)) for s in report.skipped if s.fqn in seen or name(s.fqn) not in names]
    columns = [_CALLS if column.name == "call" else column for column in report.columns if column.name != "pass"]
    return replace(report, columns=columns, rows=merged, totals={}, skipped=list(dict.fromkeys(skipped)))


def _merged(rows: Sequence[Row], columns: Sequence[Column], rules: Sequence[Column], fqn: str) -> Row:
    """The rows of all calls of a module as one."""
    values = dict(rows[0].values)
    if rows[1:]:
        values = values | ruled(rows, rules) if rows[0].stats else merged_values(rows, columns)
    values = {key: value for key, value in values.items() if key not in ("call", "pass", "scores")}
    if remark := remark_of(rows):
        values["scores"] = remark
    values |= {"fqn": fqn, "calls": sum(row.get("calls") or 1 for row in rows)}
    return Row(values, TensorStats.merge(row.stats for row in rows if row.stats) if rows[0].stats else None)
